//! Layers, and what their failures leave.

use std::{
    any::{Any, TypeId},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use wsm_core::{
    CachingManager, Capabilities, Command, Endpoint, Error, ErrorKind, Layer, ManagedWorkspace, OpenRequest,
    OpenedInfo, OutcomeKind, Result, Workspace, WorkspaceManager,
    memory::{MemoryConfig, MemoryEngine},
};

use crate::support::{get, id};

/// Fails the first `failures` times, then changes nothing.
#[derive(Debug)]
struct Flaky {
    failures: AtomicUsize,
}

#[async_trait]
impl Layer for Flaky {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn prepare(&self, _: Capabilities, _: &mut OpenRequest) -> Result<()> {
        Ok(())
    }

    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, _: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(Error::new(ErrorKind::Backend, "the layer can not be put on"));
        }
        Ok(inner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_wrap_suspends_the_workspace_and_its_outcome_is_told_later() {
    let engine = MemoryEngine::new();
    let layer = Arc::new(Flaky { failures: AtomicUsize::new(2) });
    let manager = CachingManager::builder(MemoryConfig::new(engine.clone())).layer(layer).build().unwrap();
    let manager = Arc::new(manager);
    for _ in 0..2 {
        get(&manager, "w").await.unwrap_err();
        assert_eq!(engine.running(), 0, "nothing is left running");
    }
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.opening().outcome.kind, OutcomeKind::Created, "nobody was told before");
    drop(handle);
    manager.close(&id("w"), Default::default()).await.unwrap();
    assert_eq!(get(&manager, "w").await.unwrap().opening().outcome.kind, OutcomeKind::Resumed);
}

/// Claims that workspaces have no files.
#[derive(Debug)]
struct NoFiles;

#[async_trait]
impl Layer for NoFiles {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner.with_files(false)
    }

    fn prepare(&self, _: Capabilities, _: &mut OpenRequest) -> Result<()> {
        Ok(())
    }

    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, _: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        Ok(inner)
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_declared_is_refused_before_the_backend_sees_it() {
    let manager = CachingManager::builder(MemoryConfig::default()).layer(Arc::new(NoFiles)).build().unwrap();
    let manager = Arc::new(manager);
    let handle = get(&manager, "w").await.unwrap();
    assert!(!handle.capabilities().files);
    for error in [
        handle.stat("f").await.map(drop).unwrap_err(),
        handle.connect(&Endpoint::Port(80)).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!((error.backend(), error.workspace_id()), (Some("memory"), Some(&id("w"))));
    }
    let error = handle.spawn(Command::new("cat").with_stdin("x")).await.unwrap_err();
    assert_eq!(error.field(), Some("stdin"));
    let error = handle.exec(Command::new("a\0")).await.unwrap_err();
    assert_eq!(error.field(), Some("command"));
}

#[test]
fn what_is_handed_around_can_cross_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Arc<dyn Workspace>>();
    check::<Arc<dyn ManagedWorkspace>>();
    check::<Arc<dyn WorkspaceManager>>();
    check::<Arc<dyn wsm_core::Backend>>();
    check::<wsm_core::WorkspaceHandle>();
    check::<Error>();
    let _: Option<(TypeId, Box<dyn Any>)> = None;
}
