//! `wsm run`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    time::Duration,
};

use super::{ExitCase, exit_cases, output, signal, stderr, wait, wsm};

const PLACES: [&str; 4] = ["--basedir", "base", "--store", "wsm.db"];

fn run<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["run"], &PLACES[..], options, &["--"], command].concat()
}

#[test]
fn exit_codes_are_those_of_shells() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plain"), "").unwrap();
    let plain = dir.path().join("plain").to_str().unwrap().to_owned();
    let own: Vec<ExitCase<'_>> = vec![(&["--set", "tll=5s"], vec!["true"], 125)];
    for (options, command, code) in exit_cases(&plain).into_iter().chain(own) {
        let output = output(dir.path(), &run(options, &command));
        assert_eq!(output.status.code(), Some(code), "{options:?} {command:?}: {}", stderr(&output));
    }
}

#[test]
fn bytes_go_through_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let mut child = wsm(dir.path(), &run(&[], &["sh", "-c", "tee /dev/stderr"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stderr) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
    let copy = bytes.clone();
    let feeder = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let errors = std::thread::spawn(move || {
        let mut all = Vec::new();
        stderr.read_to_end(&mut all).unwrap();
        all
    });
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    feeder.join().unwrap();
    assert!(out == bytes, "stdout");
    assert!(errors.join().unwrap() == bytes, "stderr");
    assert!(wait(&mut child).success());
}

#[test]
fn one_agent_works_in_one_place_and_another_in_another() {
    let dir = tempfile::tempdir().unwrap();
    let sh = |options: &[&str], line: &str| {
        let output = output(dir.path(), &run(options, &["sh", "-c", line]));
        String::from_utf8(output.stdout).unwrap()
    };
    sh(&[], "echo kept > f");
    assert_eq!(sh(&["--session", "another"], "cat f"), "kept\n");
    assert_eq!(sh(&["--agent", "b"], "cat f"), "");
    assert_eq!(sh(&["--isolation", "per_session", "--session", "another"], "cat f"), "");
    sh(&["--workspace-id", "w"], "echo named > f");
    assert_eq!(sh(&["--agent", "b", "--workspace-id", "w"], "cat f"), "named\n");
    let theft = output(dir.path(), &run(&["--user", "bob", "--workspace-id", "w"], &["cat", "f"]));
    assert_eq!((theft.status.code(), theft.stdout.len()), (Some(125), 0), "{}", stderr(&theft));
}

#[test]
fn two_at_once_on_a_new_store_share_one_workspace() {
    let dir = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = (0..6)
        .map(|number| wsm(dir.path(), &run(&[], &["sh", "-c", &format!("touch f{number}")])).spawn().unwrap())
        .collect();
    for child in &mut children {
        assert!(wait(child).success());
    }
    let listed = output(dir.path(), &run(&[], &["ls"]));
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "f0\nf1\nf2\nf3\nf4\nf5\n");
}

#[test]
fn places_nobody_chose_are_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join(".local/share/wsm");
    let first = output(dir.path(), &["run", "--", "pwd"]);
    assert_eq!(first.stdout, format!("{}/workspaces/tester/default\n", data.display()).into_bytes());
    assert!(stderr(&first).contains(&format!("{}/workspaces", data.display())), "{}", stderr(&first));
    assert!(stderr(&first).contains(&format!("{}/wsm.db", data.display())));
    let second = output(dir.path(), &["run", "--", "pwd"]);
    assert_eq!((stderr(&second).as_str(), &second.stdout), ("", &first.stdout));
}

/// An agent may use the command inside its workspace.
#[test]
fn a_run_inside_a_run_is_one_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let places = [dir.path().join("inner"), dir.path().join("inner.db")].map(|it| it.to_str().unwrap().to_owned());
    let inner =
        [env!("CARGO_BIN_EXE_wsm"), "run", "--basedir", &places[0], "--store", &places[1], "--", "echo", "hello"];
    let output = output(dir.path(), &run(&[], &inner));
    assert_eq!(output.stdout, b"hello\n", "{}", stderr(&output));
}

#[test]
fn signals_reach_the_command() {
    let dir = tempfile::tempdir().unwrap();
    for (signal_to_send, name) in [(rustix::process::Signal::TERM, "TERM"), (rustix::process::Signal::INT, "INT")] {
        let line = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = wsm(dir.path(), &run(&[], &["sh", "-c", &line])).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        signal(&child, signal_to_send);
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(wait(&mut child).code(), Some(9));
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = wsm(dir.path(), &run(&[], &["yes"])).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    assert_eq!(wait(&mut child).code(), Some(141));
}

#[tokio::test]
async fn a_reader_that_takes_nothing_does_not_keep_it_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    // With the pipe full by the time of the signal, and before: then it is filled by what is still on its way.
    for pause in [1000, 0] {
        let mut child = wsm(dir.path(), &run(&[], &["yes"])).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 4]).unwrap();
        // Nothing more is read, and the pipe stays open.
        tokio::time::sleep(Duration::from_millis(pause)).await;
        signal(&child, rustix::process::Signal::TERM);
        assert_eq!(wait(&mut child).code(), Some(143));
        drop(stdout);
    }
}

#[test]
fn places_that_can_not_be_used_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a database, but a file with some text in it, long enough to be read").unwrap();
    for (places, word) in [
        (["--basedir", "file", "--store", "new.db"], "basedir"),
        (["--basedir", "file/below", "--store", "new.db"], "basedir"),
        (["--basedir", "new", "--store", "file"], "store"),
        (["--basedir", "new", "--store", "file/below"], "store"),
        (["--basedir", "new", "--store", "."], "store"),
        (["--basedir", "new", "--store", "new/"], "store"),
        (["--basedir", "new", "--store", "/dev/null"], "store"),
    ] {
        let output = output(dir.path(), &[&["run"], &places[..], &["--", "touch", "ran"]].concat());
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains(word), "{places:?}: {}", stderr(&output));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{places:?} made something");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("not a database") && text.len() == 71);
}
