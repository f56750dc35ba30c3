//! Servers that behave: their tools, their results, and many calls at once.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};
use wsm_core::ErrorKind;
use wsm_gateway::{GatewayClient, McpHeaders, McpServerSpec, McpState};

use crate::setup::{PATIENCE, eventually, key, object, setup, setup_with};

#[tokio::test]
async fn h18_a_registered_server_takes_calls_at_once() {
    let setup = setup().await;
    let key = key("session", "first");
    let server = setup.mcp.register(&key, &setup.fixture("well"), &McpHeaders::new()).await.unwrap();
    let McpState::Ready { name, version, protocol } = server.state else { panic!("{server:?}") };
    assert_eq!((name.as_str(), version.as_str()), ("fixture", "1.2.3"));
    assert!(protocol.starts_with("20"), "{protocol}");
    assert_eq!(setup.text(&key, "echo", json!({"text": "hello"})).await, "hello");
    setup.close().await;
}

#[tokio::test]
async fn results_come_through_as_the_server_gave_them() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let result = setup.call(&key, "mixed", json!({})).await.unwrap();
    assert!(result.is_error);
    assert_eq!(
        serde_json::Value::from(result.content),
        json!([
            {"type": "text", "text": "one", "annotations": {"audience": ["user"], "priority": 0.5}},
            {"type": "image", "data": "AAECAw==", "mimeType": "image/png"},
            {"type": "audio", "data": "AAECAw==", "mimeType": "audio/wav"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "text/plain", "text": "b"}},
            {"type": "hologram", "depth": 3},
        ])
    );
    let structured = json!({"list": [1, 2.5, null, true], "big": 9_007_199_254_740_993_u64});
    assert_eq!(result.structured_content, Some(structured));
    assert_eq!(result.other["_meta"]["example.org/cost"], 7);
    assert_eq!(result.state_lost, None);
    let sum = setup.call(&key, "add", json!({"a": 40, "b": 2})).await.unwrap();
    assert_eq!((sum.structured_content, sum.is_error), (Some(json!({"sum": 42})), false));
    let null = setup.call(&key, "null", json!({})).await.unwrap();
    assert_eq!(null.structured_content, Some(serde_json::Value::Null));
    setup.close().await;
}

#[tokio::test]
async fn results_and_arguments_of_many_frames_come_through_whole() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let big = setup.text(&key, "big", json!({"bytes": 3_500_000})).await;
    assert!(big.len() == 3_500_000 && big.bytes().all(|byte| byte == b'x'));
    let length = setup.text(&key, "length", json!({"text": "y".repeat(3_000_000)})).await;
    assert_eq!(length, "3000000");
    let too_much = setup.call(&key, "length", json!({"text": "z".repeat(17 << 20)})).await.unwrap_err();
    assert_eq!((too_much.kind(), too_much.code()), (ErrorKind::InvalidInput, "too_large"));
    assert_eq!(setup.text(&key, "echo", json!({"text": "still"})).await, "still");
    setup.close().await;
}

#[tokio::test]
async fn lists_of_tools_have_all_pages_and_are_kept_until_the_server_says_that_they_changed() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let names =
        async || -> Vec<String> { setup.mcp.tools(&key).await.unwrap().into_iter().map(|tool| tool.name).collect() };
    assert_eq!(names().await, ["echo", "add", "sleep", "count", "crash"]);
    assert_eq!(names().await.len(), 5);
    assert_eq!(setup.text(&key, "lists", json!({})).await, "1", "the second list was kept");
    let tool = setup.mcp.tools(&key).await.unwrap().remove(0);
    assert_eq!(tool.description.as_deref(), Some("the tool echo"));
    assert_eq!(tool.input_schema, json!({"type": "object"}));
    assert_eq!(tool.other["annotations"], json!({"readOnlyHint": true, "newHint": 1}));
    assert_eq!(tool.other["execution"], json!({"taskSupport": "forbidden"}));
    setup.text(&key, "grow", json!({})).await;
    eventually("the new tool is listed", async || names().await.last().is_some_and(|last| last == "late")).await;
    setup.close().await;
}

