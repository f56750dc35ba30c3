//! Says that a process has a workspace open, so that no other one ends it under its commands.
//!
//! ```text
//! <basedir>/.wsm/held/<hash of the id>     locked, shared, by every process that has it open
//! ```
//!
//! The system lets go of the lock of a process that is killed. So a container that runs while nobody holds its lock was
//! left by a crash.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use wsm_core::{Encoding, Error, ErrorKind, Result, WorkspaceId};
use wsm_host::blocking;

/// Where the locks are, in the basedir.
pub(crate) const HELD: &str = ".wsm/held";
/// How long another process may take to put a workspace away, in steps.
const STEPS: u32 = 6000;
const STEP: Duration = Duration::from_millis(20);

/// A share in a workspace. It ends with the drop.
#[derive(Debug)]
pub(crate) struct Hold {
    file: File,
    path: PathBuf,
}

impl Hold {
    /// Becomes one of those who hold a workspace, once nobody puts it away any more. Blocks.
    ///
    /// # Errors
    ///
    /// `timeout` when another process does not come to an end with it; what the system says of the file.
    pub(crate) fn share(basedir: &Path, id: &WorkspaceId) -> Result<Self> {
        let path = path(basedir, id);
        for _ in 0..STEPS {
            let file = open(&path).map_err(|cause| unusable(&path, cause))?;
            match file.try_lock_shared() {
                // Whoever put it away has removed the file, and others lock the next one.
                Ok(()) if file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) => {}
                Ok(()) => return Ok(Self { file, path }),
                Err(TryLockError::WouldBlock) => pause(),
                Err(TryLockError::Error(cause)) => return Err(unusable(&path, cause)),
            }
        }
        let message =
            "another process of this installation has been putting the workspace away for minutes: does it hang?";
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Has a workspace for itself, if nobody holds it just now. Nobody can then until the drop. Blocks.
    ///
    /// # Errors
    ///
    /// What the system says of the file.
    pub(crate) fn exclude(basedir: &Path, id: &WorkspaceId) -> Result<Option<Self>> {
        let path = path(basedir, id);
        let file = open(&path).map_err(|cause| unusable(&path, cause))?;
        match file.try_lock() {
            // Whoever put it away just now has removed the file.
            Ok(()) if file.metadata().is_ok_and(|metadata| metadata.nlink() == 0) => Ok(None),
            Ok(()) => Ok(Some(Self { file, path })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(unusable(&path, cause)),
        }
    }

    /// Is one of those who hold the workspace again, after whatever became of this hold. False when it was given up for ever.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// What the system says of the file.
    pub(crate) fn share_again(&self) -> Result<bool> {
        match self.file.try_lock_shared() {
            Ok(()) => Ok(self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(cause)) => Err(unusable(&self.path, cause)),
        }
    }

    /// Whether nobody else holds the workspace. If so nobody can until the drop, else it is no longer held here. Blocks.
    ///
    /// # Errors
    ///
    /// What the system says of the file.
    pub(crate) fn is_alone(&self) -> Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => {
                // Changing a lock gives up the one before; after a refusal this makes sure.
                self.file.unlock().map_err(|cause| unusable(&self.path, cause))?;
                Ok(false)
            }
            Err(TryLockError::Error(cause)) => Err(unusable(&self.path, cause)),
        }
    }

    /// Whether nobody else holds the workspace. It is held here as before in either case, or the call fails.
    ///
    /// # Errors
    ///
    /// `unavailable` when another process puts it away just now; what the system says of the file.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have let go of it.
    pub(crate) async fn is_only_one(hold: &Arc<Self>) -> Result<bool> {
        let hold = Arc::clone(hold);
        blocking(move || {
            let is_alone = hold.is_alone()?;
            match hold.share_again()? {
                true => Ok(is_alone),
                false => Err(Error::new(ErrorKind::Unavailable, "another process puts the workspace away: try again")),
            }
        })
        .await
    }

    /// Removes the file. Only for whoever [is alone](Self::is_alone). Blocks.
    pub(crate) fn forget(&self) {
        remove_if_same(&self.file, &self.path);
    }
}

