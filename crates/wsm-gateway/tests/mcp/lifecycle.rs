//! Registering, replacing, putting away and removing.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, timeout};
use wsm_core::ErrorKind;
use wsm_gateway::{McpHeaders, McpServerSpec, McpState};

use crate::setup::{PATIENCE, eventually, fixture, is_alive, key, setup, setup_with};

#[tokio::test]
async fn registering_again_is_idempotent_and_another_spec_replaces() {
    let setup = setup().await;
    let key = setup.register("a").await;
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    let pid = setup.text(&key, "pid", json!({})).await;
    setup.register("a").await;
    assert_eq!(setup.text(&key, "count", json!({})).await, "2", "the same one goes on");
    let changed = setup.fixture("well").with_env("OTHER", "1");
    setup.mcp.register(&key, &changed, &McpHeaders::new()).await.unwrap();
    assert!(!is_alive(&pid), "the old one has ended before the new one was ready");
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    assert_eq!(setup.mcp.list().await.unwrap().len(), 1);
    setup.close().await;
}

#[tokio::test]
async fn registering_at_once_starts_one_server() {
    let setup = setup().await;
    let key = key("session", "a");
    let spec = setup.fixture("well");
    let headers = McpHeaders::new();
    let registering = (0..10).map(|_| setup.mcp.register(&key, &spec, &headers));
    let registered = timeout(PATIENCE, futures::future::join_all(registering)).await.unwrap();
    assert!(registered.iter().all(Result::is_ok), "{registered:?}");
    let status = setup.status(&key).await;
    assert_eq!(status.restarts, 0);
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    setup.close().await;
}

#[tokio::test]
async fn a_server_whose_registration_was_given_up_starts_all_the_same() {
    let setup = setup().await;
    let key = key("session", "a");
    {
        let (spec, headers) = (setup.fixture("well"), McpHeaders::new());
        let registering = setup.mcp.register(&key, &spec, &headers);
        tokio::select! {
            biased;
            _ = registering => panic!("it can not be that quick"),
            () = tokio::time::sleep(Duration::from_micros(300)) => {}
        }
    }
    // Either the gateway has never heard of it, or it starts it.
    let listed = setup.mcp.list().await.unwrap();
    if let [server] = &listed[..] {
        eventually("it is ready", async || matches!(setup.status(&server.key).await.state, McpState::Ready { .. }))
            .await;
    }
    setup.close().await;
}

#[tokio::test]
async fn a_removed_server_ends_by_the_end_of_its_input() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let pid = setup.text(&key, "pid", json!({})).await;
    assert!(setup.mcp.remove(&key).await.unwrap());
    assert!(!is_alive(&pid));
    setup.recorded("the input has ended").await;
    assert!(!setup.mcp.remove(&key).await.unwrap());
    assert_eq!(setup.mcp.list().await.unwrap(), []);
    let error = setup.call(&key, "echo", json!({})).await.unwrap_err();
    assert_eq!(error.code(), "mcp_server_unknown");
    setup.close().await;
}

#[tokio::test]
async fn removing_a_server_fails_its_calls() {
    let setup = setup().await;
    let key = setup.register("a").await;
    let call = setup.call(&key, "sleep", json!({"ms": 60_000}));
    let removing = async {
        setup.recorded("sleeping").await;
        setup.mcp.remove(&key).await.unwrap()
    };
    let (result, removed) = tokio::join!(call, removing);
    assert_eq!((result.unwrap_err().code(), removed), ("mcp_server_ended", true));
    setup.close().await;
}

/// A wrapper as npx is one: the server is its child, and something else has left its session.
fn wrapped(mode: &str, trap: &str) -> McpServerSpec {
    let line =
        format!("{trap} echo $$ > pids; setsid sleep 600 > /dev/null 2>&1 & echo $! >> pids; \"$0\" {mode}; exit 0");
    McpServerSpec::stdio("sh").arg("-c").arg(line).arg(fixture())
}

#[tokio::test]
async fn h01_removing_a_wrapper_ends_its_server_and_what_left_its_session() {
    for (mode, trap) in [("well", ""), ("stubborn", ""), ("stubborn", "trap '' TERM;")] {
        let setup = setup().await;
        let key = key("session", "wrapped");
        setup.mcp.register(&key, &wrapped(mode, trap), &McpHeaders::new()).await.unwrap();
        let server = setup.text(&key, "pid", json!({})).await;
        let mut pids: Vec<String> =
            std::fs::read_to_string(setup.directory.path().join("pids")).unwrap().lines().map(str::to_owned).collect();
        pids.push(server);
        assert!(pids.len() == 3 && pids.iter().all(|pid| is_alive(pid)), "{pids:?}");
        let begun = Instant::now();
        assert!(timeout(PATIENCE, setup.mcp.remove(&key)).await.unwrap().unwrap());
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        let left: Vec<&String> = pids.iter().filter(|pid| is_alive(pid)).collect();
        assert!(left.is_empty(), "{mode} {trap}: {left:?}");
        setup.close().await;
    }
}

