//! Writing a file as a whole: beside its target first, then moved into place.

use std::{
    fs::File,
    io::Write,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{
        Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, access, fchmod, fstat, linkat, openat, renameat,
        renameat_with, statat, unlinkat,
    },
    io::Errno,
};
use wsm_core::{Metadata, Result, WriteOptions};

use super::{Root, metadata, resolve::Target};
use crate::{basedir::unique_name, error};

/// How many bytes of a body are gathered before they are written.
pub(crate) const FLUSH_AT: usize = 256 << 10;

/// Where a file without a name can be got hold of. Not there in an empty root file system.
const DESCRIPTORS: &str = "/proc/self/fd";

/// A file that is being written and has no name yet, or one that nobody looks for. Dropping it leaves no trace.
#[derive(Debug)]
pub(crate) struct Draft {
    path: String,
    name: String,
    parent: OwnedFd,
    file: File,
    /// The name it has until it is in place; none for a file without a name.
    temporary: Option<String>,
    overwrite: bool,
    /// Whether something was at the target when the draft was begun.
    replaces: bool,
}

impl Draft {
    /// Begins to write `path`. What can be refused is refused here, before the body is read.
    pub(crate) fn begin(root: &Root, path: &str, options: &WriteOptions) -> Result<Self> {
        let &WriteOptions { mode, create_parents, overwrite, .. } = options;
        if path.ends_with('/') {
            // Perhaps it is not even a path of the workspace.
            let outside = root.open(path, OFlags::PATH).err().filter(|error| error.code() == error::PATH_OUTSIDE);
            return Err(outside.unwrap_or_else(|| error::is_a_directory(path)));
        }
        let Some(Target { parent, name }) = root.target(path, create_parents)? else {
            return Err(error::is_a_directory(path));
        };
        let begin = || -> Result<Self, Errno> {
            let existing = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            };
            let existing_kind = existing.map(|stat| FileType::from_raw_mode(stat.st_mode));
            if existing_kind == Some(FileType::Directory) {
                return Err(Errno::ISDIR);
            }
            if existing.is_some() && !overwrite {
                return Err(Errno::EXIST);
            }
            let kept_mode = existing.filter(|_| existing_kind == Some(FileType::RegularFile)).map(|stat| stat.st_mode);
            let (file, temporary) = create(&parent)?;
            let draft = Self {
                path: path.to_owned(),
                name: name.to_owned(),
                parent: parent.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?,
                file,
                temporary,
                overwrite,
                replaces: existing.is_some(),
            };
            if let Some(mode) = mode.or(kept_mode) {
                fchmod(&draft.file, Mode::from_raw_mode(mode & 0o7777))?;
            }
            Ok(draft)
        };
        begin().map_err(|errno| error::file(path, errno))
    }

    /// Appends to the file.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|cause| match Errno::from_io_error(&cause) {
            Some(errno) => error::file(&self.path, errno),
            None => error::io("the file could not be written", cause),
        })
    }

    /// Puts the file in its place, at once and as a whole.
    pub(crate) fn commit(mut self) -> Result<Metadata> {
        self.put_in_place()
            .and_then(|()| fstat(&self.file))
            .map(|stat| metadata(&stat))
            .map_err(|errno| error::file(&self.path, errno))
    }

    fn put_in_place(&mut self) -> Result<(), Errno> {
        if !self.overwrite || !self.replaces {
            match self.name_it(self.name.clone()) {
                Err(Errno::EXIST) if self.overwrite => {}
                named => {
                    // It has its final name, which is not for dropping.
                    self.temporary = self.temporary.take().filter(|_| named.is_err());
                    return named;
                }
            }
        }
        // No call replaces a file by one that has no name, so it gets one for a moment.
        if self.temporary.is_none() {
            self.name_it(temporary_name())?;
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.parent, temporary.as_str(), &self.parent, self.name.as_str())?;
            self.temporary = None;
        }
        Ok(())
    }

    /// Gives the file this name, unless that is taken.
    fn name_it(&mut self, name: String) -> Result<(), Errno> {
        match &self.temporary {
            Some(temporary) => {
                renameat_with(&self.parent, temporary.as_str(), &self.parent, name.as_str(), RenameFlags::NOREPLACE)?;
            }
            None => {
                let descriptor = format!("{DESCRIPTORS}/{}", self.file.as_fd().as_raw_fd());
                linkat(CWD, descriptor, &self.parent, name.as_str(), AtFlags::SYMLINK_FOLLOW)?;
            }
        }
        self.temporary = Some(name);
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // One call that hardly ever waits, and only where the file system knows no file without a name.
            let _ = unlinkat(&self.parent, temporary.as_str(), AtFlags::empty());
        }
    }
}

/// Creates an empty file in `parent`, without a name where the file system can, and where it can be given one later.
fn create(parent: &OwnedFd) -> Result<(File, Option<String>), Errno> {
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let nameless = match access(DESCRIPTORS, Access::EXISTS) {
        Ok(()) => openat(parent, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode),
        Err(_) => Err(Errno::OPNOTSUPP),
    };
    match nameless {
        Ok(file) => Ok((file.into(), None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            let name = temporary_name();
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok((openat(parent, name.as_str(), flags, mode)?.into(), Some(name)))
        }
        Err(errno) => Err(errno),
    }
}

fn temporary_name() -> String {
    format!(".wsm-{}.tmp", unique_name())
}
