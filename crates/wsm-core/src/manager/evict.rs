//! Puts workspaces away: the one place where suspending, detaching and destroying begin.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use super::{
    CloseOptions,
    clock::deadline,
    core::Core,
    epoch::Epoch,
    slot::{Doubt, Settled, Slot, State},
};
use crate::{
    backend::Outcome,
    coordinate::{CoordinatorLock, Entered, Leave, Release},
    error::{Error, ErrorKind, Result, Retry},
    event::{EventKind, EvictReason},
    id::WorkspaceId,
};

/// How often whoever waits for room looks around.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(50);

/// How a workspace was put away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutAway {
    Suspended,
    Detached,
}

/// What came of the wish to put a workspace away.
#[derive(Debug)]
pub(super) enum Begun {
    /// This call began it.
    Started(Settled),
    /// It is being put away or destroyed already.
    Joined(Settled),
    /// Somebody uses it.
    InUse(Arc<Epoch>),
    /// It is being opened or checked.
    Busy,
    /// Nothing is open.
    Nothing,
}

/// When a workspace may be put away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Nobody has used it for this long.
    IdleFor(Duration),
    /// Nobody uses it.
    Unused,
    /// Whoever uses it.
    Always,
}

/// A slot whose state is `Settling`, for the task that settles it. When the task ends without a word, as a panic makes
/// it do, the slot becomes doubtful rather than settling for ever.
struct Settling {
    core: Arc<Core>,
    slot: Arc<Slot>,
    epoch: Option<Arc<Epoch>>,
    /// What remains to be told to whoever opens it next, unless it is destroyed.
    untold: Option<Outcome>,
    report: Option<watch::Sender<Option<Result<()>>>>,
}

impl Settling {
    fn new(core: &Arc<Core>, slot: &Arc<Slot>, doubt: Doubt, report: watch::Sender<Option<Result<()>>>) -> Self {
        core.settling.fetch_add(1, Ordering::AcqRel);
        let Doubt { epoch, untold } = doubt;
        Self { core: Arc::clone(core), slot: Arc::clone(slot), epoch, untold, report: Some(report) }
    }