#[tokio::test]
async fn calls_of_one_server_run_at_once() {
    let setup = setup().await;
    let key = setup.register("a").await;
    // Whatever time they take, quick calls do not wait for slow ones,
    let slow = futures::future::join_all((0..20).map(|_| setup.call(&key, "sleep", json!({"ms": 60_000}))));
    let quick = async {
        for number in 0..50 {
            assert_eq!(setup.text(&key, "echo", json!({"text": number.to_string()})).await, number.to_string());
        }
    };
    tokio::select! {
        slept = slow => panic!("{slept:?}"),
        () = quick => {}
    }
    // nor slow ones for each other.
    let begun = Instant::now();
    let slow = futures::future::join_all((0..20).map(|_| setup.text(&key, "sleep", json!({"ms": 500}))));
    assert!(slow.await.iter().all(|text| text == "slept"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    setup.close().await;
}

#[tokio::test]
async fn h07_two_hundred_answers_of_64_kib_at_once_are_all_there() {
    let setup = setup().await;
    let key = setup.register("a").await;
    for _ in 0..3 {
        let calls = (0..200).map(|number| setup.text(&key, "big", json!({"bytes": (64 << 10) + number})));
        let texts = timeout(PATIENCE, futures::future::join_all(calls)).await.unwrap();
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(text.len(), (64 << 10) + number);
        }
    }
    setup.close().await;
}

#[tokio::test]
async fn errors_say_which_server_and_what_it_said() {
    let setup = setup().await;
    let key = setup.register("shop").await;
    let unknown = setup.call(&key, "buy", json!({})).await.unwrap_err();
    assert_eq!((unknown.kind(), unknown.field()), (ErrorKind::InvalidInput, Some("arguments")));
    for part in ["`shop`", "`buy`", "unknown tool: buy", "-32602"] {
        assert!(unknown.message().contains(part), "{unknown}");
    }
    let refused = setup.call(&key, "refuse", json!({})).await.unwrap_err();
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Backend, "mcp_request_failed"));
    assert!(refused.message().contains("not today"), "{refused}");
    let missing = setup.call(&crate::setup::key("session", "other"), "echo", json!({})).await.unwrap_err();
    assert_eq!((missing.kind(), missing.code()), (ErrorKind::NotFound, "mcp_server_unknown"));
    assert!(missing.message().contains("`other`"), "{missing}");
    setup.close().await;
}

#[tokio::test]
async fn servers_have_the_workspaces_environment_and_directory_and_their_own() {
    let setup = setup().await;
    std::fs::create_dir(setup.directory.path().join("sub")).unwrap();
    let spec = setup.fixture("well").with_env("OWN", "1").with_cwd("sub");
    let key = key("session", "a");
    setup.mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap();
    assert_eq!(setup.text(&key, "environ", json!({"name": "OWN"})).await, "1");
    assert_eq!(setup.text(&key, "environ", json!({"name": "OF_THE_WORKSPACE"})).await, "yes");
    assert!(setup.text(&key, "cwd", json!({})).await.ends_with("/sub"));
    let plain = setup.register("b").await;
    let root = setup.directory.path().canonicalize().unwrap();
    assert_eq!(setup.text(&plain, "cwd", json!({})).await, root.to_str().unwrap());
    setup.close().await;
}

#[tokio::test]
async fn h13_sessions_share_no_server() {
    let setup = setup().await;
    let (ann, bob) = (key("ann", "browser"), key("bob", "browser"));
    for key in [&ann, &bob] {
        setup.mcp.register(key, &setup.fixture("well"), &McpHeaders::new()).await.unwrap();
    }
    assert_eq!(setup.text(&ann, "count", json!({})).await, "1");
    assert_eq!(setup.text(&ann, "count", json!({})).await, "2");
    assert_eq!(setup.text(&bob, "count", json!({})).await, "1");
    assert_ne!(setup.text(&ann, "pid", json!({})).await, setup.text(&bob, "pid", json!({})).await);
    setup.close().await;
}

