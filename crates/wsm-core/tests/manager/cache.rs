//! Hits, misses and flights.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use wsm_core::{
    Cause, Command, Error, ErrorKind, GetRequest, IsolationPolicy, OutcomeKind, Scope, WorkspaceManager,
    memory::{Effect, Fault, Operation},
};

use crate::support::{TTL, beside, get, id, manager, manager_with, request, scope, settings, settle, unavailable};

#[tokio::test(start_paused = true)]
async fn the_policy_decides_and_an_explicit_id_wins() {
    let (manager, _) = manager().await;
    let scope = scope("coder");
    let assigned = manager.get_workspace(&GetRequest::new(scope.clone())).await.unwrap();
    assert_eq!(*assigned.id(), IsolationPolicy::PerAgent.assign(&scope));
    let explicit = get(&manager, "mine").await.unwrap();
    assert_eq!(explicit.id().as_str(), "mine");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_open_once_and_share_the_workspace() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(1))));
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let manager = manager.clone();
            beside(async move { get(&manager, "w").await.unwrap() })
        })
        .collect();
    let mut handles = Vec::new();
    for caller in callers {
        handles.push(caller.await.unwrap());
    }
    assert_eq!(engine.opens(), 1);
    let first = handles[0].workspace();
    assert!(handles.iter().all(|handle| std::sync::Arc::ptr_eq(&handle.workspace(), &first)));
    assert_eq!(manager.cached()[0].leases, 100);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_share_the_error_and_it_is_not_remembered() {
    let (manager, engine) = manager().await;
    let slow_failure = [Effect::Delay(Duration::from_secs(1)), Effect::Fail(unavailable())];
    engine.plant(Fault::once(Operation::Open, slow_failure[1].clone()));
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let manager = manager.clone();
            beside(async move { get(&manager, "w").await.unwrap_err().kind() })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap(), ErrorKind::Unavailable);
    }
    assert_eq!(engine.opens(), 1);
    assert!(manager.cached().is_empty());
    get(&manager, "w").await.unwrap();
    assert_eq!(engine.opens(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_opening_delays_neither_hits_nor_misses_nor_closing_of_other_ids() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "b").await.unwrap());
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(60))));
    let slow = beside({
        let manager = manager.clone();
        async move { get(&manager, "a").await }
    });
    settle().await;
    let before = Instant::now();
    drop(get(&manager, "b").await.unwrap());
    drop(get(&manager, "c").await.unwrap());
    manager.close(&id("b"), Default::default()).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    slow.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_neither_cancels_nor_leaks_the_opening() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(1))));
    let hasty = tokio::time::timeout(Duration::from_millis(150), get(&manager, "w")).await;
    assert!(hasty.is_err());
    sleep(Duration::from_secs(2)).await;
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!((engine.opens(), handle.opening().outcome.kind), (1, OutcomeKind::Created));
    assert_eq!(manager.cached()[0].leases, 1);
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_panics_frees_its_place() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::Panic));
    assert_eq!(get(&manager, "w").await.unwrap_err().kind(), ErrorKind::Backend);
    get(&manager, "w").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_hangs_ends_at_its_deadline() {
    let (manager, engine) = manager_with(settings().with_open_timeout(Duration::from_secs(5))).await;
    engine.plant(Fault::once(Operation::Open, Effect::Hang));
    let before = Instant::now();
    assert_eq!(get(&manager, "w").await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(before.elapsed() < Duration::from_secs(6));
    get(&manager, "w").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_make_a_second_workspace() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::FailAfter(Error::new(ErrorKind::Unavailable, "lost"))));
    get(&manager, "w").await.unwrap_err();
    get(&manager, "w").await.unwrap();
    assert_eq!(engine.creations(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_users_workspace_is_refused_on_miss_and_hit_alike() {
    let (manager, _) = manager().await;
    let stranger = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(id("w"));
    let handle = get(&manager, "w").await.unwrap();
    for _ in 0..2 {
        let error = manager.get_workspace(&stranger).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "foreign_owner"));
        assert!(!error.to_string().contains("ann"), "{error}");
        if manager.cached().first().is_some_and(|cached| cached.leases == 1) {
            break;
        }
    }
    drop(handle);
    manager.close(&id("w"), Default::default()).await.unwrap();
    assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    get(&manager, "w").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_owner_who_joins_a_strangers_flight_is_not_refused_with_it() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    manager.close(&id("w"), Default::default()).await.unwrap();
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(1))));
    let stranger = beside({
        let manager = manager.clone();
        let request = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(id("w"));
        async move { manager.get_workspace(&request).await }
    });
    settle().await;
    get(&manager, "w").await.unwrap();
    assert_eq!(stranger.await.unwrap().unwrap_err().code(), "foreign_owner");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_who_joins_the_owners_flight_gets_nothing() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(1))));
    let owner = beside({
        let manager = manager.clone();
        async move { get(&manager, "w").await }
    });
    settle().await;
    let stranger = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(id("w"));
    assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    owner.await.unwrap().unwrap();
    assert_eq!(manager.cached()[0].leases, 0);
}

#[tokio::test(start_paused = true)]
async fn openings_are_bounded_and_first_come_first_served() {
    let (manager, engine) = manager_with(settings().with_max_provisioning(2)).await;
    engine.plant(Fault::always(Operation::Open, Effect::Delay(Duration::from_secs(1))));
    let before = Instant::now();
    let mut callers = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let manager = manager.clone();
        callers.push(beside(async move {
            get(&manager, name).await.unwrap();
            before.elapsed().as_secs()
        }));
        settle().await;
    }
    let mut seconds = Vec::new();
    for caller in callers {
        seconds.push(caller.await.unwrap());
    }
    assert_eq!(seconds, [1, 1, 2, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_handle_tells_how_its_workspace_was_opened() {
    let (manager, _) = manager().await;
    let first = get(&manager, "w").await.unwrap();
    let second = get(&manager, "w").await.unwrap();
    assert_eq!(first.opening(), second.opening());
    assert_eq!(first.opening().outcome.kind, OutcomeKind::Created);
    drop((first, second));
    manager.close(&id("w"), Default::default()).await.unwrap();
    let third = manager.get_workspace(&request("w")).await.unwrap();
    assert_eq!(third.opening().outcome.kind, OutcomeKind::Resumed);
    assert_eq!(third.opening().epoch, 2);
}

#[tokio::test(start_paused = true)]
async fn a_stranger_who_is_refused_changes_nothing() {
    let (manager, engine) = manager().await;
    let stranger = GetRequest::new(Scope::new("bob", "x", "y").unwrap()).with_workspace_id(id("w"));
    drop(get(&manager, "w").await.unwrap());
    for _ in 0..3 {
        sleep(TTL / 3).await;
        assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    }
    sleep(TTL / 3).await;
    assert_eq!(engine.suspensions(), 1, "nobody with a right to it has used it for so long");

    let handle = get(&manager, "w").await.unwrap();
    engine.kill(&id("w"), Cause::OutOfMemory);
    assert_eq!(handle.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    let opens = engine.opens();
    engine.plant(Fault::once(Operation::Health, Effect::Fail(Error::new(ErrorKind::Unavailable, "planted"))));
    assert_eq!(manager.get_workspace(&stranger).await.unwrap_err().code(), "foreign_owner");
    assert_eq!(engine.opens(), opens, "it is not for a stranger to have it looked after");
    engine.clear_faults();
    let opening = get(&manager, "w").await.unwrap().opening().clone();
    assert_eq!((opening.outcome.kind, opening.outcome.cause), (OutcomeKind::Resumed, Some(Cause::OutOfMemory)));
}
