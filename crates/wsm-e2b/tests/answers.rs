//! Answers that are lost, late or not true, and what must not be told, done twice or killed because of them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use std::time::Duration;

use common::*;
use tokio::time::Instant;
use wsm_core::{
    Backend, Command, ErrorKind, ExitStatus, OutcomeKind, RemoveOptions, WorkspaceExt, WriteOptions, byte_stream,
};
use wsm_fake_e2b::{Ending, Fault, Operation, Options, SandboxState, What};

macro_rules! fixture {
    () => {
        fixture!(Options::default())
    };
    ($options:expr) => {
        match Fixture::with($options).await {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

#[tokio::test]
async fn a_shell_that_does_not_find_a_program_has_run() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    for line in ["echo x > ran; no-such-program-sh", "env no-such-program"] {
        let result = sh(&workspace, line).await;
        assert_eq!(result.status, ExitStatus::Exited { code: 127 }, "{line}");
    }
    let result = workspace.exec(Command::from_argv(["env", "no-such-program"])).await.unwrap();
    assert_eq!(result.status, ExitStatus::Exited { code: 127 });
    assert!(workspace.stat("ran").await.is_ok());
    let error = workspace.exec(Command::new("no-such-program")).await.unwrap_err();
    assert_eq!(error.code(), "program_not_found");
}

#[tokio::test]
async fn a_sandbox_that_is_gone_before_it_is_put_away_is_not_forgotten() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "lost").await;
    fixture.fake.sandboxes().vanish(&fixture.only().id).await.unwrap();
    let checkpoint = workspace.suspend().await.unwrap();
    let opened = fixture.another().open(request("w").with_checkpoint(checkpoint)).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Recreated);
}

#[tokio::test]
async fn no_more_time_is_told_than_was_given() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let over = r#"{"code":400,"message":"Max instance length exceeded"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::SetTimeout, 400, over).always());
    let left = workspace.keep_alive(Duration::from_secs(7200)).await.unwrap().unwrap();
    assert!(left <= Duration::from_secs(3600), "{left:?}");
    // It is capped without a word, too.
    fixture.fake.faults().clear();
    fixture.fake.faults().push(Fault::answer(Operation::SetTimeout, 204, ""));
    let left = workspace.keep_alive(Duration::from_secs(7200)).await.unwrap().unwrap();
    assert!(left <= Duration::from_secs(3700), "{left:?}");
}

#[tokio::test]
async fn a_command_that_may_have_run_is_not_run_again() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    for status in [503, 504] {
        let body = "upstream request timeout".to_owned();
        let what = What::Answer { status, headers: Vec::new(), body, applied: true };
        let starts = fixture.count(Operation::Start);
        fixture.fake.faults().push(Fault::new(Operation::Start, what));
        let result = sh(&workspace, &format!("echo x >> {status}")).await;
        assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
        // It is ended twice, since it may still be on its way; what that takes is no fault's to spoil.
        eventually("it is ended", async || fixture.count(Operation::Start) == starts + 3).await;
        let ran = workspace.read_text(&status.to_string(), 99).await.unwrap_or_default();
        assert!(ran.len() <= 2, "{status}: {ran:?}");
    }
}

