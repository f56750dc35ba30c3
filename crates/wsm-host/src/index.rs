//! What is written down of each workspace: where it is, whose it is, how often its files were lost.
//!
//! A record is written before the directory that it names is made, and never changes its path: an id has one directory
//! for ever, whoever opens it later. Whoever changes the index holds [`Basedir::lock`](crate::basedir::Basedir::lock); reading
//! needs no lock, since a file of the index is only ever replaced as a whole.

mod place;
mod record;

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, fsync, openat, renameat, unlinkat},
    io::Errno,
};
use wsm_core::{Encoding, Error, ErrorKind, Result, WorkspaceId};

pub use place::{Settled, Wanted};
pub(crate) use place::{look, settle, sweep_trash, take_back, vacate};
pub use record::{Arrival, Record};

use crate::{
    basedir::{INDEX, TRASH, open_directory, unique_name},
    error,
};

const SUFFIX: &str = ".json";
/// Far more than a record needs.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// The files of the index.
#[derive(Debug)]
pub(crate) struct Index {
    directory: OwnedFd,
    trash: OwnedFd,
}

impl Index {
    /// # Errors
    ///
    /// `unavailable` when it is gone: without it nobody can say which workspaces exist.
    pub(crate) fn open(base: &OwnedFd) -> Result<Self> {
        let open = |path: &str| {
            open_directory(base, path).map_err(|errno| {
                let message = format!("`{path}` can not be opened in the basedir: restore it");
                Error::new(ErrorKind::Unavailable, message).with_source(errno)
            })
        };
        Ok(Self { directory: open(INDEX)?, trash: open(TRASH)? })
    }

    /// The record of an id, or none when there definitely is none.
    ///
    /// # Errors
    ///
    /// `backend` with code `index_damaged`, naming the file.
    pub(crate) fn read(&self, id: &WorkspaceId) -> Result<Option<Record>> {
        let name = file_name(id);
        let Some(record) = self.read_file(&name)? else { return Ok(None) };
        if record.id != *id {
            return Err(damaged(&name, format!("it is about `{}`", record.id)));
        }
        Ok(Some(record))
    }

    fn read_file(&self, name: &str) -> Result<Option<Record>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(damaged(name, errno)),
        };
        let mut text = String::new();
        file.take(MAX_RECORD_BYTES).read_to_string(&mut text).map_err(|cause| damaged(name, cause))?;
        Record::parse(&text).map(Some).map_err(|problem| damaged(name, problem))
    }

    /// Writes a record so that it is there whole or not at all, also when the power fails.
    pub(crate) fn write(&self, record: &Record) -> Result<()> {
        self.replace(&self.directory, &file_name(&record.id), record.to_text()?.as_bytes())
            .map_err(|cause| error::io("the index could not be written", cause))
    }

    /// Removes the record of an id, if there is one.
    pub(crate) fn remove(&self, id: &WorkspaceId) -> Result<()> {
        match unlinkat(&self.directory, file_name(id).as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(error::system("the index could not be changed", errno)),
        }
    }

    /// The names of all files of the index.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let names = || -> Result<Vec<String>, Errno> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(&self.directory, ".", flags, Mode::empty())?;
            let mut names = Vec::new();
            for entry in Dir::new(directory)? {
                if let Ok(name) = entry?.file_name().to_str()
                    && name.ends_with(SUFFIX)
                {
                    names.push(name.to_owned());
                }
            }
            Ok(names)
        };
        names().map_err(|errno| error::system("the index could not be listed", errno))
    }

    /// The record in a file of the index, or none when it was removed in the meantime.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub(crate) fn read_listed(&self, name: &str) -> Result<Option<Record>> {
        let Some(record) = self.read_file(name)? else { return Ok(None) };
        if file_name(&record.id) != name {
            return Err(damaged(name, format!("it is about `{}`", record.id)));
        }
        Ok(Some(record))
    }

    /// Replaces a small file of ours as a whole.
    fn replace(&self, directory: &OwnedFd, name: &str, content: &[u8]) -> std::io::Result<()> {
        // What a crash leaves half written is swept with the rest of the trash.
        let draft = unique_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.trash, draft.as_str(), flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| {
            renameat(&self.trash, draft.as_str(), directory, name)?;
            Ok(fsync(openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?)
        });
        if written.is_err() {
            // Already moved away when only the last step failed.
            let _ = unlinkat(&self.trash, draft.as_str(), AtFlags::empty());
        }
        written
    }
}

fn file_name(id: &WorkspaceId) -> String {
    Encoding::PATH_SEGMENT.with_prefix_of(SUFFIX.len()).encode(id.as_str()) + SUFFIX
}

/// A record that can not be read. It is never replaced by a fresh one: the files of somebody hang on it.
fn damaged(name: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message = format!(
        "the index file `{INDEX}/{name}` in the basedir is damaged: restore it, or remove it together with the \
         workspace's directory"
    );
    Error::new(ErrorKind::Backend, message).with_code("index_damaged").with_source(cause)
}
