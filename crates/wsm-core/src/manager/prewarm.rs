//! A buffer of ready workspaces under fresh ids.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    WorkspaceHandle,
    core::Core,
    epoch::Epoch,
    flight::FlightPlan,
    slot::{Reply, Slot, State, Waiter},
};
use crate::{
    error::{Error, ErrorKind, Result},
    id::{UserId, WorkspaceId},
};

/// How long the buffer waits after a failure, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often the buffer looks whether there is room under `max_workspaces` again.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(1);

/// Ready workspaces. The handles are leases, so nothing in the buffer is put away.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    ready: Mutex<VecDeque<WorkspaceHandle>>,
    taken: Notify,
}

impl Buffer {
    fn take(&self) -> Option<WorkspaceHandle> {
        let handle = self.ready.lock().pop_front();
        if handle.is_some() {
            self.taken.notify_one();
        }
        handle
    }

    /// Lets one workspace go so that somebody who asks by id finds room. Says whether there was one.
    pub(super) fn give_up_one(&self) -> bool {
        self.take().is_some()
    }

    /// Lets all go.
    pub(super) fn clear(&self) {
        self.ready.lock().clear();
    }

    fn len(&self) -> usize {
        self.ready.lock().len()
    }
}

impl Core {
    pub(super) fn start_prewarming(self: &Arc<Self>) {
        let Some(prewarm) = self.settings.prewarm else { return };
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut creating = FuturesUnordered::new();
            let mut backoff = BACKOFF.0;
            loop {
                // What is being made counts as well, or a slow engine would be asked for ever more.
                while core.has_spare_room()
                    && creating.len() < prewarm.max_creating
                    && core.buffer.len() + creating.len() < prewarm.size
                {
                    creating.push(core.prewarm_one());
                }
                let wants_room = !core.has_spare_room() && core.buffer.len() + creating.len() < prewarm.size;
                tokio::select! {
                    () = core.stop.cancelled() => break,
                    () = core.buffer.taken.notified() => {}
                    // Users come first, so that the buffer takes what stays free, and does not queue for it.
                    () = tokio::time::sleep(LOOK_FOR_ROOM), if wants_room => {}
                    Some(made) = creating.next() => match made {
                        Ok(handle) => {
                            core.buffer.ready.lock().push_back(handle);
                            backoff = BACKOFF.0;
                        }
                        Err(error) if error.kind() == ErrorKind::ShuttingDown => break,
                        Err(_) => {
                            tokio::select! {
                                () = core.stop.cancelled() => break,
                                () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(BACKOFF.1),
                            }
                        }
                    },
                }
            }
            // What came after the shutdown had emptied it.
            core.buffer.clear();
        });
    }

    fn has_spare_room(&self) -> bool {
        self.room.as_ref().is_none_or(|room| room.available_permits() > 0)
    }

    async fn prewarm_one(self: &Arc<Self>) -> Result<WorkspaceHandle> {
        self.miss_started(&WorkspaceId::random(), None, None).await
    }

    /// A new workspace for `user`: from the buffer when it holds one that is still good, else made now.
    pub(super) async fn create_workspace(self: &Arc<Self>, user: &UserId) -> Result<WorkspaceHandle> {
        self.refuse_when_closing()?;
        self.start().await?;
        while let Some(ready) = self.buffer.take() {
            match self.claim(ready, user).await {
                Ok(handle) => return Ok(handle),
                Err(error) if error.kind() == ErrorKind::ShuttingDown => return Err(error),
                // Not good after all. The next one may be.
                Err(_) => {}
            }
        }
        self.miss(&WorkspaceId::random(), Some(user.clone()), None).await
    }

    /// Makes a buffered workspace the user's own, by opening it once more in the user's name: that stores the owner and
    /// shows that it still lives.
    async fn claim(self: &Arc<Self>, ready: WorkspaceHandle, user: &UserId) -> Result<WorkspaceHandle> {
        let wait = {
            let slot = self.find_slot(ready.id()).ok_or_else(interrupted)?;
            let mut state = slot.lock();
            // Exactly what was in the buffer: somebody may have closed it, and opened it by its id since.
            let epoch = match &*state {
                State::Live(epoch) if ready.is_of(epoch) => Arc::clone(epoch),
                _ => return Err(interrupted()),
            };
            let (reply, wait) = tokio::sync::oneshot::channel();
            let plan = FlightPlan { owner: Some(user.clone()), ..FlightPlan::default() };
            self.give_an_owner(&slot, &mut state, epoch, Waiter { user: Some(user.clone()), reply }, plan);
            wait
        };
        match wait.await {
            Ok(Reply::Done(result)) => result,
            Ok(Reply::AskAgain) | Err(_) => Err(interrupted()),
        }
    }

    /// Opens what nobody owns, and so nobody but the buffer uses, once more in the name of the first who asks for it.
    pub(super) fn give_an_owner(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        state: &mut State,
        epoch: Arc<Epoch>,
        waiter: Waiter,
        plan: FlightPlan,
    ) {
        epoch.close();
        slot.set(state, State::Opening(vec![waiter]));
        let (untold, room) = (Some(epoch.opening.outcome.clone()), epoch.take_room());
        self.spawn_opening(slot, FlightPlan { untold, room, former: Some(epoch), ..plan });
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Gone, "the prewarmed workspace was put away before it was used")
}
