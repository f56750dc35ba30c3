//! Several managers over one engine, kept apart by a coordinator.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, time::sleep};
use wsm_core::{
    CachingManager, Checkpoint, Command, Coordinator, CoordinatorLock, Entered, ErrorKind, EventKind, Leave, Release,
    Renewed, Result, WorkspaceId, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{Manager, TTL, beside, get, id, settings, unavailable};

/// Rows as a database would have them, shared by all replicas.
#[derive(Debug, Default)]
struct Table {
    holders: Mutex<HashMap<WorkspaceId, Vec<u32>>>,
    locks: Mutex<HashMap<WorkspaceId, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug, Clone)]
struct Replica {
    table: Arc<Table>,
    number: u32,
}

#[derive(Debug)]
struct RowLock {
    replica: Replica,
    id: WorkspaceId,
    _guard: OwnedMutexGuard<()>,
}

impl Replica {
    async fn lock(&self, id: &WorkspaceId) -> OwnedMutexGuard<()> {
        let lock = Arc::clone(self.table.locks.lock().entry(id.clone()).or_default());
        lock.lock_owned().await
    }
}

#[async_trait]
impl Coordinator for Replica {
    async fn enter(&self, id: &WorkspaceId, _: bool) -> Result<Entered> {
        let guard = self.lock(id).await;
        let mut holders = self.table.holders.lock();
        let row = holders.entry(id.clone()).or_default();
        if !row.contains(&self.number) {
            row.push(self.number);
        }
        drop(holders);
        let lock = Box::new(RowLock { replica: self.clone(), id: id.clone(), _guard: guard });
        Ok(Entered { lock, checkpoint: None, valid_for: Some(Duration::from_secs(30)) })
    }

    async fn renew(&self, ids: &[WorkspaceId]) -> Result<Renewed> {
        let holders = self.table.holders.lock();
        let lost = ids.iter().filter(|id| !holders.get(*id).is_some_and(|row| row.contains(&self.number)));
        Ok(Renewed { valid_for: Some(Duration::from_secs(30)), lost: lost.cloned().collect() })
    }

    async fn leave(&self, id: &WorkspaceId) -> Result<Leave> {
        let guard = self.lock(id).await;
        let mut holders = self.table.holders.lock();
        let row = holders.entry(id.clone()).or_default();
        if row.iter().any(|holder| *holder != self.number) {
            row.retain(|holder| *holder != self.number);
            return Ok(Leave::OthersHold);
        }
        Ok(Leave::Last(Box::new(RowLock { replica: self.clone(), id: id.clone(), _guard: guard })))
    }
}

#[async_trait]
impl CoordinatorLock for RowLock {
    async fn release(self: Box<Self>, how: Release) -> Result<()> {
        if let Release::Vacate(checkpoint) = how {
            let _: Option<Checkpoint> = checkpoint;
            if let Some(row) = self.replica.table.holders.lock().get_mut(&self.id) {
                row.retain(|holder| *holder != self.replica.number);
            }
        }
        Ok(())
    }
}

fn replica(engine: &MemoryEngine, table: &Arc<Table>, number: u32) -> Manager {
    let coordinator = Arc::new(Replica { table: Arc::clone(table), number });
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings());
    Arc::new(builder.coordinator(coordinator).build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn two_replicas_share_one_workspace_and_only_the_last_suspends_it() {
    let (engine, table) = (MemoryEngine::new(), Arc::new(Table::default()));
    let (first, second) = (replica(&engine, &table, 1), replica(&engine, &table, 2));
    let opened = tokio::join!(get(&first, "w"), get(&second, "w"));
    drop(opened.0.unwrap());
    let held = opened.1.unwrap();
    assert_eq!(engine.creations(), 1);
    sleep(TTL * 2).await;
    assert!(first.cached().is_empty(), "the first has let go");
    assert_eq!(engine.suspensions(), 0);
    assert!(held.exec(Command::new("true")).await.unwrap().status.success());
    drop(held);
    sleep(TTL * 2).await;
    assert_eq!(engine.suspensions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_lost_its_row_lets_go_without_suspending() {
    use futures::StreamExt;

    let (engine, table) = (MemoryEngine::new(), Arc::new(Table::default()));
    let manager = replica(&engine, &table, 1);
    drop(get(&manager, "w").await.unwrap());
    let mut events = manager.subscribe();
    table.holders.lock().insert(id("w"), vec![2]);
    sleep(Duration::from_secs(31)).await;
    let handle = get(&manager, "w").await.unwrap();
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
    assert_eq!((engine.suspensions(), engine.opens()), (0, 2));
    let detached = beside(async move {
        loop {
            if let EventKind::Detached { .. } = events.next().await.unwrap().kind {
                return;
            }
        }
    });
    tokio::time::timeout(Duration::from_secs(1), detached).await.unwrap().unwrap();
}

/// Gives every lock away, and never answers when one is given back.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Coordinator for Silent {
    async fn enter(&self, _: &WorkspaceId, _: bool) -> Result<Entered> {
        Ok(Entered { lock: Box::new(Self), checkpoint: None, valid_for: None })
    }

    async fn renew(&self, _: &[WorkspaceId]) -> Result<Renewed> {
        Ok(Renewed { valid_for: None, lost: Vec::new() })
    }

    async fn leave(&self, _: &WorkspaceId) -> Result<Leave> {
        Ok(Leave::Last(Box::new(Self)))
    }
}

#[async_trait]
impl CoordinatorLock for Silent {
    async fn release(self: Box<Self>, _: Release) -> Result<()> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_does_not_answer_keeps_no_caller_for_ever() {
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings());
    let manager = Arc::new(builder.coordinator(Arc::new(Silent)).build().unwrap());
    let work = async {
        assert_eq!(get(&manager, "w").await.unwrap_err().kind(), ErrorKind::Timeout);
        engine.plant(Fault::once(Operation::Open, Effect::Fail(unavailable())));
        assert_eq!(get(&manager, "w").await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(manager.destroy(&id("w")).await.unwrap_err().kind(), ErrorKind::Timeout);
    };
    tokio::time::timeout(Duration::from_secs(7200), work).await.expect("all come to an end");
}

/// A row expires while its replica waits for the engine, or for the answer to its renewal: what counts is when the
/// replica asked.
#[tokio::test(start_paused = true)]
async fn a_row_that_expired_while_its_replica_waited_is_asked_for_again() {
    let (engine, table) = (MemoryEngine::new(), Arc::new(Table::default()));
    let manager = replica(&engine, &table, 1);
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(63))));
    let opening = beside({
        let manager = manager.clone();
        async move { get(&manager, "w").await }
    });
    sleep(Duration::from_secs(40)).await;
    table.holders.lock().insert(id("w"), vec![2]);
    drop(opening.await.unwrap().unwrap());
    let handle = get(&manager, "w").await.unwrap();
    assert_eq!(engine.opens(), 2, "it was not its own any more");
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success());
}
