//! The application inside somebody else's service.

use axum::{Json, Router, extract::Request, middleware::Next, routing::get};
use serde_json::{Value, json};
use wsm_app::http::{Caller, CallerWorkspace, Identity, Manager, Problem};
use wsm_core::{UserId, WorkspaceExt};

use crate::support::{app, client};

async fn files(CallerWorkspace { workspace, .. }: CallerWorkspace) -> Result<Json<Value>, Problem> {
    let listed = workspace.sh("echo hello").await?;
    Ok(Json(json!({ "said": listed.stdout.to_text() })))
}

async fn who(Caller(user): Caller, Manager(manager): Manager) -> Json<Value> {
    Json(json!({ "user": user, "backend": manager.backend_kind() }))
}

#[tokio::test]
async fn routes_of_an_embedder_use_the_extractors() {
    let app = app().await;
    let session = app.user("ann").session("a").await;
    let own = Router::new().route("/own/files", get(files)).route("/own/who", get(who)).layer(app.app.extractors());
    let router = Router::new().merge(own).nest("/wsm", app.app.router.clone());
    let ann = client(&router).header("x-user-id", "ann");
    assert_eq!(ann.get(&format!("/own/files?{session}")).await.json()["said"], "hello\n");
    assert_eq!(ann.get("/own/who").await.json(), json!({ "user": "ann", "backend": "memory" }));
    let status = ann.get(&format!("/wsm/workspace/status?{session}")).await;
    assert_eq!(status.json()["backend"], "memory");
    let missing = ann.get("/own/files?agent_id=a&session_id=no").await;
    assert_eq!((missing.status.as_u16(), missing.json()["code"].as_str()), (404, Some("session_not_found")));
    assert_eq!(client(&router).get("/own/who").await.status, 401);
}

#[tokio::test]
async fn an_identity_that_the_embedder_vouches_for_is_believed() {
    let app = app().await;
    let vouched = axum::middleware::from_fn(async |mut request: Request, next: Next| {
        request.extensions_mut().insert(Identity(UserId::new("zoe").unwrap()));
        next.run(request).await
    });
    let router = app.app.router.clone().layer(vouched);
    let far = client(&router).from(None).header("x-user-id", "ann");
    let reply = far.post("/sessions", &json!({ "agent_id": "a" })).await;
    assert_eq!(reply.json()["user_id"], "zoe");
    assert_eq!(far.get("/admin/workspaces").await.status, 403);
}

#[tokio::test]
async fn a_route_without_the_layer_says_so() {
    let router = Router::new().route("/own/who", get(who));
    let reply = client(&router).header("x-user-id", "ann").get("/own/who").await;
    assert_eq!(reply.status, 500);
    assert!(reply.text().contains("App::extractors"), "{}", reply.text());
}
