//! What all parts of the caching manager share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    GetRequest, WorkspaceHandle,
    clock::{Clock, NEVER},
    epoch::Epoch,
    flight::FlightPlan,
    hub::Hub,
    prewarm::Buffer,
    roster::Roster,
    settings::ManagerSettings,
    slot::{Reply, Slot, State, Waiter},
};
use crate::{
    backend::{Backend, Placement, SweepTrigger},
    capability::Capabilities,
    coordinate::Coordinator,
    error::{Error, ErrorKind, Result},
    id::{UserId, WorkspaceId},
    layer::Layer,
    policy::IsolationPolicy,
};

/// How many segments the map has.
const SEGMENTS: usize = 16;

/// What all parts of the caching manager share. Background tasks hold it; the manager's own drop stops them.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) layers: Vec<Arc<dyn Layer>>,
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) settings: ManagerSettings,
    pub(super) sweep_trigger: SweepTrigger,
    /// What workspaces can do with all layers.
    pub(super) capabilities: Capabilities,
    /// No expiry and no limit of the cache's own: its clock can not be paused, and it knows nothing of leases. The
    /// slots decide; the map only finds them. Its look-ups return clones, so no guard is ever held. In segments, since
    /// each one records its reads in a queue that two threads would contend for.
    slots: moka::sync::SegmentedCache<WorkspaceId, Arc<Slot>>,
    /// The same slots, for whoever wants all of them.
    pub(super) roster: Roster,
    /// Bounds how many workspaces are opening. Fair.
    pub(super) provisioning: Semaphore,
    /// Bounds how many workspaces are open.
    pub(super) room: Option<Arc<Semaphore>>,
    /// How many workspaces are being put away, for whoever waits for room.
    pub(super) settling: AtomicUsize,
    pub(super) hub: Hub,
    pub(super) clock: Clock,
    pub(super) buffer: Buffer,
    /// Rises with every opening.
    pub(super) openings: AtomicU64,
    /// When a get may start the next sweep.
    pub(super) next_sweep: AtomicU64,
    pub(super) sweeping: AtomicBool,
    /// The shortest time for which anything live stays so by itself.
    pub(super) shortest_validity: AtomicU64,
    pub(super) validity_changed: Notify,
    started: OnceCell<()>,
    /// Set once: no further requests.
    closing: AtomicBool,
    /// Owns every task.
    pub(super) tasks: TaskTracker,
    /// Ends the background tasks.
    pub(super) stop: CancellationToken,
    /// Ends flights that are still under way when a shutdown's deadline has passed.
    pub(super) abort: CancellationToken,
}

pub(super) struct CoreParts {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) layers: Vec<Arc<dyn Layer>>,
    pub(super) coordinator: Arc<dyn Coordinator>,
    pub(super) settings: ManagerSettings,
    pub(super) sweep_trigger: SweepTrigger,
    pub(super) capabilities: Capabilities,
    pub(super) hub: Hub,
}

/// What the slot's state lets a caller do.
enum Step {
    Ready(WorkspaceHandle),
    Wait(tokio::sync::oneshot::Receiver<Reply>),
    Settling(super::slot::Settled),
    LookAgain,
}

impl Core {
    pub(super) fn new(parts: CoreParts) -> Arc<Self> {
        let CoreParts { backend, layers, coordinator, settings, sweep_trigger, capabilities, hub } = parts;
        Arc::new(Self {
            backend,
            layers,
            coordinator,
            sweep_trigger,
            capabilities,
            slots: moka::sync::SegmentedCache::builder(SEGMENTS).build(),
            roster: Roster::default(),
            provisioning: Semaphore::new(settings.max_provisioning),
            room: settings.max_workspaces.map(|max| Arc::new(Semaphore::new(max))),
            settling: AtomicUsize::new(0),
            hub,
            clock: Clock::new(),
            buffer: Buffer::default(),
            openings: AtomicU64::new(0),
            next_sweep: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
            shortest_validity: AtomicU64::new(NEVER),
            validity_changed: Notify::new(),
            started: OnceCell::new(),
            closing: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            settings,
        })
    }

