//! wsm inside somebody's own axum service. `cargo run -p example-embed-axum`
//!
//! The service has routes of its own beside those of wsm. They get the caller's workspace from an extractor: opened,
//! checked against its owner, and held for as long as the request lasts.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{net::SocketAddr, sync::Arc};

use axum::{Json, Router, extract::Path, routing::get};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use wsm_app::{
    AppConfig, create_app,
    http::{Caller, CallerWorkspace, Manager, Problem},
};
use wsm_core::{Command, WorkspaceExt};
use wsm_local::{LocalConfig, LocalWorkspaceManager};

#[derive(Serialize)]
struct Words {
    file: String,
    count: u64,
}

/// How many words a file of the caller's workspace has. Errors of wsm become problem documents by themselves.
async fn words(
    CallerWorkspace { workspace, .. }: CallerWorkspace,
    Path(file): Path<String>,
) -> Result<Json<Words>, Problem> {
    let text = workspace.read_bytes(&file, 1 << 20).await?;
    let result = workspace.exec(Command::from_argv(["wc", "-w"]).with_stdin(text)).await?;
    Ok(Json(Words { file, count: result.stdout.to_text().trim().parse().unwrap_or_default() }))
}

/// Who is asking, and what their workspaces live on.
async fn about(Caller(user): Caller, Manager(manager): Manager) -> String {
    format!("{user} works on `{}`, where {} workspaces are open", manager.backend_kind(), manager.cached().len())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let manager = LocalWorkspaceManager::builder(LocalConfig::new(directory.path().join("workspaces"))).build()?;
    let app = create_app(Arc::new(manager), AppConfig::new(directory.path().join("wsm.db")));

    let own = Router::new().route("/words/{*file}", get(words)).route("/about", get(about)).layer(app.extractors());
    let router = Router::new().merge(own).nest("/wsm", app.router.clone());

    app.lifecycle.start().await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let server = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stop.clone().cancelled_owned())
        .into_future();
    let (served, asked) = tokio::join!(server, async {
        let asked = ask(address).await;
        stop.cancel();
        asked
    });
    served?;
    app.lifecycle.shutdown().await;
    asked
}

/// What a client of the service does.
async fn ask(address: SocketAddr) -> anyhow::Result<()> {
    wsm_app::tls::install();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = |path: &str| format!("http://{address}{path}");
    let session = serde_json::json!({ "agent_id": "writer", "session_id": "s" });
    client.post(url("/wsm/sessions")).header("x-user-id", "ann").json(&session).send().await?.error_for_status()?;
    let scope = "agent_id=writer&session_id=s";
    let file = url(&format!("/wsm/workspace/files?{scope}&path=poem.txt"));
    client.put(file).header("x-user-id", "ann").body("so much depends upon").send().await?.error_for_status()?;
    for path in [format!("/words/poem.txt?{scope}"), "/about".to_owned(), format!("/words/none.txt?{scope}")] {
        let answer = client.get(url(&path)).header("x-user-id", "ann").send().await?;
        println!("{path}: {} {}", answer.status(), answer.text().await?);
    }
    Ok(())
}
