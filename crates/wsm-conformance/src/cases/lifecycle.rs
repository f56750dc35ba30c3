//! Opening, finding, suspending and destroying.

use futures::{StreamExt, TryStreamExt};
use wsm_core::{
    Command, ErrorKind, ExitStatus, FoundState, Health, IsolationPolicy, ManagedWorkspace, OpenRequest, OutcomeKind,
    Placement, ReadOptions, Scope, WorkspaceId, WriteOptions,
};

use crate::{
    cases::cases,
    context::{Context, open, request, sh, text, user, write},
};

cases! {
    B1 opening_what_does_not_exist_creates_an_empty_workspace [];
    B2 opening_again_attaches_to_the_same_workspace [Files];
    B3 a_suspended_workspace_comes_back_with_its_files [Files];
    B5 another_users_workspace_is_refused_and_unchanged [Files];
    B5 another_user_may_come_in_when_that_is_configured [Files];
    B5 a_workspace_without_an_owner_is_claimed_by_the_first [];
    B6 find_sees_what_open_made_and_changes_nothing [];
    B7 list_gives_every_workspace_once [];
    B8 destroy_removes_the_data_and_an_unknown_id_is_fine [Files];
    B9 the_generation_stays_while_files_do [Files];
    B10 an_id_keeps_its_place_whoever_asks_for_it [Files];
    B10 open_find_and_destroy_work_from_the_id_alone [Files];
    M1 suspend_is_idempotent_and_calls_are_gone_afterwards [];
    M1 suspend_ends_what_runs_in_the_background [Background Shell Files];
    M1 suspending_again_leaves_a_later_opening_alone [Shell Files];
    M1 a_write_under_way_at_suspend_changes_nothing_afterwards [Files];
    M2 detach_leaves_the_workspace_for_others [Files];
    M3 a_live_workspace_is_alive [];
    M3 a_destroyed_workspace_is_not_alive [];
    M4 keep_alive_is_answered [];
}

async fn opening_what_does_not_exist_creates_an_empty_workspace(context: Context) {
    let id = context.id();
    let opened = context.open(&id).await;
    assert_eq!((opened.outcome.kind, opened.outcome.lost.len()), (OutcomeKind::Created, 0));
    let info = opened.workspace.info();
    assert_eq!((&info.id, info.backend, info.generation), (&id, context.backend.kind(), 0));
    assert!(info.workdir.starts_with('/'), "{}", info.workdir);
    if opened.workspace.capabilities().files {
        assert_eq!(opened.workspace.list(".").await.expect("it can be listed"), []);
    }
}

async fn opening_again_attaches_to_the_same_workspace(context: Context) {
    let id = context.id();
    write(&context.open(&id).await.workspace, "f", "x").await;
    let again = context.open(&id).await;
    assert_eq!(again.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(text(&again.workspace, "f").await, "x");
    let other = context.reconnect().await;
    let opened = open(&*other, request(&id)).await.expect("another replica attaches too");
    assert!(matches!(opened.outcome.kind, OutcomeKind::Reattached | OutcomeKind::Resumed), "{:?}", opened.outcome);
    assert_eq!(text(&opened.workspace, "f").await, "x");
}

async fn a_suspended_workspace_comes_back_with_its_files(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    write(&workspace, "a/f", "kept").await;
    let checkpoint = workspace.suspend().await.expect("it can be suspended");
    let resumed = open(&*context.backend, request(&id).with_checkpoint(checkpoint)).await.expect("it comes back");
    assert!(matches!(resumed.outcome.kind, OutcomeKind::Resumed | OutcomeKind::Reattached), "{:?}", resumed.outcome);
    assert!(!resumed.outcome.lost.contains(&wsm_core::Loss::WorkspaceFiles));
    assert_eq!(text(&resumed.workspace, "a/f").await, "kept");
    assert!(sh(&resumed.workspace, "true").await.status.success());
    // And after a restart of the service.
    resumed.workspace.suspend().await.expect("it can be suspended");
    let other = context.reconnect().await;
    let again = open(&*other, request(&id)).await.expect("it comes back");
    assert_eq!(text(&again.workspace, "a/f").await, "kept");
}

async fn another_users_workspace_is_refused_and_unchanged(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    write(&workspace, "f", "private").await;
    let stranger = || OpenRequest::new(id.clone()).with_owner(user("stranger"));
    for backend in [context.backend.clone(), context.reconnect().await] {
        let error = open(&*backend, stranger()).await.expect_err("it is another user's");
        assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "foreign_owner"), "{error:?}");
        assert!(!error.report().to_string().contains("conformance"), "it names the owner: {error:?}");
    }
    workspace.suspend().await.expect("it can be suspended");
    open(&*context.reconnect().await, stranger()).await.expect_err("also when it is put away");
    assert_eq!(text(&context.open(&id).await.workspace, "f").await, "private");
}

