//! The buffer of ready workspaces.

use std::{collections::HashSet, time::Duration};

use tokio::time::{Instant, sleep};
use wsm_core::{
    CloseOptions, Command, ErrorKind, GetRequest, OutcomeKind, Prewarm, Scope, WorkspaceManager,
    memory::{Effect, Fault, MemoryEngine, Operation},
};

use crate::support::{get, id, manager_over, manager_with, scope, settings, unavailable};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn created_workspaces_have_fresh_ids_and_come_ready_from_the_buffer() {
    let (manager, engine) = manager_with(settings().with_prewarm(Some(Prewarm::new(3)))).await;
    engine.plant(Fault::times(Operation::Open, Effect::Delay(SECOND), 3));
    sleep(SECOND * 5).await;
    assert_eq!(engine.running(), 3);
    let before = Instant::now();
    let mut ids = HashSet::new();
    for _ in 0..3 {
        let handle = manager.create_workspace(&scope("coder")).await.unwrap();
        assert_eq!(handle.opening().outcome.kind, OutcomeKind::Created);
        assert!(ids.insert(handle.id().clone()));
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    sleep(SECOND).await;
    assert_eq!(engine.creations(), 6, "the buffer is full again");
}

#[tokio::test(start_paused = true)]
async fn a_claimed_workspace_belongs_to_the_claimer() {
    let (manager, _) = manager_with(settings().with_prewarm(Some(Prewarm::new(1)))).await;
    sleep(SECOND).await;
    let id = manager.create_workspace(&scope("coder")).await.unwrap().id().clone();
    let stranger = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(id.clone());
    assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    get(&manager, id.as_str()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_engine_is_not_asked_for_more_than_the_buffer_holds() {
    let prewarm = Prewarm::new(10).with_max_creating(3);
    let (manager, engine) = manager_with(settings().with_prewarm(Some(prewarm))).await;
    engine.plant(Fault::always(Operation::Open, Effect::Delay(SECOND * 2)));
    sleep(SECOND * 3).await;
    assert!(engine.opens() <= 6, "{}", engine.opens());
    sleep(SECOND * 30).await;
    assert_eq!((engine.opens(), engine.creations()), (10, 10));
    drop(manager);
}

#[tokio::test(start_paused = true)]
async fn a_dead_one_is_not_handed_out_and_failures_are_not_hammered() {
    let (manager, engine) = manager_with(settings().with_prewarm(Some(Prewarm::new(1)))).await;
    sleep(SECOND).await;
    let ready = manager.cached()[0].workspace_id.clone();
    engine.kill(&ready, wsm_core::Cause::Killed);
    let handle = manager.create_workspace(&scope("coder")).await.unwrap();
    assert!(handle.exec(wsm_core::Command::new("true")).await.unwrap().status.success());
    let before = engine.opens();
    engine.plant(Fault::always(Operation::Open, Effect::Fail(unavailable())));
    drop(manager.create_workspace(&scope("coder")).await);
    sleep(SECOND * 60).await;
    assert!(engine.opens() - before < 12, "{}", engine.opens() - before);
}

#[tokio::test(start_paused = true)]
async fn the_buffer_gives_way_to_users_and_goes_at_shutdown() {
    let settings = settings().with_prewarm(Some(Prewarm::new(2))).with_max_workspaces(Some(2));
    let (manager, engine) = manager_with(settings).await;
    sleep(SECOND).await;
    let handles = [get(&manager, "a").await.unwrap(), get(&manager, "b").await.unwrap()];
    assert_eq!(get(&manager, "c").await.unwrap_err().kind(), ErrorKind::Capacity);
    drop(handles);
    let report = manager.shutdown(SECOND).await;
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(engine.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_that_gave_way_fills_again_once_there_is_room() {
    let settings = settings().with_prewarm(Some(Prewarm::new(1))).with_max_workspaces(Some(2));
    let (manager, engine) = manager_with(settings).await;
    sleep(SECOND).await;
    let (kept, other) = (get(&manager, "a").await.unwrap(), get(&manager, "b").await.unwrap());
    drop(other);
    manager.close(&id("b"), Default::default()).await.unwrap();
    assert_eq!(engine.running(), 1);
    sleep(SECOND * 10).await;
    assert_eq!(engine.running(), 2, "one is ready again");
    drop((kept, manager));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_what_was_made_at_its_beginning() {
    for _ in 0..40 {
        let engine = MemoryEngine::new();
        engine.plant(Fault::once(Operation::Open, Effect::Delay(SECOND)));
        let manager = manager_over(&engine, settings().with_prewarm(Some(Prewarm::new(1)))).await;
        sleep(SECOND).await;
        let before = Instant::now();
        assert!(manager.shutdown(SECOND * 30).await.failed.is_empty());
        assert!(before.elapsed() < SECOND, "it took {:?}", before.elapsed());
        assert_eq!(engine.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_buffered_workspace_that_is_asked_for_by_its_id_has_an_owner_from_then_on() {
    let (manager, _) = manager_with(settings().with_prewarm(Some(Prewarm::new(1)))).await;
    sleep(SECOND).await;
    let ready = manager.cached()[0].workspace_id.clone();
    let handle = get(&manager, ready.as_str()).await.unwrap();
    assert_eq!(handle.opening().outcome.kind, OutcomeKind::Created);
    let stranger = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(ready.clone());
    assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    let fresh = manager.create_workspace(&Scope::new("bob", "x", "y").unwrap()).await.unwrap();
    assert_ne!(*fresh.id(), ready);
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success(), "it was taken from under its user");
}

#[tokio::test(start_paused = true)]
async fn what_left_the_buffer_and_came_back_in_use_is_not_handed_out() {
    let (manager, _) = manager_with(settings().with_prewarm(Some(Prewarm::new(1)))).await;
    sleep(SECOND).await;
    let ready = manager.cached()[0].workspace_id.clone();
    manager.close(&ready, CloseOptions::default().with_force(true)).await.unwrap();
    let handle = get(&manager, ready.as_str()).await.unwrap();
    let fresh = manager.create_workspace(&scope("coder")).await.unwrap();
    assert_ne!(*fresh.id(), ready);
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success(), "it was taken from under its user");
}
