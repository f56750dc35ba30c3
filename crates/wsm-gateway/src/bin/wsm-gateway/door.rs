//! A socket through which connections are passed.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::unix::net::UnixStream as StdUnixStream,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::UnixStream,
};
use wsm_core::{Error, ErrorKind, Result};

/// The inner side of a door. Whoever holds the other side passes one end of a fresh socket pair with each byte that it
/// writes, and keeps the other end.
///
/// Nobody else can connect: there is no name for it. And as the door carries no requests itself, a connection that breaks
/// does not end the sandbox, while the death of whoever holds the door does.
#[derive(Debug)]
pub(crate) struct Door(UnixStream);

impl Door {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Tells the other side that connections will be served from now on, with one byte and what it has to know besides.
    ///
    /// # Errors
    ///
    /// `unavailable` when there is no other side.
    pub(crate) async fn say_ready(&mut self, besides: &[u8]) -> Result<()> {
        let closed = |cause| Error::new(ErrorKind::Unavailable, "the door is closed").with_source(cause);
        self.0.write_all(&[&[0], besides].concat()).await.map_err(closed)
    }

    /// The next connection; none after the other side has closed.
    ///
    /// Cancel-safe: a connection is taken out only to be returned.
    ///
    /// # Errors
    ///
    /// When there was no room for one more open file. The connection is closed.
    pub(crate) async fn next(&mut self) -> io::Result<Option<UnixStream>> {
        let received = self.0.async_io(Interest::READABLE, || self.receive()).await;
        match received {
            Ok(Some(stream)) => {
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream).map(Some)
            }
            Ok(None) => Ok(None),
            // Whatever else is wrong with the door, it will not open again.
            Err(error) if error.kind() == io::ErrorKind::Other => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn receive(&self) -> io::Result<Option<StdUnixStream>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        // One byte at a time is one connection at a time.
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let message = recvmsg(&self.0, &mut bytes, &mut passed, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes == 0 {
            return Ok(None);
        }
        let files = passed.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        match files.flatten().next() {
            Some(file) => Ok(Some(file.into())),
            None => Err(io::Error::other("a connection could not be taken: too many files are open")),
        }
    }
}
