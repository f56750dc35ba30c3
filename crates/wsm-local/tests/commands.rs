//! Commands from their start to their end.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use support::*;
use test_log::test;
use tokio::{io::AsyncWriteExt, time::Instant};
use wsm_core::{Command, ErrorKind, ExitStatus, ProcessEvent, Signal, WorkspaceExt};

#[test(tokio::test)]
async fn argv_reaches_the_program_exactly() {
    let fixture = Fixture::new().await;
    let args = ["", " ", "a b", "*", "$HOME", "\"'\\", "\n", "ü", "-n"];
    let mut command = Command::from_argv(["printf", "%s\\0"]);
    command.argv.extend(args.map(str::to_owned));
    let expected: Vec<u8> = args.iter().flat_map(|arg| [arg.as_bytes(), b"\0"].concat()).collect();
    assert_eq!(fixture.exec(command).await.stdout.bytes, expected);
}

#[test(tokio::test)]
async fn streams_stay_apart_and_bytes_come_through_exactly() {
    let fixture = Fixture::new().await;
    let result = fixture.exec(Command::shell(r"printf 'a\0\377\325'; printf 'b\0' >&2")).await;
    assert_eq!((&result.stdout.bytes[..], &result.stderr.bytes[..]), (&b"a\0\xff\xd5"[..], &b"b\0"[..]));
}

#[test(tokio::test(flavor = "multi_thread"))]
async fn the_exit_code_is_never_lost_under_load() {
    let fixture = Fixture::new().await;
    let results = (0..300).map(|i| fixture.workspace.exec(Command::shell(format!("echo {i}; exit {}", i % 200))));
    let results: Vec<_> = futures::stream::iter(results).buffered(32).collect().await;
    for (i, result) in results.into_iter().enumerate() {
        let result = result.unwrap();
        let code = i32::try_from(i % 200).unwrap();
        assert_eq!((result.status, result.stdout.to_text()), (ExitStatus::Exited { code }, format!("{i}\n")));
    }
}

#[test(tokio::test)]
async fn an_end_by_signal_tells_the_signal() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.exec(Command::shell("kill -9 $$")).await.status, ExitStatus::Signaled { signal: 9 });
    assert_eq!(fixture.exec(Command::shell("kill -15 $$")).await.status, ExitStatus::Signaled { signal: 15 });
    // Which this program ignores, as all programs of the Rust runtime do.
    assert_eq!(fixture.exec(Command::shell("kill -13 $$")).await.status, ExitStatus::Signaled { signal: 13 });
}

#[test(tokio::test)]
async fn stdin_is_empty_unless_given() {
    let fixture = Fixture::new().await;
    let result = soon("`cat` sees the end of its input", fixture.exec(Command::new("cat"))).await;
    assert_eq!((result.status.success(), result.stdout.bytes.len()), (true, 0));
    let result = fixture.exec(Command::new("cat").with_stdin("hello")).await;
    assert_eq!(&result.stdout.bytes[..], b"hello");
}

#[test(tokio::test)]
async fn large_input_to_a_command_that_writes_as_much_does_not_deadlock() {
    let fixture = Fixture::new().await;
    let input: Bytes = (0..8u32 << 20).map(|i| (i % 251) as u8).collect();
    let result = soon("`cat` ends", fixture.exec(Command::new("cat").with_stdin(input.clone()))).await;
    assert!(result.stdout.bytes == input);
    // One that does not read it all ends all the same.
    let result = soon("`head` ends", fixture.exec(Command::from_argv(["head", "-c1"]).with_stdin(input))).await;
    assert_eq!((result.status.success(), result.stdout.bytes.len()), (true, 1));
}

#[test(tokio::test)]
async fn output_over_the_limit_keeps_both_ends_and_counts_the_rest() {
    let fixture = Fixture::new().await;
    let line = "printf head; head -c 100000000 /dev/zero; printf tail; printf err >&2";
    let result = fixture.exec(Command::shell(line).with_output_limit(1000)).await;
    assert!(result.status.success());
    assert_eq!((result.stdout.bytes.len(), result.stdout.dropped), (1000, 100_000_008 - 1000));
    assert!(result.stdout.bytes.starts_with(b"head\0") && result.stdout.bytes.ends_with(b"\0tail"));
    assert_eq!((&result.stderr.bytes[..], result.stderr.dropped), (&b"err"[..], 0));
}

