//! What `get_workspace` returns.

use std::{fmt, ops::Deref, sync::Arc};

use serde::Serialize;

use super::epoch::Lease;
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
pub struct WorkspaceHandle {
    workspace: Arc<dyn Workspace>,
    opening: Arc<Opening>,
    /// Held for its drop. None for a workspace that nobody evicts.
    _lease: Option<Lease>,
}

impl WorkspaceHandle {
    /// A handle without a lease, for managers that put nothing away by themselves. The opening counts as `reattached`
    /// unless [`with_opening`](Self::with_opening) says otherwise.
    pub fn new(workspace: Arc<dyn Workspace>) -> Self {
        let opening = Opening::new(Outcome::new(OutcomeKind::Reattached), workspace.info().generation, 1);
        Self { workspace, opening: Arc::new(opening), _lease: None }
    }

    pub(super) fn leased(workspace: Arc<dyn Workspace>, opening: Arc<Opening>, lease: Lease) -> Self {
        Self { workspace, opening, _lease: Some(lease) }
    }

    /// Sets how the workspace was opened.
    #[must_use]
    pub fn with_opening(mut self, opening: Opening) -> Self {
        self.opening = Arc::new(opening);
        self
    }

    /// The workspace's id.
    pub fn id(&self) -> &WorkspaceId {
        &self.workspace.info().id
    }

    /// How it was opened.
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    /// The workspace, to keep beyond the handle. It holds no lease of its own: calls on it take one while they run,
    /// and are `gone` once the manager has put the workspace away.
    pub fn workspace(&self) -> Arc<dyn Workspace> {
        Arc::clone(&self.workspace)
    }
}

impl Deref for WorkspaceHandle {
    type Target = dyn Workspace;

    fn deref(&self) -> &Self::Target {
        &*self.workspace
    }
}

impl fmt::Debug for WorkspaceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkspaceHandle").field("id", self.id()).field("opening", &self.opening).finish_non_exhaustive()
    }
}
