//! Keeps a second service off a store.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use wsm_core::{Error, ErrorKind, Result};

/// An exclusive lock on a file beside a store. The kernel gives it back when the process ends, however it ends.
#[derive(Debug)]
pub struct StoreLock {
    /// Held for its drop. The file itself stays, since removing it would let two processes lock two files of one name.
    file: File,
}

impl StoreLock {
    /// Takes the lock of a store.
    ///
    /// # Errors
    ///
    /// `conflict` with code `store_in_use` when another process holds it; `backend` when the file can not be made.
    pub fn acquire(store: &Path) -> Result<Self> {
        let path = lock_path(store);
        let mut lock = Self { file: open(&path)? };
        match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                lock.sign();
                Ok(lock)
            }
            Err(Errno::WOULDBLOCK) => {
                let holder = lock.holder().map(|pid| format!(" (process {pid})")).unwrap_or_default();
                let message = format!(
                    "another wsm{holder} is using the store `{}`: stop it, or give this one a store of its own",
                    store.display()
                );
                Err(Error::new(ErrorKind::Conflict, message).with_code("store_in_use").with_field("store"))
            }
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// Who holds the lock of a store, without taking it or making its file.
    ///
    /// # Errors
    ///
    /// `backend` when it can not be decided.
    pub fn holder_of(store: &Path) -> Result<Option<LockHolder>> {
        let path = lock_path(store);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&path, error)),
        };
        let mut lock = Self { file };
        // Given back at once with the file.
        match flock(&lock.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(Errno::WOULDBLOCK) => Ok(Some(LockHolder { pid: lock.holder() })),
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// Leaves word of who holds the lock, for the error that others get.
    fn sign(&mut self) {
        let pid = std::process::id().to_string();
        // Only a courtesy: the lock holds without it.
        let _ =
            self.file.set_len(0).and_then(|()| self.file.rewind()).and_then(|()| self.file.write_all(pid.as_bytes()));
    }

    fn holder(&mut self) -> Option<u32> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// A process that holds the lock of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockHolder {
    /// Its number, where it left word of it.
    pub pid: Option<u32>,
}

fn open(path: &Path) -> Result<File> {
    // Whoever can open it can hold it.
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    options.open(path).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Backend, format!("the lock file `{}` can not be used", path.display()))
        .with_field("store")
        .with_source(error)
}

/// Beside the file itself, whatever links lead to it: one store has one lock.
fn lock_path(store: &Path) -> PathBuf {
    let mut name = OsString::from(store.canonicalize().unwrap_or_else(|_| store.to_owned()));
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_the_store_and_the_third_gets_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("wsm.db");
        let first = StoreLock::acquire(&store).unwrap();
        let error = StoreLock::acquire(&store).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "store_in_use"));
        assert!(error.message().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(StoreLock::holder_of(&store).unwrap(), Some(LockHolder { pid: Some(std::process::id()) }));
        drop(first);
        assert_eq!(StoreLock::holder_of(&store).unwrap(), None);
        StoreLock::acquire(&store).unwrap();
    }

    #[test]
    fn a_store_behind_a_link_has_the_same_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (store, link) = (dir.path().join("wsm.db"), dir.path().join("link.db"));
        std::fs::write(&store, "").unwrap();
        std::os::unix::fs::symlink("wsm.db", &link).unwrap();
        let _first = StoreLock::acquire(&store).unwrap();
        assert_eq!(StoreLock::acquire(&link).unwrap_err().code(), "store_in_use");
        assert!(StoreLock::holder_of(&link).unwrap().is_some());
    }
}
