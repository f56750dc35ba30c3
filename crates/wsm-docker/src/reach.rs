//! The way to the gateway in a container.

use std::{
    net::Ipv4Addr,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    pin::Pin,
};

use bollard::{
    container::LogOutput,
    exec::{StartExecOptions, StartExecResults},
    models::ExecConfig,
};
use futures::TryStreamExt;
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::io::StreamReader;
use wsm_core::{ByteChannel, Error, ErrorKind, Result};
use wsm_host::{
    blocking,
    handshake::{Token, introduce},
};

use crate::{
    client::{Engine, SHORT},
    container::{GATEWAY, RUN_DIRECTORY, SOCKET, TOKEN_VARIABLE},
    seen::inspect,
};

/// How a gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Over the socket in a directory that this machine shares with the container.
    Socket(PathBuf),
    /// Over this port of the loopback, which the container shares with this machine.
    Port(u16),
    /// Relayed by a command in the container.
    Engine,
}

const PORT_MARK: &str = "port:";

/// The code of the error about a socket at which the gateway definitely does not listen.
pub(crate) const DEAF: &str = "gateway_deaf";

impl Reach {
    /// What a container's label says of it.
    pub(crate) fn to_label(&self) -> String {
        match self {
            Self::Socket(_) => "socket".to_owned(),
            Self::Port(port) => format!("{PORT_MARK}{port}"),
            Self::Engine => "engine".to_owned(),
        }
    }

    /// What such a label means for a container whose socket would be in a certain directory; none for a label that this
    /// version does not know.
    pub(crate) fn from_label(label: &str, directory: PathBuf) -> Option<Self> {
        match label {
            "socket" => Some(Self::Socket(directory)),
            "engine" => Some(Self::Engine),
            _ => label.strip_prefix(PORT_MARK)?.parse().ok().map(Self::Port),
        }
    }

    /// Makes the directory of the socket, and gives its path; none where there is no such directory.
    ///
    /// # Errors
    ///
    /// What the system says.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave an empty directory.
    pub(crate) async fn prepare(&self) -> Result<Option<String>> {
        let Self::Socket(directory) = self else { return Ok(None) };
        let path = directory.clone();
        blocking(move || {
            // Whoever clears another one of the workspace may remove the directory above just now.
            let made = std::fs::create_dir_all(&path).or_else(|_| std::fs::create_dir_all(&path));
            made.map_err(|cause| {
                Error::new(ErrorKind::Backend, "the directory for the gateway's socket could not be made")
                    .with_source(cause)
            })
        })
        .await?;
        Ok(Some(directory.to_string_lossy().into_owned()))
    }

    /// Removes what [`prepare`](Self::prepare) made, once the container is gone.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave it.
    pub(crate) async fn clear(&self) {
        let Self::Socket(directory) = self else { return };
        let path = directory.clone();
        let cleared = blocking(move || {
            let removed = std::fs::remove_dir_all(&path);
            // Those of the workspace's other containers may be in it still.
            let _ = path.parent().map(std::fs::remove_dir);
            Ok(removed)
        });
        let cleared = cleared.await;
        if let Ok(Err(cause)) = cleared
            && cause.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(directory = %directory.display(), %cause, "the directory of a gateway's socket is left");
        }
    }
}

/// Connects to a container's gateway.
///
/// # Errors
///
/// `unavailable` or `timeout` when nobody answers; `permission_denied` when somebody else does; what [`Engine::call`] says.
///
/// # Cancel safety
///
/// A connection that is not returned is closed.
pub(crate) async fn connect(
    engine: &Engine,
    container: &str,
    reach: &Reach,
    token: &Token,
) -> Result<Pin<Box<dyn ByteChannel>>> {
    match reach {
        Reach::Socket(directory) => {
            let mut stream = connect_socket(directory).await?;
            // Else a command in its place could pass on what both sides say, also what proves who they are.
            if !is_first_process(engine, container, &stream).await? {
                let message = "somebody else listens at the socket of the gateway in the container";
                return Err(Error::new(ErrorKind::PermissionDenied, message).with_code(DEAF));
            }
            introduce(&mut stream, token).await?;
            Ok(Box::pin(stream))
        }
        Reach::Port(port) => {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await;
            // Requests would otherwise wait for acknowledgements.
            let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
            let mut stream = stream.map_err(silent)?;
            introduce(&mut stream, token).await?;
            Ok(Box::pin(stream))
        }
        Reach::Engine => {
            let mut stream = connect_relay(engine, container).await?;
            introduce(&mut stream, token).await?;
            Ok(stream)
        }
    }
}

