//! The outer side of the socket through which connections are passed into a sandbox.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::UnixStream,
};
use wsm_host::handshake::Token;

/// Passes connections to a sandbox, and keeps it alive: its first process ends when this is dropped, and so does everything
/// else in it. Also when this process is killed.
#[derive(Debug)]
pub(crate) struct Door(UnixStream);

impl Door {
    /// A door, and the side of it that the sandbox inherits.
    ///
    /// # Errors
    ///
    /// When too many files are open.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (outer, inner) = StdUnixStream::pair()?;
        outer.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(outer)?), inner.into()))
    }

    /// Waits until the sandbox takes connections. Says whether it ever will.
    ///
    /// Cancel-safe: it can be asked again.
    pub(crate) async fn is_ready(&mut self) -> bool {
        matches!(self.0.read(&mut [0]).await, Ok(1))
    }

    /// The token that the sandbox gives out once it is ready, where it listens on a port.
    ///
    /// # Errors
    ///
    /// When the sandbox has ended.
    ///
    /// # Cancel safety
    ///
    /// Not: a dropped call may have taken a part of it.
    pub(crate) async fn token(&mut self) -> io::Result<Token> {
        let mut bytes = [0; Token::LENGTH];
        self.0.read_exact(&mut bytes).await?;
        Ok(Token::from_bytes(bytes))
    }

    /// Makes a connection into the sandbox.
    ///
    /// Cancel-safe: a connection that was passed is closed.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` or `ConnectionReset` when the sandbox has ended; else when too many files are open.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let (near, far) = StdUnixStream::pair()?;
        near.set_nonblocking(true)?;
        let near = UnixStream::from_std(near)?;
        self.0.async_io(Interest::WRITABLE, || pass(&self.0, &far)).await?;
        Ok(near)
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn pass(door: impl AsFd, connection: impl AsFd) -> io::Result<()> {
    let connections = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    passed.push(SendAncillaryMessage::ScmRights(&connections));
    sendmsg(door, &[IoSlice::new(&[0])], &mut passed, SendFlags::NOSIGNAL)?;
    Ok(())
}
