//! The directory that an archive is unpacked into before anybody sees it.

use std::{
    fs::File,
    io::{Error as IoError, Write},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, fchmod, linkat, mkdirat, openat, openat2, symlinkat},
    io::Errno,
};
use uuid::Uuid;
use wsm_core::Result;
use wsm_host::remove_tree;

use super::system;

/// Within the stage: what is going to be moved into place.
pub(super) const TREE: &str = "tree";
/// Of a mode, nobody keeps more.
const KEPT: u32 = 0o777;

/// A directory of its own, which goes away with what is left in it.
#[derive(Debug)]
pub(super) struct Stage {
    parent: OwnedFd,
    name: String,
    pub(super) directory: OwnedFd,
    tree: OwnedFd,
    /// The directory that was written to last, which mostly is the next one too.
    last: Option<(String, OwnedFd)>,
}

impl Stage {
    pub(super) fn new(parent: OwnedFd) -> Result<Self> {
        let name = format!(".wsm-unpack-{}", Uuid::new_v4().simple());
        let make = || -> Result<(OwnedFd, OwnedFd), Errno> {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = openat(&parent, name.as_str(), flags, Mode::empty())?;
            mkdirat(&directory, TREE, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
            let tree = openat(&directory, TREE, flags, Mode::empty())?;
            Ok((directory, tree))
        };
        let failed = |errno: Errno| system("no directory to unpack into can be made", errno.into());
        mkdirat(&parent, name.as_str(), Mode::RWXU).map_err(failed)?;
        match make() {
            Ok((directory, tree)) => Ok(Self { parent, name, directory, tree, last: None }),
            Err(errno) => {
                let _ = remove_tree(&parent, name.as_str());
                Err(failed(errno))
            }
        }
    }

    /// Makes a directory and its parents. One that is there gets the mode.
    pub(super) fn make_dir(&mut self, path: &str, mode: Option<u32>) -> Result<()> {
        let make = || -> Result<(), Errno> {
            let directory = self.ensure(path)?;
            if let Some(mode) = mode {
                // What is opened as a mere path has no mode that can be changed.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let directory = openat(&directory, ".", flags, Mode::empty())?;
                // Its owner can always clear it away.
                fchmod(directory, Mode::from_raw_mode(mode & KEPT | 0o700))?;
            }
            Ok(())
        };
        make().map_err(|errno| unmade(path, errno))
    }

    /// Makes an empty file, and its parents.
    pub(super) fn create(&mut self, path: &str, mode: Option<u32>) -> Result<File> {
        let mut make = || -> Result<File, Errno> {
            let (parent, name) = self.parent(path)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let own = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
            let file = openat(parent, name, flags, own)?;
            if let Some(mode) = mode {
                fchmod(&file, Mode::from_raw_mode(mode & KEPT | 0o600))?;
            }
            Ok(file.into())
        };
        make().map_err(|errno| unmade(path, errno))
    }

    pub(super) fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        let mut make = || -> Result<(), Errno> {
            let (parent, name) = self.parent(path)?;
            symlinkat(target, parent, name)
        };
        make().map_err(|errno| unmade(path, errno))
    }

    /// Makes another name of a file.
    pub(super) fn hard_link(&mut self, path: &str, file: &str) -> Result<()> {
        let mut make = || -> Result<(), Errno> {
            let (from, from_name) = self.parent(file)?;
            let from = from.try_clone().map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::MFILE))?;
            let (to, to_name) = self.parent(path)?;
            linkat(&from, from_name, to, to_name, AtFlags::empty())
        };
        make().map_err(|errno| unmade(path, errno))
    }

    /// The directory that `path` is in, made if need be, and the name there.
    pub(super) fn parent<'p>(&mut self, path: &'p str) -> Result<(&OwnedFd, &'p str), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            self.last = Some((parent.to_owned(), self.ensure(parent)?));
        }
        match &self.last {
            Some((_, directory)) => Ok((directory, name)),
            None => Err(Errno::NOENT),
        }
    }

    /// Forgets what was opened, which may lie elsewhere now.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// Opens a directory, and makes it and its parents.
    fn ensure(&self, path: &str) -> Result<OwnedFd, Errno> {
        match open_below(&self.tree, path) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let mut parent = open_below(&self.tree, "")?;
        let mut start = 0;
        for end in ends {
            let name = &path[start..end];
            start = end + 1;
            match mkdirat(&parent, name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            parent = open_below(&parent, name)?;
        }
        Ok(parent)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(errno) = remove_tree(&self.parent, self.name.as_str()) {
            tracing::warn!(name = self.name, %errno, "what was unpacked for nothing could not be removed");
        }
    }
}

/// Opens a directory below another one, on a way without links.
pub(super) fn open_below(directory: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(directory, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Appends to a file.
pub(super) fn write(file: &mut File, bytes: &[u8], path: &str) -> Result<()> {
    file.write_all(bytes).map_err(|cause| system(format!("the member `{path}` can not be written"), cause))
}

fn unmade(path: &str, errno: Errno) -> wsm_core::Error {
    system(format!("the member `{path}` can not be made"), IoError::from(errno))
}
