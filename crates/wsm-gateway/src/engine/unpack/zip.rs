//! Zip archives, whose directory is at their end.

use std::{
    fs::File,
    io::{Read, copy},
};

use ::zip::{
    CompressionMethod, ZipReadOptions,
    read::{Config, ZipFile},
    result::ZipError,
    unstable::read::ZipIterable,
};
use rustix::fs::{Mode, OFlags, openat};
use wsm_core::{Error, Result};

use super::{Job, bad, budget::Budget, system};
use crate::member::{Kind, hostile, too_large};

/// Within the stage: the archive itself.
const SPOOL: &str = "archive";
const LONGEST_TARGET: u64 = 4 << 10;

const FORMAT_BITS: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// Unpacks into the stage. All names are looked at before anything is inflated.
pub(super) fn unpack(reader: &mut impl Read, job: &mut Job) -> Result<()> {
    let budget = job.budget.clone();
    let mut spool = open(job, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
    spool_all(reader, &mut spool, &budget)?;
    let mut content = open(job, OFlags::RDONLY)?;
    let mut archive = ZipIterable::try_new(spool, Config::default())
        .map_err(|cause| unreadable(&budget, cause))?
        // What a reader of the local headers would see is what we see.
        .enforce_header_consistency(true);
    if archive.len() as u64 > budget.max_entries() {
        return Err(too_large(format!("the archive has more than {} members", budget.max_entries())));
    }

    let mut admitted = Vec::new();
    let mut declared: u64 = 0;
    for entry in archive.files().map_err(|cause| unreadable(&budget, cause))? {
        let entry = entry.map_err(|cause| unreadable(&budget, cause))?;
        budget.check()?;
        let raw = entry.name_raw();
        // Without a flag that says so, a name that is not UTF-8 is of an old code page.
        let decoded = if std::str::from_utf8(raw).is_ok() { None } else { entry.name().ok() };
        let name = decoded.as_ref().map_or(raw, |name| name.as_bytes());
        if entry.encrypted() {
            return Err(bad("the archive is encrypted"));
        }
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return Err(bad(format!("the archive is compressed with {}, which is not supported", entry.compression())));
        }
        declared = declared.saturating_add(entry.size());
        budget.check_more(declared)?;
        let mode = entry.unix_mode();
        let kind = match mode.map_or(0, |mode| mode & FORMAT_BITS) {
            _ if name.ends_with(b"/") => Kind::Directory,
            0 | REGULAR => Kind::File,
            DIRECTORY => Kind::Directory,
            SYMLINK => Kind::Symlink,
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(hostile(format!("the member {name:?} is neither a file nor a directory nor a link")));
            }
        };
        admitted.push((job.members.admit(name, kind)?, kind));
    }

    let entries = archive.files().map_err(|cause| unreadable(&budget, cause))?;
    for (entry, (path, kind)) in entries.zip(admitted) {
        let entry = entry.map_err(|cause| unreadable(&budget, cause))?;
        let (Some(path), mode) = (path, entry.unix_mode()) else { continue };
        if kind == Kind::Directory {
            job.make_dir(&path, mode)?;
            continue;
        }
        let member =
            entry.with_reader(&mut content, ZipReadOptions::default()).map_err(|cause| unreadable(&budget, cause))?;
        match kind {
            Kind::Symlink => {
                let target = target(member, &path, &budget)?;
                job.make_symlink(&path, &target)?;
            }
            _ => job.write_file(&path, mode, member)?,
        }
    }
    Ok(())
}

fn open(job: &Job, flags: OFlags) -> Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(&job.stage.directory, SPOOL, flags, Mode::RUSR | Mode::WUSR);
    opened.map(File::from).map_err(|errno| system("the archive can not be kept while it is unpacked", errno.into()))
}

fn spool_all(reader: &mut impl Read, spool: &mut File, budget: &Budget) -> Result<()> {
    let mut failed = None;
    let mut watched = Watched { reader, failed: &mut failed };
    match copy(&mut watched, spool) {
        Ok(_) => Ok(()),
        Err(cause) => Err(match failed {
            Some(cause) => budget.failure("the archive can not be read", cause),
            None => system("the archive can not be kept while it is unpacked", cause),
        }),
    }
}

/// Tells an error of reading from one of writing.
struct Watched<'a, R> {
    reader: &'a mut R,
    failed: &'a mut Option<std::io::Error>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.reader.read(buffer).map_err(|cause| {
            let copy = std::io::Error::new(cause.kind(), cause.to_string());
            *self.failed = Some(cause);
            copy
        })
    }
}

fn target(member: ZipFile<'_, File>, path: &str, budget: &Budget) -> Result<Vec<u8>> {
    let mut target = Vec::new();
    let read = member.take(LONGEST_TARGET + 1).read_to_end(&mut target);
    read.map_err(|cause| budget.failure(&format!("the link `{path}` can not be read"), cause))?;
    if target.len() as u64 > LONGEST_TARGET {
        return Err(hostile(format!("the link `{path}` leads to too long a path")));
    }
    Ok(target)
}

fn unreadable(budget: &Budget, cause: ZipError) -> Error {
    budget.failure("the zip archive can not be read", cause)
}
