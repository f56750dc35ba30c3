//! The known faults of the service, each as a test that names it, and what the client does about it.
//!
//! The stand-in speaks HTTP/1.1 and forwards no port, so of F18, F19 and F25 only our own side is shown here.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use std::time::Duration;

use common::*;
use futures::{StreamExt, TryStreamExt};
use tokio::time::{Instant, sleep};
use wsm_core::{
    Backend, BackendConfig, Command, Endpoint, ErrorKind, ExitStatus, Health, Loss, ManagedWorkspace, OutcomeKind,
    ProcessEvent, ReadOptions, Signal, WorkspaceExt,
};
use wsm_fake_e2b::{Account, Ending, Fault, On, Operation, Options, SandboxState, Unreachable, What};

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

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// How many processes of a mark are alive inside.
async fn alive(workspace: &std::sync::Arc<dyn ManagedWorkspace>, word: &str) -> String {
    // Written so that who looks does not find itself.
    let line = format!("grep -l '[{}]{}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l", &word[..1], &word[1..]);
    sh(workspace, &line).await.stdout.to_text().trim().to_owned()
}

#[tokio::test]
async fn f01_a_connection_reset_in_a_command_is_an_unknown_outcome_with_the_output_so_far() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    fixture.fake.faults().push(Fault::new(Operation::Start, What::TruncateEvents { after: 2, ending: Ending::Reset }));
    let result = sh(&workspace, "echo before; sleep 1").await;
    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
    assert_eq!(result.stdout.to_text(), "before\n");
    // The sandbox is as it was.
    assert!(sh(&workspace, "true").await.status.success());

    let id = fixture.only().id;
    let mut process = workspace.spawn(Command::shell("echo begun; sleep 30")).await.unwrap();
    assert_eq!(process.output.next().await, Some(ProcessEvent::Stdout("begun\n".into())));
    fixture.fake.sandboxes().cut_streams(&id, Ending::Reset).unwrap();
    fixture.fake.sandboxes().pause(&id).await.unwrap();
    let last = process.output.next().await;
    let Some(ProcessEvent::End(ExitStatus::Unknown { reason })) = last else { panic!("{last:?}") };
    assert!(reason.contains("paused"), "{reason}");
}

#[tokio::test]
async fn f02_a_stream_without_an_end_is_never_an_exit() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    // What ends the rest of such a command is a command, too, and none that the next fault is meant for. Where the start itself
    // could not be read, it runs twice.
    for (what, commands) in [
        (What::WithoutEnd, 2),
        (What::TruncateEvents { after: 1, ending: Ending::Eof }, 2),
        (What::TruncateEvents { after: 2, ending: Ending::Close }, 2),
        (What::TruncateEvents { after: 1, ending: Ending::Canceled }, 2),
        (What::TruncateBytes { after: 70, ending: Ending::Eof }, 2),
        (What::EndWithError { after: 2, code: "unavailable".into(), message: "m".into() }, 2),
        (What::Gzip, 3),
    ] {
        fixture.fake.requests().clear();
        fixture.fake.faults().push(Fault::new(Operation::Start, what.clone()));
        let result = sh(&workspace, "echo x; sleep 0.05").await;
        assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{what:?}: {:?}", result.status);
        eventually("the rest is ended", async || fixture.count(Operation::Start) == commands).await;
    }
    fixture.fake.faults().push(Fault::new(Operation::Start, What::WithoutExitCode));
    assert_eq!(sh(&workspace, "true").await.status, ExitStatus::Exited { code: 0 });
}

#[tokio::test]
async fn f03_children_are_ended_with_their_command() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let line = "sleep 7771 & setsid sleep 7771 & wait";
    let process = workspace.spawn(Command::shell(line)).await.unwrap();
    eventually("they run", async || alive(&workspace, "7771").await != "0").await;
    drop(process);
    eventually("they are gone", async || alive(&workspace, "7771").await == "0").await;
}

