//! What operators see and do.

use axum::body::Body;
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};

use crate::support::{app, app_with};

#[tokio::test]
async fn cached_workspaces_are_listed_in_the_documented_shape() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    assert_eq!(app.nobody().get("/admin/workspaces").await.json(), json!({ "items": [] }));
    ann.sh(&session, "true").await;
    let items = app.nobody().get("/admin/workspaces").await.json()["items"].clone();
    let item = &items[0];
    assert_eq!((&item["user_id"], &item["backend"], &item["state"]), (&json!("ann"), &json!("memory"), &json!("live")));
    assert_eq!(item["leases"], 0);
    assert!(item["idle_seconds"].is_f64() && item["opened_at"].is_string());
    assert_eq!(item["opening"], json!({ "kind": "created", "lost": [], "cause": null }));
}

#[tokio::test]
async fn closing_keeps_the_data_and_destroying_does_not() {
    let app = app().await;
    let (ann, operator) = (app.user("ann"), app.nobody());
    let session = ann.session("a").await;
    ann.sh(&session, "echo kept > f").await;
    let id = operator.get("/admin/workspaces").await.json()["items"][0]["workspace_id"].as_str().unwrap().to_owned();
    let uri = format!("/admin/workspaces/{id}");

    assert_eq!(operator.post(&format!("{uri}/close"), &json!(null)).await.status, 204);
    assert_eq!(operator.get("/admin/workspaces").await.json()["items"], json!([]));
    let all = operator.get("/admin/workspaces?all=true").await.json()["items"].clone();
    assert_eq!((&all[0]["state"], &all[0]["user_id"]), (&json!("suspended"), &json!("ann")));
    assert_eq!(operator.get(&uri).await.json()["policy"], "per_agent");
    assert_eq!(ann.sh(&session, "cat f").await.json()["stdout"], "kept\n");

    assert_eq!(operator.delete(&uri).await.status, 204);
    assert_eq!(operator.get(&uri).await.problem(), (404, "workspace_not_found".into()));
    assert_eq!(operator.delete(&uri).await.problem(), (404, "workspace_not_found".into()));
    assert_eq!(ann.sh(&session, "cat f").await.json()["exit_code"], 1, "the session stays, its files do not");
    assert_eq!(operator.get(&uri).await.json()["user_id"], "ann", "and has a record again");
}

#[tokio::test]
async fn what_is_in_use_is_closed_only_by_force() {
    let app = app().await;
    let (ann, operator) = (app.user("ann"), app.nobody());
    let session = ann.session("a").await;
    let body = json!({ "command": ["sh", "-c", "echo begun; sleep 600"] });
    let streaming = ann.header("content-type", "application/json").header("accept", "text/event-stream");
    let uri = format!("/workspace/exec?{session}");
    let running = streaming.start(Method::POST, &uri, Body::from(body.to_string())).await;
    let mut running = running.into_body().into_data_stream();
    running.next().await.unwrap().unwrap();
    let id = operator.get("/admin/workspaces").await.json()["items"][0]["workspace_id"].as_str().unwrap().to_owned();
    let close = format!("/admin/workspaces/{id}/close");
    assert_eq!(operator.post(&close, &json!(null)).await.problem().0, 409);
    assert_eq!(operator.post(&format!("{close}?wait_seconds=-1"), &json!(null)).await.field(), "wait_seconds");
    assert_eq!(operator.post(&format!("{close}?force=true"), &json!(null)).await.status, 204);
    let rest: Vec<_> = running.map(|chunk| String::from_utf8(chunk.unwrap().to_vec()).unwrap()).collect().await;
    assert!(rest.concat().contains("event: end"), "{rest:?}");
}

#[tokio::test]
async fn only_operators_get_in() {
    let app = app_with(wsm_core::ManagerSettings::default(), |mut config| {
        config.auth.token = Some("front".to_owned().into());
        config.auth.tokens.push((wsm_core::UserId::new("ann").unwrap(), "of-ann".to_owned().into()));
        config
    })
    .await;
    let far = app.nobody().from(std::net::IpAddr::from([10, 0, 0, 1]));
    for uri in ["/admin/workspaces", "/admin/workspaces?all=true", "/events", "/metrics"] {
        assert_eq!(far.get(uri).await.problem().0, 401, "{uri}");
        let user = far.clone().header("authorization", "Bearer of-ann");
        assert_eq!(user.get(uri).await.problem(), (403, "operators_only".into()), "{uri}");
        let proxied = app.nobody().header("x-forwarded-for", "10.0.0.1");
        assert_eq!(proxied.get(uri).await.problem(), (403, "operators_only".into()), "{uri}");
        if uri != "/events" {
            assert_eq!(far.clone().header("authorization", "Bearer front").get(uri).await.status, 200, "{uri}");
        }
    }
    for (method, uri) in [(Method::DELETE, "/admin/workspaces/w"), (Method::POST, "/admin/workspaces/w/close")] {
        assert_eq!(far.send(method, uri, Body::empty()).await.problem().0, 401);
    }
}

#[tokio::test]
async fn events_are_streamed_until_the_service_stops() {
    let app = app().await;
    let stream = app.nobody().start(Method::GET, "/events", Body::empty()).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut stream = stream.into_body().into_data_stream();
    let ann = app.user("ann");
    let session = ann.session("a").await;
    ann.sh(&session, "true").await;
    let first = String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(first.contains("event: opened\n"), "{first}");
    let data: Value =
        serde_json::from_str(first.lines().find_map(|line| line.strip_prefix("data: ")).unwrap()).unwrap();
    assert_eq!((&data["event"], &data["opening"]["kind"]), (&json!("opened"), &json!("created")));
    app.app.lifecycle.shutdown().await;
    while let Some(chunk) = stream.next().await {
        chunk.unwrap();
    }
}

#[tokio::test]
async fn metrics_count_openings_hits_and_requests() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for _ in 0..3 {
        ann.sh(&session, "true").await;
    }
    let wanted = [
        "wsm_workspace_opened_total{kind=\"created\"} 1",
        "wsm_workspace_hits_total 2",
        "wsm_workspace_cached{state=\"live\"} 1",
        "wsm_workspace_leases 0",
        "wsm_http_request_duration_seconds_count{method=\"POST\",route=\"/workspace/exec\",status=\"200\"} 3",
        "wsm_workspace_open_duration_seconds_bucket",
    ];
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        let text = app.nobody().get("/metrics").await.text();
        let missing: Vec<_> = wanted.iter().filter(|wanted| !text.contains(**wanted)).collect();
        if missing.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{missing:?} are not in:\n{text}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_list_can_be_that_of_one_user() {
    let app = app().await;
    for user in ["ann", "bob"] {
        let session = app.user(user).session("a").await;
        assert_eq!(app.user(user).sh(&session, "true").await.status, 200);
    }
    for query in ["user_id=bob", "all=true&user_id=bob"] {
        let items = app.nobody().get(&format!("/admin/workspaces?{query}")).await.json()["items"].clone();
        assert_eq!((items.as_array().unwrap().len(), &items[0]["user_id"]), (1, &serde_json::json!("bob")), "{query}");
    }
    assert_eq!(app.nobody().get("/admin/workspaces?user_id=").await.field(), "user_id");
}
