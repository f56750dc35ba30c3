//! How containers end, are found again, and what is left of them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::time::Duration;

use common::{Contained, containers, docker, engine, gated, program};
use tokio::time::timeout;
use wsm_core::{
    Backend, Cause, Command, ErrorKind, ExitStatus, Health, Loss, OpenRequest, OutcomeKind, WorkspaceExt, WorkspaceId,
};
use wsm_docker::{DockerConfig, ExtraMount};

fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_or_removed_container_is_told_by_its_cause() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    for (how, kind, lost) in [("kill", OutcomeKind::Resumed, false), ("rm", OutcomeKind::Resumed, true)] {
        let id = unique(how);
        let workspace = contained.open(&id).await;
        workspace.sh("echo kept > f; echo installed > /usr/local/lost").await.unwrap();
        let running = workspace.sh("touch begun; sleep 60");
        let ending = async {
            while workspace.stat("begun").await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let container = &containers(&id)[0];
            let force: &[&str] = if how == "rm" { &["rm", "--force", container] } else { &["kill", container] };
            assert!(docker(force).status.success());
        };
        let (result, ()) = tokio::join!(running, ending);
        let status = result.unwrap().status;
        assert!(matches!(status, ExitStatus::Unknown { .. }), "never a success, never a guess: {status:?}");
        assert_eq!(workspace.health().await.unwrap(), Health::Dead(Cause::Killed));
        let opened = contained.opened(&id).await;
        assert_eq!(opened.outcome.kind, kind, "{how}: {:?}", opened.outcome);
        assert_eq!(opened.outcome.lost.contains(&Loss::SystemFiles), lost, "{how}: {:?}", opened.outcome);
        let after = opened.workspace.sh("cat f; cat /usr/local/lost 2>/dev/null").await.unwrap().stdout.to_text();
        assert_eq!(after, if lost { "kept\n" } else { "kept\ninstalled\n" }, "{how}");
        assert_eq!(containers(&id).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_container_goes_on_and_one_of_somebody_else_is_refused() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("paused");
    let paused = contained.open(&id).await;
    assert!(docker(&["pause", &containers(&id)[0]]).status.success());
    let health =
        timeout(Duration::from_secs(30), paused.health()).await.expect("it is not asked, since it can not answer");
    let error = health.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "container_paused"), "{error}");
    // Nor does anybody else wait for ever.
    let limited = Command::shell("true").with_timeout(Duration::from_secs(1));
    let calls = async { tokio::join!(paused.stat("f"), paused.exec(limited), paused.exec(Command::shell("true"))) };
    let (stat, limited, ran) = timeout(Duration::from_secs(120), calls).await.unwrap();
    for (error, kind) in [
        (stat.unwrap_err(), ErrorKind::Unavailable),
        (limited.unwrap_err(), ErrorKind::Timeout),
        (ran.unwrap_err(), ErrorKind::Unavailable),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
    }
    // As a service does that has just been started.
    let again =
        gated(DockerConfig::new(contained.base.path()).with_host(engine().unwrap()), program().unwrap()).unwrap();
    let opened = again.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(opened.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");

    let foreign = unique("foreign");
    let owner = std::fs::read_to_string(contained.base.path().join(".wsm/installation")).unwrap();
    let name = format!("wsm-{}_{foreign}", &owner[..8]);
    assert!(docker(&["create", "--name", &name, "python:3.11-slim", "true"]).status.success());
    let error = contained.backend.open(OpenRequest::new(WorkspaceId::new(&foreign).unwrap())).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "foreign_container"), "{error}");
    contained.backend.destroy(&WorkspaceId::new(&foreign).unwrap()).await.unwrap();
    assert!(docker(&["inspect", &name]).status.success(), "it is never touched");
    docker(&["rm", "--force", &name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_installations_on_one_engine_have_workspaces_of_one_id() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let Some(other) = Contained::new(|config| config).await else { return };
    let id = unique("same");
    let (mine, theirs) = (contained.open(&id).await, other.open(&id).await);
    mine.write_bytes("f", "mine".into()).await.unwrap();
    theirs.write_bytes("f", "theirs".into()).await.unwrap();
    assert_eq!(mine.read_text("f", 10).await.unwrap(), "mine");
    other.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
    assert_eq!(mine.read_text("f", 10).await.unwrap(), "mine");
    assert_eq!(containers(&id).len(), 1);
}

/// What is configured anew counts for what is made anew. What there is goes on, with all that was installed in it.
#[tokio::test(flavor = "multi_thread")]
async fn another_image_or_limit_ends_no_container() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("drift");
    let before = contained.open(&id).await;
    before.sh("echo installed > /usr/local/kept; (sleep 1000 &) > /dev/null 2>&1").await.unwrap();
    let container = containers(&id);
    let config = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let changed = gated(config.with_node_version("").with_memory(256 << 20), program().unwrap()).unwrap();
    let opened = changed.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Reattached);
    let kept = opened.workspace.sh("cat /usr/local/kept; ps -eo args | grep -c '[s]leep 1000'").await.unwrap();
    assert_eq!(kept.stdout.to_text(), "installed\n1\n");
    assert_eq!(containers(&id), container);
    // Both processes let go.
    before.suspend().await.unwrap();
    opened.workspace.suspend().await.unwrap();
    let fresh = changed.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap();
    assert_eq!(fresh.outcome.kind, OutcomeKind::Resumed);
    let node = fresh.workspace.sh("command -v node || echo none").await.unwrap();
    assert_eq!(node.stdout.to_text(), "none\n", "what is made anew is made as configured");
}