/// By way of the socket's descriptor. A socket's path has room for 107 bytes only, and commands can put a link in its place, which
/// would lead to any socket of this machine.
async fn connect_socket(directory: &Path) -> Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = openat(CWD, directory, flags | OFlags::DIRECTORY, Mode::empty())
        .and_then(|directory| openat(&directory, SOCKET, flags, Mode::empty()))
        .map_err(|errno| deaf(errno.into()))?;
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await.map_err(deaf)
}

/// Whether it is the first process of a container that listens at the other end, which only the gateway can be. If this process
/// sees none of a container's, nobody can tell.
async fn is_first_process(engine: &Engine, container: &str, stream: &UnixStream) -> Result<bool> {
    let Some(pid) = stream.peer_cred().map_err(silent)?.pid().filter(|pid| *pid > 0) else { return Ok(true) };
    let status = blocking(move || Ok(std::fs::read_to_string(format!("/proc/{pid}/status"))));
    match status.await? {
        Ok(status) => Ok(is_first_by(&status)),
        // It has ended, or this machine hides it. The engine knows.
        Err(_) => Ok(inspect(engine, container).await?.is_some_and(|seen| seen.pid == Some(i64::from(pid)))),
    }
}

/// By what `proc_pid_status(5)` holds: its number in each namespace, the innermost last.
fn is_first_by(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().last() == Some("1"))
}

fn deaf(cause: std::io::Error) -> Error {
    match cause.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => silent(cause).with_code(DEAF),
        _ => silent(cause),
    }
}

fn silent(cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the gateway in the container does not answer").with_source(cause)
}

async fn connect_relay(engine: &Engine, container: &str) -> Result<Pin<Box<dyn ByteChannel>>> {
    let socket = format!("{RUN_DIRECTORY}/{SOCKET}");
    let command = [GATEWAY, "relay", "--socket", &socket];
    let exec = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some(command.map(str::to_owned).to_vec()),
        // Only the first process has it: other commands of its user could read this one's variables.
        env: Some(vec![format!("{TOKEN_VARIABLE}=")]),
        ..ExecConfig::default()
    };
    let created = engine.call("run the relay", SHORT, engine.docker()?.create_exec(container, exec)).await?;
    let options = Some(StartExecOptions { output_capacity: Some(256 << 10), ..StartExecOptions::default() });
    let started = engine.call("run the relay", SHORT, engine.docker()?.start_exec(&created.id, options)).await?;
    let StartExecResults::Attached { output, input } = started else {
        return Err(Error::new(ErrorKind::Backend, "the engine did not attach to the relay"));
    };
    let bytes = output.map_err(std::io::Error::other).try_filter_map(async |output| match output {
        LogOutput::StdOut { message } => Ok(Some(message)),
        LogOutput::StdErr { message } => {
            tracing::debug!(said = %String::from_utf8_lossy(&message), "the relay says");
            Ok(None)
        }
        LogOutput::StdIn { .. } | LogOutput::Console { .. } => Ok(None),
    });
    Ok(Box::pin(tokio::io::join(StreamReader::new(Box::pin(bytes)), input)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_how_a_container_is_reached() {
        for reach in [Reach::Socket("/d".into()), Reach::Port(9000), Reach::Engine] {
            assert_eq!(Reach::from_label(&reach.to_label(), "/d".into()), Some(reach));
        }
        assert_eq!(Reach::from_label("port:x", "/d".into()), None);
        assert_eq!(Reach::from_label("pigeon", "/d".into()), None);
    }

    #[tokio::test]
    async fn a_link_in_place_of_the_socket_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let (elsewhere, socket) = (directory.path().join("elsewhere.sock"), directory.path().join(SOCKET));
        let _listener = tokio::net::UnixListener::bind(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &socket).unwrap();
        assert_eq!(connect_socket(directory.path()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        std::fs::rename(&elsewhere, &socket).unwrap();
        connect_socket(directory.path()).await.unwrap();
    }

    #[test]
    fn only_the_first_process_is_the_gateway() {
        assert!(is_first_by("Name:\tgateway\nNSpid:\t4711\t23\t1\nNSpgid:\t1\n"));
        assert!(!is_first_by("Name:\tgateway\nNSpid:\t4711\t1\t23\nNSpgid:\t1\n"));
        assert!(!is_first_by("NSpid:\n") && !is_first_by(""));
    }
}
