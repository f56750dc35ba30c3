//! As whom sandboxes run: never as root, whose rights no sandbox takes away.
//!
//! A process with the kernel's user 0 may write below `/proc/sys`, and thereby run what it likes as root outside, whatever
//! namespaces it is in and whatever capabilities it has lost. So a service that runs as root gives each workspace a user of
//! its own, who also owns its files. Any other service can only use its own user.
//!
//! ```text
//! <basedir>/.wsm/uids/<number>     the id of the workspace that has this number
//! ```

use std::{
    ffi::{CStr, CString},
    fs,
    io::Write,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use blake2::{Blake2b, Digest, digest::consts::U8};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, openat, statat},
    io::Errno,
    process::geteuid,
};
use wsm_core::{Error, ErrorKind, Result, WorkspaceId};

use crate::config::UidRange;

const CLAIMS: &str = ".wsm/uids";
/// Entered by users that need not list it.
const ENTERABLE: Mode = Mode::from_raw_mode(0o711);

/// As whom the sandboxes of a backend run.
#[derive(Debug)]
pub(crate) enum Identity {
    /// As the user of this process.
    Own,
    /// Each as a user out of a range.
    Range {
        uids: UidRange,
        basedir: PathBuf,
        /// Where it is written down who has which.
        claims: PathBuf,
    },
}

impl Identity {
    /// Finds out which way it is, and makes the basedir enterable where other users are to work below it. Blocks.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `uids` when this process can not become one of them.
    pub(crate) fn prepare(basedir: &Path, uids: UidRange) -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self::Own);
        }
        check_mapped(uids)?;
        let claims = basedir.join(CLAIMS);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&claims);
        made.map_err(|cause| failed("the list of users could not be made").with_source(cause))?;
        make_enterable(basedir)?;
        Ok(Self::Range { uids, basedir: basedir.to_owned(), claims })
    }

    /// Who runs a try.
    pub(crate) fn any(&self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Range { uids, .. } => Some(uids.first),
        }
    }

    /// Makes a workspace's directory its user's, and gives the user; none for this process' own. A number of a workspace
    /// that does not exist any more is free. Blocks.
    ///
    /// # Errors
    ///
    /// `capacity` when all numbers are taken; what the system says of the files.
    pub(crate) fn settle(
        &self,
        id: &WorkspaceId,
        path: &Path,
        exists: impl Fn(&WorkspaceId) -> bool,
    ) -> Result<Option<u32>> {
        let Self::Range { uids, basedir, claims } = self else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| failed("the workspace's directory could not be opened").with_source(errno))?;
        let owner =
            fstat(&directory).map_err(|errno| failed("the workspace's owner is unknown").with_source(errno))?.st_uid;
        let is_settled = uids.contains(owner) && holder(claims, owner)?.as_ref() == Some(id);
        let uid = if is_settled || (uids.count == 1 && owner == uids.first) {
            owner
        } else {
            claim(*uids, claims, id, exists)?
        };
        if owner != uid {
            let problem = |errno| failed("files of the workspace could not be given to its user").with_source(errno);
            give(&directory, uid).map_err(problem)?;
        }
        let above = path.ancestors().skip(1).take_while(|directory| directory.starts_with(basedir));
        above.take_while(|directory| *directory != basedir.as_path()).try_for_each(make_enterable)?;
        Ok(Some(uid))
    }

    /// Whose a workspace's directory is; none where that is of no use, or not known. Blocks.
    pub(crate) fn owner(&self, path: &Path) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Range { uids, .. } => {
                fs::symlink_metadata(path).ok().map(|metadata| metadata.uid()).filter(|&uid| uids.contains(uid))
            }
        }
    }

    /// Gives a deleted workspace's number back. Blocks.
    pub(crate) fn release(&self, id: &WorkspaceId, uid: u32, exists: impl Fn(&WorkspaceId) -> bool) {
        let Self::Range { claims, .. } = self else { return };
        let Ok(_lock) = lock(claims) else { return };
        if exists(id) {
            // Another process has opened it anew, and it has its number again.
            return;
        }
        if let Ok(Some(holder)) = holder(claims, uid)
            && holder == *id
        {
            let _ = fs::remove_file(claims.join(uid.to_string()));
        }
    }
}

