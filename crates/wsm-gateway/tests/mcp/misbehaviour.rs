//! Servers that do not behave. None of them harms another one, and each is told of in its status.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};
use wsm_core::{ErrorKind, ExitStatus};
use wsm_gateway::{McpHeaders, McpServerSpec, McpState};

use crate::setup::{PATIENCE, Setup, eventually, key, object, setup};

/// How a start fails: the error, and the reason in the status.
async fn failed_start(
    setup: &Setup,
    name: &str,
    spec: &McpServerSpec,
) -> (wsm_core::Error, String, Option<ExitStatus>) {
    let key = key("session", name);
    let none = McpHeaders::new();
    let error = timeout(PATIENCE, setup.mcp.register(&key, spec, &none)).await.expect("a start hangs").unwrap_err();
    assert!(error.message().contains(&format!("`{name}`")), "{error}");
    let McpState::Failed { reason, exit } = setup.status(&key).await.state else {
        panic!("it is registered as failed")
    };
    (error, reason, exit)
}

#[tokio::test]
async fn h14_a_server_that_crashes_at_its_start_says_why() {
    let setup = setup().await;
    let (error, _, exit) = failed_start(&setup, "broken", &setup.fixture("crashes-at-start")).await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Backend, "mcp_start_failed"));
    assert!(error.message().contains("cannot find module `left-pad`"), "{error}");
    assert_eq!(exit, Some(ExitStatus::Exited { code: 3 }));
    let status = setup.status(&key("session", "broken")).await;
    assert!(status.stderr.contains("left-pad") && status.stderr_bytes > 20, "{status:?}");
    // A call tries once, and fails the same way.
    let called = setup.call(&key("session", "broken"), "echo", json!({})).await.unwrap_err();
    assert_eq!(called.code(), "mcp_start_failed");
    setup.close().await;
}

#[tokio::test]
async fn h14_a_program_that_is_not_there_is_told_apart() {
    let setup = setup().await;
    let (error, ..) = failed_start(&setup, "absent", &McpServerSpec::stdio("no-such-program")).await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "program_not_found"));
    assert!(error.message().contains("`no-such-program`"), "{error}");
    let nowhere = setup.fixture("well").with_cwd("no/such/place");
    assert_eq!(failed_start(&setup, "nowhere", &nowhere).await.0.kind(), ErrorKind::InvalidInput);
    setup.close().await;
}

#[tokio::test]
async fn h15_one_bad_server_does_not_keep_a_good_one_from_starting() {
    let setup = setup().await;
    let hanging = setup.fixture("hangs-at-start").with_start_timeout(Duration::from_secs(8));
    let hangs = failed_start(&setup, "hangs", &hanging);
    let good = async {
        let begun = Instant::now();
        let key = setup.register("good").await;
        assert_eq!(setup.text(&key, "echo", json!({"text": "1"})).await, "1");
        begun.elapsed()
    };
    let ((error, ..), took) = tokio::join!(hangs, good);
    assert_eq!((error.kind(), error.code()), (ErrorKind::Timeout, "mcp_start_failed"));
    assert!(took < Duration::from_secs(8), "{took:?}");
    setup.close().await;
}

#[tokio::test]
async fn a_program_that_prints_something_else_than_mcp_is_quoted() {
    let setup = setup().await;
    let spec = setup.fixture("prints-only-garbage").with_start_timeout(Duration::from_millis(500));
    let (error, ..) = failed_start(&setup, "chatty", &spec).await;
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("Welcome to the server!"), "{error}");
    let cat = McpServerSpec::stdio("echo").arg("hello there");
    let (error, ..) = failed_start(&setup, "echo", &cat).await;
    assert!(error.message().contains("hello there") && error.message().contains("exit code 0"), "{error}");
    setup.close().await;
}

#[tokio::test]
async fn garbage_between_messages_is_passed_over_and_told_of() {
    let setup = setup().await;
    let key = setup.register("a").await;
    assert_eq!(setup.text(&key, "garbage", json!({})).await, "still here");
    let problem = setup.status(&key).await.last_problem.unwrap();
    assert!(problem.contains("what is this"), "{problem}");
    setup.close().await;
}