#[tokio::test]
async fn f04_a_command_in_the_background_has_no_deadline_of_the_daemons() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    fixture.fake.requests().clear();
    let result = sh(&workspace, "(sleep 1; echo late > late) > /dev/null 2>&1 &").await;
    assert!(result.status.success());
    assert_eq!(fixture.fake.requests().of(Operation::Start)[0].header("connect-timeout-ms"), None);
    eventually("it goes on", async || workspace.stat("late").await.is_ok()).await;
}

#[tokio::test]
async fn f05_a_timeout_leaves_nothing_running() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let command = Command::shell("sleep 7772 & setsid sleep 7772 & wait").with_timeout(Duration::from_millis(1500));
    assert_eq!(workspace.exec(command).await.unwrap().status, ExitStatus::TimedOut);
    assert_eq!(alive(&workspace, "7772").await, "0");
}

#[tokio::test]
async fn f06_streams_are_closed_before_a_pause_and_never_taken_up_after_it() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let mut process = workspace.spawn(Command::shell("while :; do echo x; sleep 0.01; done")).await.unwrap();
    assert!(process.output.next().await.is_some());
    workspace.suspend().await.unwrap();
    let last = process.output.collect::<Vec<_>>().await.pop();
    assert!(matches!(last, Some(ProcessEvent::End(ExitStatus::Unknown { .. }))), "{last:?}");
    let again = fixture.workspace().await;
    assert_eq!(sh(&again, "echo new").await.stdout.to_text(), "new\n");
    assert_eq!(fixture.count(Operation::ProcessConnect), 0);
}

#[tokio::test]
async fn f07_older_files_after_a_resume_are_told_and_counted() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "old").await;
    fixture.fake.sandboxes().checkpoint(&fixture.only().id).unwrap();
    write(&workspace, "f", "new").await;
    let checkpoint = workspace.suspend().await.unwrap();
    assert!(checkpoint.is_some());
    fixture.fake.faults().push(Fault::new(Operation::Connect, What::RollBack));
    // Another replica, which knows of it by the checkpoint alone.
    let other = fixture.another();
    let opened = other.open(request("w").with_checkpoint(checkpoint)).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Recreated);
    assert!(opened.outcome.lost.contains(&Loss::WorkspaceFiles), "{:?}", opened.outcome);
    assert_eq!(opened.workspace.info().generation, 1);
    assert_eq!(text(&opened.workspace, "f").await, "old", "what is left is left alone");
    let again = open(&fixture.another(), "w").await;
    assert_eq!((again.outcome.kind, again.workspace.info().generation), (OutcomeKind::Reattached, 1), "told once");
}

#[tokio::test]
async fn f08_another_sandbox_than_the_one_asked_for_is_refused() {
    let fixture = fixture!();
    write(&fixture.workspace().await, "f", "mine").await;
    fixture.fake.faults().push(Fault::new(Operation::Connect, What::OtherId).always());
    let error = fixture.another().open(request("w")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_eq!(fixture.count(Operation::Create), 1);
    fixture.fake.faults().clear();
    assert_eq!(text(&fixture.workspace().await, "f").await, "mine");
}

#[tokio::test]
async fn f09_not_found_is_looked_into_and_believed_only_twice() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "kept").await;
    let id = fixture.only().id;
    for says in [
        Unreachable::NotFound,
        Unreachable::PortClosed,
        Unreachable::Html,
        Unreachable::Text,
        Unreachable::Transitioning,
    ] {
        fixture.fake.sandboxes().take_envd_down(&id, 2, says).unwrap();
        assert_eq!(sh(&workspace, "echo here").await.stdout.to_text(), "here\n", "{says:?}");
        fixture.fake.sandboxes().take_envd_down(&id, 2, says).unwrap();
        assert_eq!(text(&workspace, "f").await, "kept", "{says:?}");
    }
    // Once "no such sandbox" is no reason to make another one.
    fixture.fake.faults().push(Fault::answer(
        Operation::Connect,
        404,
        r#"{"code":404,"message":"Sandbox \"x\" doesn't exist"}"#,
    ));
    let opened = fixture.open("w").await;
    assert_eq!((opened.outcome.kind, fixture.count(Operation::Create)), (OutcomeKind::Reattached, 1));
    // Lost with its node, it is.
    fixture.fake.sandboxes().vanish(&id).await.unwrap();
    assert_eq!(sh_error(&opened.workspace).await, ErrorKind::Gone);
    assert!(matches!(opened.workspace.health().await.unwrap(), Health::Dead(_)));
    let opened = fixture.open("w").await;
    assert_eq!((opened.outcome.kind, opened.workspace.info().generation), (OutcomeKind::Recreated, 1));
}

