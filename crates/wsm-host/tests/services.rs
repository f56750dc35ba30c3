//! Services leave nothing behind, unlike other commands.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::{fs, fs::File, path::Path, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wsm_core::{Command, ExitStatus, Process, ProcessEvent, Workspace, WorkspaceId, WorkspaceInfo};
use wsm_host::{Environment, HostWorkspace, Launcher, Opening, Reach};

const PATIENCE: Duration = Duration::from_secs(20);

fn workspace(directory: &Path) -> HostWorkspace {
    let environment = Environment::new(std::env::vars_os().collect());
    let launcher = Arc::new(Launcher::alone(environment, Duration::from_secs(1)));
    let info = WorkspaceInfo::new(WorkspaceId::random(), "test", directory.to_str().unwrap());
    let place = File::open(directory).unwrap();
    let opening = Opening::new(info, HostWorkspace::CAPABILITIES, Reach::Workdir, place, launcher);
    HostWorkspace::new(Arc::new(opening))
}

/// What it prints first, and how it ends.
async fn first_line(process: &mut Process) -> String {
    match timeout(PATIENCE, process.output.next()).await.unwrap() {
        Some(ProcessEvent::Stdout(bytes)) => String::from_utf8(bytes.to_vec()).unwrap().trim().to_owned(),
        other => panic!("{other:?}"),
    }
}

async fn end(process: &mut Process) -> ExitStatus {
    loop {
        match timeout(PATIENCE, process.output.next()).await.unwrap() {
            Some(ProcessEvent::End(status)) => return status,
            Some(_) => {}
            None => panic!("there is always an end"),
        }
    }
}

fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

const LEAVES_A_CHILD: &str = "setsid sleep 600 > /dev/null 2>&1 & echo $!; read line; exit 7";

#[tokio::test]
async fn what_a_service_has_started_ends_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = workspace(directory.path());
    let mut service = workspace.spawn_service(Command::shell(LEAVES_A_CHILD), CancellationToken::new()).await.unwrap();
    let child = first_line(&mut service).await;
    assert!(is_alive(&child));
    service.stdin = Box::pin(tokio::io::sink());
    assert_eq!(end(&mut service).await, ExitStatus::Exited { code: 7 });
    assert!(!is_alive(&child), "it ends before the end of the service is told");

    let mut command = workspace.spawn(Command::shell(LEAVES_A_CHILD)).await.unwrap();
    let child = first_line(&mut command).await;
    command.stdin = Box::pin(tokio::io::sink());
    assert_eq!(end(&mut command).await, ExitStatus::Exited { code: 7 });
    assert!(is_alive(&child), "what a command has left in the background goes on");
    workspace.opening().end().await.unwrap();
    assert!(!is_alive(&child));
}

#[tokio::test]
async fn a_service_that_is_asked_to_end_may_clean_up_and_tells_how_it_ended() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = workspace(directory.path());
    let ending = CancellationToken::new();
    let line = "trap 'echo tidy > tidied; exit 3' TERM; setsid sleep 600 > /dev/null 2>&1 & echo $!; while :; do sleep 0.05; done";
    let mut service = workspace.spawn_service(Command::shell(line), ending.clone()).await.unwrap();
    let child = first_line(&mut service).await;
    // The trap is set before anything is printed.
    ending.cancel();
    assert_eq!(end(&mut service).await, ExitStatus::Exited { code: 3 });
    assert!(directory.path().join("tidied").exists() && !is_alive(&child));

    let ending = CancellationToken::new();
    let line = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut service = workspace.spawn_service(Command::shell(line), ending.clone()).await.unwrap();
    let stubborn = first_line(&mut service).await;
    ending.cancel();
    assert_eq!(end(&mut service).await, ExitStatus::Signaled { signal: 9 });
    assert!(!is_alive(&stubborn));
    workspace.opening().end().await.unwrap();
}

#[tokio::test]
async fn a_service_that_nobody_listens_to_ends() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = workspace(directory.path());
    let mut service = workspace.spawn_service(Command::shell(LEAVES_A_CHILD), CancellationToken::new()).await.unwrap();
    let child = first_line(&mut service).await;
    drop(service.output);
    let ended = async {
        while is_alive(&child) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
    workspace.opening().end().await.unwrap();
}
