//! The contract of a workspace: what its users see, and what only the manager may do with it.

use std::{
    any::{Any, TypeId},
    fmt,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    backend::{Cause, Checkpoint},
    capability::Capabilities,
    error::{Error, Result},
    exec::{Command, ExecResult, Process},
    files::{ByteStream, DirEntry, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions, byte_stream},
    id::WorkspaceId,
};

/// What never changes while a workspace is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkspaceInfo {
    /// The workspace's id.
    pub id: WorkspaceId,
    /// The kind of backend it lives on, such as `local`.
    pub backend: &'static str,
    /// The directory that relative paths start at, as seen from inside.
    pub workdir: String,
    /// How often the workspace's files have been lost.
    pub generation: u64,
}

impl WorkspaceInfo {
    /// Information about a workspace whose files were never lost.
    pub fn new(id: WorkspaceId, backend: &'static str, workdir: impl Into<String>) -> Self {
        Self { id, backend, workdir: workdir.into(), generation: 0 }
    }

    /// Sets how often the files have been lost.
    #[must_use]
    pub fn with_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }
}

/// A live place to work: a directory, commands, files.
///
/// This is what callers see. Nothing here ends a workspace under other people's feet; that is
/// [`ManagedWorkspace`]'s business.
///
/// Only [`info`](Self::info), [`capabilities`](Self::capabilities) and [`exec`](Self::exec) must be written. The other
/// methods answer `unsupported` until a backend declares the capability and implements them. **A decorator implements
/// every method**, or it silently hides what it decorates: `#[deny(clippy::missing_trait_methods)]` on the `impl`.
///
/// # Contract
///
/// Every rule has a case of that number in `wsm-conformance`.
///
/// Commands:
/// - **E1** argv reaches the program exactly, byte for byte, without a shell.
/// - **E2** stdout and stderr MUST stay apart and come through exact, also NUL and what is not UTF-8.
/// - **E3** The exit code MUST be the command's own. A non-zero one is a result.
/// - **E4** A command ended by a signal MUST be `Signaled` with its number.
/// - **E5** At the timeout the whole process tree MUST be ended, `SIGTERM` first and `SIGKILL` after a short grace; the
///   status is `TimedOut`, and output so far is kept.
/// - **E6** Over the output limit, the first and the last half MUST be kept, the command runs on, and the dropped bytes
///   are counted.
/// - **E7** stdin MUST be empty unless given; large input to a command that writes as much MUST NOT deadlock.
/// - **E8** `cwd` and `env` MUST take effect; `cwd` defaults to the workspace directory. A `cwd` that is no directory
///   MUST be `invalid_input` about `cwd`.
/// - **E9** A program that can not start MUST be `invalid_input` with code `program_not_found` or
///   `program_not_executable`.
/// - **E10** The end MUST be the command's own exit, never an end of file that a grandchild holds back. With
///   [`background`](Capabilities::background), children survive a normal exit.
/// - **E11** Dropping the future MUST end the process tree; the ending runs on a task that `suspend` waits for.
/// - **E12** Commands MUST run side by side.
///
/// Streams ([`spawn`](Capabilities::spawn)):
/// - **S1** Output MUST arrive while the command runs, followed by exactly one end.
/// - **S2** Dropping the output before its end MUST end the process tree.
/// - **S3** Dropping or shutting down stdin MUST be end of input.
/// - **S4** Dropping the control MUST do nothing.
/// - **S5** Signals MUST reach the command.
/// - **S6** Output has no cap: it comes through whole, and a slow reader slows the command.
///
/// Files ([`files`](Capabilities::files)):
/// - **F1** What was written MUST be read back exactly.
/// - **F2** A write MUST be all or nothing: an error in the body leaves the target as it was.
/// - **F3** A range MUST give exactly its bytes; past the end is empty.
/// - **F4** `stat` MUST tell kind and size; a missing path MUST be `not_found`.
/// - **F5** `list` MUST give every entry once; names that are not UTF-8 are escaped and flagged.
/// - **F6** `make_dir` MUST create parents and be idempotent, also from many callers at once.
/// - **F7** `remove` MUST refuse a directory that is not empty unless `recursive`.
/// - **F8** `rename` MUST move files and directories and replace a file.
/// - **F9** Relative paths MUST start at the workspace directory, for files as for commands.
/// - **F10** With [`confined_files`](Capabilities::confined_files), no path leads out: not by `..`, not by an absolute
///   path, not by a symbolic link. The refusal is `permission_denied` with code `path_outside`.
/// - **F11** Concurrent writes of one path MUST leave one of them, whole.
///
/// After the workspace was suspended, detached or destroyed, every call MUST be `gone`.
///
/// # Cancel safety
///
/// Every future may be dropped at any await. What a dropped call had begun is either finished or undone by the
/// backend; see E11 and F2.
#[async_trait]
pub trait Workspace: fmt::Debug + Send + Sync + 'static {
    /// What never changes while the workspace is open.
    fn info(&self) -> &WorkspaceInfo;

    /// What this workspace can do beyond `exec`.
    fn capabilities(&self) -> Capabilities;

    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// `invalid_input` for a command that can not start, `gone` when the workspace is dead, `unavailable` when the
    /// engine can not be reached before the command began. Once it began, trouble is [`ExitStatus::Unknown`].
    ///
    /// [`ExitStatus::Unknown`]: crate::ExitStatus::Unknown
    async fn exec(&self, command: Command) -> Result<ExecResult>;

    /// Starts a command and streams it. Requires [`spawn`](Capabilities::spawn).
    ///
    /// # Errors
    ///
    /// As for [`exec`](Self::exec); also `invalid_input` when the command carries stdin.
    async fn spawn(&self, command: Command) -> Result<Process> {
        let _ = command;
        Err(Error::unsupported("spawn"))
    }

    /// Opens a file for reading. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `not_found`; `invalid_input` with code `is_a_directory`; `permission_denied`.
    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let _ = (path, options);
        Err(Error::unsupported("read"))
    }

    /// Writes a file as a whole and tells what it is now. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// The body's own error, unchanged; `conflict` when the path exists and may not be replaced; `invalid_input` with
    /// code `is_a_directory`; `not_found` when a parent is missing and may not be created; `permission_denied`.
    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let _ = (path, body, options);
        Err(Error::unsupported("write"))
    }

    /// Tells what a path is, without following a symbolic link at its end. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `not_found`, `permission_denied`.
    async fn stat(&self, path: &str) -> Result<Metadata> {
        let _ = path;
        Err(Error::unsupported("stat"))
    }

    /// Lists a directory, in no order. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `not_found`; `invalid_input` with code `not_a_directory`; `permission_denied`.
    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let _ = path;
        Err(Error::unsupported("list"))
    }

    /// Creates a directory and its parents; an existing directory is fine. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `conflict` when something else is there; `permission_denied`.
    async fn make_dir(&self, path: &str) -> Result<()> {
        let _ = path;
        Err(Error::unsupported("make_dir"))
    }

    /// Removes a file, a link, or a directory. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `not_found` unless `missing_ok`; `conflict` with code `directory_not_empty` unless `recursive`; `invalid_input`
    /// for the workspace directory itself; `permission_denied`.
    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let _ = (path, options);
        Err(Error::unsupported("remove"))
    }

    /// Moves `from` to `to`, replacing a file that is there. Requires [`files`](Capabilities::files).
    ///
    /// # Errors
    ///
    /// `not_found`; `conflict` when `to` is a directory that is not empty, or of another kind; `permission_denied`.
    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _ = (from, to);
        Err(Error::unsupported("rename"))
    }

    /// Connects to something that listens inside. Requires [`connect`](Capabilities::connect).
    ///
    /// # Errors
    ///
    /// `unavailable` when nothing listens there, `unsupported` for a kind of endpoint that the backend does not have.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        let _ = endpoint;
        Err(Error::unsupported("connect"))
    }

    /// Gives a typed companion of this workspace, such as the client of a layer. See
    /// [`WorkspaceExt::extension_of`].
    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = type_id;
        None
    }
}

