//! What a service was started with, or lost, makes no difference to its commands.
//!
//! The service is this very test program, started by a shell that prepares it, and told by a variable to play it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::{
    os::fd::{FromRawFd, OwnedFd},
    process::Command as StdCommand,
};

use support::*;
use wsm_core::{Command, ExitStatus, Signal};

const BASEDIR: &str = "WSM_TEST_SERVICE_BASEDIR";

/// Starts the service with a line of shell that it is the end of, and expects that all goes well in it.
fn start_service_with(line: &str, test: &str) {
    let basedir = tempfile::tempdir().unwrap();
    std::fs::write(basedir.path().join("secret"), "").unwrap();
    let line = format!("{line} \"$0\" --exact {test} --nocapture");
    let service = StdCommand::new("sh")
        .args(["-c", &line])
        .arg(std::env::current_exe().unwrap())
        .env(BASEDIR, basedir.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&service.stderr);
    assert!(service.status.success(), "{}\n{printed}", String::from_utf8_lossy(&service.stdout));
}

#[test]
fn signals_that_the_service_ignores_reach_its_commands_and_their_end_is_seen() {
    // No shell ignores `SIGCHLD`.
    start_service_with("exec env --ignore-signal=HUP,INT,QUIT,USR1,CHLD,TTOU", "ignores_signals");
}

#[tokio::test]
async fn ignores_signals() {
    if std::env::var_os(BASEDIR).is_none() {
        return;
    }
    let fixture = Fixture::new().await;
    let ignored = fixture.sh("grep SigIgn /proc/self/status").await;
    let ignored = u64::from_str_radix(ignored.split_whitespace().last().unwrap(), 16).unwrap();
    // But for the two that the C library keeps to itself.
    assert_eq!(ignored & !(0b11 << 31), 0, "{ignored:x}");
    assert_eq!(fixture.exec(Command::shell("exit 3")).await.status, ExitStatus::Exited { code: 3 });
    for signal in [Signal::Hangup, Signal::Interrupt, Signal::User1] {
        let process = fixture.workspace.spawn(Command::from_argv(["sleep", "600"])).await.unwrap();
        process.control.signal(signal).await.unwrap();
        let result = soon("it ends", process.collect(Default::default(), 100)).await;
        assert_eq!(result.status, ExitStatus::Signaled { signal: signal.number() });
    }
}

#[test]
fn open_files_of_the_service_stay_with_it() {
    start_service_with(&format!("exec 3<\"${BASEDIR}/secret\" 9<\"${BASEDIR}/secret\";"), "has_open_files");
}

#[tokio::test]
async fn has_open_files() {
    if std::env::var_os(BASEDIR).is_none() {
        return;
    }
    let fixture = Fixture::new().await;
    assert!(std::fs::read_link("/proc/self/fd/9").unwrap().ends_with("secret"), "it was not started as it should be");
    let open = fixture.sh("ls -l /proc/self/fd").await;
    assert!(!open.contains("secret"), "{open}");
}

#[test]
fn a_service_that_closed_its_own_streams_starts_commands_all_the_same() {
    start_service_with("exec", "has_no_streams");
}

#[tokio::test]
async fn has_no_streams() {
    if std::env::var_os(BASEDIR).is_none() {
        return;
    }
    let fixture = Fixture::new().await;
    // From now on, the first file that a start opens gets the number of the standard input.
    #[expect(unsafe_code, reason = "nobody in this process reads the standard input")]
    drop(unsafe { OwnedFd::from_raw_fd(0) });
    assert_eq!(fixture.sh("cat; echo here").await, "here");
    assert_eq!(fixture.exec(Command::new("cat").with_stdin("given")).await.stdout.to_text(), "given");
}

#[test]
fn a_runtime_that_ends_leaves_neither_a_process_nor_a_zombie() {
    start_service_with("exec", "ends_its_runtime");
}

#[test]
fn ends_its_runtime() {
    if std::env::var_os(BASEDIR).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_fixture, _process) = runtime.block_on(async {
        let fixture = Fixture::new().await;
        let process = fixture.workspace.spawn(Command::from_argv(["sleep", "600"])).await.unwrap();
        assert_eq!(children(), 1);
        (fixture, process)
    });
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(wait_until("nothing is left of it", || children() == 0));
}

/// How many children this process has, zombies among them.
fn children() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(|task| children(task.unwrap()).split_whitespace().count()).sum()
}

#[test]
fn a_command_that_ended_holds_nothing_but_the_output_of_its_children() {
    start_service_with("exec", "has_commands_in_the_background");
}

#[tokio::test]
async fn has_commands_in_the_background() {
    if std::env::var_os(BASEDIR).is_none() {
        return;
    }
    let fixture = Fixture::new().await;
    for _ in 0..5 {
        fixture.sh("sleep 600 &").await;
    }
    let pidfds = || {
        let files = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        files.filter(|file| file.to_string_lossy().contains("pidfd")).count()
    };
    wait_until("no ended command is watched", || pidfds() == 0).await;
    fixture.workspace.suspend().await.unwrap();
}
