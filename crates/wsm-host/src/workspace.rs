//! A workspace over a directory of this machine, as its users see it.

use std::{
    any::{Any, TypeId},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::TryStreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wsm_core::{
    ByteStream, Capabilities, Cause, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Workspace,
    WorkspaceInfo, WriteOptions,
};

use crate::{
    blocking::blocking,
    error,
    files::{self, Draft, FLUSH_AT, Root},
    opening::Opening,
    process::{Launch, Stdin},
};

/// One handed-out object of an [`Opening`]. Suspending it ends the opening, for all objects of it.
#[derive(Debug)]
pub struct HostWorkspace {
    opening: Arc<Opening>,
    /// Whether the holder of this object has let go, while the workspace goes on for others.
    detached: AtomicBool,
}

impl HostWorkspace {
    /// What every workspace over a directory can do. Whether it has a shell, keeps paths inside, or is bound to this
    /// machine is for the backend to say.
    pub const CAPABILITIES: Capabilities = Capabilities::NONE.with_spawn(true).with_files(true).with_background(true);

    /// Hands out one more object of an opening.
    pub fn new(opening: Arc<Opening>) -> Self {
        Self { opening, detached: AtomicBool::new(false) }
    }

    /// What this is an object of.
    pub fn opening(&self) -> &Arc<Opening> {
        &self.opening
    }

    /// Whether this object was detached.
    pub fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<()> {
        if self.opening.is_over() || self.is_detached() { Err(error::gone()) } else { Ok(()) }
    }

    /// Starts a service: a command that leaves nothing behind. When it ends by itself, so does whatever it has started; when
    /// `ending` is cancelled, its whole tree ends as that of a command that has run out of time, and its output still tells
    /// how.
    ///
    /// # Errors
    ///
    /// As for [`spawn`](Workspace::spawn).
    ///
    /// # Cancel safety
    ///
    /// Dropping the call may start the command all the same; it is ended then.
    pub async fn spawn_service(&self, command: Command, ending: CancellationToken) -> Result<Process> {
        self.check()?;
        command.validate()?;
        let deadline = deadline(Instant::now(), &command);
        self.launch(command, Stdin::Pipe, deadline, Some(ending)).await
    }

    async fn start(&self, command: Command, stdin: Stdin, deadline: Option<Instant>) -> Result<Process> {
        self.launch(command, stdin, deadline, None).await
    }

    async fn launch(
        &self,
        command: Command,
        stdin: Stdin,
        deadline: Option<Instant>,
        service: Option<CancellationToken>,
    ) -> Result<Process> {
        let (host, _token) = self.opening.host()?;
        let (opening, cwd) = (Arc::clone(&self.opening), command.cwd.clone());
        let directory = move || opening.open_root()?.open_cwd(cwd.as_deref());
        self.opening.launcher().start(Launch { command, stdin, directory, host, _token, deadline, service }).await
    }

    /// Does something that puts the workspace off from counting as put away, on a thread that may block.
    async fn while_open<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Opening) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.check()?;
        let (opening, token) = (Arc::clone(&self.opening), self.opening.token()?);
        blocking(move || {
            let _token = token;
            work(&opening)
        })
        .await
    }

    /// Does something with the files of the workspace.
    async fn with_root<T: Send + 'static>(&self, work: impl FnOnce(&Root) -> Result<T> + Send + 'static) -> Result<T> {
        self.while_open(move |opening| work(&opening.open_root()?)).await
    }
}

/// None for a timeout that never comes.
fn deadline(started: Instant, command: &Command) -> Option<Instant> {
    started.checked_add(command.timeout?)
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for HostWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        self.opening.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.opening.capabilities()
    }

    async fn exec(&self, mut command: Command) -> Result<ExecResult> {
        self.check()?;
        let started = Instant::now();
        let deadline = deadline(started, &command);
        let input = std::mem::take(&mut command.stdin);
        let output_limit = command.output_limit;
        let stdin = if input.is_empty() { Stdin::Empty } else { Stdin::Pipe };
        let mut result = self.start(command, stdin, deadline).await?.collect(input, output_limit).await;
        result.duration = started.elapsed();
        Ok(result)
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.check()?;
        let deadline = deadline(Instant::now(), &command);
        self.start(command, Stdin::Pipe, deadline).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let path = path.to_owned();
        let (file, metadata) = self.with_root(move |root| files::open_for_reading(root, &path)).await?;
        Ok(ReadFile::new(metadata, files::body(file, options)))
    }

    async fn write(&self, path: &str, mut body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let path = path.to_owned();
        let mut draft = self.with_root(move |root| Draft::begin(root, &path, &options)).await?;
        let (mut pieces, mut gathered) = (Vec::new(), 0);
        while let Some(piece) = body.try_next().await? {
            gathered += piece.len();
            pieces.push(piece);
            if gathered >= FLUSH_AT {
                let full = std::mem::take(&mut pieces);
                gathered = 0;
                draft = blocking(move || {
                    full.iter().try_for_each(|piece| draft.append(piece))?;
                    Ok(draft)
                })
                .await?;
            }
        }
        // The body may have taken long: what was put away meanwhile is not changed any more.
        self.while_open(move |_| {
            pieces.iter().try_for_each(|piece| draft.append(piece))?;
            draft.commit()
        })
        .await
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        let path = path.to_owned();
        self.with_root(move |root| files::stat(root, &path)).await
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let path = path.to_owned();
        self.with_root(move |root| files::list(root, &path)).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.with_root(move |root| files::make_dir(root, &path)).await
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let path = path.to_owned();
        self.with_root(move |root| files::remove(root, &path, options)).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.with_root(move |root| files::rename(root, &from, &to)).await
    }

    async fn connect(&self, _: &Endpoint) -> Result<Connection> {
        Err(Error::unsupported("connect"))
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[async_trait]
impl ManagedWorkspace for HostWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        if self.is_detached() {
            return Err(error::gone());
        }
        self.opening.end().await?;
        Ok(None)
    }

    async fn detach(&self) -> Result<()> {
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn health(&self) -> Result<Health> {
        match self.with_root(|_| Ok(())).await {
            Ok(()) => Ok(Health::Alive(None)),
            // It was not put away by us, so its directory must be gone.
            Err(error) if error.kind() == ErrorKind::Gone && self.check().is_ok() => Ok(Health::Dead(Cause::Deleted)),
            Err(error) => Err(error),
        }
    }

    async fn keep_alive(&self, _: Duration) -> Result<Option<Duration>> {
        self.check()?;
        Ok(None)
    }
}
