//! Several processes over one cloud: those that open at once, and those that are killed in the middle.
//!
//! The process that is killed is this very test program, told by variables to play the victim.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use std::{
    process::{Child, Command as StdCommand, Stdio},
    time::Duration,
};

use common::*;
use tokio::time::sleep;
use wsm_core::{Backend, BackendConfig, GetRequest, OutcomeKind, Scope, WorkspaceExt, WorkspaceManager};
use wsm_e2b::{E2BWorkspaceManager, E2bBackend, E2bConfig};
use wsm_fake_e2b::{FakeE2b, Fault, Operation, Options, SandboxState, What};

const URL: &str = "WSM_TEST_VICTIM_URL";
const ROLE: &str = "WSM_TEST_VICTIM_ROLE";

/// Not a test by itself: does nothing unless it is started as a victim.
#[tokio::test]
async fn victim() {
    let (Ok(url), Ok(role)) = (std::env::var(URL), std::env::var(ROLE)) else { return };
    let config = E2bConfig::default().with_api_key(KEY).with_api_url(&url).with_sandbox_url(&url);
    match role.as_str() {
        "open" => {
            let backend: E2bBackend = config.build().unwrap();
            let workspace = open(&backend, "w").await.workspace;
            write(&workspace, "f", "written").await;
            sleep(Duration::from_secs(600)).await;
        }
        _ => {
            let manager = E2BWorkspaceManager::builder(config).build().unwrap();
            let get = GetRequest::new(Scope::new("ann", "coder", "s1").unwrap());
            let workspace = manager.get_workspace(&get).await.unwrap();
            workspace.write_bytes(&role, role.clone().into()).await.unwrap();
            assert_eq!(workspace.read_text(&role, 99).await.unwrap(), role);
        }
    }
}

struct Victim(Child);

impl Victim {
    fn start(fake: &FakeE2b, role: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = StdCommand::new(program);
        command.args(["--exact", "victim", "--nocapture"]).env(URL, fake.api_url()).env(ROLE, role);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_in_mid_creation_leaves_what_the_next_one_adopts() {
    // Killed before the answer to its creation came, and after it.
    for (what, has_file) in
        [(Some(What::DelayAnswer { ms: 60_000 }), false), (Some(What::Delay { ms: 1500 }), false), (None, true)]
    {
        let Some(fixture) = Fixture::new().await else { return };
        if let Some(what) = what.clone() {
            fixture.fake.faults().push(Fault::new(Operation::Create, what));
        }
        let mut victim = Victim::start(&fixture.fake, "open");
        let last = if has_file { Operation::Move } else { Operation::Create };
        eventually("it is in the middle", async || fixture.count(last) > 0).await;
        sleep(Duration::from_millis(100)).await;
        victim.kill();
        eventually("the creation is carried out", async || {
            !fixture.fake.sandboxes().all().is_empty() || what == Some(What::Delay { ms: 1500 })
        })
        .await;
        let opened = fixture.open("w").await;
        fixture.only();
        if has_file {
            assert_eq!(opened.outcome.kind, OutcomeKind::Reattached);
            assert_eq!(text(&opened.workspace, "f").await, "written");
        }
        assert_eq!(opened.workspace.info().generation, 0);
        // What was on its way when its process was killed comes later, if at all, and is agreed upon.
        sleep(Duration::from_millis(1700)).await;
        let again = fixture.open("w").await;
        assert!(sh(&again.workspace, "true").await.status.success());
        let running = fixture.fake.sandboxes().all().into_iter().filter(|it| it.state == SandboxState::Running).count();
        assert_eq!(running, 1, "{:?}", fixture.fake.sandboxes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_open_one_id_at_once_end_with_one_sandbox() {
    let mut options = Options::default();
    options.latency = Duration::from_millis(150);
    let Some(fixture) = Fixture::with(options).await else { return };
    let mut victims: Vec<Victim> = ["one", "two"].iter().map(|role| Victim::start(&fixture.fake, role)).collect();
    for victim in &mut victims {
        assert!(victim.0.wait().unwrap().success(), "it got a workspace and used it");
    }
    let sandbox = fixture.only();
    for role in ["one", "two"] {
        let path = fixture.fake.sandboxes().path(&sandbox.id, &format!("/home/user/workspace/{role}")).unwrap();
        assert!(path.exists(), "the file of `{role}` is in the one that is left");
    }
}

#[tokio::test]
async fn a_creation_that_was_seen_late_gives_way_to_one_that_is_in_use() {
    let Some(fixture) = Fixture::new().await else { return };
    let (slow, quick) = (fixture.another(), fixture.another());
    // Begun first, and in no list until it is answered.
    fixture.fake.faults().push(Fault::new(Operation::Create, What::DelayAnswer { ms: 2500 }));
    let making = open(&slow, "w");
    let using = async {
        eventually("it is made", async || !fixture.fake.sandboxes().all().is_empty()).await;
        fixture.fake.faults().push(Fault::new(Operation::List, What::EmptyList).times(2));
        let opened = open(&quick, "w").await;
        assert_eq!(opened.outcome.kind, OutcomeKind::Created);
        write(&opened.workspace, "f", "in use").await;
        opened.workspace
    };
    let (late, used) = tokio::join!(making, using);
    assert_eq!(late.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(text(&late.workspace, "f").await, "in use");
    assert_eq!(text(&used, "f").await, "in use");
    assert_eq!(fixture.only().state, SandboxState::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_replicas_that_open_many_ids_at_once_end_with_one_sandbox_each() {
    let mut options = Options::default();
    options.latency = Duration::from_millis(20);
    let Some(fixture) = Fixture::with(options).await else { return };
    let replicas: Vec<_> = (0..3).map(|_| fixture.another()).collect();
    let openings = (0..5).flat_map(|number| replicas.iter().map(move |replica| (number, replica)));
    let openings = openings.map(async |(number, replica)| {
        let opened = open(replica, &format!("w{number}")).await;
        (number, opened)
    });
    let opened = futures::future::join_all(openings).await;
    for number in 0..5 {
        let of_one = opened.iter().filter(|(of, _)| *of == number);
        let created = of_one.clone().filter(|(_, opened)| opened.outcome.kind == OutcomeKind::Created).count();
        assert_eq!(created, 1, "w{number}");
        for (index, (_, opened)) in of_one.enumerate() {
            write(&opened.workspace, &format!("f{index}"), "x").await;
            assert_eq!(opened.workspace.list(".").await.unwrap().len(), index + 1, "all see the same files");
        }
    }
    assert_eq!(fixture.fake.sandboxes().all().len(), 5);
}

#[tokio::test]
async fn what_one_replica_suspends_another_resumes() {
    let Some(fixture) = Fixture::new().await else { return };
    let replicas = [fixture.another(), fixture.another(), fixture.another()];
    for round in 0..6 {
        let opened = open(&replicas[round % 3], "w").await;
        assert_eq!(opened.workspace.info().generation, 0);
        assert_eq!(opened.workspace.list(".").await.unwrap().len(), round);
        write(&opened.workspace, &round.to_string(), "x").await;
        opened.workspace.suspend().await.unwrap();
    }
    fixture.only();
    replicas[0].destroy(&id("w")).await.unwrap();
    assert!(fixture.fake.sandboxes().all().is_empty());
}
