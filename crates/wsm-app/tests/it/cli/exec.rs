//! `wsm exec`.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::Stdio,
    time::Duration,
};

use super::{ExitCase, Service, alive, exit_cases, fed, output, stderr, told, wait};
use crate::support::eventually;

#[tokio::test]
async fn exit_codes_are_those_of_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plain"), "").unwrap();
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    let service = Service::start(dir.path(), &[]);
    let own: Vec<ExitCase<'_>> = vec![
        (&["--env", "A"], vec!["true"], 125),
        (&["--cwd", "nowhere"], vec!["true"], 125),
        (&["--agent", "another"], vec!["true"], 125),
        (&["--url", "http://127.0.0.1:1"], vec!["true"], 125),
    ];
    for (options, command, code) in exit_cases(&plain).into_iter().chain(own) {
        let (got, _, errors) = service.ask(dir.path(), &[&["exec"], options, &["--"], &command[..]].concat());
        assert_eq!(got, code, "{options:?} {command:?}: {errors}");
    }
    let usage = output(dir.path(), &["exec"]);
    assert_eq!(usage.status.code(), Some(125), "{}", stderr(&usage));
    service.stop();
}

#[tokio::test]
async fn bytes_go_through_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let tee = fed(service.wsm(dir.path(), &["exec", "--", "sh", "-c", "tee /dev/stderr"]), &bytes);
    assert!(tee.stdout == bytes, "stdout");
    assert!(tee.stderr == bytes, "stderr");
    for length in [(64 << 20) + 1, 16 << 20] {
        let too_much = fed(service.wsm(dir.path(), &["exec", "--session", "new", "--", "true"]), &vec![0; length]);
        assert_eq!(too_much.status.code(), Some(125));
        assert!(stderr(&too_much).contains("wsm cp"), "{}", stderr(&too_much));
        if length > 64 << 20 {
            assert_eq!(service.call("GET", "/sessions/new", None).await.0, 404, "nothing was made");
        }
    }
    let pieces =
        service.wsm(dir.path(), &["exec", "--", "sh", "-c", r"printf 'a\0b\326\320'; exit 42"]).output().unwrap();
    assert_eq!((pieces.status.code(), &*pieces.stdout), (Some(42), &b"a\0b\xd6\xd0"[..]), "NUL and GBK");
    service.stop();
}

#[tokio::test]
async fn a_session_is_made_once_and_its_agent_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let ask = |args: &[&str]| service.ask(dir.path(), args);
    ask(&["exec", "--session", "s", "--agent", "coder", "--", "touch", "f"]);
    assert_eq!(ask(&["exec", "--session", "s", "--", "ls"]), (0, "f\n".into(), String::new()));
    assert_eq!(ask(&["exec", "--session", "t", "--agent", "coder", "--", "ls"]).1, "f\n", "the same agent");
    assert_eq!(ask(&["exec", "--", "mkdir", "sub"]).0, 0);
    assert_eq!(ask(&["exec", "--", "ls"]).1, "sub\n", "another agent");
    let env = ask(&["exec", "--env", "A=b=c", "--cwd", "sub", "--", "sh", "-c", "echo $A; pwd"]);
    assert_eq!(env.1, format!("b=c\n{}/sub\n", dir.path().join("base/ann/default").display()));
    let (code, _, errors) = ask(&["exec", "--session", "s", "--agent", "x", "--", "ls"]);
    assert_eq!(code, 125);
    assert!(errors.contains("of the agent `coder`"), "{errors}");
    service.stop();
}

#[tokio::test]
async fn output_comes_while_the_command_runs_and_leaving_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let line = "echo $$; exec sleep 600";
    for leave_by_signal in [true, false] {
        let mut command = service.wsm(dir.path(), &["exec", "--", "sh", "-c", line]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut pid = String::new();
        stdout.read_line(&mut pid).unwrap();
        if leave_by_signal {
            super::signal(&child, rustix::process::Signal::INT);
        } else {
            child.kill().unwrap();
        }
        wait(&mut child);
        eventually("the command is ended", || !alive(&pid)).await;
    }
    let mut child = service.wsm(dir.path(), &["exec", "--", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    assert_eq!(wait(&mut child).code(), Some(141));
    service.stop();
}

#[tokio::test]
async fn a_service_that_dies_is_no_exit_code_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let mut command = service.wsm(dir.path(), &["exec", "--", "sh", "-c", "echo $$; exec sleep 600"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    service.kill();
    assert_eq!(wait(&mut child).code(), Some(125));
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(errors.contains("nobody saw how the command ended"), "{errors}");
    // What a killed service leaves is ended by the next start.
    Service::start(dir.path(), &[]).stop();
    eventually("the command is ended", || !alive(&pid)).await;
}

/// Answers every request with these bytes.
fn impostor(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = std::io::Write::write_all(&mut stream, answer);
        }
    });
    url
}

#[test]
fn what_is_no_service_gets_a_readable_line() {
    let dir = tempfile::tempdir().unwrap();
    for (answer, word) in [
        (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\n<a/>"[..], "is it a wsm service?"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "is it a wsm service?"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<a/>", "is not a wsm service"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "broke off"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nContent-Length: 57\r\n\r\n{\"detail\":\"no\\u001b[2J\",\"code\":\"c1\",\"request_id\":\"r1\"}   ", "wsm: no\u{fffd}[2J (code c1, request r1)"),
    ] {
        let (code, stdout, errors) = told(output(dir.path(), &["exec", "--url", &impostor(answer), "--", "true"]));
        assert_eq!((code, stdout.as_str(), errors.lines().count()), (125, "", 1), "{errors}");
        assert!(errors.contains(word), "{word:?} is not in {errors}");
    }
    let (code, _, errors) = told(output(dir.path(), &["ls", "--url", "http://127.0.0.1:1"]));
    assert_eq!(code, 1);
    assert!(
        errors.starts_with("wsm: no service answers at http://127.0.0.1:1: start one with `wsm serve`"),
        "{errors}"
    );
    let (_, _, errors) = told(output(dir.path(), &["ls", "--url", "https://wsm.example"]));
    assert!(errors.contains("plain HTTP"), "{errors}");
}
