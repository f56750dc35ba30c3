//! What is started in which order, and stopped in reverse.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use wsm_core::{CloseReport, Error, ErrorKind, Result};

use crate::{
    app::{AppState, Phase},
    store::{SqliteStore, Store, StoreLock},
};

/// How often measurements are folded into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How often and how long the lock of a store is asked for: the last service may be about to end.
const LOCK_ATTEMPTS: u32 = 4;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Starts and stops what stands behind the routes: the store, then the events, then the manager. Listening comes after
/// that and ends before the stop, and is the caller's.
pub struct Lifecycle {
    state: Arc<AppState>,
    store: PathBuf,
    shutdown_timeout: Duration,
    tasks: TaskTracker,
    running: Mutex<Option<Running>>,
}

/// What a start leaves to be stopped.
struct Running {
    store: Arc<dyn Store>,
    /// Last, so that it is given back after the store is closed.
    _lock: StoreLock,
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifecycle")
            .field("store", &self.store)
            .field("phase", &self.state.phase())
            .finish_non_exhaustive()
    }
}

impl Lifecycle {
    pub(crate) fn new(state: Arc<AppState>, store: PathBuf, shutdown_timeout: Duration) -> Self {
        Self { state, store, shutdown_timeout, tasks: TaskTracker::new(), running: Mutex::new(None) }
    }

    /// Opens the store, starts hearing the manager, and starts the manager. What had been started when something fails
    /// is stopped again.
    ///
    /// # Errors
    ///
    /// `conflict` with code `store_in_use` when another service uses the store, or when this one was started before;
    /// whatever the store or the manager says.
    ///
    /// # Cancel safety
    ///
    /// A dropped call leaves the application unusable: call [`shutdown`](Self::shutdown).
    pub async fn start(&self) -> Result<()> {
        let phase = self.state.phase();
        if phase != Phase::Created || self.running.lock().is_some() {
            return Err(Error::new(ErrorKind::Conflict, "the application was started before"));
        }
        if let Some(parent) = self.store.parent() {
            // What is wrong with the directory is told by the lock file, which can not be made then.
            let _ = tokio::fs::create_dir_all(parent).await;
        }
        let lock = self.lock().await?;
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&self.store).await?);
        *self.running.lock() = Some(Running { store: Arc::clone(&store), _lock: lock });
        self.state.service.use_store(store);
        self.hear_events();
        if let Err(error) = self.state.service.manager().start().await {
            self.stop(Duration::ZERO, false).await;
            return Err(error);
        }
        *self.state.phase.lock() = Phase::Started;
        Ok(())
    }

    /// Stops the manager, which puts every workspace away, then the events, then the store. Does nothing when the
    /// application was not started.
    ///
    /// # Cancel safety
    ///
    /// A dropped call leaves the rest undone; call it again.
    pub async fn shutdown(&self) -> CloseReport {
        self.stop(self.shutdown_timeout, true).await
    }

    /// Ends the event streams, so that a server that waits for its connections need not wait for those.
    pub fn end_streams(&self) {
        self.state.stopping.cancel();
    }

    async fn lock(&self) -> Result<StoreLock> {
        for _ in 1..LOCK_ATTEMPTS {
            match StoreLock::acquire(&self.store) {
                Err(error) if error.code() == "store_in_use" => tokio::time::sleep(LOCK_PAUSE).await,
                answer => return answer,
            }
        }
        StoreLock::acquire(&self.store)
    }

    fn hear_events(&self) {
        let state = Arc::clone(&self.state);
        let mut events = state.service.manager().subscribe();
        self.tasks.spawn(async move {
            let mut upkeep = tokio::time::interval(UPKEEP_INTERVAL);
            loop {
                tokio::select! {
                    Some(event) = events.next() => state.metrics.count(&event.kind),
                    _ = upkeep.tick() => state.metrics.upkeep(),
                    () = state.stopping.cancelled() => break,
                }
            }
            // What the manager said up to its end still counts.
            while let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) {
                state.metrics.count(&event.kind);
            }
        });
    }

    async fn stop(&self, deadline: Duration, manager_started: bool) -> CloseReport {
        if self.running.lock().is_none() {
            return CloseReport::default();
        }
        *self.state.phase.lock() = Phase::Stopped;
        let service = &self.state.service;
        // Work that was begun for callers who went away is finished first: it needs the manager and the store.
        service.finish(deadline).await;
        let report = if manager_started { service.manager().shutdown(deadline).await } else { CloseReport::default() };
        self.state.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let running = self.running.lock().take();
        if let Some(Running { store, _lock }) = running {
            store.close().await;
        }
        report
    }
}
