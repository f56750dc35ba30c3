//! The control plane: statuses, bodies, and what becomes of sandboxes.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Api, with_fake};
use wsm_fake_e2b::{Account, Operation, Options, SandboxState};

#[test]
fn keys_are_told_apart() {
    let mut options = Options::default();
    options.accounts.push(Account::new("other"));
    options.accounts.push(Account::new("refused").refused());
    with_fake(options, async |fake| {
        let mut api = Api::new(fake);
        let sandbox = api.create(json!({})).await;
        let path = format!("/sandboxes/{}", sandbox.id);
        for (key, status) in [("unknown", 401), ("", 401), ("refused", 403), ("other", 404)] {
            api.key = key.to_owned();
            let (answered, body) = api.ask("GET", &path, Value::Null).await;
            assert_eq!((answered, &body["code"]), (status, &json!(status)), "{key}: {body}");
            assert!(body["message"].is_string());
        }
        // One's own are all that a list has.
        api.key = "other".to_owned();
        assert_eq!(api.ask("GET", "/v2/sandboxes", Value::Null).await, (200, json!([])));
        assert!(fake.requests().all().iter().all(|request| request.header("x-api-key") == Some("***")));
    });
}

#[test]
fn what_is_asked_wrongly_is_refused() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        for (body, status) in [
            (json!({}), 400),
            (json!({ "templateID": "base", "timeout": 0 }), 400),
            (json!({ "templateID": "base", "timeout": 1_000_000 }), 400),
            (json!({ "templateID": "base", "metadata": { "a": 1 } }), 400),
            (json!({ "templateID": "base", "autoPauseMemory": false }), 400),
            (json!({ "templateID": "base", "autoResume": { "enabled": true } }), 400),
            (json!({ "templateID": "nothing" }), 404),
        ] {
            let (answered, error) = api.ask("POST", "/v2/sandboxes", body.clone()).await;
            assert_eq!((answered, &error["code"]), (status, &json!(status)), "{body}: {error}");
        }
        for query in ["limit=0", "state=x", "order=x", "nextToken=x", "template=a:b"] {
            let (status, _) = api.ask("GET", &format!("/v2/sandboxes?{query}"), Value::Null).await;
            assert_eq!(status, 400, "{query}");
        }
        assert!(fake.sandboxes().all().is_empty());
        // Without a body.
        let sandbox = api.create(json!({})).await;
        let connect = api.request("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id)).send().await;
        assert_eq!(connect.unwrap().status(), 400);
    });
}

#[test]
fn a_key_makes_create_happen_once() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let create = async |key: &str, timeout: u64| {
            let request = api.request("POST", "/v2/sandboxes").header("Idempotency-Key", key);
            let body = json!({ "templateID": "base", "timeout": timeout });
            support::read(request.json(&body).send().await.unwrap()).await
        };
        let (status, first) = create("key-1", 60).await;
        assert_eq!(status, 201);
        assert_eq!(create("key-1", 60).await, (201, first.clone()));
        let (status, error) = create("key-1", 61).await;
        assert_eq!((status, &error["error_code"]), (422, &json!("idempotency_request_mismatch")));
        assert_eq!(create("Key", 60).await.0, 400);
        assert_ne!(create("key-2", 60).await.1["sandboxID"], first["sandboxID"]);
        assert_eq!(fake.sandboxes().all().len(), 2);
    });
}

