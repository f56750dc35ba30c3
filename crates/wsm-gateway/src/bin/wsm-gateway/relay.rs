//! Passes bytes between whoever started this program and a gateway that listens on a socket.

use std::path::Path;

use tokio::{
    io::{AsyncWriteExt, copy, stdin, stdout},
    net::UnixStream,
};
use wsm_core::{Error, ErrorKind, Result};

use crate::serve::shut_commands_out;

/// Runs until the gateway has said all.
///
/// # Errors
///
/// `unavailable` when nobody listens, or the connection breaks.
pub(crate) fn relay(socket: &Path) -> Result<()> {
    // It carries what only the two sides may read.
    shut_commands_out()?;
    let broken = |cause| Error::new(ErrorKind::Unavailable, "the connection to the gateway broke").with_source(cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broken)?;
    let relayed = runtime.block_on(async {
        let (mut answers, mut requests) = UnixStream::connect(socket).await?.into_split();
        let to_gateway = async {
            copy(&mut stdin(), &mut requests).await?;
            requests.shutdown().await
        };
        let from_gateway = async {
            let mut stdout = stdout();
            copy(&mut answers, &mut stdout).await?;
            stdout.flush().await
        };
        // With the last answer it is over, whether or not there is more to ask.
        tokio::select! {
            result = from_gateway => result,
            Err(error) = to_gateway => Err(error),
        }
    });
    // A read of stdin that never ends must not keep this process.
    runtime.shutdown_background();
    relayed.map_err(broken)
}
