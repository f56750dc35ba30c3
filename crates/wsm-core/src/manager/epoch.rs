//! One opening of a workspace, and who uses it.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{
    Opening,
    clock::{Clock, NEVER, nanos, until},
};
use crate::{
    id::{UserId, WorkspaceId},
    workspace::ManagedWorkspace,
};

/// Set in [`Epoch::word`] when no further lease may be taken. The other bits count leases.
const CLOSED: u64 = 1 << 63;

/// One opening of a workspace, from the moment it is published until it is put away.
///
/// It is also the outermost wrapper of the workspace, the very `Arc` that callers hold (see the `leased` module): so a
/// handle is one pointer, and a hit counts one reference.
pub(super) struct Epoch {
    /// Itself, for the leases that calls take.
    pub(super) this: Weak<Epoch>,
    /// The number of leases and the [`CLOSED`] bit, in one word: so "nobody uses it, close it" is one compare-and-swap
    /// that no lease can slip through.
    word: AtomicU64,
    /// When the last lease was released.
    released: AtomicU64,
    /// Until when the backend keeps it running by itself.
    running_until: AtomicU64,
    /// Until when this replica is a holder of the id.
    held_until: AtomicU64,
    /// A call ended in a way that makes its life doubtful.
    suspect: AtomicBool,
    /// Wakes those who wait for the last lease.
    unused: Notify,
    /// The workspace's place under `max_workspaces`.
    room: Mutex<Option<OwnedSemaphorePermit>>,
    clock: Clock,
    pub(super) owner: Option<UserId>,
    pub(super) opening: Opening,
    pub(super) opened_at: SystemTime,
    /// The backend's own idle stop, as `open` told it.
    pub(super) idle_stop: Option<Duration>,
    /// The whole stack below the leases.
    pub(super) managed: Arc<dyn ManagedWorkspace>,
}

/// What an epoch is made of.
pub(super) struct EpochParts {
    pub(super) clock: Clock,
    pub(super) owner: Option<UserId>,
    pub(super) opening: Opening,
    pub(super) idle_stop: Option<Duration>,
    pub(super) running_until: u64,
    pub(super) held_until: u64,
    pub(super) managed: Arc<dyn ManagedWorkspace>,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Epoch {
    pub(super) fn new(parts: EpochParts) -> Arc<Self> {
        let EpochParts { clock, owner, opening, idle_stop, running_until, held_until, managed, room } = parts;
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            word: AtomicU64::new(0),
            released: AtomicU64::new(clock.now()),
            running_until: AtomicU64::new(running_until),
            held_until: AtomicU64::new(held_until),
            suspect: AtomicBool::new(false),
            unused: Notify::new(),
            room: Mutex::new(room),
            clock,
            owner,
            opening,
            opened_at: SystemTime::now(),
            idle_stop,
            managed,
        })
    }

    pub(super) fn id(&self) -> &WorkspaceId {
        &self.managed.info().id
    }

    /// Takes a lease, unless the epoch is closed.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return None;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Lease(Arc::clone(self))),
                Err(seen) => word = seen,
            }
        }
    }

    /// Closes the epoch if nobody uses it. Only the caller for which this is true may put it away.
    pub(super) fn close_if_unused(&self) -> bool {
        self.word.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Closes the epoch whoever uses it.
    pub(super) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(super) fn leases(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !CLOSED
    }

    /// Waits until nobody uses the epoch. Somebody may again by the time the caller looks.
    ///
    /// Cancel-safe: it holds nothing.
    pub(super) async fn unused(&self) {
        loop {
            let notified = self.unused.notified();
            if self.leases() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// How long nobody has used it; zero while somebody does.
    pub(super) fn idle(&self) -> Duration {
        if self.leases() > 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.clock.now().saturating_sub(self.released.load(Ordering::Acquire)))
    }

    /// When it was last released: the order in which room is made.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Whether nobody has used it for `ttl` at the time `now`.
    pub(super) fn expired(&self, now: u64, ttl: Duration) -> bool {
        self.leases() == 0 && now.saturating_sub(self.released.load(Ordering::Acquire)) >= nanos(ttl)
    }

    /// Whether a hit must ask for its health first.
    pub(super) fn needs_check(&self) -> bool {
        if self.suspect.load(Ordering::Acquire) {
            return true;
        }
        let until = self.running_until.load(Ordering::Acquire).min(self.held_until.load(Ordering::Acquire));
        // Most backends have no idle stop; then the clock is not even read.
        until != NEVER && self.clock.now() >= until
    }

    pub(super) fn mark_suspect(&self) {
        self.suspect.store(true, Ordering::Release);
    }

    pub(super) fn clear_suspicion(&self) {
        self.suspect.store(false, Ordering::Release);
    }

    /// The backend keeps it running for this long from `asked` on, which is when it was asked to: nobody knows when in
    /// the meantime it began to count.
    pub(super) fn runs_for(&self, asked: u64, duration: Option<Duration>) {
        self.running_until.store(until(asked, duration), Ordering::Release);
    }

    /// This replica is a holder for this long from `asked` on.
    pub(super) fn held_for(&self, asked: u64, duration: Option<Duration>) {
        self.held_until.store(until(asked, duration), Ordering::Release);
    }

    pub(super) fn is_held(&self) -> bool {
        let until = self.held_until.load(Ordering::Acquire);
        until == NEVER || self.clock.now() < until
    }

    /// Whether the coordinator wants to hear of it.
    pub(super) fn is_held_on_time(&self) -> bool {
        self.held_until.load(Ordering::Acquire) != NEVER
    }

    /// Gets a place under `max_workspaces` back.
    pub(super) fn set_room(&self, room: Option<OwnedSemaphorePermit>) {
        *self.room.lock() = room;
    }

    /// Gives up the place under `max_workspaces`, or hands it on.
    pub(super) fn take_room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.lock().take()
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch")
            .field("id", self.id())
            .field("leases", &self.leases())
            .field("opening", &self.opening)
            .finish_non_exhaustive()
    }
}

/// Keeps an epoch from being put away while it exists.
#[derive(Debug)]
pub(super) struct Lease(Arc<Epoch>);

impl Lease {
    pub(super) fn epoch(&self) -> &Arc<Epoch> {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let epoch = &self.0;
        // The time first: whoever sees no lease then sees when the last one ended.
        epoch.released.fetch_max(epoch.clock.now(), Ordering::Release);
        let before = epoch.word.fetch_sub(1, Ordering::AcqRel);
        if before & !CLOSED == 1 {
            epoch.unused.notify_waiters();
        }
    }
}
