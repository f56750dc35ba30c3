//! Commands that are ended, with everything that they started.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::time::Duration;

use futures::StreamExt;
use support::*;
use test_log::test;
use tokio::time::Instant;
use wsm_core::{Backend, Command, ErrorKind, ExitStatus, ProcessEvent, WorkspaceExt};

/// Children that try to get away, each of which writes its process number to `pid`.
const ESCAPES: [(&str, &str); 6] = [
    ("a plain child", "sleep 600 & echo $! > pid; wait"),
    ("one in a session of its own", "setsid sh -c 'echo $$ > pid; exec sleep 600' & wait"),
    ("one without an environment", "env -i setsid sh -c 'echo $$ > pid; exec sleep 600' & wait"),
    ("one that was forked twice", "(setsid sh -c 'echo $$ > pid; exec sleep 600' &) ; sleep 600"),
    ("one forked twice without an environment", "(env -i setsid sh -c 'echo $$ > pid; exec sleep 600' &) ; sleep 600"),
    (
        "one that ignores SIGTERM",
        "(trap '' TERM; setsid sh -c 'echo $$ > pid; while :; do sleep 600; done' &) ; sleep 600",
    ),
];

#[test(tokio::test)]
async fn a_timeout_ends_the_whole_tree() {
    for (who, line) in ESCAPES {
        let fixture = Fixture::new().await;
        let command = Command::shell(line).with_timeout(Duration::from_secs(1));
        let result = soon("the command ends", fixture.exec(command)).await;
        assert_eq!(result.status, ExitStatus::TimedOut, "{who}");
        assert!(!is_alive(fixture.pid_in("pid").await), "{who} survived");
    }
}

#[test(tokio::test)]
async fn dropping_exec_ends_the_whole_tree() {
    for (who, line) in ESCAPES {
        let fixture = Fixture::new().await;
        let pid = tokio::select! {
            result = fixture.exec(Command::shell(line)) => panic!("{who}: {result:?}"),
            pid = fixture.pid_in("pid") => pid,
        };
        fixture.workspace.suspend().await.unwrap();
        assert!(!is_alive(pid), "{who} survived");
    }
}

#[test(tokio::test)]
async fn dropping_the_output_of_a_stream_ends_the_whole_tree_by_itself() {
    for (who, line) in ESCAPES {
        let fixture = Fixture::new().await;
        let process = fixture.workspace.spawn(Command::shell(line)).await.unwrap();
        let pid = fixture.pid_in("pid").await;
        assert!(is_alive(pid), "{who}");
        drop(process.output);
        wait_for_death(pid).await;
    }
}

#[test(tokio::test)]
async fn suspend_and_destroy_end_what_runs_and_what_was_left_in_the_background() {
    for destroy in [false, true] {
        let fixture = Fixture::new().await;
        fixture.sh("(setsid sh -c 'echo $$ > background; exec sleep 600' >/dev/null 2>&1 &)").await;
        let background = fixture.pid_in("background").await;
        let process = fixture.workspace.spawn(Command::shell("echo $$ > foreground; sleep 600")).await.unwrap();
        let foreground = fixture.pid_in("foreground").await;
        assert!(is_alive(background) && is_alive(foreground));
        if destroy {
            fixture.backend.destroy(&id("w")).await.unwrap();
        } else {
            fixture.workspace.suspend().await.unwrap();
        }
        assert!(!is_alive(background) && !is_alive(foreground));
        let events: Vec<_> = soon("the stream ends", process.output.collect()).await;
        assert!(matches!(events.last(), Some(ProcessEvent::End(ExitStatus::Unknown { .. }))), "{events:?}");
    }
}

