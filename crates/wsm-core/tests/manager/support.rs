//! What the tests share.

use std::{sync::Arc, time::Duration};

use wsm_core::{
    CachingManager, Error, ErrorKind, GetRequest, ManagerSettings, Result, Scope, WorkspaceHandle, WorkspaceId,
    WorkspaceManager,
    memory::{MemoryBackend, MemoryConfig, MemoryEngine},
};

pub(crate) const TTL: Duration = Duration::from_secs(60);

pub(crate) type Manager = Arc<CachingManager<MemoryBackend>>;

pub(crate) fn settings() -> ManagerSettings {
    ManagerSettings::default().with_ttl(TTL).with_sweep_interval(Duration::from_secs(10))
}

/// A started manager over a fresh engine.
pub(crate) async fn manager() -> (Manager, MemoryEngine) {
    manager_with(settings()).await
}

pub(crate) async fn manager_with(settings: ManagerSettings) -> (Manager, MemoryEngine) {
    let engine = MemoryEngine::new();
    (manager_over(&engine, settings).await, engine)
}

pub(crate) async fn manager_over(engine: &MemoryEngine, settings: ManagerSettings) -> Manager {
    let manager = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings).build().unwrap();
    manager.start().await.unwrap();
    Arc::new(manager)
}

pub(crate) fn scope(agent: &str) -> Scope {
    Scope::new("ann", agent, "s1").unwrap()
}

pub(crate) fn id(text: &str) -> WorkspaceId {
    WorkspaceId::new(text).unwrap()
}

/// A request for an explicit id, in Ann's name.
pub(crate) fn request(workspace: &str) -> GetRequest {
    GetRequest::new(scope("coder")).with_workspace_id(id(workspace))
}

pub(crate) async fn get(manager: &Manager, workspace: &str) -> Result<WorkspaceHandle> {
    manager.get_workspace(&request(workspace)).await
}

pub(crate) fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "planted")
}

/// Runs a future beside the test. Its handle is joined by the test.
pub(crate) fn beside<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the test joins it")]
    tokio::spawn(future)
}

/// Lets every task that can run do so, without letting time pass.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
