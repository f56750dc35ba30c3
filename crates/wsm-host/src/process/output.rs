//! The reading end of one of a command's output streams.

use std::{io, os::fd::OwnedFd};

use bytes::{Bytes, BytesMut};
use rustix::{
    io::ioctl_fionread,
    pipe::{PipeFlags, pipe_with},
};
use tokio::net::unix::pipe::Receiver;

/// How much is read at once: what a pipe holds by default.
const CHUNK: usize = 64 << 10;

/// A pipe that a command writes to.
#[derive(Debug)]
pub(super) struct OutputPipe {
    /// None after the end of file.
    pipe: Option<Receiver>,
}

impl OutputPipe {
    /// Makes a pipe; the writing end is for the command.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self { pipe: Some(Receiver::from_owned_fd(reader)?) }, writer))
    }

    /// Whether anybody may still write to it.
    pub(super) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// The next bytes, or none at the end.
    ///
    /// # Cancel safety
    ///
    /// A dropped call took nothing out of the pipe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let pipe = self.pipe.as_ref()?;
            let read = match pipe.readable().await {
                Ok(()) => read(pipe, CHUNK, |buffer| pipe.try_read(buffer)),
                // The runtime is shutting down.
                Err(error) => Err(error),
            };
            match read {
                Ok(bytes) if !bytes.is_empty() => return Some(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => self.pipe = None,
            }
        }
    }

    /// How much is in the pipe now.
    pub(super) fn buffered(&self) -> usize {
        let bytes = self.pipe.as_ref().and_then(|pipe| ioctl_fionread(pipe).ok()).unwrap_or(0);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// At most `limit` bytes of what is in the pipe, or none.
    ///
    /// Asks the kernel and not the runtime, which may not yet have heard that the pipe is readable.
    pub(super) fn take(&mut self, limit: usize) -> Option<Bytes> {
        let pipe = self.pipe.as_ref()?;
        match read(pipe, limit.min(CHUNK), |buffer| Ok(rustix::io::read(pipe, buffer)?)) {
            Ok(bytes) if !bytes.is_empty() => return Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.pipe = None,
        }
        None
    }

    /// Reads to the end of the file, and keeps nothing.
    pub(super) async fn discard(mut self) {
        while self.next().await.is_some() {}
    }
}

/// Reads what is there, up to `limit`. Empty at the end of the file.
fn read(pipe: &Receiver, limit: usize, read: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Bytes> {
    // As much room as there is to read, so that a small piece of output does not hold on to a large buffer.
    let there = ioctl_fionread(pipe).map_or(limit, |bytes| usize::try_from(bytes).unwrap_or(limit));
    let mut bytes = BytesMut::zeroed(there.clamp(1, limit.max(1)));
    loop {
        match read(&mut bytes) {
            Ok(read) => {
                bytes.truncate(read);
                return Ok(bytes.freeze());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