#[tokio::test]
async fn a_flood_on_stderr_stops_nobody_and_leaves_its_end() {
    let setup = setup().await;
    let (key, other) = (setup.register("a").await, setup.register("b").await);
    let flood = setup.text(&key, "flood", json!({"bytes": 150 << 20}));
    let others = async {
        for _ in 0..20 {
            assert_eq!(setup.text(&other, "echo", json!({"text": "1"})).await, "1");
        }
    };
    let (flooded, ()) = tokio::join!(flood, others);
    assert_eq!(flooded, "flooded");
    // The two streams of a program are not in step.
    eventually("the end is kept", async || setup.status(&key).await.stderr.ends_with("the flood is over")).await;
    let status = setup.status(&key).await;
    assert!(status.stderr.len() <= 4096 && status.stderr_bytes > 149 << 20, "{}", status.stderr_bytes);
    setup.close().await;
}

#[tokio::test]
async fn a_flood_before_the_first_answer_stops_no_start() {
    let setup = setup().await;
    let key = key("session", "a");
    let (spec, none) = (setup.fixture("floods-at-start"), McpHeaders::new());
    timeout(PATIENCE, setup.mcp.register(&key, &spec, &none)).await.unwrap().unwrap();
    assert_eq!(setup.text(&key, "echo", json!({"text": "1"})).await, "1");
    setup.close().await;
}

#[tokio::test]
async fn answers_that_are_too_long_are_errors_at_once() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let begun = Instant::now();
    let error = setup.call(&key, "big", json!({"bytes": 120 << 20})).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "too_large"));
    assert!(error.message().contains("125829"), "it says how long it was: {error}");
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    assert_eq!(setup.text(&key, "giant", json!({"bytes": 120 << 20})).await, "still here");
    assert_eq!(setup.text(&key, "endless", json!({"bytes": 120 << 20})).await, "still here");
    setup.close().await;
}

#[tokio::test]
async fn h06_pending_calls_of_a_server_that_ends_fail_and_are_not_sent_again() {
    let setup = setup().await;
    let (key, other) = (setup.register("a").await, setup.register("b").await);
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    let pending = futures::future::join_all((0..5).map(|_| setup.call(&key, "sleep", json!({"ms": 60_000}))));
    let crash = async {
        setup.recorded("sleeping\nsleeping\nsleeping\nsleeping\nsleeping").await;
        setup.call(&key, "crash", json!({"code": 7})).await
    };
    let (pending, crashed) = timeout(PATIENCE, async { tokio::join!(pending, crash) }).await.unwrap();
    for result in pending.into_iter().chain([crashed]) {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "mcp_server_ended"), "{error}");
        assert!(error.message().contains("crashing as asked"), "{error}");
    }
    eventually("its end is known", async || {
        let state = setup.status(&key).await.state;
        matches!(state, McpState::Failed { exit: Some(ExitStatus::Exited { code: 7 }), .. })
    })
    .await;
    assert_eq!(std::fs::read_to_string(setup.record()).unwrap().matches("sleeping").count(), 5, "sent once each");
    assert_eq!(setup.text(&other, "echo", json!({"text": "1"})).await, "1");

    let again = setup.call(&key, "count", json!({})).await.unwrap();
    assert_eq!(again.text(), "1", "it is a new one");
    let lost = again.state_lost.unwrap();
    assert!(lost.contains("exit code 7") && lost.contains("is lost"), "{lost}");
    assert_eq!(setup.status(&key).await.restarts, 1);
    assert_eq!(setup.call(&key, "count", json!({})).await.unwrap().state_lost, None);
    setup.close().await;
}

#[tokio::test]
async fn a_server_that_takes_no_messages_any_more_costs_its_callers_their_timeouts_and_nobody_else() {
    let setup = setup().await;
    let (deaf, good) = (key("session", "deaf"), setup.register("good").await);
    setup.mcp.register(&deaf, &setup.fixture("deaf"), &McpHeaders::new()).await.unwrap();
    // More than the pipe to it holds.
    let arguments = object(json!({"text": "x".repeat(1 << 20)}));
    let calls = (0..4).map(|_| setup.mcp.call(&deaf, "echo", arguments.clone(), Some(Duration::from_millis(200))));
    let (results, ()) = tokio::join!(timeout(PATIENCE, futures::future::join_all(calls)), async {
        assert_eq!(setup.text(&good, "echo", json!({"text": "1"})).await, "1");
    });
    for result in results.unwrap() {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
    }
    eventually("it is ended", async || {
        let state = setup.status(&deaf).await.state;
        matches!(state, McpState::Failed { reason, .. } if reason.contains("takes no messages"))
    })
    .await;
    setup.close().await;
}
