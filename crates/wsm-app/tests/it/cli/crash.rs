//! A service that is killed, and the one that comes after it.

use std::path::Path;

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::task::JoinSet;

use super::{Service, alive};
use crate::support::eventually;

/// Sends a request and does not wait for its answer.
fn begin(work: &mut JoinSet<()>, service: &Service, session: &str, line: &str) {
    let url = format!("{}/workspace/exec?agent_id=a&session_id={session}", service.url);
    let request = crate::support::http().post(url).header("x-user-id", "ann");
    let request = request.json(&json!({ "command": ["sh", "-c", line] }));
    work.spawn(async move {
        let _ = request.send().await;
    });
}

fn number_in(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))
}

async fn store_is_sound(dir: &Path) {
    let options = SqliteConnectOptions::new().filename(dir.join("wsm.db"));
    let mut store = SqliteConnection::connect_with(&options).await.unwrap();
    let said: Vec<String> = sqlx::query_scalar("PRAGMA integrity_check").fetch_all(&mut store).await.unwrap();
    assert_eq!(said, ["ok"]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_command_leaves_no_process_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let session = service.session("s").await;
    let inside = dir.path().join("base/ann/a");
    let mut work = JoinSet::new();
    // Also a child in a session of its own, which no signal to the group reaches.
    let line = "echo kept > f; setsid sh -c 'echo $$ > child; exec sleep 600' & echo $$ > parent; wait";
    begin(&mut work, &service, "s", line);
    eventually("both run", || ["child", "parent"].iter().all(|file| number_in(&inside.join(file)).is_some())).await;
    let pids = ["child", "parent"].map(|file| number_in(&inside.join(file)).unwrap());
    service.kill();
    let service = Service::start(dir.path(), &[]);
    eventually("nothing of the killed service runs", || !pids.iter().any(|pid| alive(pid))).await;
    assert_eq!(service.session("s").await, session);
    assert_eq!(service.sh("s", "cat f").await["stdout"], "kept\n");
    service.stop();
    store_is_sound(dir.path()).await;
}

#[tokio::test]
async fn a_kill_while_many_workspaces_are_opened_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let service = Service::start(dir.path(), &["--isolation", "per_session"]);
        let old: Vec<String> = (0..round * 30).map(|number| format!("s{number}")).collect();
        let new: Vec<String> = (round * 30..(round + 1) * 30).map(|number| format!("s{number}")).collect();
        join_all(new.iter().map(|id| service.session(id))).await;
        let before = join_all(old.iter().chain(&new).map(|id| service.session(id))).await;
        let mut work = JoinSet::new();
        for id in &new {
            begin(&mut work, &service, id, &format!("echo {id} > f; exec sleep 600"));
        }
        // At least one is open, and most are not yet.
        let open = || std::fs::read_dir(dir.path().join("base/.wsm/index")).map_or(0, Iterator::count);
        eventually("some are being opened", || open() > old.len()).await;
        service.kill();
        work.shutdown().await;

        let service = Service::start(dir.path(), &["--isolation", "per_session"]);
        let after = join_all(old.iter().chain(&new).map(|id| service.session(id))).await;
        assert_eq!(after, before);
        for id in old.iter().chain(&new) {
            let text = service.sh(id, "[ -s f ] || echo none > f; cat f").await["stdout"].clone();
            assert!(text == format!("{id}\n") || text == "none\n", "{id}: {text}");
            service.sh(id, &format!("echo {id} > f")).await;
        }
        let places = service.call("GET", "/admin/workspaces?all=true", None).await.1;
        let mut places: Vec<Value> =
            places["items"].as_array().unwrap().iter().map(|it| it["location"].clone()).collect();
        places.sort_unstable_by_key(ToString::to_string);
        places.dedup();
        assert_eq!(places.len(), (round + 1) * 30, "each has a place of its own");
        let strays = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            let inside = std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir.path().join("base")));
            inside.then_some(path)
        });
        assert_eq!(strays.count(), 0, "nothing of the killed service runs");
        service.stop();
        store_is_sound(dir.path()).await;
    }
}
