//! Where connections come from.

use std::{
    fs,
    io::{self, ErrorKind as IoErrorKind},
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd, RawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, process::umask};
use tokio::net::unix::pipe::{Receiver, Sender};
use wsm_core::{Error, ErrorKind, Result};
use wsm_gateway::Io;

use crate::{args::Source, inherited, port};

/// What connections come from. Opened before there is a runtime.
#[derive(Debug)]
pub(crate) enum Channel {
    /// One connection, with which everything ends.
    Socket(UnixStream),
    /// One connection over two pipes, with which everything ends.
    Pipes(OwnedFd, OwnedFd),
    /// As many connections as are passed through it. Everything ends with it.
    Door(UnixStream),
    /// As many connections as somebody makes.
    Listener(UnixListener, SocketFile),
    /// The same, on a port of the loopback.
    Port(TcpListener),
}

/// The name of a listening socket, which is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Channel {
    /// Takes over or makes what connections come from.
    ///
    /// # Errors
    ///
    /// `invalid_input` for something that can not carry a connection; `conflict` when somebody listens on the socket or the port.
    pub(crate) fn open(source: Source) -> Result<Self> {
        match source {
            Source::Fd(number) => take_socket("--fd", number).map(Self::Socket),
            Source::Door(number) => take_socket("--door", number).map(Self::Door),
            Source::Stdio => {
                let own = |file: io::Result<OwnedFd>| {
                    file.map_err(|cause| unfit("stdin or stdout is closed".to_owned()).with_source(cause))
                };
                let stdin = own(io::stdin().as_fd().try_clone_to_owned())?;
                let stdout = own(io::stdout().as_fd().try_clone_to_owned())?;
                // A socket at stdin is one at stdout too, where it is to be any use.
                let copy = own(stdin.try_clone())?;
                Ok(unix_stream(copy).map_or(Self::Pipes(stdin, stdout), Self::Socket))
            }
            Source::Socket(path) => {
                let listener = listen(&path)?;
                Ok(Self::Listener(listener, SocketFile(path)))
            }
            Source::Port(number) => port::bind(number).map(Self::Port),
        }
    }
}

/// Makes one connection of two pipes, for this runtime.
///
/// # Errors
///
/// `invalid_input` when they are no pipes.
pub(crate) fn join_pipes(stdin: OwnedFd, stdout: OwnedFd) -> Result<Box<dyn Io>> {
    let pipes = Receiver::from_owned_fd(stdin).and_then(|stdin| Ok((stdin, Sender::from_owned_fd(stdout)?)));
    match pipes {
        Ok((stdin, stdout)) => Ok(Box::new(tokio::io::join(stdin, stdout))),
        Err(cause) => Err(unfit("stdin and stdout are neither pipes nor a unix socket".to_owned()).with_source(cause)),
    }
}

fn take_socket(option: &str, number: RawFd) -> Result<UnixStream> {
    let file = inherited::take(number)
        .map_err(|cause| unfit(format!("`{option} {number}`: no such file is open")).with_source(cause))?;
    unix_stream(file).ok_or_else(|| unfit(format!("`{option} {number}` is not a connected unix socket")))
}

/// None for what is not a connected unix socket.
fn unix_stream(file: OwnedFd) -> Option<UnixStream> {
    let stream = UnixStream::from(file);
    stream.peer_addr().is_ok().then_some(stream)
}

/// Listens on a socket that nobody but this user can connect to.
fn listen(path: &Path) -> Result<UnixListener> {
    let bind = || {
        // From the very first moment on, and as it was again before any command could inherit it.
        let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = UnixListener::bind(path);
        umask(before);
        bound
    };
    let bound = bind().or_else(|cause| {
        // A gateway that was killed leaves the name of its socket behind.
        let is_left_over = cause.kind() == IoErrorKind::AddrInUse
            && UnixStream::connect(path).is_err_and(|error| error.kind() == IoErrorKind::ConnectionRefused);
        if !is_left_over {
            return Err(cause);
        }
        fs::remove_file(path)?;
        bind()
    });
    bound.map_err(|cause| {
        let kind = if cause.kind() == IoErrorKind::AddrInUse { ErrorKind::Conflict } else { ErrorKind::InvalidInput };
        Error::new(kind, format!("can not listen on `{}`", path.display())).with_source(cause)
    })
}

fn unfit(problem: String) -> Error {
    Error::new(ErrorKind::InvalidInput, problem)
}