    fn finish(&mut self, result: Result<()>) {
        if let Some(report) = self.report.take() {
            let _ = report.send(Some(result));
        }
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if self.report.is_some() {
            let doubt = Doubt { epoch: self.epoch.take(), untold: self.untold.take() };
            self.slot.set(&mut self.slot.lock(), State::Doubtful(doubt));
            let error = Error::new(ErrorKind::Backend, "putting the workspace away panicked or was stopped");
            self.core.hub.failed(&self.slot.id, "suspend", &error);
        }
        self.core.settling.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Core {
    /// Begins to put a workspace away. The decision and the change of state are one step under the slot's lock; the
    /// work is a task of its own, so a caller that goes away stops nothing.
    pub(super) fn begin_eviction(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        condition: Condition,
        reason: EvictReason,
    ) -> Begun {
        let mut state = slot.lock();
        let doubt = match &mut *state {
            State::Vacant | State::Retired => return Begun::Nothing,
            State::Opening(_) | State::Checking(..) => return Begun::Busy,
            State::Settling(settled) => return Begun::Joined(settled.clone()),
            State::Live(epoch) => {
                let closed = match condition {
                    Condition::IdleFor(ttl) if !epoch.expired(self.clock.now(), ttl) => false,
                    Condition::IdleFor(_) | Condition::Unused => epoch.close_if_unused(),
                    Condition::Always => {
                        epoch.close();
                        true
                    }
                };
                if !closed {
                    return Begun::InUse(Arc::clone(epoch));
                }
                Doubt { epoch: Some(Arc::clone(epoch)), untold: None }
            }
            State::Doubtful(doubt) if doubt.is_news_only() => return Begun::Nothing,
            State::Doubtful(doubt) if doubt.epoch.is_none() => {
                self.retire(slot, &mut state);
                return Begun::Nothing;
            }
            State::Doubtful(doubt) => std::mem::take(doubt),
        };
        let (report, settled) = Settled::channel();
        // Counted before anybody can see that it is no longer live.
        let mut settling = Settling::new(self, slot, doubt, report);
        slot.set(&mut state, State::Settling(settled.clone()));
        drop(state);

        self.tasks.spawn(async move {
            let Some(epoch) = settling.epoch.clone() else { return };
            let result = settling.core.put_away(&epoch, None).await;
            let untold = settling.untold.take();
            settling.core.settle(&settling.slot, &epoch, untold, reason, result.clone());
            settling.finish(result.map(drop));
        });
        Begun::Started(settled)
    }

    fn settle(
        &self,
        slot: &Slot,
        epoch: &Arc<Epoch>,
        untold: Option<Outcome>,
        reason: EvictReason,
        result: Result<PutAway>,
    ) {
        match result {
            Ok(how) => {
                epoch.take_room();
                let (mut state, left) = (slot.lock(), Doubt { epoch: None, untold });
                if left.is_news_only() {
                    slot.set(&mut state, State::Doubtful(left));
                } else {
                    self.retire(slot, &mut state);
                }
                drop(state);
                self.hub.send(
                    &slot.id,
                    match how {
                        PutAway::Suspended => EventKind::Suspended { reason },
                        PutAway::Detached => EventKind::Detached { reason },
                    },
                );
            }
            Err(error) => {
                let doubt = Doubt { epoch: Some(Arc::clone(epoch)), untold };
                slot.set(&mut slot.lock(), State::Doubtful(doubt));
                self.hub.failed(&slot.id, "suspend", &error);
            }
        }
    }

    /// Suspends a closed epoch's workspace, or detaches from it when other replicas hold it.
    pub(super) async fn put_away(&self, epoch: &Epoch, lock: Option<Box<dyn CoordinatorLock>>) -> Result<PutAway> {
        let work = async {
            let leave = match lock {
                Some(lock) => Leave::Last(lock),
                None => self.coordinator.leave(epoch.id()).await?,
            };
            match leave {
                Leave::OthersHold => {
                    epoch.managed.detach().await?;
                    Ok(PutAway::Detached)
                }
                Leave::Last(lock) => {
                    // On an error the lock is dropped unreleased: the state is unknown, and it expires.
                    let checkpoint = epoch.managed.suspend().await?;
                    lock.release(Release::Vacate(checkpoint)).await?;
                    Ok(PutAway::Suspended)
                }
            }
        };
        self.within(self.settings.suspend_timeout, "suspend", work)
            .await
            .map_err(|error| self.place(error, "suspend").with_workspace(epoch.id()))
    }

    /// Puts one workspace away, waiting for its uses to end as long as `options` say.
    pub(super) async fn close(
        self: &Arc<Self>,
        id: &WorkspaceId,
        options: CloseOptions,
        reason: EvictReason,
    ) -> Result<bool> {
        let CloseOptions { wait, force } = options;
        let deadline = deadline(wait);
        loop {
            let Some(slot) = self.find_slot(id) else { return Ok(false) };
            let late = Instant::now() >= deadline;
            let condition = if late && force { Condition::Always } else { Condition::Unused };
            match self.begin_eviction(&slot, condition, reason) {
                Begun::Nothing => return Ok(false),
                Begun::Started(settled) => return settled.wait().await.map(|()| true),
                Begun::Joined(settled) => {
                    // Whose attempt it was may have failed; then this one tries for itself.
                    if settled.wait().await.is_ok() {
                        return Ok(true);
                    }
                }
                Begun::InUse(_) | Begun::Busy if late && !force => {
                    let message = format!("the workspace is still in use after {wait:?}: wait longer, or force it");
                    return Err(self.place(Error::new(ErrorKind::Conflict, message), "close").with_workspace(id));
                }
                Begun::InUse(epoch) => {
                    // Either way, the next round decides.
                    let _ = tokio::time::timeout_at(deadline, epoch.unused()).await;
                }
                Begun::Busy if late => {
                    let message = "the workspace was still opening at the deadline";
                    return Err(self.place(Error::new(ErrorKind::Timeout, message), "close").with_workspace(id));
                }
                Begun::Busy => {
                    let _ = tokio::time::timeout_at(deadline, self.wait_for_flight(&slot)).await;
                }
            }
        }
    }

    /// Waits until a slot's flight has ended. It ends in bounded time, since its parts do. Cancel-safe.
    async fn wait_for_flight(&self, slot: &Slot) {
        let (reply, landed) = tokio::sync::oneshot::channel();
        {
            let mut state = slot.lock();
            let (State::Opening(waiters) | State::Checking(_, waiters)) = &mut *state else { return };
            waiters.push(super::slot::Waiter { user: None, reply });
        }
        // The reply may carry a lease; dropping it gives the lease back.
        let _ = landed.await;
    }

    /// Ends a workspace, cached or not, and deletes its data.
    pub(super) async fn destroy(self: &Arc<Self>, id: &WorkspaceId) -> Result<()> {
        self.start().await?;
        loop {
            let slot = self.slot(id);
            match self.begin_destruction(&slot) {
                Begun::Started(settled) => return settled.wait().await,
                Begun::Joined(settled) => {
                    // It was being put away already; only then comes its destruction.
                    let _ = settled.wait().await;
                }
                Begun::Busy => self.wait_for_flight(&slot).await,
                Begun::InUse(_) | Begun::Nothing => {}
            }
        }
    }

    fn begin_destruction(self: &Arc<Self>, slot: &Arc<Slot>) -> Begun {
        let mut state = slot.lock();
        let doubt = match &mut *state {
            State::Retired => return Begun::Nothing,
            State::Settling(settled) => return Begun::Joined(settled.clone()),
            State::Opening(_) | State::Checking(..) => return Begun::Busy,
            State::Live(epoch) => {
                epoch.close();
                Doubt { epoch: Some(Arc::clone(epoch)), untold: None }
            }
            State::Doubtful(doubt) => std::mem::take(doubt),
            State::Vacant => Doubt::default(),
        };
        let (report, settled) = Settled::channel();
        let mut settling = Settling::new(self, slot, doubt, report);
        slot.set(&mut state, State::Settling(settled.clone()));
        drop(state);
        self.tasks.spawn(async move {
            let (core, slot) = (Arc::clone(&settling.core), Arc::clone(&settling.slot));
            let result = core.destroy_now(&slot.id).await;
            match &result {
                Ok(()) => {
                    drop(settling.epoch.as_ref().and_then(|epoch| epoch.take_room()));
                    core.retire(&slot, &mut slot.lock());
                    core.hub.send(&slot.id, EventKind::Destroyed);
                }
                Err(error) => {
                    let doubt = Doubt { epoch: settling.epoch.clone(), untold: settling.untold.take() };
                    slot.set(&mut slot.lock(), State::Doubtful(doubt));
                    core.hub.failed(&slot.id, "destroy", error);
                }
            }
            settling.finish(result);
        });
        Begun::Started(settled)
    }

    async fn destroy_now(&self, id: &WorkspaceId) -> Result<()> {
        let work = async {
            let Entered { lock, checkpoint, valid_for: _ } = self.coordinator.enter(id, false).await?;
            let result = self.backend.destroy(id).await;
            let left = if result.is_ok() { None } else { checkpoint };
            lock.release(Release::Vacate(left)).await?;
            result
        };
        self.within(self.settings.open_timeout, "destroy", work)
            .await
            .map_err(|error| self.place(error, "destroy").with_workspace(id))
    }

    /// Gets a place under `max_workspaces`, putting away the workspace that is idle for longest when there is none.
    ///
    /// # Errors
    ///
    /// `capacity` when every open workspace is in use.
    pub(super) async fn make_room(self: &Arc<Self>) -> Result<Option<OwnedSemaphorePermit>> {
        let Some(room) = &self.room else { return Ok(None) };
        let mut found_nothing = false;
        loop {
            let looked_in_vain = std::mem::take(&mut found_nothing);
            if let Ok(place) = Arc::clone(room).try_acquire_owned() {
                return Ok(Some(place));
            }
            if let Some(slot) = self.idle_for_longest() {
                let begun = self.begin_eviction(&slot, Condition::Unused, EvictReason::Capacity);
                if let Begun::Started(settled) | Begun::Joined(settled) = begun {
                    // One that could not be put away is doubtful then, and not chosen again.
                    let _ = settled.wait().await;
                }
            } else if self.settling.load(Ordering::Acquire) > 0 {
                // What is being put away may not make room after all, and what is in use may become idle before.
                let place = Arc::clone(room).acquire_owned();
                if let Ok(Ok(place)) = tokio::time::timeout(LOOK_FOR_ROOM, place).await {
                    return Ok(Some(place));
                }
            } else if self.buffer.give_up_one() {
                // Nobody uses it now, so the next look finds it.
            } else if !looked_in_vain {
                // Room may have come, and moved on, behind the back of one look.
                found_nothing = true;
            } else {
                let max = self.settings.max_workspaces.unwrap_or_default();
                let message = format!("all {max} workspaces are in use (`max_workspaces`): try again later");
                return Err(Error::new(ErrorKind::Capacity, message).with_retry(Retry::After(Duration::from_secs(1))));
            }
        }
    }

    fn idle_for_longest(&self) -> Option<Arc<Slot>> {
        let unused = |slot: &Arc<Slot>| {
            let live = slot.live.load();
            let epoch = live.as_ref().filter(|epoch| epoch.leases() == 0)?;
            Some((epoch.released(), Arc::clone(slot)))
        };
        self.roster.filter_map(unused).into_iter().min_by_key(|(released, _)| *released).map(|(_, slot)| slot)
    }
}