async fn another_user_may_come_in_when_that_is_configured(context: Context) {
    let id = context.id();
    write(&context.open(&id).await.workspace, "f", "shared").await;
    let guest = OpenRequest::new(id.clone()).with_owner(user("guest")).with_foreign_owner_allowed(true);
    let opened = open(&*context.backend, guest).await.expect("it is allowed");
    assert_eq!(text(&opened.workspace, "f").await, "shared");
    // The owner is still the owner.
    open(&*context.backend, OpenRequest::new(id.clone()).with_owner(user("guest"))).await.expect_err("not by right");
    context.open(&id).await;
}

async fn a_workspace_without_an_owner_is_claimed_by_the_first(context: Context) {
    let id = context.id();
    let nobody = open(&*context.backend, OpenRequest::new(id.clone())).await.expect("an owner is not needed");
    assert_eq!(nobody.outcome.kind, OutcomeKind::Created);
    assert_eq!(context.open(&id).await.outcome.kind, OutcomeKind::Reattached);
    let error = open(&*context.backend, OpenRequest::new(id.clone()).with_owner(user("late"))).await;
    assert_eq!(error.expect_err("it is claimed").code(), "foreign_owner");
    open(&*context.backend, OpenRequest::new(id)).await.expect("asking as nobody checks nothing");
}

async fn find_sees_what_open_made_and_changes_nothing(context: Context) {
    let id = context.id();
    for _ in 0..2 {
        let found = context.backend.find(&id).await.expect("it can be decided");
        assert_eq!(found, None, "nothing was opened yet");
    }
    let workspace = context.open(&id).await.workspace;
    let found = context.backend.find(&id).await.expect("it can be decided").expect("it exists");
    assert_eq!((&found.id, found.state, found.generation), (&id, FoundState::Running, 0));
    assert_eq!(found.owner, Some(user("conformance")));
    assert!(!found.location.is_empty());
    workspace.suspend().await.expect("it can be suspended");
    for backend in [context.backend.clone(), context.reconnect().await] {
        let found = backend.find(&id).await.expect("it can be decided").expect("it exists");
        assert_ne!(found.state, FoundState::Dead);
    }
}

async fn list_gives_every_workspace_once(context: Context) {
    let ids: Vec<WorkspaceId> = (0..7).map(|_| context.id()).collect();
    for (number, id) in ids.iter().enumerate() {
        let workspace = context.open(id).await.workspace;
        if number % 2 == 0 {
            workspace.suspend().await.expect("it can be suspended");
        }
    }
    for backend in [context.backend.clone(), context.reconnect().await] {
        let listed: Vec<_> = backend.list().try_collect().await.expect("the list is complete");
        for id in &ids {
            assert_eq!(listed.iter().filter(|found| found.id == *id).count(), 1, "`{id}` in the list");
        }
    }
}

