//! A workspace of the bubblewrap backend, as the layer above sees it.

use std::{
    any::{Any, TypeId},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use wsm_core::{
    ByteStream, Capabilities, Cause, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Workspace,
    WorkspaceInfo, WriteOptions,
};
use wsm_host::{Arrival, Directory, Identity, Place, Registry, blocking};

use crate::sandbox::Sandbox;

/// What every workspace of this backend can do before the gateway's layer adds to it.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::NONE
    .with_shell(true)
    .with_background(true)
    .with_connect(true)
    .with_init(true)
    .with_network_control(true)
    .with_node_bound(true);

/// An open workspace.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) info: WorkspaceInfo,
    /// Which directory it has.
    pub(crate) identity: Identity,
    /// Why the directory was made for this opening, if it was.
    pub(crate) arrival: Option<Arrival>,
    pub(crate) directory: Directory,
    pub(crate) sandbox: Sandbox,
}

impl Live {
    /// Why the sandbox is dead or of no use any more; none while it lives.
    ///
    /// # Errors
    ///
    /// `unavailable` when that can not be decided.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(crate) async fn death(self: &Arc<Self>) -> Result<Option<Cause>> {
        if let Some(cause) = self.sandbox.death().await {
            return Ok(Some(cause));
        }
        let live = Arc::clone(self);
        blocking(move || match live.directory.open() {
            Ok(_) => Ok(None),
            // The sandbox still shows the deleted one.
            Err(error) if error.kind() == ErrorKind::Gone => Ok(Some(Cause::Deleted)),
            Err(error) => Err(error),
        })
        .await
    }
}

/// One handed-out object of an open workspace.
#[derive(Debug)]
pub(crate) struct BubblewrapWorkspace {
    live: Arc<Live>,
    registry: Arc<Registry<Live>>,
    /// Whether the holder of this object has let go, while the workspace goes on for others.
    detached: AtomicBool,
}

impl BubblewrapWorkspace {
    pub(crate) fn new(live: Arc<Live>, registry: Arc<Registry<Live>>) -> Self {
        Self { live, registry, detached: AtomicBool::new(false) }
    }

    fn check(&self) -> Result<()> {
        if self.detached.load(Ordering::Relaxed) || !self.registry.holds(&self.live.info.id, &self.live) {
            return Err(Error::new(ErrorKind::Gone, "the workspace was put away: ask for it again"));
        }
        Ok(())
    }
}

/// Everything inside goes through the first process.
fn needs_layer<T>(what: &'static str) -> Result<T> {
    let message = format!(
        "a sandbox is driven through its gateway, and this workspace lacks the layer for `{what}`: add \
         `wsm_gateway::GatewayLayer` to the manager"
    );
    Err(Error::new(ErrorKind::Unsupported, message).with_code("gateway_missing"))
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for BubblewrapWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        &self.live.info
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn exec(&self, _: Command) -> Result<ExecResult> {
        needs_layer("exec")
    }

    async fn spawn(&self, _: Command) -> Result<Process> {
        needs_layer("spawn")
    }

    async fn read(&self, _: &str, _: ReadOptions) -> Result<ReadFile> {
        needs_layer("read")
    }

    async fn write(&self, _: &str, _: ByteStream, _: WriteOptions) -> Result<Metadata> {
        needs_layer("write")
    }

    async fn stat(&self, _: &str) -> Result<Metadata> {
        needs_layer("stat")
    }

    async fn list(&self, _: &str) -> Result<Vec<DirEntry>> {
        needs_layer("list")
    }

    async fn make_dir(&self, _: &str) -> Result<()> {
        needs_layer("make_dir")
    }

    async fn remove(&self, _: &str, _: RemoveOptions) -> Result<()> {
        needs_layer("remove")
    }

    async fn rename(&self, _: &str, _: &str) -> Result<()> {
        needs_layer("rename")
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.check()?;
        match endpoint {
            Endpoint::Init => Ok(Connection::Bytes(self.live.sandbox.connect().await?)),
            _ => Err(Error::unsupported("connect")),
        }
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for BubblewrapWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        if self.detached.load(Ordering::Relaxed) {
            self.check()?;
        }
        let id = &self.live.info.id;
        // An opening of the same id waits for the end of this one.
        let _turn = self.registry.turn(id).await;
        if !self.registry.holds(id, &self.live) {
            // It has ended already, and what runs there now is of a later opening.
            return Ok(None);
        }
        self.live.sandbox.end().await?;
        self.registry.remove(id, &self.live);
        Ok(None)
    }

    async fn detach(&self) -> Result<()> {
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn health(&self) -> Result<Health> {
        if let Some(cause) = self.live.death().await? {
            return Ok(Health::Dead(cause));
        }
        self.check()?;
        Ok(Health::Alive(None))
    }

    async fn keep_alive(&self, _: Duration) -> Result<Option<Duration>> {
        self.check()?;
        Ok(None)
    }
}
