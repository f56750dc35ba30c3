//! A workspace of the Docker backend, as the layer above sees it.

use std::{
    any::{Any, TypeId},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bollard::query_parameters::{RemoveContainerOptionsBuilder, StopContainerOptionsBuilder};
use wsm_core::{
    ByteStream, Capabilities, Cause, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Workspace,
    WorkspaceInfo, WriteOptions,
};
use wsm_host::{Directory, Identity, Place, Registry, blocking, handshake::Token};

use crate::{
    backend::{Seen, inspect},
    client::{Engine, LONG, if_found},
    reach::{Reach, connect},
};

/// What every workspace of this backend can do before the gateway's layer adds to it.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::NONE
    .with_shell(true)
    .with_background(true)
    .with_connect(true)
    .with_init(true)
    .with_network_control(true)
    .with_node_bound(true);

/// How long the gateway has for ending its commands, in seconds.
const STOP_GRACE: i32 = 5;

/// An open workspace.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) info: WorkspaceInfo,
    pub(crate) engine: Engine,
    /// The engine's id of the container, which no other one ever has.
    pub(crate) container: String,
    /// When it was started, as the engine writes it.
    pub(crate) started_at: String,
    pub(crate) reach: Reach,
    pub(crate) token: Token,
    /// Which directory it has.
    pub(crate) identity: Identity,
    pub(crate) directory: Directory,
}

impl Live {
    /// Why the container is dead or of no use any more; none while it lives.
    ///
    /// # Errors
    ///
    /// `unavailable` when that can not be decided.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(crate) async fn death(self: &Arc<Self>) -> Result<Option<Cause>> {
        match inspect(&self.engine, &self.container).await? {
            None => return Ok(Some(Cause::Killed)),
            Some(Seen { is_running: false, cause, .. }) => return Ok(Some(cause)),
            // Somebody else has started it again, and nothing is blocked in its new network.
            Some(Seen { started_at, .. }) if started_at != self.started_at => return Ok(Some(Cause::Killed)),
            Some(_) => {}
        }
        let live = Arc::clone(self);
        blocking(move || match live.directory.open() {
            Ok(_) => Ok(None),
            // The container still shows the deleted one.
            Err(error) if error.kind() == ErrorKind::Gone => Ok(Some(Cause::Deleted)),
            Err(error) => Err(error),
        })
        .await
    }

    /// Ends the container and removes it. The directory stays. May be called more than once.
    ///
    /// # Errors
    ///
    /// As for [`Engine::call`].
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have ended and removed it, or not. Call it again.
    pub(crate) async fn end(&self) -> Result<()> {
        let stop = StopContainerOptionsBuilder::default().t(STOP_GRACE).build();
        let stopped = self.engine.docker()?.stop_container(&self.container, Some(stop));
        if_found(self.engine.call("stop the container", LONG, stopped).await)?;
        remove(&self.engine, &self.container).await?;
        self.reach.clear().await;
        Ok(())
    }
}

/// Removes a container, whatever state it is in; one that is not there is fine.
///
/// # Errors
///
/// As for [`Engine::call`].
pub(crate) async fn remove(engine: &Engine, container: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match engine.call("remove the container", LONG, engine.docker()?.remove_container(container, Some(options))).await {
        // Somebody else removes it at this moment.
        Err(error) if error.kind() == ErrorKind::Conflict && error.to_string().contains("already in progress") => {
            Ok(())
        }
        removed => if_found(removed).map(drop),
    }
}

/// One handed-out object of an open workspace.
#[derive(Debug)]
pub(crate) struct DockerWorkspace {
    live: Arc<Live>,
    registry: Arc<Registry<Live>>,
    /// Whether the holder of this object has let go, while the workspace goes on for others.
    detached: AtomicBool,
}

impl DockerWorkspace {
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
        "a container is driven through its gateway, and this workspace lacks the layer for `{what}`: add \
         `wsm_gateway::GatewayLayer` to the manager"
    );
    Err(Error::new(ErrorKind::Unsupported, message).with_code("gateway_missing"))
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for DockerWorkspace {
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
        let Endpoint::Init = endpoint else { return Err(Error::unsupported("connect")) };
        let Live { engine, container, reach, token, .. } = &*self.live;
        let connected = connect(engine, container, reach, token).await;
        // Also when it answers: it may not be what it was.
        match (connected, self.live.death().await?) {
            (Ok(channel), None) => Ok(Connection::Bytes(channel)),
            (Err(error), None) => Err(error),
            (connected, Some(_)) => {
                let gone = Error::new(ErrorKind::Gone, "the container has ended: ask for the workspace again");
                Err(connected.err().map_or(gone.clone(), |error| gone.with_source(error)))
            }
        }
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for DockerWorkspace {
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
        self.live.end().await?;
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
