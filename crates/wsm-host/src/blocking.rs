//! The one way from asynchronous code to calls that block.

use wsm_core::{Error, ErrorKind, Result};

/// Runs `work` on a thread that may block.
///
/// # Errors
///
/// What `work` says; `backend` when it panics.
///
/// # Cancel safety
///
/// Once begun, `work` runs to its end whether or not anybody waits for it.
pub async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Backend, "a blocking call did not end").with_source(error)),
    }
}
