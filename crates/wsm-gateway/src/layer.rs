//! The layer that drives workspaces through their gateway.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::FutureExt;
use wsm_core::{
    ByteStream, Capabilities, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, InitProgram, Layer, ManagedWorkspace, Metadata, OpenRequest, OpenedInfo, Process, ReadFile, ReadOptions,
    RemoveOptions, Result, Workspace, WorkspaceInfo, WriteOptions,
};

use crate::{
    client::{GatewayClient, Io},
    packages,
};

/// How often, and after which time each, an engine is asked again whether a sandbox is dead whose gateway does not answer.
const DEATH_LOOKS: u32 = 10;
const DEATH_PAUSE: Duration = Duration::from_millis(50);

/// Drives workspaces through the gateway that runs as their first process.
///
/// The backend must declare `init` and `connect`: it starts the program that this layer names, and answers
/// `connect(&Endpoint::Init)` with the program's channel.
#[derive(Debug)]
pub struct GatewayLayer {
    program: InitProgram,
    packages: Vec<String>,
}

impl GatewayLayer {
    /// Uses this build of the gateway.
    pub fn new(program: InitProgram) -> Self {
        Self { program, packages: Vec::new() }
    }

    /// Installs Python packages, given as `pip install` takes them, into an environment of the workspace's own that commands
    /// find first. It is kept until the list changes. Needs `python3` with `venv` in the sandbox, and a package index.
    #[must_use]
    pub fn with_packages(mut self, packages: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.packages = packages.into_iter().map(Into::into).collect();
        self
    }
}

#[async_trait]
impl Layer for GatewayLayer {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner.with_spawn(true).with_files(true)
    }

    fn prepare(&self, inner: Capabilities, request: &mut OpenRequest) -> Result<()> {
        if !inner.init || !inner.connect {
            let message = "the gateway needs a backend that can start it and connect to it (`init` and `connect`)";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut program = self.program.clone();
        program.args.insert(0, "serve".to_owned());
        if !self.packages.is_empty() {
            program.args.extend(["--path".to_owned(), packages::PROGRAMS.to_owned()]);
        }
        request.init = Some(program);
        Ok(())
    }

    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, _: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        let (client, version) = match self.greet(&inner).await {
            Ok(greeted) => greeted,
            // The connection may have broken because the sandbox has ended, which asks for another answer.
            Err(error) if error.kind() == ErrorKind::Unavailable && matches!(death(&*inner).await, Ok(Some(_))) => {
                let message = "the workspace ended while it was opened: ask for it again";
                return Err(Error::new(ErrorKind::Gone, message).with_source(error));
            }
            Err(error) => return Err(error),
        };
        let capabilities = self.capabilities(inner.capabilities());
        tracing::debug!(workspace_id = %inner.info().id, version, "the gateway answers");
        Ok(Arc::new(GatewayWorkspace { inner, client, capabilities }))
    }
}

impl GatewayLayer {
    /// Connects to the gateway, learns its version and has the packages installed.
    async fn greet(&self, inner: &Arc<dyn ManagedWorkspace>) -> Result<(GatewayClient, String)> {
        let connect = Arc::clone(inner);
        let client = GatewayClient::new(move || {
            let inner = Arc::clone(&connect);
            async move {
                match inner.connect(&Endpoint::Init).await? {
                    Connection::Bytes(channel) => Ok(Box::new(channel) as Box<dyn Io>),
                    _ => Err(Error::unsupported("connect")),
                }
            }
            .boxed()
        })
        .await?;
        let hello = client.hello().await?;
        if !self.packages.is_empty() {
            packages::install(&client, &self.packages).await?;
        }
        Ok((client, hello.version))
    }
}

/// Waits a moment for a sandbox to be found dead: a connection breaks before its engine knows that.
async fn death(inner: &dyn ManagedWorkspace) -> Result<Option<Health>> {
    for _ in 0..DEATH_LOOKS {
        tokio::time::sleep(DEATH_PAUSE).await;
        if let dead @ Health::Dead(_) = inner.health().await? {
            return Ok(Some(dead));
        }
    }
    Ok(None)
}

/// A workspace whose commands and files go through its gateway.
struct GatewayWorkspace {
    inner: Arc<dyn ManagedWorkspace>,
    client: GatewayClient,
    capabilities: Capabilities,
}

impl fmt::Debug for GatewayWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayWorkspace").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for GatewayWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.client.exec(command).await
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.client.spawn(&command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        self.client.read(path, options).await
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        self.client.write(path, body, &options).await
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        self.client.stat(path).await
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        self.client.list(path).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.client.make_dir(path).await
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        self.client.remove(path, options).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.client.rename(from, to).await
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.inner.connect(endpoint).await
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        if type_id == TypeId::of::<GatewayClient>() {
            return Some(Arc::new(self.client.clone()));
        }
        self.inner.extension(type_id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for GatewayWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        self.client.close().await;
        self.inner.suspend().await
    }

    async fn detach(&self) -> Result<()> {
        self.client.close().await;
        self.inner.detach().await
    }

    async fn health(&self) -> Result<Health> {
        // The sandbox first: when it is dead, nobody needs to ask the gateway.
        let idle_stop = match self.inner.health().await? {
            Health::Alive(idle_stop) => idle_stop,
            dead => return Ok(dead),
        };
        let Err(error) = self.client.ping().await else { return Ok(Health::Alive(idle_stop)) };
        match death(&*self.inner).await? {
            Some(dead) => Ok(dead),
            None => Err(error),
        }
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.inner.keep_alive(duration).await
    }
}