#[test(tokio::test)]
async fn cwd_and_env_take_effect() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir -p a/b").await;
    let workdir = fixture.workspace.info().workdir.clone();
    let pwd = |command: Command| async { fixture.exec(command).await.stdout.to_text().trim_end().to_owned() };
    assert_eq!(pwd(Command::new("pwd")).await, workdir);
    assert_eq!(pwd(Command::new("pwd").with_cwd("a/b")).await, format!("{workdir}/a/b"));
    assert_eq!(pwd(Command::new("pwd").with_cwd(format!("{workdir}/a"))).await, format!("{workdir}/a"));
    let env = Command::shell("echo $A-$WSM_WORKSPACE_ID").with_env("A", "b c").with_env("WSM_WORKSPACE_ID", "forged");
    assert_eq!(pwd(env).await, "b c-w");
}

#[test(tokio::test)]
async fn a_cwd_that_is_no_directory_of_the_workspace_is_refused() {
    let fixture = Fixture::new().await;
    fixture.sh("touch file; ln -s / out; ln -s .. up").await;
    for cwd in ["missing", "file", "file/x"] {
        let error = fixture.workspace.exec(Command::new("true").with_cwd(cwd)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("cwd")), "{cwd}: {error:?}");
    }
    for cwd in ["..", "/", "/tmp", "out", "up", "./../."] {
        let error = fixture.workspace.exec(Command::new("true").with_cwd(cwd)).await.unwrap_err();
        assert_eq!((error.code(), error.field()), ("path_outside", Some("cwd")), "{cwd}: {error:?}");
    }
}

#[test(tokio::test)]
async fn a_program_that_can_not_start_is_told_apart() {
    let fixture = Fixture::new().await;
    fixture.sh("touch plain; printf '#!/no/such/shell\\n' > lost; chmod +x lost; mkdir dir").await;
    for (program, code) in [
        ("wsm-no-such-program", "program_not_found"),
        ("./missing", "program_not_found"),
        ("/no/such/program", "program_not_found"),
        ("./plain/x", "program_not_found"),
        ("./plain", "program_not_executable"),
        ("./dir", "program_not_executable"),
        ("./lost", "program_not_executable"),
    ] {
        for result in [
            fixture.workspace.exec(Command::new(program)).await.map(drop),
            fixture.workspace.spawn(Command::new(program)).await.map(drop),
        ] {
            let error = result.unwrap_err();
            assert_eq!(
                (error.kind(), error.code(), error.field()),
                (ErrorKind::InvalidInput, code, Some("command")),
                "{program}: {error:?}"
            );
        }
    }
}

#[test(tokio::test)]
async fn arguments_that_are_too_long_are_refused() {
    let fixture = Fixture::new().await;
    let error = fixture.workspace.exec(Command::new("true").arg("x".repeat(1 << 20))).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("command")), "{error:?}");
}

#[test(tokio::test)]
async fn a_program_is_looked_up_in_the_path_of_the_command() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir bin; printf '#!/bin/sh\\necho mine\\n' > bin/tool; chmod +x bin/tool").await;
    let path = format!("{}/bin:/usr/bin:/bin", fixture.workspace.info().workdir);
    assert_eq!(fixture.exec(Command::new("tool").with_env("PATH", path)).await.stdout.to_text(), "mine\n");
    assert_eq!(fixture.workspace.exec(Command::new("tool")).await.unwrap_err().code(), "program_not_found");
}

#[test(tokio::test)]
async fn variables_of_the_service_stay_with_it() {
    let fixture = Fixture::new().await;
    // Set by cargo for every test.
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let env = fixture.sh("env").await;
    assert!(env.contains("PATH=") && !env.contains("CARGO_PKG_NAME"), "{env}");
}

