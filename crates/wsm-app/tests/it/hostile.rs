//! Requests that no well-meaning client sends.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use wsm_core::ManagerSettings;

use crate::support::{app, app_with, eventually};

/// A front that adds its header behind one that the client sent must not be fooled by the first.
#[tokio::test]
async fn a_header_that_says_who_asks_is_given_once_or_refused() {
    let app = app().await;
    for (name, first, second) in [
        ("x-user-id", "ann", "bob"),
        ("x-user-id", "ann", "ann"),
        ("authorization", "Bearer a", "Bearer b"),
        ("host", "127.0.0.1", "evil.example"),
    ] {
        let twice = app.user("ann").header(name, second);
        let twice = if name == "x-user-id" { twice } else { twice.header(name, first) };
        let reply = twice.get("/sessions").await;
        assert_eq!(reply.problem(), (400, "repeated_header".into()), "{name}: {first} {second}");
        assert_eq!(reply.field(), name);
    }
}

/// Two names that are no text would otherwise become one: that of the replacement character.
#[tokio::test]
async fn text_that_is_not_utf8_is_refused_and_named() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for (uri, field) in [
        (format!("/workspace/files?{session}&path=%ff"), "path"),
        (format!("/workspace/files?{session}&path=a%C3"), "path"),
        ("/workspace/status?agent_id=a&session_id=%fe".to_owned(), "session_id"),
        ("/sessions?agent_id=a%80".to_owned(), "agent_id"),
        ("/sessions/%ff".to_owned(), "session_id"),
    ] {
        let reply = ann.get(&uri).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, field), "{uri}: {}", reply.text());
        assert!(reply.json()["detail"].as_str().unwrap().contains("UTF-8"), "{uri}: {}", reply.text());
    }
    assert_eq!(app.engine.creations(), 0);
}

/// Fields have names: a list of their values in order is no body.
#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for (uri, body) in [
        ("/sessions".to_owned(), r#" ["a", "s", null, null]"#),
        ("/sessions".to_owned(), "[]"),
        ("/sessions".to_owned(), "null"),
        ("/sessions".to_owned(), r#""a""#),
        (format!("/workspace/exec?{session}"), r#"[["true"], null, null, null, null, null, null]"#),
        (format!("/workspace/exec?{session}"), "5"),
    ] {
        let json = ann.clone().header("content-type", "application/json");
        let reply = json.send(http::Method::POST, &uri, Body::from(body)).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, "body"), "{body}: {}", reply.text());
        assert!(reply.json()["detail"].as_str().unwrap().contains("JSON object"), "{body}: {}", reply.text());
    }
    assert_eq!(app.engine.creations(), 0);
    assert_eq!(ann.get("/sessions").await.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_allowed_is_told_in_plain_words() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for (field, value, allowed) in [
        ("timeout_seconds", serde_json::json!("5"), "expected a number"),
        ("max_output_bytes", serde_json::json!(-1), "expected a whole number that is not negative"),
        ("command", serde_json::json!("ls"), "expected a list"),
        ("env", serde_json::json!([]), "expected an object"),
    ] {
        let mut body = serde_json::json!({ "command": ["true"] });
        body[field] = value;
        let reply = ann.post(&format!("/workspace/exec?{session}"), &body).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, field), "{}", reply.text());
        assert!(reply.json()["detail"].as_str().unwrap().contains(allowed), "{}", reply.text());
    }
    let reply = ann.get("/sessions?limit=-1").await;
    assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, "limit"), "{}", reply.text());
    assert!(reply.json()["detail"].as_str().unwrap().contains("not negative"), "{}", reply.text());
    assert_eq!(app.engine.creations(), 0);
}

/// An upload holds its workspace, so one that stopped half way must come to an end.
#[tokio::test]
async fn a_body_that_stops_half_way_is_given_up() {
    let app = app_with(ManagerSettings::default(), |mut config| {
        config.limits.max_body_pause = Duration::from_millis(100);
        config
    })
    .await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let stuck = || {
        let begun = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
        Body::from_stream(begun.chain(futures::stream::pending()))
    };
    let upload = ann.put(&format!("/workspace/files?{session}&path=f"), stuck()).await;
    assert_eq!(upload.problem(), (422, "incomplete_body".into()));
    assert_eq!(ann.get(&format!("/workspace/files?{session}&path=f")).await.status, 404);
    eventually("nothing holds the workspace", || app.manager.cached().iter().all(|it| it.leases == 0)).await;
    let json = ann.clone().header("content-type", "application/json");
    let exec = json.send(http::Method::POST, &format!("/workspace/exec?{session}"), stuck()).await;
    assert_eq!(exec.problem(), (400, "incomplete_body".into()));
}