#[tokio::test]
async fn h01_what_a_crashed_server_has_started_ends_with_it() {
    let setup = setup().await;
    let key = key("session", "wrapped");
    let line = "setsid sleep 600 > /dev/null 2>&1 & echo $! > pids; exec \"$0\" well";
    let spec = McpServerSpec::stdio("sh").arg("-c").arg(line).arg(fixture());
    setup.mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap();
    let pid = std::fs::read_to_string(setup.directory.path().join("pids")).unwrap().trim().to_owned();
    assert!(is_alive(&pid));
    setup.call(&key, "crash", json!({"code": 1})).await.unwrap_err();
    eventually("its child has ended", async || !is_alive(&pid)).await;
    setup.close().await;
}

#[tokio::test]
async fn closing_ends_all_servers_at_once() {
    let setup = setup().await;
    let mut pids = Vec::new();
    for number in 0..12 {
        let key = key("session", &number.to_string());
        setup.mcp.register(&key, &setup.fixture("stubborn"), &McpHeaders::new()).await.unwrap();
        pids.push(setup.text(&key, "pid", json!({})).await);
    }
    let begun = Instant::now();
    setup.registry.close().await;
    // Each of them has half a second to end by itself.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(pids.iter().all(|pid| !is_alive(pid)));
    let error = setup.mcp.register(&key("session", "new"), &setup.fixture("well"), &McpHeaders::new()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::ShuttingDown);
    setup.close().await;
}

#[tokio::test]
async fn h13_the_longest_idle_server_of_another_session_makes_room() {
    let setup = setup_with(|limits| limits.max_servers = 3).await;
    let register = async |session: &str, name: &str| {
        let key = key(session, name);
        setup.mcp.register(&key, &setup.fixture("well"), &McpHeaders::new()).await.map(|_| key)
    };
    let first = register("ann", "1").await.unwrap();
    let second = register("ann", "2").await.unwrap();
    let third = register("bob", "1").await.unwrap();
    assert_eq!(setup.text(&first, "count", json!({})).await, "1");
    let pid = setup.text(&second, "pid", json!({})).await;
    assert_eq!(setup.text(&third, "count", json!({})).await, "1");
    // The second is the one that was used before all others; what is of the same session is never put away.
    assert_eq!(setup.text(&first, "count", json!({})).await, "2");
    let fourth = register("bob", "2").await.unwrap();
    let state = setup.status(&second).await.state;
    assert!(matches!(&state, McpState::Stopped { reason } if reason.contains("make room")), "{state:?}");
    eventually("it has ended", async || !is_alive(&pid)).await;
    for live in [&first, &third, &fourth] {
        assert!(matches!(setup.status(live).await.state, McpState::Ready { .. }));
    }
    // Using it again starts it anew, at the cost of one of bob's.
    let again = setup.call(&second, "count", json!({})).await.unwrap();
    assert_eq!(again.text(), "1");
    assert!(again.state_lost.unwrap().contains("make room"));
    assert!(matches!(setup.status(&third).await.state, McpState::Stopped { .. }));
    setup.close().await;
}

#[tokio::test]
async fn h13_nothing_that_answers_is_put_away() {
    let setup = setup_with(|limits| limits.max_servers = 2).await;
    let busy = setup.register("busy").await;
    let own = key("bob", "own");
    setup.mcp.register(&own, &setup.fixture("well"), &McpHeaders::new()).await.unwrap();
    let call = setup.call(&busy, "sleep", json!({"ms": 1500}));
    let asking = async {
        setup.recorded("sleeping").await;
        let third = key("bob", "third");
        let error = setup.mcp.register(&third, &setup.fixture("well"), &McpHeaders::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
        assert!(error.message().contains("remove one"), "{error}");
        third
    };
    let (slept, third) = tokio::join!(call, asking);
    assert_eq!(slept.unwrap().text(), "slept");
    // Now that it is idle, the same request works.
    setup.mcp.register(&third, &setup.fixture("well"), &McpHeaders::new()).await.unwrap();
    assert!(matches!(setup.status(&busy).await.state, McpState::Stopped { .. }));
    setup.close().await;
}

#[tokio::test]
async fn a_server_that_is_removed_while_it_starts_ends() {
    let setup = setup().await;
    let key = key("session", "a");
    let (spec, headers) = (setup.fixture("hangs-at-start"), McpHeaders::new());
    let registering = setup.mcp.register(&key, &spec, &headers);
    let removing = async {
        eventually("it starts", async || !setup.mcp.list().await.unwrap().is_empty()).await;
        setup.mcp.remove(&key).await.unwrap()
    };
    let (registered, removed) = timeout(PATIENCE, async { tokio::join!(registering, removing) }).await.unwrap();
    assert!(registered.is_err() && removed, "{registered:?}");
    setup.close().await;
}
