//! The one way from asynchronous code to calls that block.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::Mutex;
use wsm_core::{Error, ErrorKind, Result};

/// Runs `work` on a thread that may block.
///
/// # Errors
///
/// What `work` says; `backend` when it panics; `capacity` when there is no room for a thread, in which case it never runs.
///
/// # Cancel safety
///
/// Once begun, `work` runs to its end whether or not anybody waits for it.
pub async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    // The runtime keeps what it found no thread for, and would run it whenever there is one: so it can be taken away again.
    let work = Arc::new(Mutex::new(Some(work)));
    let taken = Arc::clone(&work);
    let run = move || {
        let work = taken.lock().take();
        work.map(|work| work())
    };
    // Without a single thread, and no room for one, the runtime panics.
    let Ok(running) = catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(run))) else {
        work.lock().take();
        return Err(no_room());
    };
    match running.await {
        Ok(result) => result.unwrap_or_else(|| Err(no_room())),
        Err(error) => Err(Error::new(ErrorKind::Backend, "a blocking call did not end").with_source(error)),
    }
}

fn no_room() -> Error {
    Error::new(ErrorKind::Capacity, "there is no room for one more thread: end some processes")
}
