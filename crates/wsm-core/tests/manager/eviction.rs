//! Idle time, leases and the sweeper.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, advance, sleep},
};
use wsm_core::{
    CachedState, CachingManager, Command, ErrorKind, ManagerSettings, OutcomeKind, Process, ProcessEvent, ReadOptions,
    SweepTrigger, WorkspaceExt, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{TTL, beside, get, id, manager, settings, settle, unavailable};

const LONG: Duration = Duration::from_secs(3 * 60);

#[tokio::test(start_paused = true)]
async fn what_nobody_uses_is_put_away_after_the_ttl_and_not_before() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    sleep(TTL - Duration::from_secs(5)).await;
    assert_eq!(engine.suspensions(), 0);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(engine.suspensions(), 1);
    assert!(manager.cached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_get_starts_the_idle_time_anew() {
    let (manager, engine) = manager().await;
    for _ in 0..10 {
        drop(get(&manager, "w").await.unwrap());
        sleep(TTL / 2).await;
    }
    assert_eq!((engine.opens(), engine.suspensions()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handle_keeps_the_workspace() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    sleep(LONG).await;
    assert_eq!(engine.suspensions(), 0);
    drop(handle);
    sleep(TTL - Duration::from_secs(1)).await;
    assert_eq!(engine.suspensions(), 0, "idle time counts from the last use, not from the get");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(engine.suspensions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_running_command_keeps_the_workspace_without_any_handle() {
    let (manager, engine) = manager().await;
    let workspace = get(&manager, "w").await.unwrap().workspace();
    let result = workspace.exec(Command::new("sleep").arg("600")).await.unwrap();
    assert!(result.status.success());
    assert_eq!((engine.suspensions(), engine.violations()), (0, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_keeps_the_workspace_until_its_end() {
    let (manager, engine) = manager().await;
    let workspace = get(&manager, "w").await.unwrap().workspace();
    workspace.write_bytes("f", Bytes::from_static(b"hello")).await.unwrap();

    let body = workspace.read("f", ReadOptions::default()).await.unwrap().body;
    sleep(LONG).await;
    assert_eq!(engine.suspensions(), 0, "an unread file body");
    assert_eq!(body.count().await, 1);

    let mut process = workspace.spawn(Command::new("cat")).await.unwrap();
    process.stdin.write_all(b"x").await.unwrap();
    sleep(LONG).await;
    assert_eq!(engine.suspensions(), 0, "a process that waits for input");
    drop(process.stdin);
    let events: Vec<_> = process.output.by_ref().collect().await;
    assert_eq!(events.len(), 2);
    drop(process.output);
    sleep(LONG).await;
    assert_eq!((engine.suspensions(), engine.violations()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_outlives_its_epoch_is_gone_and_blocks_nothing() {
    let (manager, _) = manager().await;
    let old = get(&manager, "w").await.unwrap().workspace();
    sleep(LONG).await;
    let error = old.exec(Command::new("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let new = get(&manager, "w").await.unwrap();
    assert_eq!(new.opening().outcome.kind, OutcomeKind::Resumed);
    assert_eq!(old.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    assert!(new.exec(Command::new("true")).await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn a_get_during_the_suspend_waits_for_its_end_and_opens_anew() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    engine.plant(Fault::once(Operation::Suspend, Effect::Delay(Duration::from_secs(30))));
    let closing = beside({
        let manager = manager.clone();
        async move { manager.close(&id("w"), Default::default()).await }
    });
    settle().await;
    assert_eq!(manager.cached()[0].state, CachedState::Suspending);
    let before = Instant::now();
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(30));
    assert_eq!(handle.opening().outcome.kind, OutcomeKind::Resumed);
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
    closing.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_has_expired_but_is_not_yet_suspended_is_revived_by_a_get() {
    let settings = settings().with_sweep_interval(Duration::from_secs(1000));
    let (manager, engine) = crate::support::manager_with(settings).await;
    drop(get(&manager, "w").await.unwrap());
    sleep(TTL * 5).await;
    let handle = get(&manager, "w").await.unwrap();
    manager.sweep().await;
    assert_eq!((engine.opens(), engine.suspensions()), (1, 0));
    drop(handle);
}

#[tokio::test(start_paused = true)]
async fn a_suspend_that_fails_is_tried_again_and_stops_nothing_else() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "a").await.unwrap());
    drop(get(&manager, "b").await.unwrap());
    engine.plant(Fault::times(Operation::Suspend, Effect::Fail(unavailable()), 3));
    sleep(TTL + Duration::from_secs(60)).await;
    assert_eq!(engine.suspensions(), 2);
    assert!(manager.cached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_get_after_a_failed_suspend_goes_through_open() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    engine.plant(Fault::once(Operation::Suspend, Effect::Fail(unavailable())));
    manager.close(&id("w"), Default::default()).await.unwrap_err();
    assert_eq!(manager.cached()[0].state, CachedState::Doubtful);
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!((engine.opens(), handle.opening().outcome.kind), (2, OutcomeKind::Reattached));
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn a_suspend_that_hangs_or_panics_leaves_the_id_usable() {
    for effect in [Effect::Hang, Effect::Panic] {
        let settings = settings().with_suspend_timeout(Duration::from_secs(5));
        let (manager, engine) = crate::support::manager_with(settings).await;
        drop(get(&manager, "w").await.unwrap());
        engine.plant(Fault::once(Operation::Suspend, effect));
        manager.close(&id("w"), Default::default()).await.unwrap_err();
        get(&manager, "w").await.unwrap();
        sleep(LONG).await;
        assert_eq!(engine.suspensions(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_timer_the_next_get_collects_what_expired() {
    let engine = MemoryEngine::new();
    let config = MemoryConfig::new(engine.clone()).with_sweep(SweepTrigger::Get);
    let settings = ManagerSettings::default().with_ttl(TTL);
    let manager = std::sync::Arc::new(CachingManager::builder(config).settings(settings).build().unwrap());
    drop(get(&manager, "old").await.unwrap());
    sleep(LONG).await;
    assert_eq!(engine.suspensions(), 0, "no timer runs");
    drop(get(&manager, "new").await.unwrap());
    settle().await;
    assert_eq!(engine.suspensions(), 1);
    assert_eq!(manager.cached().len(), 1);
    // Not at every get: a tenth of the TTL must pass.
    advance(TTL).await;
    drop(get(&manager, "newer").await.unwrap());
    settle().await;
    assert_eq!(engine.suspensions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_stops_its_sweeper() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    drop(manager);
    sleep(LONG).await;
    assert_eq!(engine.suspensions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_has_ended_uses_nothing_whoever_keeps_its_parts() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    let Process { stdin, mut output, control, .. } = handle.spawn(Command::new("true")).await.unwrap();
    drop(handle);
    assert!(manager.cached()[0].leases > 0);
    while let Some(event) = output.next().await {
        if let ProcessEvent::End(status) = event {
            assert!(status.success());
        }
    }
    assert_eq!(manager.cached()[0].leases, 0);
    sleep(TTL * 2).await;
    assert_eq!(engine.suspensions(), 1);
    drop((stdin, output, control));
}