/// The numbers in the order in which a workspace tries to get one.
fn candidates(uids: UidRange, id: &WorkspaceId) -> impl Iterator<Item = u32> {
    let hash = u64::from_le_bytes(Blake2b::<U8>::digest(id.as_str().as_bytes()).into());
    let start = (hash % u64::from(uids.count)) as u32;
    (0..uids.count).map(move |step| uids.first + (start + step) % uids.count)
}

fn claim(uids: UidRange, claims: &Path, id: &WorkspaceId, exists: impl Fn(&WorkspaceId) -> bool) -> Result<u32> {
    if uids.count == 1 {
        return Ok(uids.first);
    }
    // What was found out of a number holds until it is taken.
    let _lock = lock(claims)?;
    for uid in candidates(uids, id) {
        match holder(claims, uid)? {
            Some(holder) if holder == *id => return Ok(uid),
            Some(holder) if exists(&holder) => {}
            _ => {
                write_claim(&claims.join(uid.to_string()), id)
                    .map_err(|cause| failed("a user for the workspace could not be claimed").with_source(cause))?;
                return Ok(uid);
            }
        }
    }
    let message = format!(
        "all {} users for workspaces are taken: raise `uids.count`, or destroy workspaces that nobody needs",
        uids.count
    );
    Err(Error::new(ErrorKind::Capacity, message).with_field("uids"))
}

fn lock(claims: &Path) -> Result<fs::File> {
    fs::File::open(claims)
        .and_then(|directory| directory.lock().map(|()| directory))
        .map_err(|cause| failed("the list of users could not be locked").with_source(cause))
}

fn write_claim(path: &Path, id: &WorkspaceId) -> std::io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(id.as_str().as_bytes())?;
    fs::rename(&draft, path)
}

/// Who has a number.
fn holder(claims: &Path, uid: u32) -> Result<Option<WorkspaceId>> {
    match fs::read_to_string(claims.join(uid.to_string())) {
        Ok(id) => Ok(WorkspaceId::new(id).ok()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(failed("who has a user could not be read").with_source(cause)),
    }
}

/// Gives a directory and everything in it to a user, without following any link. The directory itself comes last, so that
/// whoever looks at its owner knows whether all was given.
///
/// However deep it is, one directory is open at a time: the way back up is checked instead.
fn give(directory: &OwnedFd, uid: u32) -> Result<(), Errno> {
    let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |from: &OwnedFd, name: &CStr| openat(from, name, flags, Mode::empty());
    // Gives what is in a directory, up to the directories in it.
    let enter = |directory: &OwnedFd| -> Result<Entered, Errno> {
        let stat = fstat(directory)?;
        let mut within = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let file_type = match entry.file_type() {
                FileType::Unknown => {
                    FileType::from_raw_mode(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
                }
                known => known,
            };
            match file_type {
                _ if matches!(name.to_bytes(), b"." | b"..") => {}
                FileType::Directory => within.push(name.to_owned()),
                _ => chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?,
            }
        }
        Ok(Entered { place: (stat.st_dev, stat.st_ino), within })
    };
    let mut current = open(directory, c".")?;
    let mut path = vec![enter(&current)?];
    while let Some(entered) = path.last_mut() {
        if let Some(name) = entered.within.pop() {
            current = open(&current, &name)?;
            path.push(enter(&current)?);
            continue;
        }
        fchown(&current, user, group)?;
        path.pop();
        if let Some(above) = path.last() {
            current = open(&current, c"..")?;
            let stat = fstat(&current)?;
            if (stat.st_dev, stat.st_ino) != above.place {
                // Somebody moved it in the meantime, and what is above may be anything.
                return Err(Errno::BUSY);
            }
        }
    }
    Ok(())
}

/// A directory on the way down.
struct Entered {
    /// Its device and number.
    place: (u64, u64),
    /// The directories in it that are still to be given.
    within: Vec<CString>,
}

fn make_enterable(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let changed = openat(CWD, path, flags, Mode::empty()).and_then(|directory| {
        let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
        // What the operator allows beyond that stays.
        if mode.contains(ENTERABLE) {
            Ok(())
        } else {
            fchmod(&directory, (mode | ENTERABLE) & Mode::from_raw_mode(0o7777))
        }
    });
    changed.map_err(|errno| {
        let message = format!("{} could not be made enterable for the users of sandboxes", path.display());
        failed(&message).with_source(errno)
    })
}

/// In a user namespace, such as a rootless container's, not all numbers exist.
fn check_mapped(uids: UidRange) -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.trim().is_empty() || is_mapped(&map, uids) {
        return Ok(());
    }
    let UidRange { first, count } = uids;
    let message = format!(
        "`uids` are {count} from {first} on, which do not exist in this user namespace: give a range that is in \
         /proc/self/uid_map"
    );
    Err(Error::invalid("uids", message))
}

