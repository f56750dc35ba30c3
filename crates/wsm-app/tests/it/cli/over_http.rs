//! Commands and files of the local backend over real sockets.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Service;

async fn exec(service: &Service, body: Value) -> (u16, Value) {
    service.call("POST", "/workspace/exec?agent_id=a&session_id=s", Some(body)).await
}

#[tokio::test]
async fn bytes_of_any_kind_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    for (line, bytes) in [(r"printf 'a\0b'", &b"a\0b"[..]), (r"printf '\326\320\316\304'", b"\xd6\xd0\xce\xc4")] {
        let (status, result) = exec(&service, json!({ "command": ["sh", "-c", line] })).await;
        let text = result["stdout"].as_str().unwrap();
        let got = match result["stdout_encoding"].as_str().unwrap() {
            "utf8" => text.as_bytes().to_vec(),
            _ => BASE64_STANDARD.decode(text).unwrap(),
        };
        assert_eq!((status, &*got), (200, bytes), "{result}");
    }
    service.stop();
}

#[tokio::test]
async fn a_command_that_reads_gets_an_end_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let began = Instant::now();
    let (_, result) = exec(&service, json!({ "command": ["sh", "-c", "cat > f; wc -c < f"] })).await;
    assert_eq!((&result["outcome"], result["stdout"].as_str().unwrap().trim()), (&json!("exited"), "0"));
    assert!(began.elapsed() < Duration::from_secs(10));
    service.stop();
}

#[tokio::test]
async fn output_is_capped_and_the_rest_counted() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let (_, result) = exec(&service, json!({ "command": ["sh", "-c", "yes | head -c 200000000"] })).await;
    assert_eq!((&result["outcome"], &result["exit_code"]), (&json!("exited"), &json!(0)), "it is not killed");
    let kept = result["stdout"].as_str().unwrap().len() as u64;
    assert!(kept <= 1 << 20);
    assert_eq!(result["truncated"]["stdout"].as_u64().unwrap() + kept, 200_000_000);
    let (status, refused) = exec(&service, json!({ "command": ["true"], "max_output_bytes": 1u64 << 40 })).await;
    assert_eq!((status, &refused["field"]), (422, &json!("max_output_bytes")));
    service.stop();
}

#[tokio::test]
async fn the_service_has_the_deadline_and_keeps_what_was_printed() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--set", "exec_timeout=500ms", "--set", "max_exec_timeout=2s"]);
    service.session("s").await;
    // Also a child that holds the pipe in a session of its own does not keep the answer.
    let line = "echo before; setsid sleep 600 & sleep 600";
    let began = Instant::now();
    let (_, result) = exec(&service, json!({ "command": ["sh", "-c", line] })).await;
    assert_eq!((&result["outcome"], &result["stdout"]), (&json!("timed_out"), &json!("before\n")));
    assert!(began.elapsed() < Duration::from_secs(15));
    for timeout in [json!(0), json!(-1), json!(2.5)] {
        let (status, _) = exec(&service, json!({ "command": ["true"], "timeout_seconds": timeout })).await;
        assert_eq!(status, 422, "{timeout}");
    }
    // The other way round: a client's own limit ends its wait, and with it the command.
    wsm_app::tls::install();
    let impatient = reqwest::Client::builder().timeout(Duration::from_secs(1)).build().unwrap();
    let url = format!("{}/workspace/exec?agent_id=a&session_id=s", service.url);
    let body = json!({ "command": ["sh", "-c", "echo $$ > pid; exec sleep 600"], "timeout_seconds": 2 });
    assert!(impatient.post(url).header("x-user-id", "ann").json(&body).send().await.unwrap_err().is_timeout());
    let pid = std::fs::read_to_string(dir.path().join("base/ann/a/pid")).unwrap();
    crate::support::eventually("the command is ended", || !super::alive(&pid)).await;
    service.stop();
}

#[tokio::test]
async fn a_silent_stream_lives_longer_than_any_pause() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let line = "for i in 1 2 3; do sleep 0.4; echo $i; done";
    let (code, text, errors) = service.ask(dir.path(), &["exec", "--", "sh", "-c", line]);
    assert_eq!((code, text.as_str()), (0, "1\n2\n3\n"), "{errors}");
    service.stop();
}

#[tokio::test]
async fn the_exit_code_is_never_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    for _ in 0..10 {
        let many = (0..40).map(|_| exec(&service, json!({ "command": ["sh", "-c", "echo x; exit 42"] })));
        for (status, result) in futures::future::join_all(many).await {
            let got = (status, &result["outcome"], &result["exit_code"], &result["stdout"]);
            assert_eq!(got, (200, &json!("exited"), &json!(42), &json!("x\n")));
        }
    }
    service.stop();
}

#[tokio::test]
async fn a_download_of_any_name_is_one_that_browsers_can_save() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let client = crate::support::http();
    for (name, encoded) in [
        ("报告 ü.txt", "%E6%8A%A5%E5%91%8A%20%C3%BC.txt"),
        ("a\"b;c.txt", "a%22b%3Bc.txt"),
        ("new\r\nline: x", "new%0D%0Aline%3A%20x"),
    ] {
        let request = |method: http::Method| {
            let query = [("agent_id", "a"), ("session_id", "s"), ("path", name), ("download", "true")];
            client.request(method, format!("{}/workspace/files", service.url)).query(&query).header("x-user-id", "ann")
        };
        assert_eq!(request(http::Method::PUT).body("x").send().await.unwrap().status(), 201, "{name:?}");
        let got = request(http::Method::GET).send().await.unwrap();
        let header = got.headers()["content-disposition"].to_str().unwrap().to_owned();
        assert_eq!(header, format!("attachment; filename*=UTF-8''{encoded}"));
        assert_eq!(got.text().await.unwrap(), "x");
    }
    service.stop();
}