async fn sh_error(workspace: &std::sync::Arc<dyn ManagedWorkspace>) -> ErrorKind {
    workspace.exec(Command::new("true")).await.expect_err("it is gone").kind()
}

#[tokio::test]
async fn f10_a_resume_has_a_body_and_one_that_fails_gives_no_workspace() {
    let fixture = fixture!();
    fixture.workspace().await.suspend().await.unwrap();
    let placed = r#"{"code":500,"message":"Failed to place sandbox: no"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Connect, 500, placed).always());
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    fixture.fake.faults().clear();
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Resumed);
    assert!(
        fixture.fake.requests().of(Operation::Connect).iter().all(|asked| asked.header("content-length") != Some("0"))
    );
}

#[tokio::test]
async fn f11_a_reattach_keeps_the_time_that_there_is() {
    let fixture = fixture!();
    let long: wsm_e2b::E2bBackend = config(&fixture.fake).with_timeout_seconds(3000).build().unwrap();
    long.open(request("w")).await.unwrap();
    let before = fixture.only();
    let short: wsm_e2b::E2bBackend = config(&fixture.fake).with_timeout_seconds(20).build().unwrap();
    let opened = short.open(request("w")).await.unwrap();
    assert_eq!(fixture.only().end_at, before.end_at);
    assert!(fixture.only().auto_pause);
    // And what is asked for is given.
    let left = opened.workspace.keep_alive(Duration::from_secs(3500)).await.unwrap().unwrap();
    assert!(left >= Duration::from_secs(3500), "{left:?}");
    assert!(fixture.only().end_at > before.end_at);
    let far = opened.workspace.keep_alive(Duration::from_secs(7200)).await.unwrap().unwrap();
    assert!(far >= Duration::from_secs(7200), "{far:?}");
}

#[tokio::test]
async fn f12_a_sandbox_that_is_used_does_not_come_to_its_end() {
    let fixture = fixture!();
    let backend: wsm_e2b::E2bBackend = config(&fixture.fake).with_timeout_seconds(3).build().unwrap();
    let workspace = backend.open(request("w")).await.unwrap().workspace;
    assert!(sh(&workspace, "sleep 5").await.status.success());
    // Also one that says how long it takes.
    fixture.fake.requests().clear();
    let command = Command::shell("true").with_timeout(Duration::from_secs(600));
    assert!(workspace.exec(command).await.unwrap().status.success());
    assert_eq!(fixture.count(Operation::Refresh), 1);
}

#[tokio::test]
async fn f13_a_creation_whose_answer_is_lost_makes_one_sandbox() {
    let fixture = fixture!();
    fixture.fake.faults().push(Fault::lose_answer(Operation::Create));
    let opened = fixture.open("w").await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Created);
    fixture.only();
    let keys: Vec<_> = fixture.fake.requests().of(Operation::Create);
    assert_eq!(keys[0].header("idempotency-key"), keys[1].header("idempotency-key"));

    // Without keys it is found by its metadata.
    let fixture = fixture!(Options::without_v2());
    fixture.fake.faults().push(Fault::lose_answer(Operation::CreateV1));
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Created);
    fixture.only();
}

#[tokio::test]
async fn a_creation_that_the_service_has_lost_track_of_is_begun_anew() {
    let fixture = fixture!();
    let lost = r#"{"code":409,"message":"unknown","error_code":"idempotency_outcome_unknown"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Create, 409, lost));
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Created);
    fixture.only();
    let asked = fixture.fake.requests().of(Operation::Create);
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert_ne!(first.header("idempotency-key"), second.header("idempotency-key"));

    // It was carried out, which a look shows.
    let fixture = fixture!();
    let carried_out = What::Answer { status: 409, headers: Vec::new(), body: lost.to_owned(), applied: true };
    fixture.fake.faults().push(Fault::new(Operation::Create, carried_out));
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Created);
    fixture.only();
    assert_eq!(fixture.count(Operation::Create), 1);

    // For ever, it is an error.
    let fixture = fixture!();
    fixture.fake.faults().push(Fault::answer(Operation::Create, 409, lost).always());
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert!(error.to_string().contains("409"), "{error}");
    assert_eq!(fixture.count(Operation::Create), 2);
}