/// Whether one line of a map (inside, outside, count) holds the whole range.
fn is_mapped(map: &str, uids: UidRange) -> bool {
    let holds = |line: &str| -> Option<bool> {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (inside, _, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let (first, end) = (u64::from(uids.first), u64::from(uids.first) + u64::from(uids.count));
        Some(inside <= first && end <= inside + count)
    };
    map.lines().any(|line| holds(line) == Some(true))
}

fn failed(what: &str) -> Error {
    Error::new(ErrorKind::Backend, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> WorkspaceId {
        WorkspaceId::new(name).unwrap()
    }

    #[test]
    fn every_workspace_gets_a_number_of_its_own_and_keeps_it() {
        let claims = tempfile::tempdir().unwrap();
        let uids = UidRange { first: 5000, count: 4 };
        let get = |name: &str| claim(uids, claims.path(), &id(name), |holder| *holder != id("gone"));
        let mut given: Vec<u32> = ["a", "b", "c", "d"].iter().map(|name| get(name).unwrap()).collect();
        assert_eq!(get("b").unwrap(), given[1]);
        let error = get("e").unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Capacity, Some("uids")));
        let identity = Identity::Range { uids, basedir: PathBuf::new(), claims: claims.path().to_owned() };
        identity.release(&id("c"), given[1], |_| false);
        identity.release(&id("c"), given[2], |_| true);
        assert_eq!(get("c").unwrap(), given[2], "it was opened anew");
        identity.release(&id("c"), given[2], |_| false);
        assert_eq!(get("gone").unwrap(), given[2]);
        assert_eq!(get("e").unwrap(), given[2], "a number of a workspace that does not exist is free");
        given.sort_unstable();
        assert_eq!(given, [5000, 5001, 5002, 5003]);
    }

    #[test]
    fn a_range_of_one_is_shared() {
        let claims = tempfile::tempdir().unwrap();
        let uids = UidRange { first: 5000, count: 1 };
        assert_eq!(claim(uids, claims.path(), &id("a"), |_| true).unwrap(), 5000);
        assert_eq!(claim(uids, claims.path(), &id("b"), |_| true).unwrap(), 5000);
    }

    #[test]
    fn a_tree_of_any_depth_is_given() {
        let scratch = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, scratch.path(), flags, Mode::empty()).unwrap();
        let mut inner = top.try_clone().unwrap();
        for _ in 0..6_000 {
            rustix::fs::mkdirat(&inner, "deeper", Mode::RWXU).unwrap();
            inner = openat(&inner, "deeper", flags, Mode::empty()).unwrap();
        }
        std::os::unix::fs::symlink("/", scratch.path().join("link")).unwrap();
        // An ordinary user can only give to itself.
        let uid = if geteuid().is_root() { 5000 } else { geteuid().as_raw() };
        give(&top, uid).unwrap();
        for stat in [fstat(&top), fstat(&inner), statat(&top, "link", AtFlags::SYMLINK_NOFOLLOW)] {
            assert_eq!(stat.unwrap().st_uid, uid);
        }
        wsm_host::remove_tree(&top, c"deeper").unwrap();
    }

    #[test]
    fn a_range_must_exist_in_the_user_namespace() {
        let uids = UidRange { first: 100, count: 10 };
        assert!(is_mapped("         0          0 4294967295\n", uids));
        assert!(is_mapped("0 1000 1\n100 200000 10\n", uids));
        assert!(!is_mapped("0 1000 1\n1 100000 65536\n", UidRange { first: 65_530, count: 10 }));
        assert!(!is_mapped("0 1000 1\n", uids));
    }
}
