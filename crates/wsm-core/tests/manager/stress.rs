//! The manager on several threads and in real time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use wsm_core::{
    CloseOptions, Command, ErrorKind, WorkspaceManager,
    memory::{Effect, Fault, Operation},
};

use crate::support::{beside, get, id, manager_with, settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn users_evictions_and_closings_on_many_threads_never_meet() {
    let settings = settings().with_ttl(Duration::from_millis(3)).with_sweep_interval(Duration::from_millis(1));
    let (manager, engine) = manager_with(settings).await;
    let stop = Arc::new(AtomicBool::new(false));
    let uses = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for worker in 0..16 {
        let (manager, stop, uses) = (manager.clone(), Arc::clone(&stop), Arc::clone(&uses));
        tasks.push(beside(async move {
            let mut random = SmallRng::seed_from_u64(worker);
            while !stop.load(Ordering::Relaxed) {
                let name = format!("w{}", random.random_range(0..8));
                match random.random_range(0..20) {
                    0 => {
                        let result = manager.close(&id(&name), CloseOptions::default()).await;
                        assert!(result.is_ok() || result.unwrap_err().kind() == ErrorKind::Conflict);
                    }
                    1 => tokio::time::sleep(Duration::from_millis(random.random_range(1..6))).await,
                    _ => {
                        let handle = get(&manager, &name).await.unwrap();
                        let result = handle.exec(Command::new("echo").arg(&name)).await.unwrap();
                        assert_eq!(result.stdout.to_text(), format!("{name}\n"));
                        uses.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(engine.violations(), Vec::<String>::new());
    assert!(uses.load(Ordering::Relaxed) > 1000, "{}", uses.load(Ordering::Relaxed));
    let report = manager.shutdown(Duration::from_secs(5)).await;
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(engine.running(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_go_on_while_fifty_others_are_opening() {
    let (manager, engine) = manager_with(settings().with_max_provisioning(64)).await;
    drop(get(&manager, "hot").await.unwrap());
    engine.plant(Fault::times(Operation::Open, Effect::Delay(Duration::from_secs(4)), 50));
    let slow: Vec<_> = (0..50)
        .map(|number| {
            let manager = manager.clone();
            beside(async move { get(&manager, &format!("cold{number}")).await.map(drop) })
        })
        .collect();
    while engine.opens() < 51 {
        tokio::task::yield_now().await;
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..20_000 {
        let before = tokio::time::Instant::now();
        drop(get(&manager, "hot").await.unwrap());
        slowest = slowest.max(before.elapsed());
    }
    assert!(slowest < Duration::from_secs(2), "a hit waited {slowest:?} for an opening");
    for task in slow {
        task.await.unwrap().unwrap();
    }
}

/// Two users, of whom each holds one workspace at a time, and two places: there is always room, or some being made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_is_being_made_is_waited_for() {
    let (manager, _) = manager_with(settings().with_max_workspaces(Some(2))).await;
    let users: Vec<_> = (0..2)
        .map(|user| {
            let manager = manager.clone();
            beside(async move {
                for round in 0..5_000 {
                    let name = format!("{user}-{}", round % 3);
                    let result = get(&manager, &name).await;
                    drop(result.unwrap_or_else(|error| panic!("round {round} of user {user}: {error}")));
                }
            })
        })
        .collect();
    for user in users {
        user.await.unwrap();
    }
}
