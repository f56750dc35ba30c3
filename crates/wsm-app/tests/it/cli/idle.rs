//! Workspaces that nobody uses.

use futures::StreamExt;
use serde_json::Value;
use tokio::time::Instant;

use super::{DEADLINE, Service};

/// Reads `/events` into names and data.
struct Events {
    bytes: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
}

impl Events {
    async fn of(service: &Service) -> Self {
        let response = crate::support::http().get(format!("{}/events", service.url)).send().await.unwrap();
        Self { bytes: response.bytes_stream().boxed(), text: String::new() }
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return serde_json::from_str(&data).unwrap();
                }
                continue;
            }
            let chunk = tokio::time::timeout(DEADLINE, self.bytes.next()).await.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk.unwrap().unwrap()).unwrap());
        }
    }
}

#[tokio::test]
async fn an_idle_one_is_put_away_at_a_later_request_and_a_busy_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--isolation", "per_session", "--ttl", "300ms", "--sweep-interval", "1h"];
    let service = Service::start(dir.path(), &more);
    let mut events = Events::of(&service).await;
    let mut ids = Vec::new();
    for session in ["idle", "busy", "other"] {
        ids.push(service.session(session).await["workspace_id"].clone());
    }
    service.sh("idle", "echo kept > f").await;
    assert_eq!(events.next().await["workspace_id"], ids[0]);
    // Far longer than the time to live, and with nothing that asks for the workspace in between.
    let busy = service.sh("busy", "sleep 1.5; echo done");
    let others = async {
        let deadline = Instant::now() + DEADLINE;
        loop {
            service.sh("other", "true").await;
            let (_, listed) = service.call("GET", "/admin/workspaces", None).await;
            let cached: Vec<_> =
                listed["items"].as_array().unwrap().iter().map(|it| it["workspace_id"].clone()).collect();
            if !cached.contains(&ids[0]) {
                assert!(cached.contains(&ids[1]), "the busy one stays: {listed}");
                break;
            }
            assert!(Instant::now() < deadline, "the idle one is put away: {listed}");
        }
    };
    let (busy, ()) = tokio::join!(busy, others);
    assert_eq!((&busy["outcome"], &busy["stdout"]), (&"exited".into(), &"done\n".into()));
    let suspended = loop {
        let event = events.next().await;
        if event["event"] != "opened" {
            break event;
        }
    };
    assert_eq!(suspended["event"], "suspended");
    assert_eq!((&suspended["workspace_id"], &suspended["reason"]), (&ids[0], &"idle".into()));
    assert_eq!(service.sh("idle", "cat f").await["stdout"], "kept\n", "its files are kept");
    service.stop();
}
