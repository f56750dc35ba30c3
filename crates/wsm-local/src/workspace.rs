//! A workspace of the local backend, as its users see it.

use std::{
    any::{Any, TypeId},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use wsm_core::{
    ByteStream, Capabilities, Checkpoint, Command, Connection, DirEntry, Endpoint, ExecResult, Health,
    ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Workspace, WorkspaceId,
    WorkspaceInfo, WriteOptions,
};
use wsm_host::{HostWorkspace, Identity, Opening, Registry};

/// An open workspace.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) opening: Arc<Opening>,
    /// Which directory it has.
    pub(crate) identity: Identity,
}

impl Live {
    pub(crate) fn id(&self) -> &WorkspaceId {
        self.opening.id()
    }
}

/// One handed-out object of an open workspace. All that it adds is that openings and endings of one id take turns.
#[derive(Debug)]
pub(crate) struct LocalWorkspace {
    host: HostWorkspace,
    live: Arc<Live>,
    registry: Arc<Registry<Live>>,
}

impl LocalWorkspace {
    pub(crate) fn new(live: Arc<Live>, registry: Arc<Registry<Live>>) -> Self {
        Self { host: HostWorkspace::new(Arc::clone(&live.opening)), live, registry }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for LocalWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        self.host.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.host.capabilities()
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.host.exec(command).await
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.host.spawn(command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        self.host.read(path, options).await
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        self.host.write(path, body, options).await
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        self.host.stat(path).await
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        self.host.list(path).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.host.make_dir(path).await
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        self.host.remove(path, options).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.host.rename(from, to).await
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.host.connect(endpoint).await
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.host.extension(type_id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for LocalWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        if self.host.is_detached() {
            // Which it says itself.
            return self.host.suspend().await;
        }
        // An opening of the same id waits for the end of this one.
        let _turn = self.registry.turn(self.live.id()).await;
        if !self.registry.holds(self.live.id(), &self.live) {
            // It has ended already, and what runs there now is of a later opening.
            return Ok(None);
        }
        let checkpoint = self.host.suspend().await?;
        self.registry.remove(self.live.id(), &self.live);
        Ok(checkpoint)
    }

    async fn detach(&self) -> Result<()> {
        self.host.detach().await
    }

    async fn health(&self) -> Result<Health> {
        self.host.health().await
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.host.keep_alive(duration).await
    }
}
