//! A backend with a layer on top of its workspaces, as a manager stacks them.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use wsm_core::{
    Backend, Capabilities, FoundWorkspace, Layer, OpenRequest, Opened, OpenedInfo, Probe, Result, WorkspaceId,
};

/// Tests a backend together with a layer: the suite sees what the users of a manager with that layer see.
#[derive(Debug)]
pub struct Layered<B> {
    /// The backend.
    pub backend: B,
    /// What wraps its workspaces.
    pub layer: Arc<dyn Layer>,
}

#[async_trait]
impl<B: Backend> Backend for Layered<B> {
    fn kind(&self) -> &'static str {
        self.backend.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.backend.capabilities())
    }

    async fn open(&self, mut request: OpenRequest) -> Result<Opened> {
        self.layer.prepare(self.backend.capabilities(), &mut request)?;
        let mut opened = self.backend.open(request).await?;
        let info = opened.workspace.info();
        let info = OpenedInfo::new(info.id.clone(), opened.outcome.clone(), info.generation);
        opened.workspace = self.layer.wrap(opened.workspace, &info).await?;
        Ok(opened)
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        self.backend.find(id).await
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        self.backend.list()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        self.backend.destroy(id).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.backend.probe().await
    }

    async fn start(&self) -> Result<()> {
        self.backend.start().await
    }
}
