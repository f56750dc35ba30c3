//! Tar archives, as they come.

use std::io::{Read, sink};

use ::tar::{Archive, EntryType, PaxExtensions};
use wsm_core::Result;

use super::{Job, bad, budget::Budget};
use crate::member::{Kind, hostile};

/// What is needed to see that it is one.
pub(super) const FIRST_BYTES: u64 = 512;

/// How long a path may be told before it is refused.
const LONGEST_NAME: u64 = 8 << 10;
/// How long a record of extensions may be.
const LONGEST_EXTENSIONS: u64 = 1 << 20;

/// What headers say about the member that comes after them.
#[derive(Debug, Default)]
struct Pending {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Unpacks into the stage. Members are taken as the headers have them, so that nothing is read into memory unasked.
pub(super) fn unpack(reader: impl Read, job: &mut Job) -> Result<()> {
    let budget = job.budget.clone();
    let unreadable = |cause| budget.failure("the tar archive can not be read", cause);
    let mut archive = Archive::new(budget.counted(reader));
    let mut pending = Pending::default();
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let mut entry = entry.map_err(unreadable)?;
        budget.check()?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => {
                set(&mut pending.name, c_string(small(&mut entry, LONGEST_NAME, &budget)?))?;
                continue;
            }
            EntryType::GNULongLink => {
                set(&mut pending.link, c_string(small(&mut entry, LONGEST_NAME, &budget)?))?;
                continue;
            }
            EntryType::XHeader => {
                extend(&mut pending, &small(&mut entry, LONGEST_EXTENSIONS, &budget)?)?;
                continue;
            }
            EntryType::XGlobalHeader => {
                let mut global = Pending::default();
                extend(&mut global, &small(&mut entry, LONGEST_EXTENSIONS, &budget)?)?;
                if global.name.is_some() || global.link.is_some() || global.size.is_some() {
                    return Err(hostile("the archive gives one path or size to all members"));
                }
                continue;
            }
            _ => {}
        }
        let Pending { name, link, size } = std::mem::take(&mut pending);
        let name = name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let target = link.or_else(|| entry.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default();
        let length = entry.size();
        if size.is_some_and(|size| size != length) {
            return Err(hostile(format!("the member {} has two sizes", shown(&name))));
        }
        let mode = entry.header().mode().ok();
        // Of old, a directory was a file whose name ends in a slash.
        let is_old_directory = matches!(kind, EntryType::Regular) && name.ends_with(b"/");
        match kind {
            EntryType::Directory => make_dir(job, &name, mode)?,
            _ if is_old_directory => make_dir(job, &name, mode)?,
            EntryType::Regular | EntryType::Continuous => {
                budget.check_more(length)?;
                if let Some(path) = job.members.admit(&name, Kind::File)? {
                    job.write_file(&path, mode, &mut entry)?;
                }
            }
            EntryType::Symlink => {
                if let Some(path) = job.members.admit(&name, Kind::Symlink)? {
                    job.make_symlink(&path, &target)?;
                }
            }
            EntryType::Link if length == 0 => {
                let file = job.members.file(&target)?;
                if let Some(path) = job.members.admit(&name, Kind::File)? {
                    job.stage.hard_link(&path, &file)?;
                    job.unpacked.links += 1;
                }
            }
            other => {
                let what = match other {
                    EntryType::Char | EntryType::Block => "a device",
                    EntryType::Fifo => "a pipe",
                    EntryType::GNUSparse => "a file with holes, which can not be unpacked",
                    _ => "neither a file nor a directory nor a link",
                };
                return Err(hostile(format!("the member {} is {what}", shown(&name))));
            }
        }
    }
    if pending.name.is_some() || pending.link.is_some() || pending.size.is_some() {
        return Err(bad("the tar archive ends within a member"));
    }
    // What comes after the end is padding, or the checksum of the compression.
    std::io::copy(&mut archive.into_inner(), &mut sink()).map_err(unreadable)?;
    Ok(())
}

fn make_dir(job: &mut Job, name: &[u8], mode: Option<u32>) -> Result<()> {
    match job.members.admit(name, Kind::Directory)? {
        Some(path) => job.make_dir(&path, mode),
        None => Ok(()),
    }
}

/// Reads what may not be long.
fn small(entry: &mut impl Read, most: u64, budget: &Budget) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = entry.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|cause| budget.failure("a header of the tar archive can not be read", cause))?;
    if bytes.len() as u64 > most {
        return Err(hostile(format!("a header of the tar archive is longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Without the NUL at its end. One elsewhere is for the check of names.
fn c_string(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

fn extend(pending: &mut Pending, extensions: &[u8]) -> Result<()> {
    for extension in PaxExtensions::new(extensions) {
        let extension = extension.map_err(|cause| bad("a header of the tar archive is damaged").with_source(cause))?;
        match extension.key_bytes() {
            b"path" => set(&mut pending.name, extension.value_bytes().to_vec())?,
            b"linkpath" => set(&mut pending.link, extension.value_bytes().to_vec())?,
            b"size" => {
                let size = extension.value().ok().and_then(|size| size.parse().ok());
                set(&mut pending.size, size.ok_or_else(|| bad("a size in the tar archive is no number"))?)?;
            }
            key if key.starts_with(b"GNU.sparse") => {
                return Err(hostile("the archive has a file with holes, which can not be unpacked"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Readers do not agree on which one of two counts.
fn set<T>(slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(hostile("the archive says one thing twice about the same member")),
    }
}

fn shown(name: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&name[..name.len().min(200)]))
}
