//! What a process that was killed leaves behind, and what the next one makes of it.
//!
//! The process that is killed is this very test program, told by a variable to play the victim.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command as StdCommand, Stdio},
};

use support::*;
use wsm_core::{Backend, Command, OpenRequest, OutcomeKind, WorkspaceExt};

const BASEDIR: &str = "WSM_TEST_VICTIM_BASEDIR";

/// Not a test by itself: does nothing unless it is started as a victim.
#[tokio::test]
async fn victim() {
    let Some(basedir) = std::env::var_os(BASEDIR) else { return };
    let backend = backend(Path::new(&basedir));
    backend.start().await.unwrap();
    let workspace = open(&backend, "w").await.workspace;
    workspace.sh("echo before > file; setsid sleep 600 > /dev/null 2>&1 & echo $! > background").await.unwrap();
    workspace.exec(Command::shell("echo $$ > foreground; exec sleep 600")).await.unwrap();
}

struct Victim(Child);

impl Victim {
    fn start(basedir: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = StdCommand::new(program)
            .args(["--exact", "victim"])
            .env(BASEDIR, basedir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn pid_in(path: &Path) -> u32 {
    let read = || std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok();
    wait_until("the process number is written", || read().is_some()).await;
    read().unwrap()
}

#[tokio::test]
async fn start_ends_what_a_killed_process_left_and_only_that() {
    let (ours, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut killed = Victim::start(ours.path());
    let mut elsewhere = Victim::start(others.path());
    let pid = |basedir: &Path, name: &str| basedir.join(".wsm/workspaces/w").join(name);
    let strays = [pid_in(&pid(ours.path(), "background")).await, pid_in(&pid(ours.path(), "foreground")).await];
    let foreign = [pid_in(&pid(others.path(), "background")).await, pid_in(&pid(others.path(), "foreground")).await];
    killed.kill();
    elsewhere.kill();
    assert!(strays.into_iter().all(is_alive), "nobody ends them when the process is killed");
    let running = Fixture::new().await;
    let unmarked = running.sh("sleep 600 >/dev/null 2>&1 & echo $!").await.parse().unwrap();

    let next = backend(ours.path());
    next.start().await.unwrap();
    assert!(!strays.into_iter().any(is_alive));
    assert!(foreign.into_iter().all(is_alive), "those of another basedir are not ours to end");
    assert!(is_alive(unmarked));
    let opened = next.open(OpenRequest::new(id("w"))).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_eq!(opened.workspace.read_text("file", 99).await.unwrap(), "before\n");

    backend(others.path()).start().await.unwrap();
    assert!(!foreign.into_iter().any(is_alive));
    running.workspace.suspend().await.unwrap();
}

#[tokio::test]
async fn start_leaves_a_living_process_on_the_same_basedir_alone() {
    let basedir = tempfile::tempdir().unwrap();
    let _living = Victim::start(basedir.path());
    let workspace = basedir.path().join(".wsm/workspaces/w");
    let (background, foreground) =
        (pid_in(&workspace.join("background")).await, pid_in(&workspace.join("foreground")).await);
    let next = backend(basedir.path());
    next.start().await.unwrap();
    assert!(is_alive(background) && is_alive(foreground));
    // Tidies up after itself.
    next.destroy(&id("w")).await.unwrap();
    assert!(!is_alive(background) && !is_alive(foreground));
}
