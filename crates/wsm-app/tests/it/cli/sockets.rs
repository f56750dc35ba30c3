//! HTTP as bytes on a socket.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
};

use super::{DEADLINE, Service};
use crate::support::eventually;

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(service.url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends these bytes and reads until the service closes the connection.
fn talk(service: &Service, request: &str) -> String {
    let mut stream = connect(service);
    stream.write_all(request.as_bytes()).unwrap();
    rest(&mut stream)
}

fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn file(method: &str, more: &str) -> String {
    let uri = "/workspace/files?agent_id=a&session_id=s&path=f";
    format!("{method} {uri} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User-ID: ann\r\nConnection: close\r\n{more}\r\n")
}

#[tokio::test]
async fn a_client_that_asks_first_is_refused_before_it_sends() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    for _ in 0..20 {
        let refused = talk(&service, &file("PUT", "Expect: 100-continue\r\nContent-Length: 5000000000\r\n"));
        assert!(refused.starts_with("HTTP/1.1 413"), "{refused}");
    }
    let mut stream = connect(&service);
    stream.write_all(file("PUT", "Expect: 100-continue\r\nContent-Length: 5\r\n").as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").unwrap();
    assert!(rest(&mut stream).starts_with("HTTP/1.1 201"));
    service.stop();
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    for (headers, body) in [
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked\r\n", "zz\r\nhello\r\n0\r\n\r\n"),
        ("Content-Length: 50\r\n", "hello"),
    ] {
        let mut stream = connect(&service);
        stream.write_all((file("PUT", headers) + body).as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(rest(&mut stream).starts_with("HTTP/1.1 422"), "{headers} {body}");
    }
    assert_eq!(service.sh("s", "ls -A").await["stdout"], "");
    service.stop();
}

#[tokio::test]
async fn a_client_that_leaves_a_download_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    service.sh("s", "truncate -s 500M f").await;
    for _ in 0..10 {
        let mut stream = connect(&service);
        stream.write_all(file("GET", "").as_bytes()).unwrap();
        stream.read_exact(&mut [0; 4096]).unwrap();
    }
    let leases = async || service.call("GET", "/admin/workspaces", None).await.1["items"][0]["leases"].clone();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while leases().await != 0 {
        assert!(tokio::time::Instant::now() < deadline, "the workspace is given back");
    }
    service.stop();
}

#[tokio::test]
async fn old_and_odd_ways_of_asking_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    service.sh("s", "printf hello > f").await;
    let old = talk(&service, "GET /healthz HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200") && old.ends_with(r#"{"status":"ok"}"#), "{old}");
    let pipelined = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(3) + &file("GET", "");
    let answers = talk(&service, &pipelined);
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 4, "{answers}");
    assert!(answers.ends_with("hello"));
    let head = talk(&service, &file("HEAD", ""));
    assert!(head.contains("content-length: 5\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let options = talk(&service, &file("OPTIONS", ""));
    assert!(options.starts_with("HTTP/1.1 405") && options.contains("allow: "), "{options}");
    let (long, many) = (format!("X-A: {}\r\n", "a".repeat(500_000)), "X-A: a\r\n".repeat(500));
    for headers in [long, many] {
        assert!(talk(&service, &file("GET", &headers)).starts_with("HTTP/1.1 431"));
    }
    service.stop();
}

/// A client that does not come to the end of its request's head is not waited for, and a running answer is.
#[tokio::test]
async fn a_head_that_does_not_end_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--set", "head_timeout=200ms"]);
    service.session("s").await;
    for begun in ["", "GET", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"] {
        assert_eq!(talk(&service, begun), "", "{begun:?}");
    }
    let kept = talk(&service, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(kept.starts_with("HTTP/1.1 200"), "{kept}");
    assert_eq!(service.sh("s", "sleep 0.5; echo done").await["stdout"], "done\n");
    service.stop();
}

/// Clients that have not asked for anything, or not to the end, hold up no stop.
#[tokio::test]
async fn a_stop_waits_for_nobody_who_has_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--set", "head_timeout=2s", "--set", "shutdown_timeout=10m"]);
    let mut silent = connect(&service);
    let mut slow = connect(&service);
    slow.write_all(b"GET /hea").unwrap();
    // Both have been let in once a later one has been answered.
    assert!(talk(&service, "GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200"));
    super::signal(&service.child, rustix::process::Signal::TERM);
    rest(&mut silent);
    rest(&mut slow);
    let mut service = service;
    assert_eq!(super::wait(&mut service.child).code(), Some(0));
}

/// What is going on is finished, streams end, and nobody new is let in.
#[tokio::test]
async fn a_stop_finishes_what_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let mut events = connect(&service);
    events.write_all(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut idle = connect(&service);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    events.read_exact(&mut [0; 12]).unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    let place = dir.path().join("base/ann/a");
    let mut running = service.wsm(
        dir.path(),
        &[
            "exec",
            "--session",
            "s",
            "--",
            "sh",
            "-c",
            "touch begun; while ! [ -e go ]; do sleep 0.02; done; echo done; exit 7",
        ],
    );
    let running = running.stdout(std::process::Stdio::piped()).spawn().unwrap();
    eventually("the command began", || place.join("begun").exists()).await;
    super::signal(&service.child, rustix::process::Signal::TERM);
    for stream in [&mut events, &mut idle] {
        rest(stream);
    }
    let address = service.url.strip_prefix("http://").unwrap().to_owned();
    eventually("nobody new is let in", || TcpStream::connect(&address).is_err()).await;
    std::fs::write(place.join("go"), "").unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"done\n"[..]));
    let mut service = service;
    assert_eq!(super::wait(&mut service.child).code(), Some(0));
}