#[tokio::test]
async fn what_can_not_be_registered_is_refused_and_not_kept() {
    let setup = setup().await;
    let refused = async |name: &str, spec: McpServerSpec, headers: McpHeaders| {
        let error = setup.mcp.register(&key("session", name), &spec, &headers).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        error.field()
    };
    let (none, some) = (McpHeaders::new(), McpHeaders::new().with("A", "1"));
    assert_eq!(refused("", setup.fixture("well"), none.clone()).await, Some("name"));
    assert_eq!(refused("a", McpServerSpec::stdio(""), none.clone()).await, Some("command"));
    assert_eq!(refused("a", setup.fixture("well"), some.clone()).await, Some("headers"));
    assert_eq!(refused("a", McpServerSpec::http("ftp://x/"), none.clone()).await, Some("url"));
    assert_eq!(
        refused("a", McpServerSpec::http("http://x/"), McpHeaders::new().with("a b", "1")).await,
        Some("headers")
    );
    assert_eq!(setup.mcp.list().await.unwrap(), []);
    setup.close().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_at_the_server() {
    let setup = setup_with(|limits| limits.max_call_timeout = Duration::from_millis(300)).await;
    let key = setup.register("a").await;
    for given in [Duration::from_millis(100), Duration::from_secs(3600)] {
        let begun = Instant::now();
        let call = setup.mcp.call(&key, "sleep", object(json!({"ms": 60_000})), Some(given));
        let error = timeout(PATIENCE, call).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        setup.recorded("cancelled: \"the request timed out\"").await;
        std::fs::remove_file(setup.record()).unwrap();
    }
    let status = setup.status(&key).await;
    assert!(matches!(status.state, McpState::Ready { .. }), "{status:?}");
    assert!(status.last_problem.unwrap().contains("`sleep`"));
    assert_eq!(setup.text(&key, "echo", json!({"text": "on"})).await, "on");
    setup.close().await;
}

#[tokio::test]
async fn h10_a_call_that_is_dropped_is_cancelled_at_the_server() {
    let setup = setup().await;
    let key = setup.register("a").await;
    {
        let call = setup.mcp.call(&key, "sleep", object(json!({"ms": 60_000})), None);
        tokio::select! {
            result = call => panic!("{result:?}"),
            () = setup.recorded("sleeping") => {}
        }
    }
    setup.recorded("cancelled: \"the caller has gone\"").await;
    eventually("the call has ended", async || setup.status(&key).await.calls_in_flight == 0).await;
    setup.close().await;
}

#[tokio::test]
async fn servers_outlive_the_connection_and_its_calls_do_not() {
    let setup = setup().await;
    let key = setup.register("a").await;
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    let slow = setup.mcp.call(&key, "sleep", object(json!({"ms": 60_000})), None);
    let breaking = async {
        setup.recorded("sleeping").await;
        setup.break_connections().await;
    };
    let (error, ()) = tokio::join!(timeout(PATIENCE, slow), breaking);
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    setup.recorded("cancelled").await;
    assert_eq!(setup.text(&key, "count", json!({})).await, "2", "the server is still the same one");
    setup.close().await;
}

#[tokio::test]
async fn a_gateway_without_mcp_says_so() {
    use futures::FutureExt;
    use wsm_core::{Backend, BackendConfig, OpenRequest, Workspace, WorkspaceId, memory};

    let backend = memory::MemoryConfig::new(memory::MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    let (near, far) = tokio::io::duplex(64 << 10);
    let near = parking_lot::Mutex::new(Some(near));
    let serving = wsm_gateway::serve(wsm_gateway::Served::new(opened.workspace as std::sync::Arc<dyn Workspace>), far);
    let asking = async {
        let client = GatewayClient::new(move || {
            let near = near.lock().take();
            async { Ok(Box::new(near.unwrap()) as Box<dyn wsm_gateway::Io>) }.boxed()
        });
        let client = client.await.unwrap();
        let listed = client.mcp().list().await.unwrap_err();
        let called = client.mcp().call(&key("s", "a"), "echo", object(json!({})), None).await.unwrap_err();
        client.close().await;
        (listed.kind(), called.kind())
    };
    let (served, kinds) = timeout(PATIENCE, async { tokio::join!(serving, asking) }).await.unwrap();
    served.unwrap();
    assert_eq!(kinds, (ErrorKind::Unsupported, ErrorKind::Unsupported));
}
