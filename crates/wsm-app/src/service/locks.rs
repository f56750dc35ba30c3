//! One lock for each key, for as long as somebody wants it.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Asynchronous locks by key. Holders of one key never delay those of another, and a key that nobody uses takes no room.
#[derive(Debug)]
pub(super) struct KeyedLocks<K> {
    locks: Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>,
}

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self { locks: Mutex::new(HashMap::new()) }
    }
}

impl<K: Clone + Eq + Hash> KeyedLocks<K> {
    /// Waits for the key's lock. Dropping what is returned gives it back.
    pub(super) async fn lock<'a>(&'a self, key: &K) -> KeyedGuard<'a, K> {
        // Made before the wait, so that a caller that is dropped while it waits tidies up as well.
        let mut guard = KeyedGuard { locks: self, key: key.clone(), held: None };
        let lock = Arc::clone(self.locks.lock().entry(key.clone()).or_default());
        guard.held = Some(lock.lock_owned().await);
        guard
    }
}

pub(super) struct KeyedGuard<'a, K: Clone + Eq + Hash> {
    locks: &'a KeyedLocks<K>,
    key: K,
    held: Option<OwnedMutexGuard<()>>,
}

impl<K: Clone + Eq + Hash> Drop for KeyedGuard<'_, K> {
    fn drop(&mut self) {
        self.held = None;
        let mut locks = self.locks.locks.lock();
        // Everybody who waits or holds has a clone, and clones are made under this lock.
        if locks.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_key_excludes_and_leaves_nothing_behind() {
        let locks = KeyedLocks::default();
        let first = locks.lock(&1).await;
        let _other = locks.lock(&2).await;
        {
            let mut second = std::pin::pin!(locks.lock(&1));
            assert!(futures::poll!(second.as_mut()).is_pending());
            drop(first);
            second.await;
        }
        // A caller that gives up while it waits.
        let held = locks.lock(&3).await;
        assert!(futures::FutureExt::now_or_never(locks.lock(&3)).is_none());
        drop(held);
        assert_eq!(locks.locks.lock().keys().copied().collect::<Vec<_>>(), [2]);
    }
}
