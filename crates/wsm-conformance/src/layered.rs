//! A backend with a layer on top of its workspaces, as a manager stacks them.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use wsm_core::{
    Backend, Capabilities, Error, ErrorKind, FoundWorkspace, Layer, Leftover, OpenRequest, Opened, OpenedInfo, Outcome,
    Probe, Result, Retry, WorkspaceId,
};

/// Tests a backend together with a layer: the suite sees what the users of a manager with that layer see.
#[derive(Debug)]
pub struct Layered<B> {
    /// The backend.
    pub backend: B,
    /// What wraps its workspaces.
    pub layer: Arc<dyn Layer>,
}

impl<B: Backend> Layered<B> {
    /// Tells with an error how the backend's own opening had ended.
    async fn open_once(&self, request: OpenRequest) -> Result<Opened, (Error, Option<Outcome>)> {
        let mut opened = self.backend.open(request).await.map_err(|error| (error, None))?;
        let info = opened.workspace.info();
        let info = OpenedInfo::new(info.id.clone(), opened.outcome.clone(), info.generation);
        match self.layer.wrap(Arc::clone(&opened.workspace), &info).await {
            Ok(wrapped) => opened.workspace = wrapped,
            Err(error) => {
                if error.kind() != ErrorKind::Gone
                    && let Err(error) = opened.workspace.suspend().await
                {
                    return Err((error, None));
                }
                return Err((error, Some(opened.outcome)));
            }
        }
        Ok(opened)
    }
}

#[async_trait]
impl<B: Backend> Backend for Layered<B> {
    fn kind(&self) -> &'static str {
        self.backend.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.backend.capabilities())
    }

    /// Opens once more what ended, or was of no use, before the layer was on, as a manager does.
    async fn open(&self, mut request: OpenRequest) -> Result<Opened> {
        self.layer.prepare(self.backend.capabilities(), &mut request)?;
        match self.open_once(request.clone()).await {
            Err((error, Some(untold))) if error.kind() == ErrorKind::Gone || error.retry() == Retry::Now => {
                let mut opened = self.open_once(request).await.map_err(|(error, _)| error)?;
                opened.outcome = opened.outcome.after(untold);
                Ok(opened)
            }
            opened => opened.map_err(|(error, _)| error),
        }
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

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        self.backend.leftovers().await
    }

    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        self.backend.remove_leftover(leftover).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.backend.probe().await
    }

    async fn start(&self) -> Result<()> {
        self.backend.start().await
    }
}