    /// Starts the backend and the background tasks, once. A failed start can be tried again.
    pub(super) async fn start(self: &Arc<Self>) -> Result<()> {
        self.started
            .get_or_try_init(async || {
                self.backend.start().await.map_err(|error| self.place(error, "start"))?;
                self.start_sweeper();
                self.start_maintenance();
                self.start_prewarming();
                self.start_housekeeping();
                Ok(())
            })
            .await
            .copied()
    }

    pub(super) fn place(&self, error: Error, operation: &'static str) -> Error {
        error.with_backend(self.backend.kind()).with_operation(operation)
    }

    pub(super) fn begin_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn refuse_when_closing(&self) -> Result<()> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::ShuttingDown, "the workspace manager is shutting down"));
        }
        Ok(())
    }

    pub(super) async fn get_workspace(self: &Arc<Self>, request: &GetRequest) -> Result<WorkspaceHandle> {
        self.refuse_when_closing()?;
        self.sweep_after_get();
        let assigned;
        let id = match &request.workspace_id {
            Some(id) => id,
            None => {
                assigned = self.settings.isolation.assign(&request.scope);
                &assigned
            }
        };
        if let Some(handle) = self.hit(id, &request.scope.user_id)? {
            return Ok(handle);
        }
        let placement = IsolationPolicy::that_assigned(id, &request.scope)
            .map(|policy| Placement { policy, scope: request.scope.clone() });
        // Boxed, so that a hit does not carry the miss' state around.
        Box::pin(self.miss(id, Some(request.scope.user_id.clone()), placement)).await
    }

    /// Answers from the cache, without a lock that a miss can hold and without I/O.
    fn hit(&self, id: &WorkspaceId, user: &UserId) -> Result<Option<WorkspaceHandle>> {
        let Some(slot) = self.slots.get(id) else { return Ok(None) };
        let live = slot.live.load();
        let Some(live) = &*live else { return Ok(None) };
        // Before anything else, so that a stranger leaves no trace: a lease would put off the end of its idle time.
        self.check_owner(live, Some(user))?;
        if live.owner.is_none() || live.needs_check() {
            return Ok(None);
        }
        let Some(lease) = live.lease() else { return Ok(None) };
        self.hub.hit(id);
        Ok(Some(WorkspaceHandle::leased(lease)))
    }

    /// The slot of an id, if it is in the cache.
    pub(super) fn find_slot(&self, id: &WorkspaceId) -> Option<Arc<Slot>> {
        self.slots.get(id)
    }

    /// The slot of an id, put into the cache if it is not there.
    pub(super) fn slot(&self, id: &WorkspaceId) -> Arc<Slot> {
        self.slots.get_with_by_ref(id, || {
            let slot = Slot::new(id.clone());
            self.roster.add(&slot);
            slot
        })
    }

    /// Opens the workspace, or joins whoever already does.
    ///
    /// Cancel-safe: the flight is a task of its own.
    pub(super) async fn miss(
        self: &Arc<Self>,
        id: &WorkspaceId,
        user: Option<UserId>,
        placement: Option<Placement>,
    ) -> Result<WorkspaceHandle> {
        self.start().await?;
        self.miss_started(id, user, placement).await
    }

    /// A miss of a manager that has started. Background tasks, which `start` itself begins, come in here.
    pub(super) async fn miss_started(
        self: &Arc<Self>,
        id: &WorkspaceId,
        user: Option<UserId>,
        placement: Option<Placement>,
    ) -> Result<WorkspaceHandle> {
        loop {
            let slot = self.slot(id);
            match self.join(&slot, user.as_ref(), placement.as_ref())? {
                Step::Ready(handle) => return Ok(handle),
                Step::Wait(reply) => match reply.await {
                    Ok(Reply::Done(result)) => return result,
                    Ok(Reply::AskAgain) => {}
                    Err(_) => {
                        let error = Error::new(ErrorKind::Backend, "opening the workspace was interrupted: try again");
                        return Err(self.place(error, "open").with_workspace(id));
                    }
                },
                Step::Settling(settled) => {
                    // Whether it could be put away or not, the next look tells what to do.
                    let _ = settled.wait().await;
                }
                Step::LookAgain => {}
            }
        }
    }

    fn join(self: &Arc<Self>, slot: &Arc<Slot>, user: Option<&UserId>, placement: Option<&Placement>) -> Result<Step> {
        let mut state = slot.lock();
        // Looked at again now that the slot is in the map: a shutdown that began in between either sees the slot or is
        // seen here.
        if let Err(error) = self.refuse_when_closing() {
            if matches!(*state, State::Vacant) {
                self.retire(slot, &mut state);
            }
            return Err(error);
        }
        let (reply, wait) = tokio::sync::oneshot::channel();
        let waiter = Waiter { user: user.cloned(), reply };
        let plan = || FlightPlan { owner: user.cloned(), placement: placement.cloned(), ..FlightPlan::default() };
        match &mut *state {
            State::Retired => return Ok(Step::LookAgain),
            State::Settling(settled) => return Ok(Step::Settling(settled.clone())),
            State::Opening(waiters) => waiters.push(waiter),
            State::Checking(live, waiters) => {
                self.check_owner(live, user)?;
                waiters.push(waiter);
            }
            State::Live(live) => {
                self.check_owner(live, user)?;
                if live.owner.is_none() && user.is_some() {
                    let live = Arc::clone(live);
                    self.give_an_owner(slot, &mut state, live, waiter, plan());
                    return Ok(Step::Wait(wait));
                }
                if !live.needs_check()
                    && let Some(lease) = live.lease()
                {
                    return Ok(Step::Ready(WorkspaceHandle::leased(lease)));
                }
                let live = Arc::clone(live);
                slot.set(&mut state, State::Checking(Arc::clone(&live), vec![waiter]));
                self.spawn_check(slot, live, plan());
            }
            State::Vacant => {
                slot.set(&mut state, State::Opening(vec![waiter]));
                self.spawn_opening(slot, plan());
            }
            State::Doubtful(doubt) => {
                let doubt = std::mem::take(doubt);
                slot.set(&mut state, State::Opening(vec![waiter]));
                let room = doubt.epoch.as_ref().and_then(|epoch| epoch.take_room());
                self.spawn_opening(slot, FlightPlan { untold: doubt.untold, former: doubt.epoch, room, ..plan() });
            }
        }
        Ok(Step::Wait(wait))
    }

    pub(super) fn check_owner(&self, epoch: &Epoch, user: Option<&UserId>) -> Result<()> {
        match (&epoch.owner, user) {
            (Some(owner), Some(user)) if owner != user && !self.settings.allow_foreign_owner => {
                Err(foreign_owner(epoch.id()))
            }
            _ => Ok(()),
        }
    }

    /// Takes the slot out of the cache. Under its lock, so that nobody finds it who does not also see that it is retired.
    pub(super) fn retire(&self, slot: &Slot, state: &mut State) {
        slot.set(state, State::Retired);
        self.slots.invalidate(&slot.id);
        self.roster.remove(slot);
    }

    /// Makes known for how long something stays valid by itself, so that it is renewed in time.
    pub(super) fn note_validity(&self, duration: Option<Duration>) {
        let Some(duration) = duration else { return };
        let nanos = super::clock::nanos(duration);
        if self.shortest_validity.fetch_min(nanos, Ordering::AcqRel) > nanos {
            self.validity_changed.notify_one();
        }
    }

    /// Runs `call` and gives up after `limit`.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        operation: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, format!("no answer within {limit:?}")).with_operation(operation))
        })
    }
}

/// The refusal of another user's workspace. Names no owner.
pub(super) fn foreign_owner(id: &WorkspaceId) -> Error {
    Error::new(ErrorKind::PermissionDenied, "this workspace belongs to another user")
        .with_code(crate::backend::FOREIGN_OWNER)
        .with_workspace(id)
}

/// Gives every waiter its reply, made of a lease of its own.
pub(super) fn answer(core: &Core, waiters: Vec<Waiter>, epoch: &Arc<Epoch>) {
    for Waiter { user, reply } in waiters {
        if epoch.owner.is_none() && user.is_some() {
            // Opened for nobody: whoever is somebody comes in by making it their own.
            let _ = reply.send(Reply::AskAgain);
            continue;
        }
        let result = core.check_owner(epoch, user.as_ref()).and_then(|()| {
            let lease = epoch.lease().ok_or_else(|| {
                Error::new(ErrorKind::Gone, "the workspace was closed while it was opened").with_workspace(epoch.id())
            });
            lease.map(WorkspaceHandle::leased)
        });
        // A waiter that has gone away gives its lease back by dropping the reply.
        let _ = reply.send(Reply::Done(result));
    }
}