#[tokio::test]
async fn an_answer_that_says_nothing_is_not_taken_for_an_old_server_for_ever() {
    let fixture = fixture!();
    fixture.fake.faults().push(Fault::answer(Operation::Create, 404, ""));
    fixture.open("a").await;
    fixture.open("b").await;
    assert_eq!((fixture.count(Operation::Create), fixture.count(Operation::CreateV1)), (2, 1));
}

#[tokio::test]
async fn f14_failures_to_place_a_sandbox_are_tried_again() {
    let fixture = fixture!();
    let placed = r#"{"code":500,"message":"Failed to place sandbox: no"}"#;
    for (status, body) in [(500, placed), (504, "upstream request timeout"), (503, "<html>busy</html>")] {
        fixture.fake.faults().push(Fault::answer(Operation::Create, status, body));
    }
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Created);
    fixture.only();
    fixture.fake.faults().push(Fault::answer(Operation::Connect, 504, "upstream request timeout").times(2));
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Reattached);
}

#[tokio::test]
async fn f15_a_quota_is_no_rate_limit() {
    let fixture = fixture!(options(|it| it.accounts = vec![Account::new(KEY).max_running(1)]));
    fixture.open("a").await;
    fixture.fake.requests().clear();
    let error = fixture.backend.open(request("b")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Capacity, "quota"), "{error:?}");
    assert_eq!(fixture.count(Operation::Create), 1, "it is not asked again and again");
    let too_fast =
        Fault::answer_with(Operation::List, 429, ("Retry-After", "1"), r#"{"code":429,"message":"slow down"}"#);
    fixture.fake.faults().push(too_fast);
    let before = Instant::now();
    assert!(fixture.backend.find(&id("a")).await.unwrap().is_some());
    assert!(before.elapsed() >= Duration::from_secs(1), "it waits as long as it is told to");
}

#[tokio::test]
async fn f16_what_comes_back_after_a_kill_is_killed_again() {
    let fixture = fixture!();
    fixture.open("w").await;
    fixture.fake.faults().push(Fault::new(Operation::Kill, What::Resurrect { ms: 600 }));
    fixture.backend.destroy(&id("w")).await.unwrap();
    eventually("it comes back and is killed again", async || {
        fixture.count(Operation::Kill) > 1 && fixture.fake.sandboxes().all().is_empty()
    })
    .await;
}