#[test]
fn older_servers_have_no_v2() {
    with_fake(Options::without_v2(), async |fake| {
        let api = Api::new(fake);
        let body = json!({ "templateID": "base" });
        let (status, _) = api.ask("POST", "/v2/sandboxes", body.clone()).await;
        assert!([404, 405].contains(&status), "{status}");
        let (_, open) = api.ask("POST", "/sandboxes", body).await;
        assert_eq!(open.get("envdAccessToken"), None);
        let open = api.sandbox(&open);
        assert_eq!(open.call("process.Process/List", json!({})).await.0, 200);
        let (status, closed) =
            api.ask("POST", "/sandboxes", json!({ "templateID": "base", "secure": true, "timeout": 60 })).await;
        assert_eq!(status, 201);
        let mut closed = api.sandbox(&closed);
        assert_eq!(closed.call("process.Process/List", json!({})).await, (200, json!({})));
        closed.token = "wrong".to_owned();
        let (status, error) = closed.call("process.Process/List", json!({})).await;
        assert_eq!((status, &error["code"]), (401, &json!(401)));
        let path = format!("/sandboxes/{}/connect", open.id);
        assert_eq!(api.ask("POST", &path, json!({})).await.0, 400);
        assert_eq!(api.ask("POST", &path, json!({ "timeout": 60 })).await.0, 200);
        // 15 seconds are all that one has who says nothing.
        fake.advance(Duration::from_secs(30)).await;
        assert_eq!(fake.sandboxes().all().len(), 2);
        fake.advance(Duration::from_secs(31)).await;
        assert_eq!(fake.sandboxes().all().len(), 0);
    });
}

#[test]
fn time_passes() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let sandbox = api.create(json!({ "autoPause": true, "timeout": 100 })).await;
        let state = || fake.sandboxes().get(&sandbox.id).unwrap().state;
        let ask = async |what: &str, body| api.ask("POST", &format!("/sandboxes/{}/{what}", sandbox.id), body).await.0;
        let connect = format!("/v2/sandboxes/{}/connect", sandbox.id);
        // Neither of these shortens.
        assert_eq!(api.ask("POST", &connect, json!({ "timeout": 10 })).await.0, 200);
        assert_eq!(ask("refreshes", json!({ "duration": 20 })).await, 204);
        fake.advance(Duration::from_secs(90)).await;
        assert_eq!(state(), SandboxState::Running);
        // This one does.
        assert_eq!(ask("timeout", json!({ "timeout": 5 })).await, 204);
        fake.advance(Duration::from_secs(6)).await;
        assert_eq!(state(), SandboxState::Paused);
        assert_eq!(ask("timeout", json!({ "timeout": 5 })).await, 404);
        assert_eq!(ask("refreshes", json!({})).await, 404);
        let (status, error) = sandbox.health().await;
        assert_eq!((status, &error["message"]), (502, &json!("The sandbox was not found")));
        let (status, opened) = api.ask("POST", &connect, json!({ "timeout": 10 })).await;
        assert_eq!((status, &opened["envdAccessToken"]), (201, &json!(sandbox.token)));
        assert_eq!(sandbox.health().await.0, 204);
        assert_eq!(ask("pause", json!({})).await, 204);
        assert_eq!(ask("pause", json!({})).await, 409);
        assert_eq!(ask("resume", json!({ "timeout": 60 })).await, 201);
        assert_eq!(ask("resume", json!({ "timeout": 60 })).await, 409);
        // Never longer than the longest run that there is.
        assert_eq!(ask("timeout", json!({ "timeout": 1_000_000_000 })).await, 204);
        fake.advance(Duration::from_secs(24 * 3600 + 1)).await;
        assert_eq!(state(), SandboxState::Paused);
    });
}

#[test]
fn an_account_has_so_many_sandboxes() {
    let mut options = Options::default();
    options.accounts = vec![Account::new(wsm_fake_e2b::API_KEY).max_running(1)];
    with_fake(options, async |fake| {
        let api = Api::new(fake);
        let first = api.create(json!({})).await;
        let create = async || api.ask("POST", "/v2/sandboxes", json!({ "templateID": "base" })).await;
        let (status, error) = create().await;
        assert_eq!(status, 429);
        assert!(error["message"].as_str().unwrap().contains("maximum number of concurrent"));
        fake.sandboxes().pause(&first.id).await.unwrap();
        assert_eq!(create().await.0, 201);
        let connect = format!("/v2/sandboxes/{}/connect", first.id);
        assert_eq!(api.ask("POST", &connect, json!({})).await.0, 429);
        assert_eq!(fake.requests().count(Operation::Create), 3);
    });
}
