//! Flights: tasks that open a workspace, or ask after its health, for everybody who waits for it.

use std::sync::{Arc, atomic::Ordering};

use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Opening,
    clock::until,
    core::{Core, answer},
    epoch::{Epoch, EpochParts},
    slot::{Doubt, Reply, Slot, State, Waiter},
};
use crate::{
    backend::{Cause, FOREIGN_OWNER, OpenRequest, Opened, Outcome, OutcomeKind, Placement},
    coordinate::{CoordinatorLock, Entered, Release},
    error::{Error, ErrorKind, Result, Retry},
    event::{EventKind, EvictReason},
    exec_files::ExecFiles,
    guard::CapabilityGuard,
    id::UserId,
    layer::OpenedInfo,
    progress::Progress,
    workspace::{Health, ManagedWorkspace},
};

/// What a flight knows when it starts.
#[derive(Debug, Default)]
pub(super) struct FlightPlan {
    pub(super) owner: Option<UserId>,
    pub(super) placement: Option<Placement>,
    /// How an earlier opening ended that nobody was told, and why the former epoch died if it did.
    pub(super) untold: Option<Outcome>,
    /// A closed epoch that may still run. If the flight fails, it remains to be put away.
    pub(super) former: Option<Arc<Epoch>>,
    /// The place under `max_workspaces`: the former epoch's, until the flight has its own.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// A failed opening.
struct Failure {
    error: Error,
    /// How the backend's part had ended before something above it failed.
    untold: Option<Outcome>,
    /// What could not be put away again.
    epoch: Option<Arc<Epoch>>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, untold: None, epoch: None }
    }
}

/// Frees the slot when its flight ends without an answer, as a panic or the end of the runtime make it do.
struct Landing<'a> {
    core: &'a Core,
    slot: &'a Slot,
    /// What the slot becomes then.
    fallback: Option<State>,
}

impl<'a> Landing<'a> {
    fn of(core: &'a Core, slot: &'a Slot, fallback: State) -> Self {
        Self { core, slot, fallback: Some(fallback) }
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if let Some(fallback) = self.fallback.take() {
            self.slot.set(&mut self.slot.lock(), fallback);
            let error = Error::new(ErrorKind::Backend, "the flight panicked or was stopped");
            self.core.hub.failed(&self.slot.id, "open", &error);
        }
    }
}

impl Core {
    /// Starts the flight of a slot whose state is `Opening` already.
    pub(super) fn spawn_opening(self: &Arc<Self>, slot: &Arc<Slot>, plan: FlightPlan) {
        let (core, slot) = (Arc::clone(self), Arc::clone(slot));
        self.tasks.spawn(async move { core.fly(&slot, plan).await });
    }

    /// Starts the health check of a slot whose state is `Checking` already.
    pub(super) fn spawn_check(self: &Arc<Self>, slot: &Arc<Slot>, epoch: Arc<Epoch>, plan: FlightPlan) {
        let (core, slot) = (Arc::clone(self), Arc::clone(slot));
        self.tasks.spawn(async move { core.check(&slot, epoch, plan).await });
    }

    /// Opens the workspace and answers all who wait.
    async fn fly(self: &Arc<Self>, slot: &Slot, mut plan: FlightPlan) {
        let doubt = Doubt { epoch: plan.former.clone(), untold: plan.untold.clone() };
        let mut landing = Landing::of(self, slot, State::Doubtful(doubt));
        let started = Instant::now();
        let mut result = self.open(slot, &mut plan).await;
        if let Err(Failure { error, untold: Some(untold), epoch: None }) = &result
            && (error.retry() == Retry::Now || error.kind() == ErrorKind::Gone)
        {
            // A layer could not work with what runs there, such as another version of its own, which was put away then. Or
            // the workspace ended just when it was open. What is opened now is new.
            self.hub.failed(&slot.id, "open", error);
            plan.untold = Some(untold.clone());
            result = self.open(slot, &mut plan).await;
        }
        landing.fallback = None;
        match result {
            Ok(epoch) => {
                let opening = epoch.opening.outcome.clone();
                self.publish(slot, epoch);
                self.hub.send(&slot.id, EventKind::Opened { opening, duration: started.elapsed() });
            }
            Err(failure) => {
                self.hub.failed(&slot.id, "open", &failure.error);
                self.give_up(slot, failure, plan);
            }
        }
    }

    /// Makes the workspace visible and gives every waiter a lease, in one step that no eviction can come between.
    fn publish(&self, slot: &Slot, epoch: Arc<Epoch>) {
        let mut state = slot.lock();
        if let State::Opening(waiters) = std::mem::replace(&mut *state, State::Vacant) {
            answer(self, waiters, &epoch);
        }
        slot.set(&mut state, State::Live(epoch));
    }