/// What only the manager and layers call.
///
/// # Contract
///
/// - **M1** `suspend` MUST keep the workspace's files, end its commands, and be idempotent. Afterwards calls are `gone`.
/// - **M2** `detach` MUST leave the workspace running for others. Afterwards calls through this object are `gone`.
/// - **M3** `health` MUST be definite: what can not be decided is an error, never `Dead`.
/// - **M4** `keep_alive` MUST put off the backend's own idle stop by at least the time given, where it has one.
///
/// # Cancel safety
///
/// A dropped `suspend` or `detach` may have happened or not; the manager asks again or opens anew.
#[async_trait]
pub trait ManagedWorkspace: Workspace {
    /// Puts the workspace away and keeps its data.
    ///
    /// # Errors
    ///
    /// Any; the workspace then counts as doubtful, and the manager tries again later.
    async fn suspend(&self) -> Result<Option<Checkpoint>>;

    /// Lets go of the workspace and leaves it running.
    ///
    /// # Errors
    ///
    /// As for [`suspend`](Self::suspend).
    async fn detach(&self) -> Result<()>;

    /// Whether the workspace lives.
    ///
    /// # Errors
    ///
    /// `unavailable` or `timeout` when it can not be decided.
    async fn health(&self) -> Result<Health>;

    /// Puts off the backend's own idle stop. Gives for how long it is now put off, or `None` when there is no idle stop,
    /// which is the default.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be asked, `gone` when it is too late.
    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        let _ = duration;
        Ok(None)
    }
}

