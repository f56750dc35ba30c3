//! One operation at a time per workspace; those of others never wait for it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use wsm_core::WorkspaceId;

/// A lock for each id that somebody waits for or holds.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<HashMap<WorkspaceId, Weak<tokio::sync::Mutex<()>>>>);

impl Locks {
    /// Waits for the turn of an id, which ends when the guard is dropped.
    ///
    /// # Cancel safety
    ///
    /// Whoever is dropped while waiting loses its place.
    pub(crate) async fn turn(&self, id: &WorkspaceId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            let found = locks.get(id).and_then(Weak::upgrade);
            found.unwrap_or_else(|| {
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::default();
                locks.insert(id.clone(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_do_not_wait_for_each_other_and_leave_nothing() {
        let locks = Locks::default();
        let id = |name: &str| WorkspaceId::new(name).unwrap();
        let held = locks.turn(&id("a")).await;
        drop(locks.turn(&id("b")).await);
        let again = tokio::time::timeout(std::time::Duration::from_millis(20), locks.turn(&id("a"))).await;
        assert!(again.is_err(), "it is held");
        drop(held);
        drop(locks.turn(&id("a")).await);
        drop(locks.turn(&id("c")).await);
        assert_eq!(locks.0.lock().len(), 1);
    }
}
