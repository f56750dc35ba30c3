//! Every error is a problem with a request id, and a refused request changes nothing.

use std::net::IpAddr;

use axum::body::Body;
use http::Method;
use serde_json::json;
use wsm_core::{
    ManagerSettings,
    memory::{Effect, Fault, Operation},
};

use crate::support::{app, app_with};

#[tokio::test]
async fn even_what_no_handler_sees_is_a_problem() {
    let app = app().await;
    let ann = app.user("ann");
    assert_eq!(ann.get("/nowhere").await.problem(), (404, "route_not_found".into()));
    let wrong = ann.send(Method::PATCH, "/sessions", Body::empty()).await;
    assert_eq!(wrong.problem(), (405, "method_not_allowed".into()));
    let allow = wrong.headers["allow"].to_str().unwrap();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    let form = ann.clone().header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(
        form.send(Method::POST, "/sessions", Body::from("a=b")).await.problem(),
        (415, "unsupported_media_type".into())
    );
    assert_eq!(ann.send(Method::POST, "/sessions", Body::empty()).await.problem().0, 415);
    let json = ann.clone().header("content-type", "application/json; charset=utf-8");
    for text in ["{", "", "{}x", "\u{feff}{}", "{\"agent_id\": nul}"] {
        let reply = json.send(Method::POST, "/sessions", Body::from(text)).await;
        assert_eq!(reply.status, if text == "{}x" { 422 } else { 400 }, "{text}: {}", reply.text());
        reply.problem();
    }
}

#[tokio::test]
async fn request_ids_go_in_and_out() {
    let app = app().await;
    let given = app.nobody().header("x-request-id", "my-id.1").get("/nowhere").await;
    given.problem();
    assert_eq!(given.headers["x-request-id"], "my-id.1");
    for bad in ["", "with space", &"x".repeat(129)] {
        let reply = app.nobody().header("x-request-id", bad).get("/healthz").await;
        assert_eq!(reply.headers["x-request-id"].len(), 32, "a fresh one in place of {bad:?}");
    }
}

#[tokio::test]
async fn ids_are_checked_wherever_they_come_in() {
    let app = app().await;
    let ann = app.user("ann");
    let long = "x".repeat(10_000);
    for (body, field) in [
        (json!({}), "agent_id"),
        (json!({ "agent_id": "" }), "agent_id"),
        (json!({ "agent_id": null }), "agent_id"),
        (json!({ "agent_id": 5 }), "agent_id"),
        (json!({ "agent_id": "a\nb" }), "agent_id"),
        (json!({ "agent_id": "a\u{0}" }), "agent_id"),
        (json!({ "agent_id": long }), "agent_id"),
        (json!({ "agent_id": "a", "session_id": "\u{7f}" }), "session_id"),
        (json!({ "agent_id": "a", "session_id": long }), "session_id"),
        (json!({ "agent_id": "a", "workspace_id": "a\u{0}b" }), "workspace_id"),
        (json!({ "agent_id": "a", "workspace_id": long }), "workspace_id"),
        (json!({ "agent_id": "a", "name": "a\u{0}" }), "name"),
        (json!({ "agent_id": "a", "workspaceid": "w" }), "workspaceid"),
    ] {
        let reply = ann.post("/sessions", &body).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, field), "{}", reply.text());
        assert!(reply.text().len() < 1000, "the answer does not repeat the input");
    }
    for (uri, field) in [
        ("/workspace/status", "agent_id"),
        ("/workspace/status?agent_id=a", "session_id"),
        ("/workspace/status?agent_id=&session_id=s", "agent_id"),
        ("/workspace/status?agent_id=a&session_id=%00", "session_id"),
        ("/sessions/%00", "session_id"),
        ("/sessions?agent_id=%0A", "agent_id"),
        ("/admin/workspaces/%07", "workspace_id"),
    ] {
        let reply = ann.get(uri).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, field), "{uri}: {}", reply.text());
    }
    assert_eq!(ann.get("/sessions").await.json()["items"], json!([]), "nothing was made");
    assert_eq!(app.nobody().get("/admin/workspaces?all=true").await.json()["items"], json!([]));
}

