//! Commands.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};
use wsm_core::ManagerSettings;

use crate::support::{Client, Reply, app, app_with, eventually};

async fn exec(client: &Client, session: &str, body: Value) -> Reply {
    client.post(&format!("/workspace/exec?{session}"), &body).await
}

#[tokio::test]
async fn the_answer_has_the_documented_shape() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let mut result = ann.sh(&session, "echo out; echo err >&2; exit 3").await.json();
    let duration = result.as_object_mut().unwrap().remove("duration_ms").unwrap();
    assert!(duration.is_u64());
    let expected = json!({
        "outcome": "exited", "exit_code": 3, "signal": null, "stdout": "out\n", "stderr": "err\n",
        "stdout_encoding": "utf8", "stderr_encoding": "utf8", "truncated": { "stdout": 0, "stderr": 0 },
    });
    assert_eq!(result, expected);
}

#[tokio::test]
async fn input_environment_and_directory_take_effect() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let body = json!({ "command": ["cat"], "stdin": "1f8=", "stdin_encoding": "base64" });
    let result = exec(&ann, &session, body).await.json();
    assert_eq!((&result["stdout"], &result["stdout_encoding"]), (&json!("1f8="), &json!("base64")));
    let body = json!({ "command": ["sh", "-c", "echo $A"], "env": { "A": "b" } });
    assert_eq!(exec(&ann, &session, body).await.json()["stdout"], "b\n");
    let body = json!({ "command": ["pwd"], "cwd": "nowhere" });
    assert_eq!(exec(&ann, &session, body).await.field(), "cwd");
}

#[tokio::test]
async fn output_is_capped_and_the_gap_told() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let body = json!({ "command": ["echo", "0123456789"], "max_output_bytes": 4 });
    let result = exec(&ann, &session, body).await.json();
    assert_eq!(result["stdout"], "019\n");
    assert_eq!(result["truncated"], json!({ "stdout": 7, "stderr": 0 }));
    assert_eq!(result["truncated_at"], json!({ "stdout": 2 }));
}

#[tokio::test]
async fn a_timeout_keeps_what_was_printed() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let body = json!({ "command": ["sh", "-c", "echo before; sleep 60"], "timeout_seconds": 0.2 });
    let result = exec(&ann, &session, body).await.json();
    assert_eq!((&result["outcome"], &result["exit_code"]), (&json!("timed_out"), &Value::Null));
    assert_eq!(result["stdout"], "before\n");
}

#[tokio::test]
async fn a_program_that_can_not_start_is_no_result() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let reply = exec(&ann, &session, json!({ "command": ["no-such-program"] })).await;
    assert_eq!(reply.problem(), (422, "program_not_found".into()));
}

#[tokio::test]
async fn bad_input_names_its_field_and_opens_nothing() {
    let app = app_with(ManagerSettings::default(), |mut config| {
        config.limits.max_request_bytes = 10_000;
        config
    })
    .await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for (body, field) in [
        (json!({}), "command"),
        (json!({ "command": [] }), "command"),
        (json!({ "command": [""] }), "command"),
        (json!({ "command": ["a\0"] }), "command"),
        (json!({ "command": "ls" }), "command"),
        (json!({ "command": ["ls"], "timeout_seconds": 0 }), "timeout_seconds"),
        (json!({ "command": ["ls"], "timeout_seconds": -1 }), "timeout_seconds"),
        (json!({ "command": ["ls"], "timeout_seconds": 1e300 }), "timeout_seconds"),
        (json!({ "command": ["ls"], "timeout_seconds": 3601 }), "timeout_seconds"),
        (json!({ "command": ["ls"], "timeout_seconds": "1" }), "timeout_seconds"),
        (json!({ "command": ["ls"], "max_output_bytes": -1 }), "max_output_bytes"),
        (json!({ "command": ["ls"], "max_output_bytes": 1u64 << 40 }), "max_output_bytes"),
        (json!({ "command": ["ls"], "cwd": "" }), "cwd"),
        (json!({ "command": ["ls"], "env": { "A=B": "" } }), "env"),
        (json!({ "command": ["ls"], "env": { "A": 1 } }), "env.A"),
        (json!({ "command": ["ls"], "stdin": "*", "stdin_encoding": "base64" }), "stdin"),
        (json!({ "command": ["ls"], "stdin_encoding": "rot13" }), "stdin_encoding"),
        (json!({ "command": ["ls"], "timeout": 5 }), "timeout"),
    ] {
        let reply = exec(&ann, &session, body.clone()).await;
        assert_eq!(reply.field(), field, "{body}: {}", reply.text());
        assert_eq!(reply.status, 422, "{body}");
    }
    let reply = exec(&ann, &session, json!({ "command": ["cat"], "stdin": "x".repeat(10_000) })).await;
    assert_eq!(reply.problem(), (413, "too_large".into()));
    assert_eq!(app.engine.creations(), 0, "nothing was opened");
}

/// Reads the events of a stream as name and data.
fn events(text: &str) -> Vec<(String, Value)> {
    let field = |block: &str, name: &str| block.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    text.split("\n\n")
        .filter_map(|block| Some((field(block, "event: ")?, serde_json::from_str(&field(block, "data: ")?).unwrap())))
        .collect()
}

#[tokio::test]
async fn a_stream_gives_output_while_the_command_runs_and_one_end() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let streaming = ann.clone().header("accept", "text/event-stream");
    let reply = exec(&streaming, &session, json!({ "command": ["cat"], "stdin": "hällo" })).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let events = events(&reply.text());
    let (last, output) = events.split_last().unwrap();
    let text: String = output.iter().map(|(_, data)| data["data"].as_str().unwrap()).collect();
    assert_eq!(text, "hällo");
    assert!(output.iter().all(|(name, data)| name == "stdout" && data["encoding"] == "utf8"));
    assert_eq!(last.0, "end");
    assert_eq!((&last.1["outcome"], &last.1["exit_code"]), (&json!("exited"), &json!(0)));
    let refused = exec(&streaming, &session, json!({ "command": ["no-such-program"] })).await;
    assert_eq!(refused.problem(), (422, "program_not_found".into()), "before the stream begins");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_command() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let leases = || app.manager.cached().iter().map(|cached| cached.leases).sum::<u64>();
    let body = || Body::from(json!({ "command": ["sh", "-c", "echo begun; sleep 600"] }).to_string());
    let json_client = ann.clone().header("content-type", "application/json");
    let uri = format!("/workspace/exec?{session}");

    let streaming = json_client.clone().header("accept", "text/event-stream");
    let mut stream = streaming.start(Method::POST, &uri, body()).await.into_body().into_data_stream();
    let first = stream.next().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("begun"));
    assert!(leases() > 0, "the workspace is held while the stream lives");
    drop(stream);
    eventually("the stream's command ended", || leases() == 0).await;

    let waiting = json_client.start(Method::POST, &uri, body());
    assert!(tokio::time::timeout(Duration::from_millis(200), waiting).await.is_err());
    eventually("the waiting request's command ended", || leases() == 0).await;
}
