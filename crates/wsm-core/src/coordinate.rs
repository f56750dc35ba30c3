//! Who holds an id when several replicas share it.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{backend::Checkpoint, error::Result, id::WorkspaceId};

/// Keeps replicas from opening and suspending one workspace against each other.
///
/// A replica is a *holder* of an id while it caches it, so hits ask nobody.
///
/// # Contract
///
/// - **C1** While a lock of an id is held, no other `enter` or last `leave` of that id may return.
/// - **C2** A lock MUST expire when its replica dies, and MUST be fenced: a replica that lost it can not release the
///   next one's.
/// - **C3** `leave` MUST say `Last` to exactly one of the replicas that leave at once.
///
/// # Cancel safety
///
/// A dropped `enter` or `leave` may have happened; its lock expires.
#[async_trait]
pub trait Coordinator: fmt::Debug + Send + Sync + 'static {
    /// Locks the id and becomes a holder of it.
    ///
    /// # Errors
    ///
    /// `conflict` naming the node, when `node_bound` and the workspace lives on another one; `unavailable`.
    async fn enter(&self, id: &WorkspaceId, node_bound: bool) -> Result<Entered>;

    /// Stays a holder of these ids.
    ///
    /// # Errors
    ///
    /// `unavailable`; what is held stays held until it expires.
    async fn renew(&self, ids: &[WorkspaceId]) -> Result<Renewed>;

    /// Stops being a holder. The last one gets the lock, to suspend under it.
    ///
    /// # Errors
    ///
    /// `unavailable`; the replica is still a holder then.
    async fn leave(&self, id: &WorkspaceId) -> Result<Leave>;
}

/// The answer to [`Coordinator::enter`].
#[derive(Debug)]
pub struct Entered {
    /// The id's lock.
    pub lock: Box<dyn CoordinatorLock>,
    /// What the last `suspend` left.
    pub checkpoint: Option<Checkpoint>,
    /// For how long the replica is a holder unless it renews; none means for ever.
    pub valid_for: Option<Duration>,
}

/// The answer to [`Coordinator::renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// For how long the replica is a holder from now on; none means for ever.
    pub valid_for: Option<Duration>,
    /// The ids that it no longer holds.
    pub lost: Vec<WorkspaceId>,
}

/// The answer to [`Coordinator::leave`].
#[derive(Debug)]
pub enum Leave {
    /// Nobody else holds the id: suspend it, then release the lock.
    Last(Box<dyn CoordinatorLock>),
    /// Others do: detach from it.
    OthersHold,
}

/// The lock of one id.
///
/// Dropping it without a release leaves the replica a holder and the lock to its expiry: the state is then unknown.
#[async_trait]
pub trait CoordinatorLock: fmt::Debug + Send + Sync {
    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// `conflict` when the lock had expired and another replica took it.
    async fn release(self: Box<Self>, how: Release) -> Result<()>;
}

/// In which state a lock is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// The replica is a holder.
    Hold,
    /// The replica is none, and the next opening gets this checkpoint.
    Vacate(Option<Checkpoint>),
}

/// The coordinator of a single process: the manager's own single flight already does all that is needed.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

#[async_trait]
impl Coordinator for InProcess {
    async fn enter(&self, _: &WorkspaceId, _: bool) -> Result<Entered> {
        Ok(Entered { lock: Box::new(Self), checkpoint: None, valid_for: None })
    }

    async fn renew(&self, _: &[WorkspaceId]) -> Result<Renewed> {
        Ok(Renewed { valid_for: None, lost: Vec::new() })
    }

    async fn leave(&self, _: &WorkspaceId) -> Result<Leave> {
        Ok(Leave::Last(Box::new(Self)))
    }
}

#[async_trait]
impl CoordinatorLock for InProcess {
    async fn release(self: Box<Self>, _: Release) -> Result<()> {
        Ok(())
    }
}
