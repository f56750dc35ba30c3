//! Puts away what nobody uses, and keeps alive what somebody does.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use tokio::time::MissedTickBehavior;

use super::{
    clock::{NEVER, nanos},
    core::Core,
    epoch::Epoch,
    evict::{Begun, Condition},
    slot::Slot,
};
use crate::{
    backend::SweepTrigger,
    error::{Error, ErrorKind},
    event::EvictReason,
    id::WorkspaceId,
};

/// The shortest and the longest time between two sweeps that gets start. In between it is a tenth of the TTL.
const SWEEP_AFTER_GET: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// The shortest time between two rounds of keeping alive.
const MIN_MAINTENANCE: Duration = Duration::from_millis(50);

/// How many workspaces are kept alive at once.
const MAX_KEEPING_ALIVE: usize = 32;

impl Core {
    pub(super) fn start_sweeper(self: &Arc<Self>) {
        if self.sweep_trigger == SweepTrigger::Get {
            return;
        }
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut ticks = tokio::time::interval(core.settings.sweep_interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = core.stop.cancelled() => return,
                    _ = ticks.tick() => core.sweep().await,
                }
            }
        });
    }

    /// Starts a sweep in the background when the backend has no timer for it and the last one is long enough ago.
    pub(super) fn sweep_after_get(self: &Arc<Self>) {
        if self.sweep_trigger != SweepTrigger::Get {
            return;
        }
        let (now, due) = (self.clock.now(), self.next_sweep.load(Ordering::Relaxed));
        if now < due {
            return;
        }
        let pause = (self.settings.ttl / 10).clamp(SWEEP_AFTER_GET.0, SWEEP_AFTER_GET.1);
        let next = now.saturating_add(nanos(pause));
        if self.next_sweep.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let core = Arc::clone(self);
            self.tasks.spawn(async move { core.sweep().await });
        }
    }

    /// Puts away what has been idle for the TTL, and tries again what could not be put away. One sweep at a time.
    pub(super) async fn sweep(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::AcqRel) {
            return;
        }
        let _done = Done(self);
        let due = self.due_for_eviction();
        let reason = EvictReason::Idle;
        stream::iter(due)
            .for_each_concurrent(self.settings.max_suspending, async |slot| {
                // Looked at again under the slot's lock: whoever came in between has won.
                let condition = Condition::IdleFor(self.settings.ttl);
                if let Begun::Started(settled) = self.begin_eviction(&slot, condition, reason) {
                    let _ = settled.wait().await;
                }
            })
            .await;
    }

    fn due_for_eviction(&self) -> Vec<Arc<Slot>> {
        let (now, ttl) = (self.clock.now(), self.settings.ttl);
        let is_due = |slot: &Slot| match &*slot.live.load() {
            Some(epoch) => epoch.expired(now, ttl),
            None => slot.is_doubtful(),
        };
        self.roster.filter_map(|slot| is_due(slot).then(|| Arc::clone(slot)))
    }

    /// Keeps this replica a holder of what it caches, and the backend from stopping what is in use.
    pub(super) fn start_maintenance(self: &Arc<Self>) {
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            loop {
                let changed = core.validity_changed.notified();
                let shortest = core.shortest_validity.load(Ordering::Acquire);
                // Two rounds may fail before anything runs out.
                let pause = if shortest == NEVER {
                    None
                } else {
                    Some((Duration::from_nanos(shortest) / 3).max(MIN_MAINTENANCE))
                };
                tokio::select! {
                    () = core.stop.cancelled() => return,
                    () = changed => {}
                    () = tokio::time::sleep(pause.unwrap_or(Duration::MAX)), if pause.is_some() => core.maintain().await,
                }
            }
        });
    }

    async fn maintain(self: &Arc<Self>) {
        let live = self.roster.filter_map(|slot| slot.live.load_full());
        self.renew(&live).await;
        let used = live.into_iter().filter(|epoch| epoch.leases() > 0);
        stream::iter(used)
            .for_each_concurrent(MAX_KEEPING_ALIVE, async |epoch| {
                let Some(idle_stop) = epoch.idle_stop else { return };
                let asked = self.clock.now();
                let call = epoch.managed.keep_alive(idle_stop);
                match self.within(self.settings.health_timeout, "keep_alive", call).await {
                    Ok(idle_stop) => epoch.runs_for(asked, idle_stop),
                    Err(error) => {
                        // The next hit asks whether it is still there.
                        epoch.mark_suspect();
                        self.hub.failed(epoch.id(), "keep_alive", &error);
                    }
                }
            })
            .await;
    }

    async fn renew(&self, live: &[Arc<Epoch>]) {
        let held: Vec<_> = live.iter().filter(|epoch| epoch.is_held_on_time()).collect();
        if held.is_empty() {
            return;
        }
        let asked = self.clock.now();
        let ids: Vec<WorkspaceId> = held.iter().map(|epoch| epoch.id().clone()).collect();
        match self.within(self.settings.health_timeout, "renew", self.coordinator.renew(&ids)).await {
            Ok(renewed) => {
                self.note_validity(renewed.valid_for);
                for epoch in held {
                    if renewed.lost.contains(epoch.id()) {
                        // Another replica has it. The check that the next hit makes lets go of it.
                        epoch.held_for(asked, Some(Duration::ZERO));
                        let error = Error::new(ErrorKind::Conflict, "another replica took the workspace over");
                        self.hub.failed(epoch.id(), "renew", &error);
                    } else {
                        epoch.held_for(asked, renewed.valid_for);
                    }
                }
            }
            Err(error) => {
                for id in &ids {
                    self.hub.failed(id, "renew", &error);
                }
            }
        }
    }
}

struct Done<'a>(&'a Core);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.sweeping.store(false, Ordering::Release);
    }
}