/// The answer to "does it live?".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It does, and the backend stops it by itself after this long (`None`: never).
    Alive(Option<Duration>),
    /// It does not, for this reason.
    Dead(Cause),
}

/// Something that listens inside a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Endpoint {
    /// The first process, over its private channel. Requires [`init`](Capabilities::init).
    Init,
    /// A TCP port on the workspace's loopback.
    Port(u16),
    /// A unix socket.
    Socket(String),
}

/// A two-way stream of bytes.
pub trait ByteChannel: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteChannel for T {}

/// A way to what listens inside.
#[non_exhaustive]
pub enum Connection {
    /// A stream of bytes.
    Bytes(Pin<Box<dyn ByteChannel>>),
    /// An HTTP proxy of the backend: requests to `url` with `headers` reach the port.
    Http {
        /// Where requests go.
        url: String,
        /// What every request must carry. May hold secrets.
        headers: Vec<(String, String)>,
    },
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(_) => f.write_str("Bytes"),
            Self::Http { url, headers: _ } => f.debug_struct("Http").field("url", url).finish_non_exhaustive(),
        }
    }
}

/// Comfort on top of [`Workspace`]. Implemented for every workspace; not to be implemented by anybody else.
#[async_trait]
pub trait WorkspaceExt: Workspace {
    /// Runs a line in `sh -c`.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::exec`].
    async fn sh(&self, line: &str) -> Result<ExecResult> {
        self.exec(Command::shell(line)).await
    }

    /// Reads a whole file of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::read`]; `invalid_input` with code `too_large` for a longer file.
    async fn read_bytes(&self, path: &str, limit: usize) -> Result<Bytes> {
        use futures::TryStreamExt;

        let ReadFile { mut body, .. } = self.read(path, ReadOptions::default()).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = body.try_next().await? {
            if bytes.len() + chunk.len() > limit {
                let message = format!("`{path}` is longer than the limit of {limit} bytes");
                return Err(Error::invalid("path", message).with_code("too_large"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.into())
    }

    /// Reads a whole text file of at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// As for [`read_bytes`](Self::read_bytes); `invalid_input` with code `not_utf8` for anything but UTF-8.
    async fn read_text(&self, path: &str, limit: usize) -> Result<String> {
        let bytes = self.read_bytes(path, limit).await?;
        String::from_utf8(bytes.into()).map_err(|_| {
            Error::invalid("path", format!("`{path}` is not UTF-8: read it as bytes")).with_code("not_utf8")
        })
    }

    /// Writes a whole file that is in memory.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::write`].
    async fn write_bytes(&self, path: &str, bytes: Bytes) -> Result<Metadata> {
        self.write(path, byte_stream(bytes), WriteOptions::default()).await
    }

    /// The companion of type `T`, where a layer offers one.
    fn extension_of<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.extension(TypeId::of::<T>())?.downcast().ok()
    }
}

impl<W: Workspace + ?Sized> WorkspaceExt for W {}