/// An opening that nobody waits for any more makes a workspace that the next one finds.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_opening_leaves_nothing_that_is_not_found() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    contained.open(&unique("first")).await;
    for pause in [0, 10, 50, 150, 400] {
        let id = unique("dropped");
        let opening = contained.backend.open(OpenRequest::new(WorkspaceId::new(&id).unwrap()));
        let _ = tokio::time::timeout(Duration::from_millis(pause), opening).await;
        let opened = contained.opened(&id).await;
        assert_eq!(opened.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
        assert_eq!(containers(&id).len(), 1, "{pause} ms");
        contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
        assert!(containers(&id).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_waits_for_an_end_that_nobody_waits_for() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("ending");
    for moment in [0, 2, 10, 30, 60] {
        let workspace = contained.open(&id).await;
        let waited = timeout(Duration::from_millis(moment), workspace.suspend()).await;
        let opened = contained.opened(&id).await;
        if waited.is_err() {
            // Begun or not: what is opened now does not end under its user.
            let ran = opened.workspace.sh("sleep 0.4; echo lives").await.unwrap();
            assert_eq!(ran.stdout.to_text(), "lives\n", "dropped after {moment} ms: {ran:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_is_told() {
    let Some(contained) = Contained::new(|config| config.with_memory(64 << 20)).await else { return };
    let id = unique("hungry");
    let workspace = contained.open(&id).await;
    let eaten = workspace.sh("python3 -c 'x = b\"x\" * (300 << 20); print(len(x))'").await.unwrap();
    assert!(!eaten.status.success(), "{eaten:?}");
    docker(&["kill", &containers(&id)[0]]);
    let opened = contained.opened(&id).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_eq!(opened.outcome.cause, Some(Cause::OutOfMemory), "{:?}", opened.outcome);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_can_not_be_built_says_why_and_leaves_nothing() {
    let broken = |config: DockerConfig| config.with_base_image("no-such-base:none").with_node_version("");
    let Some(contained) = Contained::new(broken).await else { return };
    let id = WorkspaceId::new(unique("unbuilt")).unwrap();
    let error = contained.backend.open(OpenRequest::new(id.clone())).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "image_failed"), "{error}");
    assert!(error.to_string().contains("no-such-base:none"), "{error}");
    assert!(containers(id.as_str()).is_empty());
}

/// Whatever fails after the container was made, the container goes with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_does_not_start_leaves_nothing() {
    let mount =
        ExtraMount { source: "/bin/false".into(), target: "/usr/local/lib/wsm/gateway".into(), writable: false };
    let broken = |mut config: DockerConfig| {
        config.mounts.push(mount);
        config
    };
    let Some(contained) = Contained::new(broken).await else { return };
    let id = WorkspaceId::new(unique("broken")).unwrap();
    let error = contained.backend.open(OpenRequest::new(id.clone())).await.unwrap_err();
    assert!(error.to_string().contains("the container ended before it was ready"), "{error}");
    assert!(containers(id.as_str()).is_empty());
    let left = std::fs::read_dir(contained.base.path().join(".wsm/run")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "no directory of a socket is left");
    let working = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let working = gated(working, program().unwrap()).unwrap();
    let opened = working.open(OpenRequest::new(id)).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Created, "nobody was told before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_nobody_can_get_into_any_more_is_made_anew_by_whoever_has_it_alone() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("deaf");
    let config = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let earlier = gated(config, program().unwrap()).unwrap();
    let workspace = earlier.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap().workspace;
    workspace.sh("echo kept > f; rm /run/wsm/gateway.sock").await.unwrap();
    let before = containers(&id);
    let refused = contained.backend.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap_err();
    assert_eq!((refused.kind(), containers(&id)), (ErrorKind::Timeout, before.clone()), "it is in use there");
    assert_eq!(workspace.sh("cat f").await.unwrap().stdout.to_text(), "kept\n");
    drop((workspace, earlier));
    let opened = contained.opened(&id).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert!(opened.outcome.lost.contains(&Loss::SystemFiles), "{:?}", opened.outcome);
    assert_eq!(opened.workspace.sh("cat f").await.unwrap().stdout.to_text(), "kept\n");
    assert!(containers(&id).len() == 1 && containers(&id) != before);
}
