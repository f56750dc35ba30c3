//! Layers, and what their failures leave.

use std::{
    any::{Any, TypeId},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::sleep;
use wsm_core::{
    CachingManager, Capabilities, Cause, Command, Endpoint, Error, ErrorKind, Layer, Loss, ManagedWorkspace,
    OpenRequest, OpenedInfo, OutcomeKind, Result, Retry, Workspace, WorkspaceExt, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{TTL, beside, get, id, settings, settle, unavailable};

/// Fails the first `failures` times, then changes nothing.
#[derive(Debug)]
struct Flaky {
    failures: AtomicUsize,
    kind: ErrorKind,
    retry: Retry,
}

impl Flaky {
    fn new(failures: usize, kind: ErrorKind, retry: Retry) -> Arc<Self> {
        Arc::new(Self { failures: AtomicUsize::new(failures), kind, retry })
    }
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
            return Err(Error::new(self.kind, "the layer can not be put on").with_retry(self.retry));
        }
        Ok(inner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_wrap_suspends_the_workspace_and_its_outcome_is_told_later() {
    let engine = MemoryEngine::new();
    let layer = Flaky::new(2, ErrorKind::Backend, Retry::Never);
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

#[tokio::test(start_paused = true)]
async fn a_layer_that_can_not_work_with_what_runs_gets_a_new_sandbox_once() {
    for (kind, retry) in [(ErrorKind::Backend, Retry::Now), (ErrorKind::Gone, Retry::Never)] {
        let engine = MemoryEngine::new();
        let builder = CachingManager::builder(MemoryConfig::new(engine.clone()));
        let manager = Arc::new(builder.layer(Flaky::new(1, kind, retry)).build().unwrap());
        let handle = get(&manager, "w").await.unwrap();
        assert_eq!(handle.opening().outcome.kind, OutcomeKind::Created, "nobody was told before");
        assert!(handle.sh("true").await.unwrap().status.success());
        assert_eq!(engine.running(), 1);
    }
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone()));
    let manager = Arc::new(builder.layer(Flaky::new(3, ErrorKind::Backend, Retry::Now)).build().unwrap());
    get(&manager, "v").await.unwrap_err();
    assert_eq!(engine.running(), 0, "nothing is left running");
    get(&manager, "v").await.unwrap();
}

/// Sees the workspace end before it can be put on.
#[derive(Debug)]
struct Late(MemoryEngine, AtomicUsize);

#[async_trait]
impl Layer for Late {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn prepare(&self, _: Capabilities, _: &mut OpenRequest) -> Result<()> {
        Ok(())
    }

    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, opened: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            self.0.kill(&opened.id, Cause::OutOfMemory);
        }
        inner.stat(".").await?;
        Ok(inner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_workspace_that_ends_while_a_layer_is_put_on_is_opened_anew_with_the_cause() {
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone()));
    let manager = Arc::new(builder.layer(Arc::new(Late(engine.clone(), AtomicUsize::new(0)))).build().unwrap());
    let opening = get(&manager, "w").await.unwrap().opening().clone();
    assert_eq!((opening.outcome.kind, opening.outcome.cause), (OutcomeKind::Created, Some(Cause::OutOfMemory)));
    assert!(opening.outcome.lost.contains(&Loss::Processes), "{opening:?}");
    assert_eq!(engine.running(), 1);
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

/// What nobody was told stays to be told, also when the workspace was put away in between, at once or in the end.
#[tokio::test(start_paused = true)]
async fn a_loss_that_nobody_was_told_is_not_forgotten() {
    for suspend_fails in [false, true] {
        let engine = MemoryEngine::new();
        let layer = Flaky::new(0, ErrorKind::Backend, Retry::Never);
        let builder = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings());
        let manager = Arc::new(builder.layer(Arc::clone(&layer) as Arc<dyn Layer>).build().unwrap());
        drop(get(&manager, "w").await.unwrap());
        manager.close(&id("w"), Default::default()).await.unwrap();
        engine.lose_files(&id("w"));
        layer.failures.store(1, Ordering::SeqCst);
        if suspend_fails {
            engine.plant(Fault::once(Operation::Suspend, Effect::Fail(unavailable())));
        }
        get(&manager, "w").await.unwrap_err();
        sleep(TTL * 3).await;
        manager.close(&id("w"), Default::default()).await.unwrap();
        assert_eq!(engine.running(), 0);
        assert_eq!(manager.cached().len(), 0, "there is nothing in the cache but what is to be told");
        let opening = get(&manager, "w").await.unwrap().opening().clone();
        assert_eq!(opening.outcome.kind, OutcomeKind::Recreated);
        assert!(opening.outcome.lost.contains(&Loss::WorkspaceFiles), "{opening:?}");

        // With a lost answer, the engine has said why only once, and so has the check before.
        let handle = get(&manager, "w").await.unwrap();
        engine.kill(&id("w"), Cause::OutOfMemory);
        handle.exec(Command::new("true")).await.unwrap_err();
        engine.plant(Fault::once(Operation::Open, Effect::FailAfter(unavailable())));
        get(&manager, "w").await.unwrap_err();
        drop(handle);
        sleep(TTL * 3).await;
        assert_eq!(get(&manager, "w").await.unwrap().opening().outcome.cause, Some(Cause::OutOfMemory));

        layer.failures.store(1, Ordering::SeqCst);
        manager.close(&id("w"), Default::default()).await.unwrap();
        engine.lose_files(&id("w"));
        get(&manager, "w").await.unwrap_err();
        let report = manager.shutdown(Duration::from_secs(1)).await;
        assert!(report.failed.is_empty(), "{:?}", report.failed);
    }
}

/// Never comes to its end.
#[derive(Debug)]
struct Stuck;

#[async_trait]
impl Layer for Stuck {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn prepare(&self, _: Capabilities, _: &mut OpenRequest) -> Result<()> {
        Ok(())
    }

    async fn wrap(&self, _: Arc<dyn ManagedWorkspace>, _: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_puts_away_what_is_open_but_not_wrapped_yet() {
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings());
    let manager = Arc::new(builder.layer(Arc::new(Stuck)).build().unwrap());
    let caller = beside({
        let manager = Arc::clone(&manager);
        async move { get(&manager, "w").await.map(drop) }
    });
    settle().await;
    assert_eq!(engine.running(), 1);
    let report = manager.shutdown(Duration::from_secs(1)).await;
    assert_eq!(engine.running(), 0, "{report:?}");
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(caller.await.unwrap().unwrap_err().kind(), ErrorKind::ShuttingDown);
}
