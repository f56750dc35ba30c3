//! Which workspaces a backend has open, and whose turn it is to open or end one.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use wsm_core::WorkspaceId;

/// The open workspaces of a backend, each with what it has to know of one, and one lock for each id that is being opened
/// or ended.
#[derive(Debug)]
pub struct Registry<L> {
    live: Mutex<HashMap<WorkspaceId, Arc<L>>>,
    turns: Arc<Turns>,
}

type Turns = Mutex<HashMap<WorkspaceId, Arc<AsyncMutex<()>>>>;

impl<L> Default for Registry<L> {
    fn default() -> Self {
        Self { live: Mutex::default(), turns: Arc::default() }
    }
}

impl<L> Registry<L> {
    /// The open workspace of an id.
    pub fn get(&self, id: &WorkspaceId) -> Option<Arc<L>> {
        self.live.lock().get(id).cloned()
    }

    /// Whether a workspace of that id is open.
    pub fn is_open(&self, id: &WorkspaceId) -> bool {
        self.live.lock().contains_key(id)
    }

    /// Notes that a workspace is open.
    pub fn insert(&self, id: WorkspaceId, live: Arc<L>) {
        self.live.lock().insert(id, live);
    }

    /// Whether exactly this opening is there, and not none or a later one of the same id.
    pub fn holds(&self, id: &WorkspaceId, live: &Arc<L>) -> bool {
        self.live.lock().get(id).is_some_and(|current| Arc::ptr_eq(current, live))
    }

    /// Forgets exactly this opening, not a later one of the same id.
    pub fn remove(&self, id: &WorkspaceId, live: &Arc<L>) {
        let mut open = self.live.lock();
        if open.get(id).is_some_and(|current| Arc::ptr_eq(current, live)) {
            open.remove(id);
        }
    }

    /// Waits until nobody else opens or ends `id`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the wait gives the place in the queue up.
    pub async fn turn(&self, id: &WorkspaceId) -> Turn {
        let lock = Arc::clone(self.turns.lock().entry(id.clone()).or_default());
        // Made before the wait, so that a dropped wait cleans up as well.
        let mut turn = Turn { turns: Arc::clone(&self.turns), id: id.clone(), guard: None };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }
}

/// The right to open or end one workspace, until dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    id: WorkspaceId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut turns = self.turns.lock();
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
        let registry = Registry::<()>::default();
        let id = WorkspaceId::random();
        let first = registry.turn(&id).await;
        assert!(registry.turn(&id).now_or_never().is_none());
        assert!(registry.turn(&WorkspaceId::random()).now_or_never().is_some());
        drop(first);
        assert!(registry.turn(&id).now_or_never().is_some());
        assert!(registry.turns.lock().is_empty());
    }

    #[test]
    fn only_the_opening_that_is_meant_is_forgotten() {
        let (registry, id) = (Registry::default(), WorkspaceId::random());
        let (earlier, later) = (Arc::new(1), Arc::new(2));
        registry.insert(id.clone(), Arc::clone(&earlier));
        registry.insert(id.clone(), Arc::clone(&later));
        registry.remove(&id, &earlier);
        assert!(registry.holds(&id, &later) && !registry.holds(&id, &earlier));
        registry.remove(&id, &later);
        assert!(!registry.is_open(&id) && registry.get(&id).is_none());
    }
}
