//! The whole suite, over workspaces of the local backend that are reached through a gateway.

use std::{
    any::{Any, TypeId},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio_util::task::TaskTracker;
use wsm_conformance::{Subject, Unavailable};
use wsm_core::*;
use wsm_gateway::{GatewayLayer, Served, serve};
use wsm_local::{LocalBackend, LocalConfig};

/// The local backend, whose workspaces are connected to as if they had a gateway inside.
#[derive(Debug)]
struct Gated {
    local: LocalBackend,
    servers: TaskTracker,
}

/// A local workspace with a gateway at the other end of `connect`.
#[derive(Debug)]
struct Inside {
    local: Arc<dyn ManagedWorkspace>,
    servers: TaskTracker,
}

fn layer() -> GatewayLayer {
    GatewayLayer::new(InitProgram { path: PathBuf::new(), hash: String::new(), args: Vec::new() })
}

#[async_trait]
impl Backend for Gated {
    fn kind(&self) -> &'static str {
        self.local.kind()
    }

    fn capabilities(&self) -> Capabilities {
        layer().capabilities(self.local.capabilities())
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        let mut opened = self.local.open(request).await?;
        let info = opened.workspace.info().clone();
        let inside = Arc::new(Inside { local: opened.workspace, servers: self.servers.clone() });
        let info = OpenedInfo::new(info.id, opened.outcome.clone(), info.generation);
        opened.workspace = layer().wrap(inside, &info).await?;
        Ok(opened)
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        self.local.find(id).await
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        self.local.list()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        self.local.destroy(id).await
    }

    async fn start(&self) -> Result<()> {
        self.local.start().await
    }
}

#[async_trait]
impl Workspace for Inside {
    fn info(&self) -> &WorkspaceInfo {
        self.local.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.local.capabilities().with_init(true).with_connect(true)
    }

    async fn exec(&self, _: Command) -> Result<ExecResult> {
        Err(Error::unsupported("exec"))
    }

    async fn connect(&self, _: &Endpoint) -> Result<Connection> {
        let (near, far) = tokio::io::duplex(256 << 10);
        self.servers.spawn(serve(Served::new(Arc::clone(&self.local) as Arc<dyn Workspace>), far));
        Ok(Connection::Bytes(Box::pin(near)))
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[async_trait]
impl ManagedWorkspace for Inside {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        self.local.suspend().await
    }

    async fn detach(&self) -> Result<()> {
        self.local.detach().await
    }

    async fn health(&self) -> Result<Health> {
        self.local.health().await
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.local.keep_alive(duration).await
    }
}

async fn subject() -> Result<Subject, Unavailable> {
    let base = tempfile::tempdir().map_err(|error| Unavailable::new("local", error.to_string()))?;
    let path = base.path().to_owned();
    let connect = move || {
        let local = LocalConfig::new(&path).build()?;
        Ok(Arc::new(Gated { local, servers: TaskTracker::new() }) as Arc<dyn Backend>)
    };
    Ok(Subject::new(connect).keeping(base))
}

wsm_conformance::main!(subject);