#[test(tokio::test)]
async fn suspend_leaves_other_workspaces_alone() {
    let fixture = Fixture::new().await;
    let other = open(&fixture.backend, "other").await.workspace;
    fixture.sh("sleep 600 >/dev/null 2>&1 & echo $! > pid").await;
    let pid = fixture.pid_in("pid").await;
    other.exec(Command::new("true")).await.unwrap();
    other.suspend().await.unwrap();
    assert!(is_alive(pid));
    fixture.workspace.suspend().await.unwrap();
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn clean_up_traps_run_before_the_kill() {
    let fixture = Fixture::new().await;
    let line = "trap 'echo cleaned; touch cleaned; exit' TERM; echo ready; while :; do sleep 0.01; done";
    let result = fixture.exec(Command::shell(line).with_timeout(Duration::from_secs(1))).await;
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert_eq!(result.stdout.to_text(), "ready\ncleaned\n");
    assert!(fixture.host_path("cleaned").exists());
}

#[test(tokio::test)]
async fn what_ignores_the_request_to_end_is_killed_after_the_grace() {
    let fixture = Fixture::new().await;
    let line = "trap '' TERM; echo before; while :; do sleep 600; done";
    let started = Instant::now();
    let result = soon("it ends", fixture.exec(Command::shell(line).with_timeout(Duration::from_secs(1)))).await;
    assert_eq!((result.status, result.stdout.to_text()), (ExitStatus::TimedOut, "before\n".to_owned()));
    assert!(started.elapsed() >= Duration::from_secs(1) + GRACE);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test(tokio::test)]
async fn a_stopped_command_is_ended_as_well() {
    let fixture = Fixture::new().await;
    let command = Command::shell("echo $$ > pid; kill -STOP $$").with_timeout(Duration::from_secs(1));
    assert_eq!(soon("it ends", fixture.exec(command)).await.status, ExitStatus::TimedOut);
    assert!(!is_alive(fixture.pid_in("pid").await));
}

#[test(tokio::test)]
async fn a_command_that_forks_all_the_time_is_ended() {
    let fixture = Fixture::new().await;
    let line = "trap '' TERM; echo $$ > pid; while :; do setsid sh -c 'trap \"\" TERM; sleep 0.05; exec sleep 600' & sleep 0.01; done";
    let result = soon("it ends", fixture.exec(Command::shell(line).with_timeout(Duration::from_secs(1)))).await;
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert_eq!(survivors(&fixture), Vec::<String>::new());
}

/// The processes that run in the fixture's directory.
fn survivors(fixture: &Fixture) -> Vec<String> {
    let workdir = fixture.host_path("");
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    processes
        .filter(|process| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&workdir)))
        .filter(|process| is_alive(process.file_name().unwrap().to_str().unwrap().parse().unwrap_or(0)))
        .map(|process| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default())
        .collect()
}

#[test(tokio::test)]
async fn a_deadline_holds_although_nobody_reads() {
    let fixture = Fixture::new().await;
    let command = Command::shell("echo $$ > pid; yes").with_timeout(Duration::from_secs(1));
    let process = fixture.workspace.spawn(command).await.unwrap();
    let pid = fixture.pid_in("pid").await;
    wait_for_death(pid).await;
    let events: Vec<_> = soon("the stream ends", process.output.collect()).await;
    assert_eq!(events.last(), Some(&ProcessEvent::End(ExitStatus::TimedOut)));
}

#[test(tokio::test)]
async fn suspend_does_not_wait_for_a_reader_that_has_stopped() {
    let fixture = Fixture::new().await;
    let process = fixture.workspace.spawn(Command::shell("head -c 1000000 /dev/zero")).await.unwrap();
    soon("it is put away", fixture.workspace.suspend()).await.unwrap();
    let events: Vec<_> = soon("the stream ends", process.output.collect()).await;
    assert!(matches!(events.last(), Some(ProcessEvent::End(ExitStatus::Unknown { .. }))));
}

#[test(tokio::test)]
async fn nothing_starts_after_suspend() {
    let fixture = Fixture::new().await;
    fixture.workspace.suspend().await.unwrap();
    fixture.workspace.suspend().await.unwrap();
    for error in [
        fixture.workspace.exec(Command::new("true")).await.unwrap_err(),
        fixture.workspace.spawn(Command::new("true")).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Gone);
    }
}

#[test(tokio::test)]
async fn suspending_an_old_object_again_leaves_the_new_opening_alone() {
    let fixture = Fixture::new().await;
    fixture.sh("true").await;
    fixture.workspace.suspend().await.unwrap();
    let again = open(&fixture.backend, "w").await.workspace;
    again.sh("sleep 600 >/dev/null 2>&1 & echo $! > pid").await.unwrap();
    let pid = fixture.pid_in("pid").await;
    fixture.workspace.suspend().await.unwrap();
    assert!(is_alive(pid), "it belongs to the new opening");
    assert!(again.exec(Command::new("true")).await.unwrap().status.success());
    again.suspend().await.unwrap();
    assert!(!is_alive(pid));
}