async fn destroy_removes_the_data_and_an_unknown_id_is_fine(context: Context) {
    let id = context.id();
    context.backend.destroy(&id).await.expect("an unknown id is fine");
    let workspace = context.open(&id).await.workspace;
    write(&workspace, "d/f", "x").await;
    context.backend.destroy(&id).await.expect("it can be destroyed");
    context.backend.destroy(&id).await.expect("again is fine");
    assert_eq!(workspace.stat("d/f").await.expect_err("it is gone").kind(), ErrorKind::Gone);
    assert_eq!(workspace.exec(Command::new("true")).await.expect_err("it is gone").kind(), ErrorKind::Gone);
    assert_eq!(context.backend.find(&id).await.expect("it can be decided"), None);
    let listed: Vec<_> = context.backend.list().try_collect().await.expect("the list is complete");
    assert!(listed.iter().all(|found| found.id != id));
    let again = context.open(&id).await;
    assert_eq!((again.outcome.kind, again.workspace.info().generation), (OutcomeKind::Created, 0));
    assert_eq!(again.workspace.list(".").await.expect("it can be listed"), []);
    again.workspace.suspend().await.expect("it can be suspended");
    context.backend.destroy(&id).await.expect("what is put away can be destroyed");
    assert_eq!(context.backend.find(&id).await.expect("it can be decided"), None);
}

async fn the_generation_stays_while_files_do(context: Context) {
    let id = context.id();
    for _ in 0..3 {
        let workspace = context.open(&id).await.workspace;
        assert_eq!(workspace.info().generation, 0);
        workspace.suspend().await.expect("it can be suspended");
    }
    let opened = open(&*context.reconnect().await, request(&id)).await.expect("it comes back");
    assert_eq!(opened.workspace.info().generation, 0);
}

async fn an_id_keeps_its_place_whoever_asks_for_it(context: Context) {
    let scope = |agent: &str, session: &str| Scope::new("conformance", agent, session).expect("a valid scope");
    let suffix = WorkspaceId::random();
    let leader = scope(&format!("leader-{suffix}"), "first");
    let id = context.use_id(IsolationPolicy::PerAgent.assign(&leader));
    let placed = |policy, scope| request(&id).with_placement(Placement { policy, scope });
    let opened = open(&*context.backend, placed(IsolationPolicy::PerAgent, leader.clone())).await.expect("it opens");
    write(&opened.workspace, "f", "the leader's").await;
    let workdir = opened.workspace.info().workdir.clone();
    opened.workspace.suspend().await.expect("it can be suspended");
    // After a restart, others ask for the id first: a sub-agent, another session, another policy, nobody in particular.
    let others = [
        request(&id),
        placed(IsolationPolicy::PerAgent, scope("sub-agent", "first")),
        placed(IsolationPolicy::PerSession, scope(leader.agent_id.as_str(), "second")),
        placed(IsolationPolicy::PerUser, leader),
        OpenRequest::new(id.clone()),
    ];
    for other in others {
        let opened = open(&*context.reconnect().await, other).await.expect("it opens");
        assert_ne!(opened.outcome.kind, OutcomeKind::Created);
        assert_eq!(text(&opened.workspace, "f").await, "the leader's");
        assert_eq!(opened.workspace.info().workdir, workdir);
        opened.workspace.suspend().await.expect("it can be suspended");
    }
}

async fn open_find_and_destroy_work_from_the_id_alone(context: Context) {
    let id = context.id();
    let opened = open(&*context.backend, OpenRequest::new(id.clone())).await.expect("the id is enough");
    write(&opened.workspace, "f", "x").await;
    opened.workspace.suspend().await.expect("it can be suspended");
    let other = context.reconnect().await;
    assert!(other.find(&id).await.expect("it can be decided").is_some());
    other.destroy(&id).await.expect("the id is enough");
    assert_eq!(context.backend.find(&id).await.expect("it can be decided"), None);
}

async fn assert_gone(workspace: &std::sync::Arc<dyn ManagedWorkspace>) {
    let error = workspace.exec(Command::new("true")).await.expect_err("it was let go");
    assert_eq!(error.kind(), ErrorKind::Gone, "{error:?}");
    if workspace.capabilities().files {
        let error = workspace.read("f", ReadOptions::default()).await.map(drop).expect_err("it was let go");
        assert_eq!(error.kind(), ErrorKind::Gone, "{error:?}");
    }
    if workspace.capabilities().spawn {
        let error = workspace.spawn(Command::new("true")).await.map(drop).expect_err("it was let go");
        assert_eq!(error.kind(), ErrorKind::Gone, "{error:?}");
    }
}