#[tokio::test]
async fn f17_a_conflict_is_no_pause() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let busy = r#"{"code":409,"message":"Sandbox \"x\" cannot be paused while in 'snapshotting' state"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Pause, 409, busy).times(2));
    fixture.fake.faults().push(Fault::answer(Operation::Pause, 503, r#"{"code":503,"message":"busy"}"#));
    workspace.suspend().await.unwrap();
    assert_eq!(fixture.only().state, SandboxState::Paused);
    assert!(fixture.count(Operation::Pause) >= 4);
    // For ever, it is an error and not a success.
    let workspace = fixture.workspace().await;
    fixture.fake.faults().push(Fault::answer(Operation::Pause, 409, busy).always());
    let error = workspace.suspend().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    fixture.fake.faults().clear();
    workspace.suspend().await.expect("it can be tried again");
    assert_eq!(fixture.only().state, SandboxState::Paused);
    // One whose answer was lost was carried out.
    let workspace = fixture.workspace().await;
    fixture.fake.faults().push(Fault::lose_answer(Operation::Pause));
    workspace.suspend().await.unwrap();
    assert_eq!(fixture.only().state, SandboxState::Paused);
}

#[tokio::test]
async fn f18_many_commands_at_once_do_not_wait_for_each_other() {
    // The service allows 100 streams of a connection of HTTP/2; ours has one each.
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let commands = (0..120).map(|_| sh(&workspace, "sleep 2"));
    let before = Instant::now();
    let results = futures::future::join_all(commands).await;
    assert!(results.iter().all(|result| result.status.success()));
    assert!(before.elapsed() < Duration::from_secs(60), "four minutes' work took {:?}", before.elapsed());
}

#[tokio::test]
async fn f19_a_large_download_comes_whole_and_a_short_one_is_an_error() {
    // What ends large downloads are empty frames of HTTP/2; the client for daemons speaks HTTP/1.1 only.
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    sh(&workspace, "head -c 16777216 /dev/urandom > f; sha256sum f | cut -c1-64 > sum").await;
    let read = workspace.read("f", ReadOptions::default()).await.unwrap();
    let length = read.body.try_fold(0, async |length, piece| Ok(length + piece.len())).await.unwrap();
    assert_eq!(length, 16 << 20);
    fixture
        .fake
        .faults()
        .push(Fault::new(Operation::Download, What::TruncateBytes { after: 1 << 20, ending: Ending::Close }));
    let read = workspace.read("f", ReadOptions::default()).await.unwrap();
    let error = read.body.try_fold(0, async |length, piece| Ok(length + piece.len())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn f20_characters_cut_in_two_come_whole() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    for what in [What::Pieces { bytes: 1 }, What::AtOnce, What::Keepalives { count: 3 }, What::UnknownEvent] {
        fixture.fake.faults().push(Fault::new(Operation::Start, what.clone()));
        let result = sh(&workspace, r"printf '\360\237'; sleep 0.1; printf '\246\200'; printf '\377' >&2").await;
        assert_eq!(&result.stdout.bytes[..], "🦀".as_bytes(), "{what:?}");
        assert_eq!(&result.stderr.bytes[..], b"\xff");
    }
}

#[tokio::test]
async fn f21_stdin_is_closed_unless_given() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let command = Command::new("cat").with_timeout(Duration::from_secs(10));
    assert!(workspace.exec(command).await.unwrap().status.success());
    assert_eq!(workspace.exec(Command::new("cat").with_stdin("given")).await.unwrap().stdout.to_text(), "given");
    // Input that did not arrive makes no end out of another input.
    fixture.fake.faults().push(Fault::new(Operation::SendInput, What::Lose { applied: false, ending: Ending::Reset }));
    let result = workspace.exec(Command::new("cat").with_stdin("lost")).await.unwrap();
    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
}

#[tokio::test]
async fn f22_a_slow_reader_slows_the_command_and_loses_nothing() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let mut process = workspace.spawn(Command::shell("head -c 40000000 /dev/zero; echo > done")).await.unwrap();
    sleep(Duration::from_millis(700)).await;
    assert!(workspace.stat("done").await.is_err(), "nobody has read");
    let mut length = 0;
    while let Some(event) = process.output.next().await {
        if let ProcessEvent::Stdout(bytes) = event {
            length += bytes.len();
        }
    }
    assert_eq!(length, 40_000_000);
}

#[tokio::test]
async fn f23_ids_are_found_however_often_a_server_decodes() {
    for decodings in 1..=3 {
        let fixture = fixture!(options(|it| it.metadata_decodings = decodings));
        for name in ["ws 1/ä", "a%2Fb", "a&b=c"] {
            write(&fixture.open(name).await.workspace, "f", name).await;
            let again = open(&fixture.another(), name).await;
            assert_eq!(again.outcome.kind, OutcomeKind::Reattached, "{name}, decoded {decodings} times");
            assert_eq!(text(&again.workspace, "f").await, name);
        }
    }
}

#[tokio::test]
async fn f24_no_sandbox_is_open_to_all() {
    let fixture = fixture!(Options::without_v2());
    let workspace = fixture.workspace().await;
    assert!(fixture.only().secure);
    assert!(sh(&workspace, "true").await.status.success());
    workspace.suspend().await.unwrap();
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Resumed);

    let fixture = fixture!();
    fixture.fake.faults().push(Fault::new(Operation::Create, What::WithoutAccessToken));
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert_eq!(error.code(), "insecure_sandbox", "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty(), "it was killed again");
}