    /// Tells the waiters of the error. One who asked as somebody else than the flight may have better luck.
    fn give_up(&self, slot: &Slot, failure: Failure, plan: FlightPlan) {
        let Failure { error, untold, epoch } = failure;
        let (untold, epoch) = (untold.or(plan.untold), epoch.or(plan.former));
        if let Some(epoch) = &epoch {
            epoch.set_room(plan.room);
        }
        let waiters = {
            let mut state = slot.lock();
            let waiters = match &mut *state {
                State::Opening(waiters) => std::mem::take(waiters),
                _ => Vec::new(),
            };
            let doubt = Doubt { epoch, untold };
            if doubt.epoch.is_some() || doubt.untold.is_some() {
                slot.set(&mut state, State::Doubtful(doubt));
            } else {
                self.retire(slot, &mut state);
            }
            waiters
        };
        for Waiter { user, reply } in waiters {
            let another = error.code() == FOREIGN_OWNER && user != plan.owner;
            let _ = reply.send(if another { Reply::AskAgain } else { Reply::Done(Err(error.clone())) });
        }
    }

    /// Runs a part of an opening, and breaks it off when a shutdown can wait no longer.
    async fn unless_aborted<T>(&self, part: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.abort.cancelled() => {
                Err(Error::new(ErrorKind::ShuttingDown, "the shutdown came before the workspace was open"))
            }
            result = part => result,
        }
    }

    /// Gives the lock of an id back. Bounded, like all that a flight waits for.
    async fn release(&self, lock: Box<dyn CoordinatorLock>, how: Release) -> Result<()> {
        self.within(self.settings.open_timeout, "release", lock.release(how)).await
    }

    async fn open(self: &Arc<Self>, slot: &Slot, plan: &mut FlightPlan) -> Result<Arc<Epoch>, Failure> {
        let place = |error: Error| self.place(error, "open").with_workspace(&slot.id);
        if plan.room.is_none() {
            plan.room = self.unless_aborted(self.make_room()).await.map_err(place)?;
        }
        let permit = async {
            let shut = |_| Error::new(ErrorKind::ShuttingDown, "the workspace manager is shutting down");
            self.provisioning.acquire().await.map_err(shut)
        };
        let _permit = self.unless_aborted(permit).await.map_err(place)?;
        let inner = self.backend.capabilities();
        // A validity counts from before it was asked for, since all that follows may take long.
        let entered = self.clock.now();
        let enter = self.coordinator.enter(&slot.id, inner.node_bound);
        let enter = self.within(self.settings.open_timeout, "enter", enter);
        let Entered { lock, checkpoint, valid_for } = self.unless_aborted(enter).await.map_err(place)?;
        self.note_validity(valid_for);

        let mut request = OpenRequest::new(slot.id.clone())
            .with_checkpoint(checkpoint.clone())
            .with_foreign_owner_allowed(self.settings.allow_foreign_owner);
        request.owner = plan.owner.clone();
        request.placement = plan.placement.clone();
        request.progress = {
            let (core, id) = (Arc::downgrade(self), slot.id.clone());
            Progress::new(move |step| {
                if let Some(core) = core.upgrade() {
                    core.hub.send(&id, EventKind::Progress { step });
                }
            })
        };
        let opened = async {
            let mut capabilities = inner;
            for layer in &self.layers {
                layer.prepare(capabilities, &mut request)?;
                capabilities = layer.capabilities(capabilities);
            }
            self.backend.open(request).await
        };
        let begun = self.clock.now();
        let opened = self.within(self.settings.open_timeout, "open", opened);
        let opened = match self.unless_aborted(opened).await {
            Ok(opened) => opened,
            Err(error) => {
                // Nothing is held here, so the next replica may try at once.
                if let Err(error) = self.release(lock, Release::Vacate(checkpoint)).await {
                    self.hub.failed(&slot.id, "release", &error);
                }
                return Err(place(error).into());
            }
        };

        let Opened { workspace, outcome, idle_stop } = opened;
        self.note_validity(idle_stop);
        let outcome = match plan.untold.take() {
            Some(untold) => outcome.after(untold),
            None => outcome,
        };
        let generation = workspace.info().generation;
        let number = self.openings.fetch_add(1, Ordering::Relaxed) + 1;
        let owner = plan.owner.clone();
        let epoch_of = |managed, room| {
            Epoch::new(EpochParts {
                clock: self.clock,
                owner: owner.clone(),
                opening: Opening::new(outcome.clone(), generation, number),
                idle_stop,
                running_until: until(begun, idle_stop),
                held_until: until(entered, valid_for),
                managed,
                room,
            })
        };
        let bare: Arc<dyn ManagedWorkspace> = Arc::new(CapabilityGuard::new(workspace, inner));
        let info = OpenedInfo::new(slot.id.clone(), outcome.clone(), generation);
        let wrapped = self.within(self.settings.open_timeout, "wrap", self.wrap(Arc::clone(&bare), &info));
        let managed = match self.unless_aborted(wrapped).await {
            Ok(managed) => managed,
            Err(error) if error.kind() == ErrorKind::Gone => {
                // There is nothing to put away, and the next opening is told why by the backend, which knows it still.
                if let Err(error) = self.release(lock, Release::Vacate(checkpoint)).await {
                    self.hub.failed(&slot.id, "release", &error);
                }
                return Err(Failure { error: place(error), untold: Some(outcome), epoch: None });
            }
            Err(error) => {
                let epoch = epoch_of(bare, None);
                epoch.close();
                let left = match self.put_away(&epoch, Some(lock)).await {
                    Ok(_) => None,
                    Err(error) => {
                        self.hub.failed(&slot.id, "suspend", &error);
                        Some(epoch)
                    }
                };
                return Err(Failure { error: place(error), untold: Some(outcome), epoch: left });
            }
        };
        if let Err(error) = self.release(lock, Release::Hold).await {
            // Another replica may hold the workspace now, so this one must not touch it.
            return Err(Failure { error: place(error), untold: Some(outcome), epoch: None });
        }
        Ok(epoch_of(managed, plan.room.take()))
    }

    /// Stacks what belongs between the backend and the leases: file operations where the backend has none, the layers,
    /// and the guard with the capabilities that result.
    async fn wrap(&self, bare: Arc<dyn ManagedWorkspace>, info: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        let mut managed = bare;
        if ExecFiles::applies_to(managed.capabilities()) {
            managed = Arc::new(ExecFiles::new(managed));
        }
        for layer in &self.layers {
            managed = layer.wrap(managed, info).await?;
        }
        if managed.capabilities() != self.capabilities || !self.layers.is_empty() {
            managed = Arc::new(CapabilityGuard::new(managed, self.capabilities));
        }
        Ok(managed)
    }

    /// Asks whether a cached workspace still lives, and opens it anew when it is dead.
    async fn check(self: &Arc<Self>, slot: &Slot, epoch: Arc<Epoch>, plan: FlightPlan) {
        // Until it is decided, it stays what it was: open, and suspect.
        epoch.mark_suspect();
        let mut landing = Landing::of(self, slot, State::Live(Arc::clone(&epoch)));
        let verdict = self.verdict(&epoch).await;
        landing.fallback = None;
        match verdict {
            Ok(Verdict::Alive) => {
                let mut state = slot.lock();
                if let State::Checking(_, waiters) = std::mem::replace(&mut *state, State::Vacant) {
                    answer(self, waiters, &epoch);
                }
                slot.set(&mut state, State::Live(epoch));
            }
            Ok(Verdict::Dead(cause)) => {
                self.hub.send(&slot.id, EventKind::Died { cause });
                // The kind that says nothing, for the cause alone.
                let died = Outcome::new(OutcomeKind::Reattached).with_cause(cause);
                self.reopen(slot, &epoch, FlightPlan { untold: Some(died), ..plan }).await;
            }
            Ok(Verdict::Lost) => {
                let detached = epoch.managed.detach();
                if let Err(error) = self.within(self.settings.suspend_timeout, "detach", detached).await {
                    self.hub.failed(&slot.id, "detach", &error);
                } else {
                    self.hub.send(&slot.id, EventKind::Detached { reason: EvictReason::Abandoned });
                }
                self.reopen(slot, &epoch, plan).await;
            }
            Err(error) => {
                self.hub.failed(&slot.id, "health", &error);
                let error = self.place(error, "health").with_workspace(&slot.id);
                let mut state = slot.lock();
                if let State::Checking(_, waiters) = std::mem::replace(&mut *state, State::Vacant) {
                    for waiter in waiters {
                        let _ = waiter.reply.send(Reply::Done(Err(error.clone())));
                    }
                }
                slot.set(&mut state, State::Live(epoch));
            }
        }
    }

    /// Opens a workspace anew whose epoch has ended, for the waiters that came during the check.
    async fn reopen(self: &Arc<Self>, slot: &Slot, former: &Epoch, plan: FlightPlan) {
        former.close();
        let room = former.take_room();
        {
            let mut state = slot.lock();
            let waiters = match &mut *state {
                State::Checking(_, waiters) => std::mem::take(waiters),
                _ => Vec::new(),
            };
            slot.set(&mut state, State::Opening(waiters));
        }
        self.fly(slot, FlightPlan { room, ..plan }).await;
    }

    async fn verdict(&self, epoch: &Epoch) -> Result<Verdict> {
        let limit = self.settings.health_timeout;
        if !epoch.is_held() {
            let (id, asked) = (epoch.id().clone(), self.clock.now());
            let renewed = self.within(limit, "renew", self.coordinator.renew(std::slice::from_ref(&id))).await?;
            if renewed.lost.contains(&id) {
                return Ok(Verdict::Lost);
            }
            epoch.held_for(asked, renewed.valid_for);
        }
        let asked = self.clock.now();
        match self.within(limit, "health", epoch.managed.health()).await {
            Ok(Health::Alive(idle_stop)) => {
                epoch.runs_for(asked, idle_stop);
                epoch.clear_suspicion();
                Ok(Verdict::Alive)
            }
            Ok(Health::Dead(cause)) => Ok(Verdict::Dead(cause)),
            // "This workspace is dead" is as definite as an error can be.
            Err(error) if error.kind() == ErrorKind::Gone => Ok(Verdict::Dead(Cause::Unknown)),
            Err(error) => Err(error),
        }
    }
}

/// What became of a workspace that was asked after.
enum Verdict {
    Alive,
    Dead(Cause),
    /// It lives, but another replica has it now.
    Lost,
}
