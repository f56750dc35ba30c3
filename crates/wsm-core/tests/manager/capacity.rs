//! `max_workspaces`.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use wsm_core::{
    ErrorKind, Retry, WorkspaceManager,
    memory::{Effect, Fault, Operation},
};

use crate::support::{beside, get, id, manager_with, settings, settle};

#[tokio::test(start_paused = true)]
async fn over_the_limit_the_longest_idle_goes_first() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(3))).await;
    for name in ["a", "b", "c"] {
        drop(get(&manager, name).await.unwrap());
        sleep(Duration::from_secs(1)).await;
    }
    drop(get(&manager, "a").await.unwrap());
    sleep(Duration::from_secs(1)).await;
    drop(get(&manager, "d").await.unwrap());
    let mut left: Vec<_> = manager.cached().into_iter().map(|cached| cached.workspace_id.to_string()).collect();
    left.sort();
    assert_eq!(left, ["a", "c", "d"]);
    assert_eq!(engine.running(), 3);
}

#[tokio::test(start_paused = true)]
async fn when_all_are_in_use_the_error_says_so() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(2))).await;
    let handles = [get(&manager, "a").await.unwrap(), get(&manager, "b").await.unwrap()];
    let error = get(&manager, "c").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    assert!(matches!(error.retry(), Retry::After(_)));
    assert!(error.message().contains("max_workspaces"), "{error}");
    assert_eq!(engine.creations(), 2, "nothing was made for it");
    drop(handles);
    get(&manager, "c").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_at_once_never_exceed_the_limit() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(5))).await;
    let callers: Vec<_> = (0..200)
        .map(|number| {
            let manager = manager.clone();
            let engine = engine.clone();
            beside(async move {
                let name = format!("w{}", number % 40);
                for _ in 0..5 {
                    match get(&manager, &name).await {
                        Ok(handle) => {
                            assert!(engine.running() <= 5);
                            sleep(Duration::from_millis(10)).await;
                            drop(handle);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
                            sleep(Duration::from_millis(7)).await;
                        }
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(engine.running() <= 5);
    assert_eq!(engine.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_destroyed_or_dead_workspace_gives_its_place_back() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(1))).await;
    for round in 0..3 {
        let handle = get(&manager, "a").await.unwrap();
        engine.kill(&id("a"), wsm_core::Cause::Killed);
        handle.exec(wsm_core::Command::new("true")).await.unwrap_err();
        let again = get(&manager, "a").await.unwrap();
        drop((handle, again));
        manager.destroy(&id("a")).await.unwrap();
        drop(get(&manager, "b").await.unwrap());
        assert_eq!(engine.running(), 1, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_takes_the_first_that_there_is() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(2))).await;
    drop(get(&manager, "a").await.unwrap());
    let used = get(&manager, "b").await.unwrap();
    engine.plant(Fault::once(Operation::Suspend, Effect::Hang));
    let closing = beside({
        let manager = manager.clone();
        async move { manager.close(&id("a"), Default::default()).await }
    });
    settle().await;
    let waiting = beside({
        let manager = manager.clone();
        async move { get(&manager, "c").await }
    });
    sleep(Duration::from_secs(1)).await;
    drop(used);
    timeout(Duration::from_secs(2), waiting).await.expect("`b` makes room at once").unwrap().unwrap();
    closing.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_room_that_does_not_come_ends_with_what_it_waits_for() {
    let (manager, engine) = manager_with(settings().with_max_workspaces(Some(1))).await;
    let used = get(&manager, "a").await.unwrap();
    engine.plant(Fault::once(Operation::Destroy, Effect::Delay(Duration::from_secs(3))));
    let destruction = beside({
        let manager = manager.clone();
        async move { manager.destroy(&id("never opened")).await }
    });
    settle().await;
    let before = Instant::now();
    assert_eq!(get(&manager, "b").await.unwrap_err().kind(), ErrorKind::Capacity);
    assert!(before.elapsed() < Duration::from_secs(5), "it took {:?}", before.elapsed());
    destruction.await.unwrap().unwrap();
    drop(used);
}