#[tokio::test]
async fn f25_a_port_that_stays_closed_is_told_after_a_while() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let before = Instant::now();
    let error = workspace.connect(&Endpoint::Port(3000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(before.elapsed() > Duration::from_secs(1), "it is asked more than once");
    // The daemon's own answers.
    let connection = workspace.connect(&Endpoint::Port(49983)).await.unwrap();
    assert!(format!("{connection:?}").contains("http"));
}

#[tokio::test]
async fn f26_paused_sandboxes_are_seen() {
    let fixture = fixture!();
    fixture.workspace().await.suspend().await.unwrap();
    let other = fixture.another();
    assert!(other.find(&id("w")).await.unwrap().is_some());
    assert_eq!(open(&other, "w").await.outcome.kind, OutcomeKind::Resumed);
    fixture.only();
    assert_eq!(fixture.count(Operation::ListV1), 0);
    assert!(fixture.fake.requests().of(Operation::List).iter().all(|asked| asked.query.contains("running%2Cpaused")));
}

#[tokio::test]
async fn f27_signs_of_life_are_asked_for_at_a_rate_that_the_daemon_survives() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    sh(&workspace, "true").await;
    let started = fixture.fake.requests().of(Operation::Start);
    assert!(started.len() >= 2 && started.iter().all(|asked| asked.header("keepalive-ping-interval") == Some("50")));
}

#[tokio::test]
async fn f28_one_of_many_commands_is_signalled_and_no_other() {
    // By its process, never by a tag: of those a daemon finds the wrong one.
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    let mut processes = Vec::new();
    for _ in 0..6 {
        processes.push(workspace.spawn(Command::shell("until [ -e go ]; do sleep 0.1; done")).await.unwrap());
    }
    let signalled = processes.remove(4);
    signalled.control.signal(Signal::User1).await.unwrap();
    let last = signalled.output.collect::<Vec<_>>().await.pop();
    assert_eq!(last, Some(ProcessEvent::End(ExitStatus::Signaled { signal: 10 })));
    write(&workspace, "go", "").await;
    for process in processes {
        let last = process.output.collect::<Vec<_>>().await.pop();
        assert_eq!(last, Some(ProcessEvent::End(ExitStatus::Exited { code: 0 })));
    }
}

#[tokio::test]
async fn f29_variables_are_given_with_each_command() {
    let fixture = fixture!();
    fixture.open("w").await;
    // Those of a sandbox can not be changed; those of a command are the newest.
    let backend: wsm_e2b::E2bBackend = config(&fixture.fake).with_env("COLOUR", "green").build().unwrap();
    let workspace = backend.open(request("w")).await.unwrap().workspace;
    assert_eq!(sh(&workspace, "echo $COLOUR").await.stdout.to_text(), "green\n");
}