#[test(tokio::test)]
async fn a_child_in_the_background_neither_delays_the_end_nor_dies_of_it() {
    let fixture = Fixture::new().await;
    let line = "(echo early; for i in $(seq 2000); do echo $i; sleep 0.01; done) & echo $! > pid; echo done";
    let result = soon("the command ends", fixture.exec(Command::shell(line))).await;
    assert!(result.status.success() && result.stdout.to_text().contains("done\n"), "{result:?}");
    let pid = fixture.pid_in("pid").await;
    // It goes on writing to a pipe that nobody reads any more.
    let begun = Instant::now();
    wait_until("it has written on for a while", || begun.elapsed() > Duration::from_millis(300)).await;
    assert!(is_alive(pid));
    fixture.workspace.suspend().await.unwrap();
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn a_grandchild_in_a_session_of_its_own_does_not_hold_back_the_end() {
    let fixture = Fixture::new().await;
    let line = "setsid sleep 600 & echo $! > pid; exit 0";
    let result = soon("the command ends", fixture.exec(Command::shell(line))).await;
    assert!(result.status.success());
    let pid = fixture.pid_in("pid").await;
    assert!(is_alive(pid));
    fixture.workspace.suspend().await.unwrap();
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn everything_the_command_wrote_itself_is_there_although_a_child_holds_the_pipe() {
    let fixture = Fixture::new().await;
    for _ in 0..20 {
        let line = "sleep 600 & head -c 60000 /dev/zero; printf x >&2";
        let result = soon("the command ends", fixture.exec(Command::shell(line))).await;
        assert_eq!((result.stdout.bytes.len(), result.stderr.bytes.len()), (60_000, 1));
    }
    fixture.workspace.suspend().await.unwrap();
}

#[test(tokio::test)]
async fn output_arrives_while_the_command_runs_and_ends_once() {
    let fixture = Fixture::new().await;
    let mut process =
        fixture.workspace.spawn(Command::shell("echo first; read line; echo got $line; exit 3")).await.unwrap();
    let first = soon("the first line is there", process.output.next()).await;
    assert_eq!(first, Some(ProcessEvent::Stdout(Bytes::from_static(b"first\n"))));
    process.stdin.write_all(b"it\n").await.unwrap();
    let rest: Vec<_> = soon("the command ends", process.output.collect()).await;
    let got = ProcessEvent::Stdout(Bytes::from_static(b"got it\n"));
    assert_eq!(rest, [got, ProcessEvent::End(ExitStatus::Exited { code: 3 })]);
}

#[test(tokio::test)]
async fn dropping_or_shutting_down_stdin_is_the_end_of_input() {
    let fixture = Fixture::new().await;
    for shut_down in [true, false] {
        let process = fixture.workspace.spawn(Command::new("cat")).await.unwrap();
        let (mut stdin, output) = (process.stdin, process.output);
        stdin.write_all(b"x").await.unwrap();
        let kept = if shut_down {
            stdin.shutdown().await.unwrap();
            assert!(stdin.write_all(b"y").await.is_err());
            Some(stdin)
        } else {
            drop(stdin);
            None
        };
        let events: Vec<_> = soon("`cat` ends", output.collect()).await;
        assert_eq!(events.last(), Some(&ProcessEvent::End(ExitStatus::Exited { code: 0 })));
        drop(kept);
    }
}

#[test(tokio::test)]
async fn signals_reach_the_command_and_dropping_the_control_does_nothing() {
    let fixture = Fixture::new().await;
    let line = "trap 'echo usr1; exit 7' USR1; echo ready; while :; do sleep 0.01; done";
    let mut process = fixture.workspace.spawn(Command::shell(line)).await.unwrap();
    soon("it is ready", process.output.next()).await;
    process.control.signal(Signal::User1).await.unwrap();
    let control = process.control.clone();
    drop(process.control);
    let events: Vec<_> = soon("it ends", process.output.collect()).await;
    assert_eq!(events.last(), Some(&ProcessEvent::End(ExitStatus::Exited { code: 7 })));
    control.signal(Signal::Kill).await.unwrap();
}

#[test(tokio::test)]
async fn a_slow_reader_slows_the_command_and_gets_everything() {
    let fixture = Fixture::new().await;
    let line = "head -c 10000000 /dev/zero; touch done; exit 5";
    let process = fixture.workspace.spawn(Command::shell(line)).await.unwrap();
    let done = fixture.host_path("done");
    let begun = Instant::now();
    wait_until("it had time to run ahead", || begun.elapsed() > Duration::from_millis(200)).await;
    assert!(!done.exists(), "only what fits into the pipe and the queue is read ahead");
    let events: Vec<_> = soon("it ends", process.output.collect()).await;
    let bytes: usize =
        events.iter().map(|event| if let ProcessEvent::Stdout(bytes) = event { bytes.len() } else { 0 }).sum();
    assert_eq!((bytes, events.last()), (10_000_000, Some(&ProcessEvent::End(ExitStatus::Exited { code: 5 }))));
}

#[test(tokio::test)]
async fn commands_run_side_by_side() {
    let fixture = Fixture::new().await;
    // Each waits for what the other does.
    let (left, right) =
        ("touch l; until [ -e r ]; do sleep 0.01; done", "touch r; until [ -e l ]; do sleep 0.01; done");
    let both = async { tokio::join!(fixture.workspace.sh(left), fixture.workspace.sh(right)) };
    let (left, right) = soon("both end", both).await;
    assert!(left.unwrap().status.success() && right.unwrap().status.success());
}

#[test(tokio::test)]
async fn a_command_without_a_terminal_does_not_wait_for_one() {
    let fixture = Fixture::new().await;
    let result = soon("it ends", fixture.exec(Command::shell("read line < /dev/tty"))).await;
    assert!(!result.status.success());
}
