//! The place of one id in the cache, and the authority on what happens to its workspace.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{oneshot, watch};

use super::{WorkspaceHandle, epoch::Epoch, roster::Seat};
use crate::{
    backend::{Cause, Outcome, OutcomeKind},
    error::{Error, ErrorKind, Result},
    id::{UserId, WorkspaceId},
};

/// The place of one id in the cache.
///
/// All changes of state happen under [`lock`](Self::lock), which is never held over an await. Hits do not take it: they
/// read [`live`](Self::live), and the epoch's own word decides whether they still may.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: WorkspaceId,
    /// The live workspace, for hits. Set exactly while the state is `Live`.
    pub(super) live: ArcSwapOption<Epoch>,
    /// Whether the state is `Doubtful` and the sweeper can do something about it, for it to see without the lock.
    doubtful: AtomicBool,
    state: Mutex<State>,
    /// Its seat in the roster.
    pub(super) seat: Seat,
}

/// What happens to an id's workspace.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing is known to be open.
    Vacant,
    /// A flight opens it.
    Opening(Vec<Waiter>),
    /// It is open.
    Live(Arc<Epoch>),
    /// A flight asks whether it still lives.
    Checking(Arc<Epoch>, Vec<Waiter>),
    /// A task puts it away or destroys it.
    Settling(Settled),
    /// Putting it away failed, or its opening did half way.
    Doubtful(Doubt),
    /// The slot has left the cache. Whoever still has it in hand looks the id up again.
    Retired,
}

/// What is left of a workspace whose state nobody knows.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// What could not be put away, for the sweeper to try again.
    pub(super) epoch: Option<Arc<Epoch>>,
    /// How an opening ended that nobody was told.
    pub(super) untold: Option<Outcome>,
}

impl Doubt {
    /// Whether there is nothing to put away, but something to tell that no later opening would find out: then it is
    /// kept until somebody asks for the workspace.
    pub(super) fn is_news_only(&self) -> bool {
        let is_news = |outcome: &Outcome| {
            outcome.kind == OutcomeKind::Recreated || outcome.cause.is_some_and(|cause| cause != Cause::Suspended)
        };
        self.epoch.is_none() && self.untold.as_ref().is_some_and(is_news)
    }
}

/// A caller that waits for a flight.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Who asks; none for the manager itself.
    pub(super) user: Option<UserId>,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// What a flight tells a waiter.
#[derive(Debug)]
pub(super) enum Reply {
    /// The result.
    Done(Result<WorkspaceHandle>),
    /// The flight was another waiter's, and how it ended does not hold for this one: ask again.
    AskAgain,
}

/// The end of a task that puts a workspace away.
#[derive(Debug, Clone)]
pub(super) struct Settled(watch::Receiver<Option<Result<()>>>);

impl Settled {
    pub(super) fn channel() -> (watch::Sender<Option<Result<()>>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// Waits for the end. Cancel-safe.
    pub(super) async fn wait(mut self) -> Result<()> {
        match self.0.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Err(Error::new(ErrorKind::Backend, "putting the workspace away was interrupted")),
        }
    }
}

impl Slot {
    pub(super) fn new(id: WorkspaceId) -> Arc<Self> {
        Arc::new(Self {
            id,
            live: ArcSwapOption::const_empty(),
            doubtful: AtomicBool::new(false),
            state: Mutex::new(State::Vacant),
            seat: Seat::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state and what hits see of it, and returns the former state.
    pub(super) fn set(&self, state: &mut State, new: State) -> State {
        self.live.store(if let State::Live(live) = &new { Some(Arc::clone(live)) } else { None });
        let is_doubtful = matches!(&new, State::Doubtful(doubt) if !doubt.is_news_only());
        self.doubtful.store(is_doubtful, Ordering::Release);
        std::mem::replace(state, new)
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }
}