#[tokio::test]
async fn a_file_operation_whose_answer_was_lost_was_carried_out() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    fixture.fake.faults().push(Fault::lose_answer(Operation::Start));
    let options = WriteOptions::default().with_overwrite(false);
    workspace.write("f", byte_stream("new"), options).await.unwrap();
    assert_eq!(text(&workspace, "f").await, "new");
    fixture.fake.faults().push(Fault::lose_answer(Operation::Start));
    workspace.remove("f", RemoveOptions::default()).await.unwrap();
    assert_eq!(workspace.stat("f").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(workspace.remove("f", RemoveOptions::default()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_timeout_comes_also_when_the_daemon_hangs() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let hang = What::Lose { applied: false, ending: Ending::Hang };
    fixture.fake.faults().push(Fault::new(Operation::Start, hang).skip(1).always());
    let before = Instant::now();
    let result = workspace.exec(Command::shell("sleep 60").with_timeout(Duration::from_millis(300))).await.unwrap();
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_timeout_comes_also_when_the_start_is_not_told() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let hang = What::Lose { applied: true, ending: Ending::Hang };
    fixture.fake.faults().push(Fault::new(Operation::Start, hang));
    let before = Instant::now();
    let line = "echo > begun; sleep 60";
    let result = workspace.exec(Command::shell(line).with_timeout(Duration::from_secs(2))).await.unwrap();
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    // It had begun, and is ended.
    assert!(workspace.stat("begun").await.is_ok());
    let id = fixture.only().id;
    eventually("it is ended", async || fixture.fake.sandboxes().get(&id).is_some_and(|it| it.processes == 0)).await;
}

#[tokio::test]
async fn input_that_was_refused_makes_no_end_out_of_another_input() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    for (operation, status, body) in [
        (Operation::SendInput, 429, r#"{"code":429,"message":"slow down"}"#),
        (Operation::CloseStdin, 404, "404 page not found"),
    ] {
        fixture.fake.faults().push(Fault::answer(operation, status, body).always());
        let command = Command::new("cat").with_stdin("given").with_timeout(Duration::from_secs(8));
        let result = workspace.exec(command).await.unwrap();
        assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{operation:?}: {:?}", result.status);
        fixture.fake.faults().clear();
    }
}

#[tokio::test]
async fn a_destroy_that_destroys_nothing_is_no_success() {
    let fixture = fixture!();
    fixture.workspace().await;
    fixture.fake.faults().push(Fault::answer(Operation::Kill, 204, "").always());
    let error = fixture.backend.destroy(&id("w")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    fixture.fake.faults().clear();
    fixture.backend.destroy(&id("w")).await.unwrap();
    assert!(fixture.fake.sandboxes().all().is_empty());
}

#[tokio::test]
async fn a_sandbox_made_without_an_answer_is_not_open_to_all_either() {
    let fixture = fixture!(Options::without_v2());
    fixture.fake.faults().push(Fault::lose_answer(Operation::CreateV1));
    fixture.fake.faults().push(Fault::new(Operation::ConnectV1, What::WithoutAccessToken).always());
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert_eq!(error.code(), "insecure_sandbox", "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty(), "it was killed again");
}

#[tokio::test]
async fn a_superfluous_sandbox_that_somebody_has_used_meanwhile_is_not_killed() {
    // Used after its maker had entered it, and before.
    for start in [0, 1500] {
        used_meanwhile(fixture!(), start).await;
    }
}

async fn used_meanwhile(fixture: Fixture, start_takes: u64) {
    fixture.open("w").await;
    let first = fixture.only().id;
    // One makes a second one, since it does not see the first, and is slow to look again; meanwhile another uses it.
    let faults = fixture.fake.faults();
    faults.push(Fault::new(Operation::List, What::EmptyList));
    faults.push(Fault::new(Operation::List, What::Delay { ms: 2500 }));
    faults.push(Fault::new(Operation::List, What::HideFromList { id: first.clone() }));
    faults.push(Fault::new(Operation::Start, What::Delay { ms: start_takes }));
    let maker = fixture.another();
    let user = fixture.another();
    let making = open(&maker, "w");
    let using = async {
        eventually("it is looked again", async || fixture.fake.faults().left().len() == 1).await;
        let opened = open(&user, "w").await;
        write(&opened.workspace, "f", "not to be lost").await;
    };
    tokio::join!(making, using);
    let second = fixture.fake.sandboxes().all().into_iter().find(|sandbox| sandbox.id != first);
    let second = second.expect("it holds a file and is still there");
    eventually("it is put aside", async || {
        fixture.fake.sandboxes().get(&second.id).is_some_and(|it| it.state == SandboxState::Paused)
    })
    .await;
}

#[tokio::test]
async fn a_superfluous_sandbox_that_runs_is_not_removed_under_who_uses_it() {
    let fixture = fixture!();
    fixture.open("w").await;
    // Another replica sees none, makes one, and works in it.
    fixture.fake.faults().push(Fault::new(Operation::List, What::EmptyList).times(2));
    let second = open(&fixture.another(), "w").await.workspace;
    write(&second, "f", "in use").await;
    let leftovers = fixture.backend.leftovers().await.unwrap();
    let [leftover] = &leftovers[..] else { panic!("{leftovers:?}") };
    assert!(!fixture.backend.remove_leftover(leftover).await.unwrap());
    assert_eq!(text(&second, "f").await, "in use");
    second.suspend().await.unwrap();
    assert!(fixture.backend.remove_leftover(leftover).await.unwrap());
}

#[tokio::test]
async fn a_command_waits_neither_long_nor_often_for_more_time() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let command = Command::shell("true").with_timeout(Duration::from_secs(600));
    let hang = What::Lose { applied: false, ending: Ending::Hang };
    fixture.fake.faults().push(Fault::new(Operation::Refresh, hang));
    let before = Instant::now();
    assert!(workspace.exec(command.clone()).await.unwrap().status.success());
    assert!(before.elapsed() < Duration::from_secs(15), "{:?}", before.elapsed());
    fixture.fake.requests().clear();
    for _ in 0..3 {
        assert!(workspace.exec(command.clone()).await.unwrap().status.success());
    }
    assert_eq!(fixture.count(Operation::Refresh), 1);
}
