//! An open workspace of the bubblewrap backend.

use std::sync::Arc;

use async_trait::async_trait;
use wsm_core::{Capabilities, Cause, Connection, ErrorKind, Result, WorkspaceInfo};
use wsm_host::{Arrival, Directory, Identity, Place, blocking};

use crate::sandbox::Sandbox;

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

#[async_trait]
impl wsm_host::Sandbox for Live {
    const NOUN: &'static str = "a sandbox";

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
        Ok(Connection::Bytes(self.sandbox.connect().await?))
    }

    async fn death(self: Arc<Self>) -> Result<Option<Cause>> {
        if let Some(cause) = self.sandbox.death().await {
            return Ok(Some(cause));
        }
        blocking(move || match self.directory.open() {
            Ok(_) => Ok(None),
            // The sandbox still shows the deleted one.
            Err(error) if error.kind() == ErrorKind::Gone => Ok(Some(Cause::Deleted)),
            Err(error) => Err(error),
        })
        .await
    }

    async fn end(self: Arc<Self>) -> Result<()> {
        self.sandbox.end().await
    }
}
