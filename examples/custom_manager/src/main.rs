//! Somebody's own `WorkspaceManager`, given to the service in one line. `cargo run -p example-custom-manager`
//!
//! It keeps no cache and puts nothing away: each user has one notebook in memory for as long as the process lives. The
//! service around it is the whole one, with sessions, the HTTP API, and its OpenAPI document.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    extract::{ConnectInfo, Request},
};
use parking_lot::Mutex;
use tower::ServiceExt;
use wsm_app::{AppConfig, create_app};
use wsm_core::{
    Capabilities, CloseOptions, CloseReport, Command, Error, ExecResult, ExitStatus, GetRequest, IsolationPolicy,
    Output, Result, Scope, UserId, Workspace, WorkspaceHandle, WorkspaceId, WorkspaceInfo, WorkspaceManager,
};

/// A place with two programs: `note WORD…` writes a line, `notes` reads them all.
#[derive(Debug)]
struct Notebook {
    info: WorkspaceInfo,
    lines: Mutex<String>,
}

#[async_trait]
impl Workspace for Notebook {
    fn info(&self) -> &WorkspaceInfo {
        &self.info
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        let mut lines = self.lines.lock();
        let printed = match command.program() {
            "note" => {
                lines.push_str(&command.argv[1..].join(" "));
                lines.push('\n');
                String::new()
            }
            "notes" => lines.clone(),
            other => {
                let message = format!("a notebook knows `note` and `notes`, not `{other}`");
                return Err(Error::invalid("command", message).with_code("program_not_found"));
            }
        };
        let status = ExitStatus::Exited { code: 0 };
        Ok(ExecResult::new(status, Output::complete(printed), Output::default(), Duration::ZERO))
    }
}

/// One notebook for each user.
#[derive(Debug, Default)]
struct Notebooks(Mutex<HashMap<UserId, Arc<Notebook>>>);

impl Notebooks {
    fn of(&self, scope: &Scope) -> WorkspaceHandle {
        let new = || {
            let info = WorkspaceInfo::new(self.assign_workspace_id(scope), "notebook", "/");
            Arc::new(Notebook { info, lines: Mutex::default() })
        };
        let notebook = Arc::clone(self.0.lock().entry(scope.user_id.clone()).or_insert_with(new));
        WorkspaceHandle::new(notebook)
    }
}

#[async_trait]
impl WorkspaceManager for Notebooks {
    fn isolation(&self) -> IsolationPolicy {
        IsolationPolicy::PerUser
    }

    fn backend_kind(&self) -> &'static str {
        "notebook"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn get_workspace(&self, request: &GetRequest) -> Result<WorkspaceHandle> {
        Ok(self.of(&request.scope))
    }

    async fn create_workspace(&self, scope: &Scope) -> Result<WorkspaceHandle> {
        Ok(self.of(scope))
    }

    async fn close(&self, _: &WorkspaceId, _: CloseOptions) -> Result<()> {
        Ok(())
    }

    async fn close_all(&self, _: CloseOptions) -> CloseReport {
        CloseReport::default()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    // The one line: any manager will do.
    let app = create_app(Arc::new(Notebooks::default()), AppConfig::new(directory.path().join("wsm.db")));
    app.lifecycle.start().await?;

    let post = async |path: &str, body: &str| -> anyhow::Result<String> {
        let request = Request::post(path).header("x-user-id", "ann").header("content-type", "application/json");
        let mut request = request.body(Body::from(body.to_owned()))?;
        // A server puts this in; see `into_make_service_with_connect_info`.
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 1))));
        let response = app.router.clone().oneshot(request).await?;
        Ok(String::from_utf8(to_bytes(response.into_body(), 1 << 20).await?.to_vec())?)
    };
    println!("{}", post("/sessions", r#"{"agent_id":"writer","session_id":"s"}"#).await?);
    let exec = "/workspace/exec?agent_id=writer&session_id=s";
    post(exec, r#"{"command":["note","buy","milk"]}"#).await?;
    let notes = post(exec, r#"{"command":["notes"]}"#).await?;
    println!("{notes}");
    anyhow::ensure!(serde_json::from_str::<serde_json::Value>(&notes)?["stdout"] == "buy milk\n", "the note is there");

    app.lifecycle.shutdown().await;
    Ok(())
}
