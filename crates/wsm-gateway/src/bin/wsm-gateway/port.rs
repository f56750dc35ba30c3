//! Callers who must know a token: on a port of the loopback, or on a socket that others can reach as well.

use std::{
    io::ErrorKind as IoErrorKind,
    net::{Ipv4Addr, TcpListener as StdTcpListener},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixStream},
    time::timeout,
};
use wsm_core::{Error, ErrorKind, Result};
use wsm_gateway::Served;
use wsm_host::handshake::{Token, admit};

/// The code of the error when somebody else has the port.
pub(crate) const PORT_IN_USE: &str = "port_in_use";
/// How long a caller may take to prove that it knows the token.
const ADMISSION_LIMIT: Duration = Duration::from_secs(5);

/// A port that is listened on, with what its callers must know.
#[derive(Debug)]
pub(crate) struct Port {
    listener: StdTcpListener,
    pub(crate) token: Token,
}

impl Port {
    /// Takes a port.
    ///
    /// # Errors
    ///
    /// As for [`bind`].
    pub(crate) fn open(number: u16) -> Result<Self> {
        Ok(Self { listener: bind(number)?, token: Token::random()? })
    }

    /// Makes it of use to this runtime.
    ///
    /// # Errors
    ///
    /// As for [`watch`].
    pub(crate) fn listen(self) -> Result<(TcpListener, Token)> {
        Ok((watch(self.listener)?, self.token))
    }
}

/// Listens on a port of the loopback.
///
/// # Errors
///
/// `conflict` with code [`PORT_IN_USE`]; `backend` with what else the system says.
pub(crate) fn bind(number: u16) -> Result<StdTcpListener> {
    let opened = StdTcpListener::bind((Ipv4Addr::LOCALHOST, number))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    opened.map_err(|cause| {
        let message = format!("port {number} can not be listened on");
        match cause.kind() {
            IoErrorKind::AddrInUse => Error::new(ErrorKind::Conflict, message).with_code(PORT_IN_USE),
            _ => Error::new(ErrorKind::Backend, message),
        }
        .with_source(cause)
    })
}

/// Makes a listener of use to this runtime.
///
/// # Errors
///
/// `backend` when it can not be watched.
pub(crate) fn watch(listener: StdTcpListener) -> Result<TcpListener> {
    TcpListener::from_std(listener)
        .map_err(|cause| Error::new(ErrorKind::Backend, "the port can not be watched").with_source(cause))
}

/// Serves a caller that knows the token.
///
/// # Errors
///
/// `permission_denied` or `timeout` when it does not; else as for [`serve`](wsm_gateway::serve).
///
/// # Cancel safety
///
/// Dropping the future ends the connection.
pub(crate) async fn serve_proven(served: Served, mut stream: TcpStream, token: Token) -> Result<()> {
    prove(&mut stream, &token).await?;
    // Answers would otherwise wait for acknowledgements.
    stream
        .set_nodelay(true)
        .map_err(|cause| Error::new(ErrorKind::Unavailable, "the connection broke").with_source(cause))?;
    wsm_gateway::serve(served, stream).await
}

/// Serves a caller on a socket, who must know the token if there is one.
///
/// # Errors
///
/// As for [`serve_proven`].
///
/// # Cancel safety
///
/// Dropping the future ends the connection.
pub(crate) async fn serve_caller(served: Served, mut stream: UnixStream, token: Option<Token>) -> Result<()> {
    if let Some(token) = token {
        prove(&mut stream, &token).await?;
    }
    wsm_gateway::serve(served, stream).await
}

async fn prove(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), token: &Token) -> Result<()> {
    let unproven = |_| Error::new(ErrorKind::Timeout, "a caller did not prove itself in time");
    timeout(ADMISSION_LIMIT, admit(stream, token)).await.map_err(unproven)?
}