#[tokio::test]
async fn a_list_that_is_not_complete_makes_nothing() {
    let fixture = fixture!(options(|it| it.max_page = 1));
    // Two with one id, by another installation's mistake, so that there is a second page.
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "kept").await;
    fixture.open("v").await;
    for fault in [
        Fault::answer(Operation::List, 500, r#"{"code":500,"message":"boom"}"#).skip(1).always(),
        Fault::answer(Operation::List, 200, "").always(),
        Fault::answer(Operation::List, 200, "<html></html>").always(),
        Fault::new(Operation::List, What::RepeatNextToken).always(),
        Fault::new(Operation::List, What::TruncateBytes { after: 30, ending: Ending::Close }).always(),
    ] {
        fixture.fake.faults().clear();
        fixture.fake.faults().push(fault.clone());
        let listed = fixture.backend.list().try_collect::<Vec<_>>().await;
        assert!(listed.is_err(), "{fault:?}: {listed:?}");
    }
    fixture.fake.faults().clear();
    fixture.fake.requests().clear();
    for (status, body) in [(500, ""), (503, "<html>"), (429, "slow down")] {
        fixture.fake.faults().push(Fault::answer(Operation::List, status, body).always());
        let error = fixture.another().open(request("w")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        fixture.fake.faults().clear();
    }
    assert_eq!(fixture.count(Operation::Create), 0);
    // Over two pages, each comes once.
    assert_eq!(fixture.backend.list().try_collect::<Vec<_>>().await.unwrap().len(), 2);
    // One that is known is asked for when it is in no list.
    let known = fixture.fake.sandboxes().all().into_iter().map(|sandbox| sandbox.id);
    for id in known {
        fixture.fake.faults().push(Fault::new(Operation::List, What::HideFromList { id }).times(2));
    }
    let opened = fixture.open("w").await;
    assert_eq!((opened.outcome.kind, text(&opened.workspace, "f").await.as_str()), (OutcomeKind::Reattached, "kept"));
}

#[tokio::test]
async fn a_daemon_that_is_slow_to_come_is_waited_for() {
    let fixture = fixture!();
    for says in [Unreachable::NotFound, Unreachable::PortClosed, Unreachable::Transitioning] {
        fixture.fake.faults().push(Fault::new(Operation::Create, What::SlowStart { ms: 700, says }));
        let name = format!("{says:?}");
        let opened = fixture.open(&name).await;
        assert!(sh(&opened.workspace, "true").await.status.success());
        opened.workspace.suspend().await.unwrap();
        fixture.fake.faults().push(Fault::new(Operation::Connect, What::EnvdDown { times: 3, says }));
        assert_eq!(fixture.open(&name).await.outcome.kind, OutcomeKind::Resumed);
    }
}

#[tokio::test]
async fn a_write_that_fails_leaves_the_file_and_says_why() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "old").await;
    fixture.fake.faults().push(Fault::new(Operation::Upload, What::DiskFull { after: 3 }));
    let error = workspace.write_bytes("f", "a longer text".into()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Capacity, "disk_full"), "{error:?}");
    fixture.fake.faults().push(Fault::lose_answer(Operation::Upload));
    workspace.write_bytes("f", "new".into()).await.unwrap_err();
    assert_eq!(text(&workspace, "f").await, "old");
    // A move whose answer is lost was carried out.
    fixture.fake.faults().push(Fault::lose_answer(Operation::Move));
    workspace.write_bytes("f", "new".into()).await.unwrap();
    assert_eq!(text(&workspace, "f").await, "new");
    for operation in [Operation::Stat, Operation::ListDir, Operation::MakeDir, Operation::Download, Operation::Start] {
        fixture.fake.faults().push(Fault::new(operation, What::Lose { applied: false, ending: Ending::Close }));
    }
    assert!(workspace.stat("f").await.is_ok());
    assert_eq!(workspace.list(".").await.unwrap().len(), 1);
    workspace.make_dir("d").await.unwrap();
    assert_eq!(text(&workspace, "f").await, "new");
    assert_eq!(fixture.fake.faults().left().len(), 1, "a command is not simply started again");
    let result = sh(&workspace, "echo x").await;
    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
}

#[tokio::test]
async fn a_sandbox_whose_time_is_over_is_dead_and_comes_back_with_its_files() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "kept").await;
    fixture.fake.advance(Duration::from_secs(400)).await;
    assert_eq!(sh_error(&workspace).await, ErrorKind::Gone);
    assert!(matches!(workspace.health().await.unwrap(), Health::Dead(_)));
    let opened = fixture.open("w").await;
    assert_eq!((opened.outcome.kind, text(&opened.workspace, "f").await.as_str()), (OutcomeKind::Resumed, "kept"));
    // Undecided is no death.
    fixture.fake.faults().push(Fault::new(On::Control, What::Lose { applied: false, ending: Ending::Reset }).always());
    let error = opened.workspace.health().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_sandbox_whose_daemon_has_died_is_brought_back_from_its_disk() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "kept").await;
    workspace.suspend().await.unwrap();
    fixture.fake.sandboxes().kill_envd(&fixture.only().id).unwrap();
    let deaf = r#"{"code":409,"message":"m","error_code":"sandbox_snapshot_guest_agent_unresponsive"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Connect, 409, deaf));
    let opened = fixture.open("w").await;
    assert_eq!((opened.outcome.kind, text(&opened.workspace, "f").await.as_str()), (OutcomeKind::Resumed, "kept"));
    assert!(opened.outcome.lost.contains(&Loss::Memory), "{:?}", opened.outcome);
}
