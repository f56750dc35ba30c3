//! Deletes a directory with all that it holds, however deep, without following a link.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, chmod, fstat, openat, renameat, statat, unlinkat},
    io::Errno,
    path::Arg,
};

use crate::basedir::unique_name;

/// How many directories are open at once. What lies deeper is moved up first.
const MAX_DEPTH: usize = 32;
/// How often a directory is emptied that is never empty: a round takes away 32 levels, or somebody fills it.
const MAX_ROUNDS: usize = 10_000;

/// Deletes what `name` in `parent` is. A name that is gone is fine.
///
/// Directories that may not be read or written are made so first, where they belong to us.
///
/// # Errors
///
/// What the kernel says; `ENOTEMPTY` when somebody keeps filling it.
pub fn remove_tree(parent: &OwnedFd, name: impl Arg + Copy) -> Result<(), Errno> {
    if !is_directory(parent, name)? {
        return fine_if_gone(unlinkat(parent, name, AtFlags::empty()));
    }
    let top = match open(parent, name) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    // What is moved up lands in the top directory, which is read again until nothing is left.
    for _ in 0..MAX_ROUNDS {
        empty(&top, &top, 1)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            result => return fine_if_gone(result),
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Deletes what is in `directory`, or moves it to `top`.
fn empty(directory: &OwnedFd, top: &OwnedFd, depth: usize) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => is_directory(directory, name)?,
            _ => false,
        };
        if !is_directory {
            fine_if_gone(unlinkat(directory, name, AtFlags::empty()))?;
        } else if depth >= MAX_DEPTH {
            fine_if_gone(renameat(directory, name, top, format!(".wsm-{}", unique_name()).as_str()))?;
        } else {
            match open(directory, name) {
                Ok(inner) => empty(&inner, top, depth + 1)?,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            }
            match unlinkat(directory, name, AtFlags::REMOVEDIR) {
                // Somebody put something into it: the next round sees it.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                result => fine_if_gone(result)?,
            }
        }
    }
    Ok(())
}

fn is_directory(parent: &OwnedFd, name: impl Arg) -> Result<bool, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory for reading, and makes sure that it can be emptied.
fn open(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    let mode = Mode::from_raw_mode(fstat(&handle)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // Through the descriptor, so that it is this directory and not what a link put in its place leads to.
        use std::os::fd::AsRawFd;
        chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), mode | Mode::RWXU)?;
    }
    openat(&handle, c".", OFlags::RDONLY | flags, Mode::empty())
}

fn fine_if_gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use rustix::fs::CWD;

    use super::*;

    fn scratch() -> (tempfile::TempDir, OwnedFd) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = openat(CWD, scratch.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        (scratch, directory)
    }

    #[test]
    fn what_a_link_points_to_stays() {
        let (scratch, directory) = scratch();
        fs::create_dir_all(scratch.path().join("keep/inner")).unwrap();
        fs::create_dir(scratch.path().join("tree")).unwrap();
        std::os::unix::fs::symlink("../keep", scratch.path().join("tree/link")).unwrap();
        remove_tree(&directory, c"tree").unwrap();
        assert!(scratch.path().join("keep/inner").exists());
        assert!(!scratch.path().join("tree").exists());
    }

    #[test]
    fn a_tree_deeper_than_the_limit_of_open_files_goes() {
        let (scratch, directory) = scratch();
        fs::create_dir(scratch.path().join("tree")).unwrap();
        let mut inner = openat(&directory, "tree", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..2_000 {
            rustix::fs::mkdirat(&inner, "deeper", Mode::RWXU).unwrap();
            inner = openat(&inner, "deeper", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        remove_tree(&directory, c"tree").unwrap();
        assert!(!scratch.path().join("tree").exists());
    }

    /// Says more when it is not run as root, for whom every directory is open.
    #[test]
    fn directories_that_may_not_be_read_or_written_go() {
        let (scratch, directory) = scratch();
        for (name, mode) in [("shut", 0o000), ("read-only", 0o555), ("write-only", 0o300)] {
            let path = scratch.path().join("tree").join(name);
            fs::create_dir_all(path.join("inner")).unwrap();
            fs::write(path.join("file"), "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        remove_tree(&directory, c"tree").unwrap();
        assert!(!scratch.path().join("tree").exists());
    }

    #[test]
    fn files_and_missing_names_are_fine() {
        let (scratch, directory) = scratch();
        fs::write(scratch.path().join("file"), "x").unwrap();
        remove_tree(&directory, c"file").unwrap();
        remove_tree(&directory, c"file").unwrap();
        assert!(!scratch.path().join("file").exists());
    }
}
