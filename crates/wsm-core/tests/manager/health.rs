//! Workspaces that die, and those that only might have.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use wsm_core::{
    CachingManager, Cause, Command, ErrorKind, Loss, OutcomeKind, WorkspaceExt, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{beside, get, id, manager, settings, unavailable};

#[tokio::test(start_paused = true)]
async fn a_dead_workspace_is_opened_anew_once_and_the_handle_says_why() {
    let (manager, engine) = manager().await;
    let old = get(&manager, "w").await.unwrap();
    engine.kill(&id("w"), Cause::OutOfMemory);
    assert_eq!(old.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let manager = manager.clone();
            beside(async move { get(&manager, "w").await.unwrap() })
        })
        .collect();
    for caller in callers {
        let handle = caller.await.unwrap();
        let outcome = &handle.opening().outcome;
        assert_eq!((outcome.kind, outcome.cause), (OutcomeKind::Resumed, Some(Cause::OutOfMemory)));
        assert!(outcome.lost.contains(&Loss::Processes));
        assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
    }
    assert_eq!(engine.opens(), 2);
    // The old handle's lease belongs to a dead epoch: it neither blocks nor keeps the new one.
    manager.close(&id("w"), Default::default()).await.unwrap();
    drop(old);
}

#[tokio::test(start_paused = true)]
async fn lost_files_are_told_and_the_generation_rises() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.opening().generation, 0);
    engine.lose_files(&id("w"));
    handle.exec(Command::new("true")).await.unwrap_err();
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.opening().outcome.kind, OutcomeKind::Recreated);
    assert!(handle.opening().outcome.lost.contains(&Loss::WorkspaceFiles));
    assert_eq!((handle.opening().generation, handle.info().generation), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn undecided_is_an_error_and_never_opens_anew() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    handle.write_bytes("f", "precious".into()).await.unwrap();
    engine.plant(Fault::once(Operation::Exec, Effect::Fail(unavailable())));
    handle.exec(Command::new("true")).await.unwrap_err();
    for effect in [Effect::Fail(unavailable()), Effect::Hang] {
        engine.plant(Fault::once(Operation::Health, effect));
        let error = get(&manager, "w").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
        assert_eq!(engine.opens(), 1);
    }
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.read_text("f", 100).await.unwrap(), "precious");
    assert_eq!(engine.opens(), 1, "it was alive all along");
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_end_nobody_saw_makes_the_next_get_look() {
    let (manager, engine) = manager().await;
    let workspace = get(&manager, "w").await.unwrap().workspace();
    let running = beside({
        let workspace = Arc::clone(&workspace);
        async move { workspace.exec(Command::new("sleep").arg("60")).await.unwrap().status }
    });
    sleep(Duration::from_secs(1)).await;
    engine.kill(&id("w"), Cause::Killed);
    assert!(matches!(running.await.unwrap(), wsm_core::ExitStatus::Unknown { .. }));
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.opening().outcome.cause, Some(Cause::Killed));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_with_an_idle_stop_is_kept_alive_while_used_and_checked_when_not() {
    let engine = MemoryEngine::new();
    let config = MemoryConfig::new(engine.clone()).with_idle_stop(Duration::from_secs(30));
    let manager = CachingManager::builder(config).settings(settings().with_ttl(Duration::from_secs(3600))).build();
    let manager = Arc::new(manager.unwrap());
    let handle = get(&manager, "w").await.unwrap();
    let result = handle.exec(Command::new("sleep").arg("300")).await.unwrap();
    assert!(result.status.success(), "{:?}", result.status);
    drop(handle);
    sleep(Duration::from_secs(600)).await;
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(handle.opening().outcome.cause, Some(Cause::Expired));
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
}

#[tokio::test(start_paused = true)]
async fn a_health_check_that_panics_frees_its_place() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    engine.plant(Fault::once(Operation::Exec, Effect::Fail(unavailable())));
    handle.exec(Command::new("true")).await.unwrap_err();
    engine.plant(Fault::once(Operation::Health, Effect::Panic));
    get(&manager, "w").await.unwrap_err();
    get(&manager, "w").await.unwrap();
}
