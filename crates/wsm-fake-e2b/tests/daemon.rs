//! What the daemon does that the SDKs do not show.

#![expect(clippy::unwrap_used, reason = "what is not as expected fails the test")]

mod support;

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{Api, envelopes, with_fake};
use tokio::time::Instant;
use wsm_fake_e2b::Options;

fn stdout(events: &[(u8, Value)]) -> Vec<u8> {
    let data = events.iter().filter_map(|(_, message)| message["event"]["data"]["stdout"].as_str());
    data.flat_map(|data| STANDARD.decode(data).unwrap()).collect()
}

fn end(events: &[(u8, Value)]) -> &Value {
    events.iter().map(|(_, message)| &message["event"]["end"]).find(|end| end.is_object()).unwrap()
}

#[test]
fn an_argv_comes_exactly_as_it_was_sent() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({ "envVars": { "A": "global", "B": "global" } })).await;
        let argv = ["printf", "[%s]", "", "a b", "*", "$A", "ä\n", "-n", "'\""];
        let (events, _) = sandbox.start(&argv).await;
        assert_eq!(String::from_utf8(stdout(&events)).unwrap(), "[][a b][*][$A][ä\n][-n]['\"]");
        let start = json!({ "process": { "cmd": "env", "envs": { "B": "own" }, "cwd": "/tmp" }, "stdin": false });
        let (events, _) =
            envelopes(sandbox.stream_request("process.Process/Start", &start).send().await.unwrap()).await;
        let shown = String::from_utf8(stdout(&events)).unwrap();
        let mut names: Vec<&str> = shown.lines().map(|line| line.split('=').next().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["A", "B", "HOME", "LOGNAME", "PATH", "PWD", "USER"]);
        assert!(shown.contains("A=global\n") && shown.contains("B=own\n") && shown.contains("HOME=/home/user\n"));
        let (events, _) = sandbox.start(&["/etc/passwd"]).await;
        assert_eq!(end(&events)["exitCode"], 126);
        let (events, _) = sandbox.start(&["-x"]).await;
        assert_eq!(end(&events)["exitCode"], 125);
    });
}

#[test]
fn headers_bound_a_command() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        let run = async |name: &'static str, value: &'static str, argv: &[&str]| {
            envelopes(sandbox.start_request(argv).header(name, value).send().await.unwrap()).await.0
        };
        let code = |events: &[(u8, Value)]| events.last().unwrap().1["error"]["code"].clone();
        let argv = &["sh", "-c", "echo x; sleep 1000"][..];
        let before = Instant::now();
        let events = run("Connect-Timeout-Ms", "1500", argv).await;
        assert!(before.elapsed() < Duration::from_secs(20));
        assert_eq!((stdout(&events), code(&events)), (b"x\n".to_vec(), json!("deadline_exceeded")));
        let events = run("Connect-Timeout-Ms", "0", argv).await;
        assert_eq!((events.len(), code(&events)), (1, json!("deadline_exceeded")));
        let events = run("Connect-Timeout-Ms", "abc", argv).await;
        assert_eq!((events.len(), code(&events)), (1, json!("invalid_argument")));
        let events = run("Keepalive-Ping-Interval", "1", &["sleep", "3"]).await;
        assert_eq!(events[1].1, json!({ "event": { "keepalive": {} } }));
        let events = run("Connect-Accept-Encoding", "gzip", &["true"]).await;
        assert_eq!(events.iter().map(|(flags, _)| *flags).collect::<Vec<_>>(), [1, 1, 3]);
        let bad_user = format!("Basic {}", STANDARD.encode("nosuch:"));
        let request = sandbox.start_request(&["true"]).header("Authorization", &bad_user);
        assert_eq!(code(&envelopes(request.send().await.unwrap()).await.0), "unauthenticated");
        let request = sandbox.request("POST", "/filesystem.Filesystem/Stat").header("Authorization", &bad_user);
        let (status, error) = support::read(request.json(&json!({ "path": "/" })).send().await.unwrap()).await;
        assert_eq!((status, &error["message"]), (401, &json!("invalid username: 'nosuch'")));

        // The daemon does not survive this.
        let request = sandbox.start_request(&["true"]).header("Keepalive-Ping-Interval", "0");
        request.send().await.unwrap_err();
        assert_eq!(sandbox.health().await.0, 502);
    });
}

