//! Files whose lock says that a process of this installation makes something that all of them use.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use wsm_core::{Error, ErrorKind, Result};
use wsm_host::blocking;

const PAUSE: Duration = Duration::from_millis(20);

/// Waits until no other process does the same. It is this one's until the drop.
///
/// # Errors
///
/// `timeout` when another one does not come to an end within the limit; `backend` when the file can not be used.
///
/// # Cancel safety
///
/// A dropped wait leaves nothing locked.
pub(crate) async fn wait(path: PathBuf, limit: Duration) -> Result<File> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(file) = try_now(&path).await? {
            return Ok(file);
        }
        if Instant::now() > deadline {
            let message = format!(
                "another process of this installation has had `{}` locked for {limit:?}: does it hang?",
                path.display()
            );
            return Err(Error::new(ErrorKind::Timeout, message));
        }
        sleep(PAUSE).await;
    }
}

/// The lock, unless another process has it.
///
/// # Errors
///
/// `backend` when the file can not be used.
///
/// # Cancel safety
///
/// A dropped call leaves nothing locked.
pub(crate) async fn try_now(path: &Path) -> Result<Option<File>> {
    let path = path.to_owned();
    blocking(move || {
        let unusable = |cause| {
            Error::new(ErrorKind::Backend, format!("`{}` can not be locked", path.display())).with_source(cause)
        };
        let file = File::create(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(unusable(cause)),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_waited_for_and_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = wait(path.clone(), Duration::ZERO).await.unwrap();
        assert!(try_now(&path).await.unwrap().is_none());
        let error = wait(path.clone(), Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("lock"), "{error}");
        let (waited, ()) = tokio::join!(wait(path, Duration::from_secs(1)), async {
            sleep(PAUSE * 3).await;
            drop(held);
        });
        waited.unwrap();
    }
}