/// Whether any process holds a workspace. Blocks.
///
/// # Errors
///
/// What the system says of the file.
pub(crate) fn is_held(basedir: &Path, id: &WorkspaceId) -> Result<bool> {
    is_locked(&path(basedir, id))
}

/// Removes the locks of processes that were killed, but for those of the workspaces whose hashes are given. Blocks.
pub(crate) fn sweep(basedir: &Path, keep: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(basedir.join(HELD)) else { return };
    for entry in entries.flatten().filter(|entry| !entry.file_name().to_str().is_some_and(&keep)) {
        let Ok(file) = OpenOptions::new().read(true).open(entry.path()) else { continue };
        // Held while it is removed: whoever waits for it sees that it is gone.
        if file.try_lock().is_ok() {
            remove_if_same(&file, &entry.path());
        }
    }
}

/// Forgets a workspace that was deleted, whoever holds it. Blocks.
pub(crate) fn remove(basedir: &Path, id: &WorkspaceId) {
    let _ = fs::remove_file(path(basedir, id));
}

/// Removes a file that is locked here, unless another one is in its place by now: others may hold that one.
fn remove_if_same(file: &File, path: &Path) {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    if let (Ok(ours), Ok(there)) = (file.metadata().map(identity), fs::symlink_metadata(path).map(identity))
        && ours == there
    {
        let _ = fs::remove_file(path);
    }
}

/// The file's name for a workspace.
pub(crate) fn name(id: &WorkspaceId) -> String {
    Encoding::hash(id.as_str())
}

fn path(basedir: &Path, id: &WorkspaceId) -> PathBuf {
    basedir.join(HELD).join(name(id))
}

fn open(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match (open(), path.parent()) {
        (Err(cause), Some(directory)) if cause.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(directory)?;
            open()
        }
        (opened, _) => opened,
    }
}

fn is_locked(path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(unusable(path, cause)),
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(cause)) => Err(unusable(path, cause)),
    }
}

fn unusable(path: &Path, cause: io::Error) -> Error {
    Error::new(ErrorKind::Backend, format!("`{}` can not be used", path.display())).with_source(cause)
}

#[expect(clippy::disallowed_methods, reason = "this thread may block")]
fn pause() {
    thread::sleep(STEP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_who_holds_a_workspace_is_alone() {
        let basedir = tempfile::tempdir().unwrap();
        let (basedir, id) = (basedir.path(), WorkspaceId::random());
        assert!(!is_held(basedir, &id).unwrap());
        let (first, second) = (Hold::share(basedir, &id).unwrap(), Hold::share(basedir, &id).unwrap());
        assert!(is_held(basedir, &id).unwrap());
        assert!(!first.is_alone().unwrap());
        assert!(second.is_alone().unwrap(), "the first has let go");
        // Whoever comes now waits for the end.
        let waiting = {
            let (basedir, id) = (basedir.to_owned(), id.clone());
            thread::spawn(move || Hold::share(&basedir, &id).unwrap())
        };
        pause();
        assert!(!waiting.is_finished());
        second.forget();
        drop(second);
        let third = waiting.join().unwrap();
        assert!(is_held(basedir, &id).unwrap());
        sweep(basedir, |_| false);
        assert!(is_held(basedir, &id).unwrap(), "what is held stays");
        drop(third);
        sweep(basedir, |kept| kept == name(&id));
        assert_eq!(fs::read_dir(basedir.join(HELD)).unwrap().count(), 1);
        sweep(basedir, |_| false);
        assert_eq!(fs::read_dir(basedir.join(HELD)).unwrap().count(), 0);
    }

    #[test]
    fn whoever_held_a_deleted_workspace_does_not_forget_the_next_one() {
        let basedir = tempfile::tempdir().unwrap();
        let (basedir, id) = (basedir.path(), WorkspaceId::random());
        let stale = Hold::share(basedir, &id).unwrap();
        remove(basedir, &id);
        let next = Hold::share(basedir, &id).unwrap();
        assert!(stale.is_alone().unwrap(), "with what was deleted");
        stale.forget();
        assert!(is_held(basedir, &id).unwrap(), "the next one is still held");
        let another = Hold::share(basedir, &id).unwrap();
        assert!(!another.is_alone().unwrap());
        drop(next);
    }
}