#[test]
fn a_command_outlives_its_stream_and_its_group_can_be_killed() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        let argv = ["setsid", "sh", "-c", "sleep 1000 & echo x; wait"];
        let mut response = sandbox.start_request(&argv).send().await.unwrap();
        let first = response.chunk().await.unwrap().unwrap();
        let said: Value = serde_json::from_slice(&first[5..5 + usize::from(first[4])]).unwrap();
        let pid = said["event"]["start"]["pid"].as_u64().unwrap();
        // It leads a group before it says something, and not from its very beginning.
        let mut heard = first.to_vec();
        while !heard.windows(6).any(|part| part == b"stdout") {
            heard.extend(response.chunk().await.unwrap().unwrap());
        }
        drop(response);
        let list = async || sandbox.call("process.Process/List", json!({})).await.1;
        assert_eq!(list().await["processes"][0]["pid"], pid);
        // What is killed is gone a moment later.
        let script = "kill -s KILL -- -\"$1\"; for i in $(seq 100); do kill -s 0 -- -\"$1\" || { echo gone; exit; }; sleep 0.1; done";
        let (events, _) = sandbox.start(&["/bin/sh", "-c", script, "sh", &pid.to_string()]).await;
        assert_eq!(stdout(&events), b"gone\n");
        let mut looks = 0;
        while list().await != json!({}) {
            looks += 1;
            assert!(looks < 100, "{}", list().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // Its end is known for a while.
        let message = json!({ "process": { "pid": pid } });
        let connect = sandbox.stream_request("process.Process/Connect", &message);
        let (events, _) = envelopes(connect.send().await.unwrap()).await;
        assert_eq!(end(&events)["status"], "signal: killed");
        let (status, error) = sandbox.call("process.Process/CloseStdin", message).await;
        assert_eq!((status, &error["code"]), (404, &json!("not_found")));
        // All commands are in the daemon's group, unless they leave it.
        let root = format!("Basic {}", STANDARD.encode("root:"));
        let suicide = sandbox.start_request(&["sh", "-c", "kill -9 0"]).header("Authorization", root);
        envelopes(suicide.send().await.unwrap()).await;
        // Its end is seen a moment later.
        let mut looks = 0;
        while sandbox.start_request(&["true"]).send().await.is_ok_and(|answer| answer.status() != 502) {
            looks += 1;
            assert!(looks < 100, "the daemon has ended");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn procedures_are_strict_about_how_they_are_called() {
    with_fake(Options::default(), async |fake| {
        let mut sandbox = Api::new(fake).create(json!({})).await;
        let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
        assert_eq!(status(sandbox.request("GET", "/process.Process/List")).await, 405);
        let wrong = sandbox.request("POST", "/process.Process/Start").json(&json!({}));
        assert_eq!(status(wrong).await, 415);
        assert_eq!(status(sandbox.stream_request("process.Process/List", &json!({}))).await, 415);
        let unknown = sandbox.request("POST", "/process.Process/Nothing").send().await.unwrap();
        assert_eq!(unknown.status(), 404);
        assert_eq!(unknown.text().await.unwrap(), "404 page not found\n");
        let bad = sandbox.request("POST", "/process.Process/List").header("Content-Type", "application/json");
        assert_eq!(status(bad.body("{")).await, 400);
        assert_eq!(status(sandbox.request("POST", "/init").json(&json!({}))).await, 404);
        assert_eq!(status(sandbox.request("HEAD", "/files?path=/etc/passwd")).await, 405);
        // It says so with status 401 on streams also.
        sandbox.token = "wrong".to_owned();
        assert_eq!(status(sandbox.start_request(&["true"])).await, 401);
        assert_eq!(sandbox.health().await.0, 204);
    });
}

#[test]
fn starting_a_command_is_quick() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        sandbox.start(&["true"]).await;
        let before = Instant::now();
        for _ in 0..20 {
            sandbox.start(&["true"]).await;
        }
        println!("{:?} for a command", before.elapsed() / 20);
        assert!(before.elapsed() < Duration::from_secs(20), "a second for a command that takes milliseconds");
    });
}

#[test]
fn many_sandboxes_run_many_commands() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let work = (0..8).map(|number| {
            let api = &api;
            async move {
                let sandbox = api.create(json!({})).await;
                let work = (0..8).map(|command| {
                    let (sandbox, text) = (&sandbox, format!("{number} {command}"));
                    async move {
                        let (events, is_proper) =
                            sandbox.start(&["sh", "-c", "echo \"$1\" | tee \"/tmp/$1\"", "sh", &text]).await;
                        assert!(is_proper);
                        assert_eq!(stdout(&events), format!("{text}\n").as_bytes());
                    }
                });
                futures::future::join_all(work).await;
                let (_, listed) = sandbox.call("filesystem.Filesystem/ListDir", json!({ "path": "/tmp" })).await;
                assert_eq!(listed["entries"].as_array().unwrap().len(), 8);
                let path = format!("/sandboxes/{}", sandbox.id);
                assert_eq!(api.ask("DELETE", &path, Value::Null).await.0, 204);
            }
        });
        futures::future::join_all(work).await;
        assert!(fake.sandboxes().all().is_empty());
    });
}

#[test]
fn a_pipe_blocks_nobody() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        sandbox.start(&["mkfifo", "/tmp/pipe"]).await;
        let download = sandbox.request("GET", "/files?path=/tmp/pipe").send();
        let _ = tokio::time::timeout(Duration::from_millis(200), download).await;
        let (status, _) = sandbox.call("filesystem.Filesystem/Stat", json!({ "path": "/tmp/pipe" })).await;
        assert_eq!(status, 200);
    });
}
