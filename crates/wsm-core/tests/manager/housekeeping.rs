//! What a manager does about what earlier services left.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use parking_lot::Mutex;
use tokio::time::sleep;
use wsm_core::{
    Backend, CachedState, CachingManager, Capabilities, FoundState, FoundWorkspace, Leftover, LeftoverKind,
    OpenRequest, Opened, OutcomeKind, Ready, Result, WorkspaceId, WorkspaceManager,
    memory::{MemoryBackend, MemoryConfig, MemoryEngine},
};

use crate::support::{TTL, get, id, request, settings, settle};

/// A backend of one machine that knows what it has opened itself.
#[derive(Debug)]
struct Machine {
    inner: MemoryBackend,
    node_bound: bool,
    opened: Mutex<BTreeSet<WorkspaceId>>,
    leftovers: Mutex<Vec<Leftover>>,
}

impl Machine {
    fn over(engine: &MemoryEngine, node_bound: bool) -> Self {
        let inner = wsm_core::BackendConfig::build(MemoryConfig::new(engine.clone())).unwrap();
        let names = ["wsm-old", "in-use"];
        let leftovers = names.map(|name| Leftover::new(LeftoverKind::Image, name, "superseded")).to_vec();
        Self { inner, node_bound, opened: Mutex::default(), leftovers: Mutex::new(leftovers) }
    }
}

#[async_trait]
impl Backend for Machine {
    fn kind(&self) -> &'static str {
        "machine"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().with_node_bound(self.node_bound)
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        self.opened.lock().insert(request.id.clone());
        self.inner.open(request).await
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        self.inner.find(id).await
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let marked = |mut found: FoundWorkspace| {
            found.is_abandoned = !self.opened.lock().contains(&found.id);
            found
        };
        self.inner.list().map_ok(marked).boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        self.inner.destroy(id).await
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        Ok(self.leftovers.lock().clone())
    }

    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let is_used = leftover.name == "in-use";
        self.leftovers.lock().retain(|kept| is_used || kept != leftover);
        Ok(!is_used)
    }
}

/// An engine on which a service has left one workspace running and one put away.
async fn left_by_a_crash() -> MemoryEngine {
    let engine = MemoryEngine::new();
    let manager = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings()).build().unwrap();
    let manager = Arc::new(manager);
    drop(get(&manager, "asleep").await.unwrap());
    manager.close(&id("asleep"), Default::default()).await.unwrap();
    let running = get(&manager, "running").await.unwrap();
    drop((running, manager));
    assert_eq!(engine.running(), 1);
    engine
}

#[tokio::test(start_paused = true)]
async fn what_runs_for_nobody_is_taken_over_and_put_away_when_idle() {
    let engine = left_by_a_crash().await;
    let manager = CachingManager::builder(Ready(Machine::over(&engine, true))).settings(settings()).build().unwrap();
    let manager = Arc::new(manager);
    manager.start().await.unwrap();
    settle().await;
    let cached: Vec<_> = manager.cached().into_iter().map(|cached| (cached.workspace_id, cached.state)).collect();
    assert_eq!(cached, [(id("running"), CachedState::Live)], "what is put away stays so");
    assert_eq!(manager.leftovers().await.unwrap().len(), 1, "what is in use stays");
    let handle = manager.get_workspace(&request("running")).await.unwrap();
    assert_eq!(handle.opening().outcome.kind, OutcomeKind::Reattached);
    sleep(TTL * 3).await;
    assert_eq!(engine.running(), 1, "it is in use again");
    drop(handle);
    sleep(TTL * 3).await;
    assert_eq!((engine.running(), engine.creations()), (0, 2));
    assert!(manager.shutdown(Duration::from_secs(1)).await.failed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_while_the_manager_runs_is_found_later() {
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(Ready(Machine::over(&engine, true)));
    let manager = Arc::new(builder.settings(settings()).build().unwrap());
    manager.start().await.unwrap();
    settle().await;
    // By another process.
    let other = wsm_core::BackendConfig::build(MemoryConfig::new(engine.clone())).unwrap();
    drop(other.open(OpenRequest::new(id("late"))).await.unwrap());
    sleep(TTL * 4).await;
    assert_eq!(engine.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn replicas_and_short_commands_leave_others_things_alone() {
    for (node_bound, housekeeping) in [(false, true), (true, false)] {
        let engine = left_by_a_crash().await;
        let builder = CachingManager::builder(Ready(Machine::over(&engine, node_bound)));
        let manager = Arc::new(builder.settings(settings().with_housekeeping(housekeeping)).build().unwrap());
        manager.start().await.unwrap();
        sleep(TTL * 4).await;
        assert!(manager.cached().is_empty());
        assert_eq!(engine.running(), 1);
        assert_eq!(manager.leftovers().await.unwrap().len(), 2);
        let found: Vec<_> = manager.list().try_collect().await.unwrap();
        assert!(found.iter().any(|found| found.state == FoundState::Running));
    }
}