async fn suspend_is_idempotent_and_calls_are_gone_afterwards(context: Context) {
    let workspace = context.workspace().await;
    for _ in 0..2 {
        workspace.suspend().await.expect("it can be suspended");
        assert_gone(&workspace).await;
    }
}

async fn suspend_ends_what_runs_in_the_background(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    sh(&workspace, "(for i in $(seq 900); do echo x >> beats; sleep 0.1; done) >/dev/null 2>&1 &").await;
    crate::context::eventually("it beats", async || workspace.stat("beats").await.is_ok()).await;
    workspace.suspend().await.expect("it can be suspended");
    let workspace = context.open(&id).await.workspace;
    let before = workspace.stat("beats").await.expect("it is there").size;
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    assert_eq!(workspace.stat("beats").await.expect("it is there").size, before, "it still beats");
}

async fn suspending_again_leaves_a_later_opening_alone(context: Context) {
    let id = context.id();
    let earlier = context.open(&id).await.workspace;
    sh(&earlier, "true").await;
    earlier.suspend().await.expect("it can be suspended");
    let later = context.open(&id).await.workspace;
    let command = Command::shell("echo > started; sleep 2; echo whole");
    let running = later.exec(command);
    let disturbing = async {
        crate::context::eventually("it runs", async || later.stat("started").await.is_ok()).await;
        earlier.suspend().await.expect("it is suspended already");
    };
    let (result, ()) = tokio::join!(running, disturbing);
    let result = result.expect("it runs");
    assert_eq!((result.status, result.stdout.to_text().as_str()), (ExitStatus::Exited { code: 0 }, "whole\n"));
}

async fn a_write_under_way_at_suspend_changes_nothing_afterwards(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    write(&workspace, "f", "before").await;
    let (begun, suspended) = (tokio::sync::Notify::new(), std::sync::Arc::new(tokio::sync::Notify::new()));
    let body = {
        let suspended = std::sync::Arc::clone(&suspended);
        futures::stream::once(async { Ok("af".into()) })
            .chain(futures::stream::once(async move {
                suspended.notified().await;
                Ok("ter".into())
            }))
            .boxed()
    };
    let writing = async {
        begun.notify_one();
        workspace.write("f", body, WriteOptions::default()).await
    };
    let suspending = async {
        begun.notified().await;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        workspace.suspend().await.expect("it can be suspended");
        suspended.notify_one();
    };
    let (written, ()) = tokio::join!(writing, suspending);
    let error = written.expect_err("it was put away before the end of the body");
    assert_eq!(error.kind(), ErrorKind::Gone, "{error:?}");
    assert_eq!(text(&context.open(&id).await.workspace, "f").await, "before");
}

async fn detach_leaves_the_workspace_for_others(context: Context) {
    let id = context.id();
    let mine = context.open(&id).await.workspace;
    let other = context.reconnect().await;
    let theirs = open(&*other, request(&id)).await.expect("another replica attaches").workspace;
    write(&theirs, "f", "x").await;
    mine.detach().await.expect("it can be let go");
    assert_gone(&mine).await;
    assert!(sh(&theirs, "true").await.status.success());
    assert_eq!(text(&theirs, "f").await, "x");
    assert_eq!(text(&context.open(&id).await.workspace, "f").await, "x");
}

async fn a_live_workspace_is_alive(context: Context) {
    let workspace = context.workspace().await;
    let health = workspace.health().await.expect("it can be decided");
    assert!(matches!(health, Health::Alive(_)), "{health:?}");
}

async fn a_destroyed_workspace_is_not_alive(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    context.backend.destroy(&id).await.expect("it can be destroyed");
    match workspace.health().await {
        Ok(Health::Dead(_)) => {}
        Err(error) if error.kind() == ErrorKind::Gone => {}
        other => panic!("{other:?}"),
    }
}

async fn keep_alive_is_answered(context: Context) {
    let opened = context.open(&context.id()).await;
    let asked = std::time::Duration::from_secs(30);
    match opened.workspace.keep_alive(asked).await.expect("it can be asked") {
        Some(put_off) => assert!(put_off >= asked, "{put_off:?}"),
        None => assert_eq!(opened.idle_stop, None, "it stops by itself, and nothing puts that off"),
    }
}
