//! An open workspace of the Docker backend.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::query_parameters::{RemoveContainerOptionsBuilder, StopContainerOptionsBuilder};
use wsm_core::{Capabilities, Cause, Connection, Error, ErrorKind, Result, WorkspaceInfo};
use wsm_host::{Directory, Identity, Place, Sandbox, blocking, handshake::Token};

use crate::{
    client::{Engine, LONG, if_found},
    hold::Hold,
    reach::{Reach, connect},
    seen::{Seen, inspect},
};

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
    pub(crate) hold: Arc<Hold>,
}

#[async_trait]
impl Sandbox for Live {
    const NOUN: &'static str = "a container";

    const CAPABILITIES: Capabilities = Capabilities::NONE
        .with_shell(true)
        .with_background(true)
        .with_connect(true)
        .with_init(true)
        .with_network_control(true)
        .with_node_bound(true);

    fn info(&self) -> &WorkspaceInfo {
        &self.info
    }

    async fn connect(self: Arc<Self>) -> Result<Connection> {
        let connected = connect(&self.engine, &self.container, &self.reach, &self.token).await;
        // Also when it answers: it may not be what it was. While there is no engine, nobody can have changed it.
        match (connected, self.death().await) {
            (Ok(channel), Ok(None) | Err(_)) => Ok(Connection::Bytes(channel)),
            (Err(error), Ok(None)) => Err(error),
            (Err(_), Err(undecided)) => Err(undecided),
            (connected, Ok(Some(_))) => {
                let gone = Error::new(ErrorKind::Gone, "the container has ended: ask for the workspace again");
                Err(connected.err().map_or(gone.clone(), |error| gone.with_source(error)))
            }
        }
    }

    async fn death(self: Arc<Self>) -> Result<Option<Cause>> {
        match inspect(&self.engine, &self.container).await? {
            None => return Ok(Some(Cause::Killed)),
            Some(Seen { is_running: false, cause, .. }) => return Ok(Some(cause)),
            // Somebody else has started it again, and nothing is blocked in its new network.
            Some(Seen { started_at, .. }) if started_at != self.started_at => return Ok(Some(Cause::Killed)),
            // It is all there, and nothing in it answers.
            Some(Seen { is_paused: true, .. }) => {
                let message =
                    "somebody has paused the container: `docker unpause` lets it go on, as does the next opening";
                return Err(Error::new(ErrorKind::Unavailable, message).with_code("container_paused"));
            }
            Some(_) => {}
        }
        blocking(move || match self.directory.open() {
            Ok(_) => Ok(None),
            // The container still shows the deleted one.
            Err(error) if error.kind() == ErrorKind::Gone => Ok(Some(Cause::Deleted)),
            Err(error) => Err(error),
        })
        .await
    }

    /// Ends the container and removes it, unless another process has it open: then this one only lets go.
    async fn end(self: Arc<Self>) -> Result<()> {
        let hold = Arc::clone(&self.hold);
        if !blocking(move || hold.is_alone()).await? {
            tracing::debug!(workspace_id = %self.info.id, "another process has the workspace open: it runs on");
            return Ok(());
        }
        let stop = StopContainerOptionsBuilder::default().t(STOP_GRACE).build();
        let stopped = self.engine.docker()?.stop_container(&self.container, Some(stop));
        if_found(self.engine.call("stop the container", LONG, stopped).await)?;
        remove(&self.engine, &self.container).await?;
        self.reach.clear().await;
        self.hold.forget();
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
