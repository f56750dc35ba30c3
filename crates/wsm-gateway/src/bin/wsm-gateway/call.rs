//! Answers one request, as a backend's own exec brings it.

use std::{path::PathBuf, sync::Arc};

use futures::{StreamExt, stream, stream::BoxStream};
use tokio::{
    io::BufReader,
    net::UnixStream,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use wsm_core::{Error, ErrorKind, Result, Signal, WorkspaceId};
use wsm_gateway::{HostFileTools, Io, Served, relay_call};
use wsm_host::HostWorkspace;

use crate::serve::{Opened, open, shut_commands_out};

/// How much of a connection within this process is on its way.
const PIPE: usize = 256 << 10;

/// Reads a request from stdin and answers it on stdout, by a gateway that listens on `socket` or else alone.
///
/// # Errors
///
/// When no answer could be written. A request that fails is an answer.
pub(crate) fn call(socket: Option<PathBuf>) -> Result<()> {
    shut_commands_out()?;
    let opened = if socket.is_none() { Some(open(WorkspaceId::random(), None, &[])?) } else { None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(answer(socket, opened));
    // A read of stdin may still wait, which nobody needs any more.
    runtime.shutdown_background();
    answered
}

async fn answer(socket: Option<PathBuf>, opened: Option<Opened>) -> Result<()> {
    let mut serving = JoinSet::new();
    let connection: Result<Box<dyn Io>> = match (socket, opened) {
        (Some(path), _) => match UnixStream::connect(&path).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(cause) => {
                let message = format!("no gateway listens on `{}`", path.display());
                Err(Error::new(ErrorKind::Unavailable, message).with_source(cause))
            }
        },
        (None, Some(Opened { opening, .. })) => {
            let (near, far) = tokio::io::duplex(PIPE);
            let tools = HostFileTools::new(&opening.info().workdir);
            let served = Served::new(Arc::new(HostWorkspace::new(opening))).with_file_tools(Arc::new(tools));
            serving.spawn(wsm_gateway::serve(served, far));
            Ok(Box::new(near))
        }
        (None, None) => Err(Error::new(ErrorKind::Backend, "there is nobody to answer")),
    };
    let (stdin, stdout) = (BufReader::new(tokio::io::stdin()), tokio::io::stdout());
    let answered = relay_call(connection, stdin, stdout, signals()?).await;
    // The connection is closed, with which what goes on for it ends; what a command left behind stays.
    while serving.join_next().await.is_some() {}
    answered
}

/// The signals that are passed on to a command.
fn signals() -> Result<BoxStream<'static, Signal>> {
    let kinds = [
        (SignalKind::hangup(), Signal::Hangup),
        (SignalKind::interrupt(), Signal::Interrupt),
        (SignalKind::terminate(), Signal::Terminate),
        (SignalKind::user_defined1(), Signal::User1),
        (SignalKind::user_defined2(), Signal::User2),
    ];
    let mut all = stream::SelectAll::new();
    for (kind, name) in kinds {
        let heard = signal(kind)
            .map_err(|cause| Error::new(ErrorKind::Backend, "can not hear of signals").with_source(cause))?;
        all.push(
            stream::unfold(heard, move |mut heard| async move { heard.recv().await.map(|()| (name, heard)) }).boxed(),
        );
    }
    Ok(all.boxed())
}
