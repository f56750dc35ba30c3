//! What `get_workspace` returns.

use std::{fmt, ops::Deref, sync::Arc};

use serde::Serialize;

use super::epoch::{Epoch, Lease};
use crate::{
    backend::{Outcome, OutcomeKind},
    id::WorkspaceId,
    workspace::Workspace,
};

/// How the workspace in hand was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Opening {
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How often the workspace's files have been lost, ever.
    pub generation: u64,
    /// How often this process has opened the workspace. Two handles of one epoch share one opening.
    pub epoch: u64,
}

impl Opening {
    /// Puts an opening together.
    pub fn new(outcome: Outcome, generation: u64, epoch: u64) -> Self {
        Self { outcome, generation, epoch }
    }
}

/// A workspace in use. It derefs to `dyn Workspace`, and while it exists the workspace is not put away.
///
/// ```no_run
/// # async fn example(manager: &dyn wsm_core::WorkspaceManager) -> wsm_core::Result<()> {
/// use wsm_core::{GetRequest, Scope, WorkspaceExt};
///
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// println!("{:?}", workspace.sh("pwd").await?.stdout);
/// # Ok(())
/// # }
/// ```
pub struct WorkspaceHandle(Inner);

enum Inner {
    /// Of a caching manager: keeps the epoch from being put away.
    Leased(Lease),
    /// Of a manager that puts nothing away by itself.
    Plain { workspace: Arc<dyn Workspace>, opening: Box<Opening> },
}

impl WorkspaceHandle {
    /// A handle without a lease, for managers that put nothing away by themselves. The opening counts as `reattached`
    /// unless [`with_opening`](Self::with_opening) says otherwise.
    pub fn new(workspace: Arc<dyn Workspace>) -> Self {
        let opening = Opening::new(Outcome::new(OutcomeKind::Reattached), workspace.info().generation, 1);
        Self(Inner::Plain { workspace, opening: Box::new(opening) })
    }

    pub(super) fn leased(lease: Lease) -> Self {
        Self(Inner::Leased(lease))
    }

    /// Whether it is a lease of this epoch.
    pub(super) fn is_of(&self, epoch: &Arc<Epoch>) -> bool {
        matches!(&self.0, Inner::Leased(lease) if Arc::ptr_eq(lease.epoch(), epoch))
    }

    /// Sets how the workspace was opened. Does nothing to a handle of a caching manager, which knows.
    #[must_use]
    pub fn with_opening(mut self, new: Opening) -> Self {
        if let Inner::Plain { opening, .. } = &mut self.0 {
            **opening = new;
        }
        self
    }

    /// The workspace's id.
    pub fn id(&self) -> &WorkspaceId {
        &self.info().id
    }

    /// How it was opened.
    pub fn opening(&self) -> &Opening {
        match &self.0 {
            Inner::Leased(lease) => &lease.epoch().opening,
            Inner::Plain { opening, .. } => opening,
        }
    }

    /// The workspace, to keep beyond the handle. It holds no lease of its own: calls on it take one while they run,
    /// and are `gone` once the manager has put the workspace away.
    pub fn workspace(&self) -> Arc<dyn Workspace> {
        match &self.0 {
            Inner::Leased(lease) => Arc::clone(lease.epoch()) as Arc<dyn Workspace>,
            Inner::Plain { workspace, .. } => Arc::clone(workspace),
        }
    }
}

impl Deref for WorkspaceHandle {
    type Target = dyn Workspace;

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Inner::Leased(lease) => &**lease.epoch(),
            Inner::Plain { workspace, .. } => &**workspace,
        }
    }
}

impl fmt::Debug for WorkspaceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkspaceHandle")
            .field("id", self.id())
            .field("opening", self.opening())
            .finish_non_exhaustive()
    }
}
