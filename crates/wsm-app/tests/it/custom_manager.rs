//! Somebody's own manager, which can do no more than it must.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use wsm_app::{App, AppConfig, create_app};
use wsm_core::{
    Capabilities, CloseOptions, CloseReport, Command, ExecResult, ExitStatus, GetRequest, IsolationPolicy, Output,
    Result, Scope, Workspace, WorkspaceHandle, WorkspaceId, WorkspaceInfo, WorkspaceManager,
};

use crate::support::client;

/// A place where every command prints its own arguments.
#[derive(Debug)]
struct Parrot(WorkspaceInfo);

#[async_trait]
impl Workspace for Parrot {
    fn info(&self) -> &WorkspaceInfo {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        let said = Output::complete(command.argv.join(" "));
        Ok(ExecResult::new(ExitStatus::Exited { code: 0 }, said, Output::default(), Duration::ZERO))
    }
}

#[derive(Debug)]
struct Aviary;

#[async_trait]
impl WorkspaceManager for Aviary {
    fn isolation(&self) -> IsolationPolicy {
        IsolationPolicy::PerSession
    }

    fn backend_kind(&self) -> &'static str {
        "parrot"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn get_workspace(&self, request: &GetRequest) -> Result<WorkspaceHandle> {
        let id = request.workspace_id.clone().unwrap_or_else(|| self.assign_workspace_id(&request.scope));
        Ok(WorkspaceHandle::new(Arc::new(Parrot(WorkspaceInfo::new(id, "parrot", "/")))))
    }

    async fn create_workspace(&self, _: &Scope) -> Result<WorkspaceHandle> {
        let info = WorkspaceInfo::new(WorkspaceId::random(), "parrot", "/");
        Ok(WorkspaceHandle::new(Arc::new(Parrot(info))))
    }

    async fn close(&self, _: &WorkspaceId, _: CloseOptions) -> Result<()> {
        Ok(())
    }

    async fn close_all(&self, _: CloseOptions) -> CloseReport {
        CloseReport::default()
    }
}

async fn app() -> (tempfile::TempDir, App) {
    let dir = tempfile::tempdir().unwrap();
    let app = create_app(Arc::new(Aviary), AppConfig::new(dir.path().join("wsm.db")));
    app.lifecycle.start().await.unwrap();
    (dir, app)
}

#[tokio::test]
async fn what_it_can_do_works_and_the_rest_is_told() {
    let (_dir, app) = app().await;
    let ann = client(&app.router).header("x-user-id", "ann");
    let session = ann.session("a").await;
    let body = json!({ "command": ["hello", "there"] });
    let uri = format!("/workspace/exec?{session}");
    assert_eq!(ann.post(&uri, &body).await.json()["stdout"], "hello there");
    let streamed = ann.clone().header("accept", "text/event-stream").post(&uri, &body).await.text();
    assert!(streamed.contains("event: stdout") && streamed.contains("event: end"), "{streamed}");
    let file = ann.get(&format!("/workspace/files?{session}&path=f")).await;
    assert_eq!(file.problem(), (501, "unsupported".into()));
    let operator = client(&app.router);
    assert_eq!(operator.get("/admin/workspaces").await.json()["items"], json!([]));
    let all = operator.get("/admin/workspaces?all=true").await.json();
    assert_eq!((&all["items"][0]["state"], &all["items"][0]["opening"]), (&json!("absent"), &Value::Null));
    assert_eq!(operator.get("/readyz").await.status, 200);
    let events = tokio::time::timeout(Duration::from_millis(100), operator.get("/events")).await;
    assert!(events.is_err(), "nothing happens, and the stream waits for it");
}

#[tokio::test]
async fn a_session_can_be_deleted_though_its_workspace_can_not() {
    let (_dir, app) = app().await;
    let ann = client(&app.router).header("x-user-id", "ann");
    let body = json!({ "agent_id": "a", "session_id": "s" });
    ann.post("/sessions", &body).await;
    assert_eq!(ann.delete("/sessions/s").await.status, 204);
    assert_eq!(ann.get("/sessions/s").await.status, 404);
    assert_eq!(ann.post("/sessions", &body).await.problem(), (409, "session_deleted".into()));
    let id = IsolationPolicy::PerSession.assign(&Scope::new("ann", "a", "s").unwrap());
    let destroy = client(&app.router).delete(&format!("/admin/workspaces/{id}")).await;
    assert_eq!(destroy.problem(), (501, "unsupported".into()));
}
