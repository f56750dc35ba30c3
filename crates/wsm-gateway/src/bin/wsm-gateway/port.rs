//! A port of the loopback, whose callers must know a token.

use std::{
    io::ErrorKind as IoErrorKind,
    net::{Ipv4Addr, TcpListener as StdTcpListener},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
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
    /// `conflict` with code [`PORT_IN_USE`]; `backend` with what else the system says.
    pub(crate) fn open(number: u16) -> Result<Self> {
        let opened = StdTcpListener::bind((Ipv4Addr::LOCALHOST, number))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = opened.map_err(|cause| {
            let message = format!("port {number} can not be listened on");
            match cause.kind() {
                IoErrorKind::AddrInUse => Error::new(ErrorKind::Conflict, message).with_code(PORT_IN_USE),
                _ => Error::new(ErrorKind::Backend, message),
            }
            .with_source(cause)
        })?;
        Ok(Self { listener, token: Token::random()? })
    }

    /// Makes it of use to this runtime.
    ///
    /// # Errors
    ///
    /// `backend` when it can not be watched.
    pub(crate) fn listen(self) -> Result<(TcpListener, Token)> {
        let Self { listener, token } = self;
        let listener = TcpListener::from_std(listener)
            .map_err(|cause| Error::new(ErrorKind::Backend, "the port can not be watched").with_source(cause))?;
        Ok((listener, token))
    }
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
    let unproven = |_| Error::new(ErrorKind::Timeout, "a caller did not prove itself in time");
    timeout(ADMISSION_LIMIT, admit(&mut stream, &token)).await.map_err(unproven)??;
    // Answers would otherwise wait for acknowledgements.
    stream
        .set_nodelay(true)
        .map_err(|cause| Error::new(ErrorKind::Unavailable, "the connection broke").with_source(cause))?;
    wsm_gateway::serve(served, stream).await
}
