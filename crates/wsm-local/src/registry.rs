//! Which workspaces are open in this backend, and whose turn it is to open or end one.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use wsm_core::WorkspaceId;
use wsm_host::{Identity, Opening};

/// An open workspace.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) opening: Arc<Opening>,
    /// Which directory it has.
    pub(crate) identity: Identity,
}

impl Live {
    pub(crate) fn id(&self) -> &WorkspaceId {
        self.opening.id()
    }
}

/// The open workspaces, and one lock for each id that is being opened or ended.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    live: Mutex<HashMap<WorkspaceId, Arc<Live>>>,
    turns: Mutex<HashMap<WorkspaceId, Arc<AsyncMutex<()>>>>,
}

impl Registry {
    pub(crate) fn get(&self, id: &WorkspaceId) -> Option<Arc<Live>> {
        self.live.lock().get(id).cloned()
    }

    pub(crate) fn is_open(&self, id: &WorkspaceId) -> bool {
        self.live.lock().contains_key(id)
    }

    pub(crate) fn insert(&self, live: Arc<Live>) {
        self.live.lock().insert(live.id().clone(), live);
    }

    /// Whether exactly this opening is there, and not none or a later one of the same id.
    pub(crate) fn holds(&self, live: &Arc<Live>) -> bool {
        self.live.lock().get(live.id()).is_some_and(|current| Arc::ptr_eq(current, live))
    }

    /// Forgets exactly this opening, not a later one of the same id.
    pub(crate) fn remove(&self, live: &Arc<Live>) {
        let mut open = self.live.lock();
        if open.get(live.id()).is_some_and(|current| Arc::ptr_eq(current, live)) {
            open.remove(live.id());
        }
    }

    /// Waits until nobody else opens or ends `id`.
    pub(crate) async fn turn(&self, id: &WorkspaceId) -> Turn<'_> {
        let lock = Arc::clone(self.turns.lock().entry(id.clone()).or_default());
        // Made before the wait, so that a dropped wait cleans up as well.
        let mut turn = Turn { registry: self, id: id.clone(), guard: None };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }
}

/// The right to open or end one workspace, until dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    registry: &'a Registry,
    id: WorkspaceId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut turns = self.registry.turns.lock();
        // Only the map itself holds a lock that nobody has or waits for, and only under this lock is one handed out.
        if turns.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn turns_of_one_id_exclude_each_other_and_leave_nothing_behind() {
        let registry = Registry::default();
        let id = WorkspaceId::random();
        let first = registry.turn(&id).await;
        assert!(registry.turn(&id).now_or_never().is_none());
        assert!(registry.turn(&WorkspaceId::random()).now_or_never().is_some());
        drop(first);
        assert!(registry.turn(&id).now_or_never().is_some());
        assert!(registry.turns.lock().is_empty());
    }
}
