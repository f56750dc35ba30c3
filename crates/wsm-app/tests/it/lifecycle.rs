//! What is started in which order, and stopped in reverse.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;
use wsm_app::{AppConfig, create_app, store::StoreLock};
use wsm_core::{
    Capabilities, CloseOptions, CloseReport, Error, ErrorKind, EventStream, GetRequest, IsolationPolicy, Result, Scope,
    WorkspaceHandle, WorkspaceId, WorkspaceManager,
};

use crate::support::{app, client, eventually};

/// Writes down what is asked of it, and whether the store is in use at that time.
#[derive(Debug)]
struct Recorder {
    store: PathBuf,
    steps: Mutex<Vec<String>>,
    fails_to_start: bool,
}

impl Recorder {
    fn new(store: PathBuf, fails_to_start: bool) -> Arc<Self> {
        Arc::new(Self { store, steps: Mutex::default(), fails_to_start })
    }

    fn note(&self, step: &str) {
        let store = if StoreLock::acquire(&self.store).is_err() { "store open" } else { "store closed" };
        self.steps.lock().push(format!("{step}, {store}"));
    }
}

#[async_trait]
impl WorkspaceManager for Recorder {
    fn isolation(&self) -> IsolationPolicy {
        IsolationPolicy::PerAgent
    }

    fn backend_kind(&self) -> &'static str {
        "recorder"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn get_workspace(&self, _: &GetRequest) -> Result<WorkspaceHandle> {
        Err(Error::unsupported("get_workspace"))
    }

    async fn create_workspace(&self, _: &Scope) -> Result<WorkspaceHandle> {
        Err(Error::unsupported("create_workspace"))
    }

    async fn close(&self, _: &WorkspaceId, _: CloseOptions) -> Result<()> {
        Ok(())
    }

    async fn close_all(&self, _: CloseOptions) -> CloseReport {
        CloseReport::default()
    }

    async fn start(&self) -> Result<()> {
        self.note("start");
        if self.fails_to_start { Err(Error::new(ErrorKind::Unavailable, "no engine")) } else { Ok(()) }
    }

    async fn shutdown(&self, _: Duration) -> CloseReport {
        self.note("shutdown");
        CloseReport::default()
    }

    fn subscribe(&self) -> EventStream {
        self.note("subscribe");
        Box::pin(futures::stream::pending())
    }
}

#[tokio::test]
async fn the_store_comes_first_and_goes_last() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("new/wsm.db");
    let manager = Recorder::new(store.clone(), false);
    let app = create_app(manager.clone(), AppConfig::new(&store));
    let ann = client(&app.router).header("x-user-id", "ann");
    assert_eq!(ann.get("/readyz").await.problem(), (503, "unavailable".into()), "not started");
    assert_eq!(ann.get("/healthz").await.status, 200);
    app.lifecycle.start().await.unwrap();
    assert_eq!(ann.get("/readyz").await.status, 200);
    assert_eq!(app.lifecycle.start().await.unwrap_err().kind(), ErrorKind::Conflict);
    app.lifecycle.shutdown().await;
    app.lifecycle.shutdown().await;
    let steps = ["subscribe, store open", "start, store open", "shutdown, store open"];
    assert_eq!(*manager.steps.lock(), steps);
    StoreLock::acquire(&store).unwrap();
    assert_eq!(ann.get("/readyz").await.problem(), (503, "shutting_down".into()));
    assert_eq!(ann.post("/sessions", &json!({ "agent_id": "a" })).await.problem(), (503, "shutting_down".into()));
}

#[tokio::test]
async fn a_failed_start_closes_what_had_started() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("wsm.db");
    let manager = Recorder::new(store.clone(), true);
    let app = create_app(manager.clone(), AppConfig::new(&store));
    assert_eq!(app.lifecycle.start().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(*manager.steps.lock(), ["subscribe, store open", "start, store open"]);
    // A child that another test is starting at this moment holds every open file until its program is loaded.
    eventually("the store is free", || StoreLock::acquire(&store).is_ok()).await;
}

#[tokio::test]
async fn a_second_service_on_one_store_is_refused() {
    let app = app().await;
    let second = create_app(app.manager.clone(), AppConfig::new(app.dir.path().join("wsm.db")));
    let error = second.lifecycle.start().await.unwrap_err();
    assert_eq!(error.code(), "store_in_use");
    assert_eq!(app.user("ann").get("/sessions").await.status, 200, "the first one goes on");
}

#[tokio::test]
async fn a_stop_puts_everything_away_and_the_next_start_finds_it() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    ann.sh(&session, "echo kept > f").await;
    let report = app.app.lifecycle.shutdown().await;
    assert_eq!((report.closed, report.failed.len(), app.engine.running()), (1, 0, 0));

    let config = wsm_core::memory::MemoryConfig::new(app.engine.clone());
    let manager = Arc::new(wsm_core::CachingManager::builder(config).build().unwrap());
    let next = create_app(manager, AppConfig::new(app.dir.path().join("wsm.db")));
    next.lifecycle.start().await.unwrap();
    let ann = client(&next.router).header("x-user-id", "ann");
    assert_eq!(ann.sh(&session, "cat f").await.json()["stdout"], "kept\n");
}