/// Ids are opaque: what looks like a path is a name like any other.
#[tokio::test]
async fn ids_that_look_like_paths_are_ids() {
    let app = app().await;
    let ann = app.user("../../etc");
    let body = json!({ "agent_id": "../..", "session_id": "../x", "workspace_id": "/etc/passwd" });
    assert_eq!(ann.post("/sessions", &body).await.status, 201);
    let status = ann.get("/workspace/status?agent_id=..%2F..&session_id=..%2Fx").await;
    assert_eq!(status.json()["workspace_id"], "/etc/passwd");
    assert_eq!(ann.get("/sessions/..%2Fx").await.status, 200);
    assert_eq!(app.nobody().get("/admin/workspaces/%2Fetc%2Fpasswd").await.status, 200);
}

#[tokio::test]
async fn whoever_does_not_say_who_they_are_gets_nothing() {
    let app = app().await;
    let body = json!({ "agent_id": "a" });
    for reply in [
        app.nobody().post("/sessions", &body).await,
        app.user("").post("/sessions", &body).await,
        app.user("ann").from(IpAddr::from([10, 0, 0, 1])).post("/sessions", &body).await,
        app.user("ann").from(None).post("/sessions", &body).await,
        app.user("ann").from(IpAddr::from([10, 0, 0, 1])).get("/sessions").await,
    ] {
        assert_eq!(reply.problem().0, 401);
        assert!(reply.headers.contains_key("www-authenticate"));
    }
    assert_eq!(app.user("ann").get("/sessions").await.json()["items"], json!([]));
    assert_eq!(app.user("a\tb").get("/sessions").await.field(), "user_id");
    let open = app.nobody().from(IpAddr::from([10, 0, 0, 1]));
    for uri in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert_eq!(open.get(uri).await.status, 200, "{uri}");
    }
}

#[tokio::test]
async fn a_token_says_who_asks() {
    let app = app_with(ManagerSettings::default(), |mut config| {
        config.auth.tokens.push((wsm_core::UserId::new("ann").unwrap(), "of-ann".to_owned().into()));
        config
    })
    .await;
    let far = app.nobody().from(IpAddr::from([10, 0, 0, 1]));
    let ann = far.clone().header("authorization", "Bearer of-ann");
    let made = ann.post("/sessions", &json!({ "agent_id": "a" })).await;
    assert_eq!((made.status.as_u16(), &made.json()["user_id"]), (201, &json!("ann")));
    let pretender = ann.header("x-user-id", "bob").post("/sessions", &json!({ "agent_id": "a" })).await;
    assert_eq!(pretender.problem(), (403, "foreign_identity".into()));
    let wrong = far.header("authorization", "Bearer guess").post("/sessions", &json!({ "agent_id": "a" })).await;
    assert_eq!(wrong.problem(), (401, "invalid_token".into()));
    assert_eq!(app.user("bob").get("/sessions?agent_id=").await.json()["items"], json!([]));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let app = app_with(ManagerSettings::default(), |mut config| {
        config.limits.max_request_bytes = 100;
        config
    })
    .await;
    let body = json!({ "agent_id": "a", "name": "x".repeat(100) });
    assert_eq!(app.user("ann").post("/sessions", &body).await.problem(), (413, "too_large".into()));
    assert_eq!(app.user("ann").get("/sessions").await.json()["items"], json!([]));
}

#[tokio::test]
async fn an_engine_that_can_not_be_reached_is_told_and_waited_for() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    app.engine.plant(Fault::once(Operation::Open, Effect::unavailable()));
    let reply = ann.sh(&session, "true").await;
    assert_eq!(reply.problem(), (503, "unavailable".into()));
    assert!(reply.headers.contains_key("retry-after"));
    assert_eq!(ann.sh(&session, "true").await.status, 200, "errors are not remembered");
    app.engine.plant(Fault::once(Operation::Probe, Effect::unavailable()));
    assert_eq!(app.nobody().get("/readyz").await.problem().0, 503);
    assert_eq!(app.nobody().get("/readyz").await.json()["status"], "ready");
}

#[tokio::test]
async fn the_docs_are_one_page_that_needs_nothing_else() {
    let app = app().await;
    let page = app.nobody().get("/docs").await.text();
    for part in ["/workspace/exec", "POST", "X-User-ID", "truncated_at"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
}
