//! The writing end of a command's stdin.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{io::AsyncWrite, net::unix::pipe::Sender};

/// A pipe that is closed by shutting it down, not only by dropping it.
#[derive(Debug)]
pub(super) struct StdinPipe(Option<Sender>);

impl StdinPipe {
    pub(super) fn new(pipe: Sender) -> Self {
        Self(Some(pipe))
    }

    fn with_pipe<T>(&mut self, poll: impl FnOnce(Pin<&mut Sender>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.0 {
            Some(pipe) => poll(Pin::new(pipe)),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl AsyncWrite for StdinPipe {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with_pipe(|pipe| pipe.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.0.is_none() {
            return Poll::Ready(Ok(()));
        }
        self.with_pipe(|pipe| pipe.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}
