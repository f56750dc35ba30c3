//! Waits for the end of a sandbox that a killed service has left.
//!
//! Such a sandbox ends by itself, but has a moment for it. Until then nothing new may run beside it. So the first process of
//! each holds a lock, by an open file that it has inherited.
//!
//! ```text
//! <basedir>/.wsm/live/<hash of the id>     the number and the start of the service's process
//! ```

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use wsm_core::{Encoding, Error, ErrorKind, Result, WorkspaceId};

use crate::cgroup::start_time;

const DIRECTORY: &str = ".wsm/live";
/// How long a sandbox may take to end, in steps. More than its first process takes.
const STEPS: u32 = 350;
const STEP: Duration = Duration::from_millis(20);

/// The lock that a new sandbox of a workspace is to hold, once an earlier one has ended whose service is gone; none where a
/// service that lives has a sandbox over the same directory, or the earlier one does not end. Blocks.
///
/// # Errors
///
/// What the system says of the file.
pub(crate) fn lock(basedir: &Path, id: &WorkspaceId) -> Result<Option<File>> {
    let path = path(basedir, id);
    let failed =
        |cause| Error::new(ErrorKind::Backend, format!("`{}` can not be used", path.display())).with_source(cause);
    fs::create_dir_all(basedir.join(DIRECTORY)).map_err(failed)?;
    let options = fs::OpenOptions::new().read(true).write(true).create(true).mode(0o600).to_owned();
    let mut file = options.open(&path).map_err(failed)?;
    for step in 0..STEPS {
        match file.try_lock() {
            Ok(()) => {
                let started = start_time(std::process::id()).unwrap_or_default();
                let write = |file: &mut File| {
                    file.set_len(0)?;
                    file.write_all(format!("{} {started}", std::process::id()).as_bytes())
                };
                write(&mut file).map_err(failed)?;
                return Ok(Some(file));
            }
            Err(TryLockError::WouldBlock) if service_lives(&mut file) => return Ok(None),
            Err(TryLockError::WouldBlock) => {
                if step == 0 {
                    tracing::info!(workspace_id = %id, "waiting for the end of a sandbox that an earlier service left");
                }
                pause();
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
    }
    tracing::warn!(workspace_id = %id, "a sandbox that an earlier service left does not end");
    Ok(None)
}

/// Forgets a workspace that was deleted. Blocks.
pub(crate) fn forget(basedir: &Path, id: &WorkspaceId) {
    let _ = fs::remove_file(path(basedir, id));
}

fn path(basedir: &Path, id: &WorkspaceId) -> PathBuf {
    basedir.join(DIRECTORY).join(Encoding::hash(id.as_str()))
}

/// Whether the process that is written down still runs. What can not be read was left by a crash.
fn service_lives(file: &mut File) -> bool {
    let mut text = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
    let _ = file.seek(SeekFrom::Start(0));
    let numbers: Vec<u64> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
    match (read, &numbers[..]) {
        (Ok(_), &[pid, started]) => u32::try_from(pid).is_ok_and(|pid| start_time(pid) == Some(started)),
        _ => false,
    }
}

#[expect(clippy::disallowed_methods, reason = "this thread may block")]
fn pause() {
    thread::sleep(STEP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_only_when_its_service_is_gone() {
        let basedir = tempfile::tempdir().unwrap();
        let id = WorkspaceId::new("w").unwrap();
        let held = lock(basedir.path(), &id).unwrap().unwrap();
        assert!(lock(basedir.path(), &id).unwrap().is_none(), "this process lives");
        // As a service that was killed leaves it.
        fs::write(path(basedir.path(), &id), "1 1").unwrap();
        let waiting = {
            let (basedir, id) = (basedir.path().to_owned(), id.clone());
            thread::spawn(move || lock(&basedir, &id).unwrap().is_some())
        };
        pause();
        drop(held);
        assert!(waiting.join().unwrap());
        forget(basedir.path(), &id);
        assert_eq!(fs::read_dir(basedir.path().join(DIRECTORY)).unwrap().count(), 0);
    }
}
