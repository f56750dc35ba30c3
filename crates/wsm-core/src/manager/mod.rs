//! Managers: who gets which workspace, and what happens to it in between.

mod caching;
mod clock;
mod core;
mod epoch;
mod evict;
mod flight;
mod handle;
mod housekeeping;
mod hub;
mod leased;
mod prewarm;
mod roster;
mod settings;
mod shutdown;
mod slot;
mod sweep;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::Serialize;

pub use caching::{CachingManager, ManagerBuilder};
pub use handle::{Opening, WorkspaceHandle};
pub use settings::{ManagerSettings, Prewarm};

use crate::{
    backend::{FoundWorkspace, Leftover, Probe},
    capability::Capabilities,
    error::{Error, Result},
    event::EventStream,
    id::{UserId, WorkspaceId},
    policy::IsolationPolicy,
    scope::Scope,
};

/// Decides which workspace a request is for, and provides it.
///
/// [`CachingManager`](crate::CachingManager) is ours; anybody can write their own, and
/// everything built on wsm takes an `Arc<dyn WorkspaceManager>`.
///
/// # Contract
///
/// - **G1** The same scope always gets the same workspace, on every replica; an explicit id wins over the policy.
/// - **G2** A workspace of another user is refused with `permission_denied` that names no owner.
/// - **G3** A workspace is never put away while a handle, a running call or an unfinished stream uses it.
/// - **G4** A slow or failing opening of one id never delays a request for another one.
/// - **G5** Callers of one id at the same time get one workspace, or one error.
/// - **G6** `close` and `close_all` keep the data; only `destroy` deletes them.
/// - **G7** After `shutdown` began, requests are refused with `shutting_down`.
#[async_trait]
pub trait WorkspaceManager: fmt::Debug + Send + Sync + 'static {
    /// The policy in force.
    fn isolation(&self) -> IsolationPolicy;

    /// The kind of backend, as in `backend = "local"`.
    fn backend_kind(&self) -> &'static str;

    /// What the workspaces can do.
    fn capabilities(&self) -> Capabilities;

    /// The id that the policy gives to a scope. Pure and fast.
    fn assign_workspace_id(&self, scope: &Scope) -> WorkspaceId {
        self.isolation().assign(scope)
    }

    /// Provides the workspace that the request is for.
    ///
    /// # Errors
    ///
    /// `permission_denied`, `capacity`, `shutting_down`, or whatever kept the workspace from opening.
    ///
    /// # Cancel safety
    ///
    /// A dropped call neither cancels nor leaks an opening: it goes on, and the next call finds it.
    async fn get_workspace(&self, request: &GetRequest) -> Result<WorkspaceHandle>;

    /// Provides a new workspace under a fresh id that nobody can guess.
    ///
    /// # Errors
    ///
    /// As for [`get_workspace`](Self::get_workspace).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave an idle workspace whose id nobody was told; it expires like any other.
    async fn create_workspace(&self, scope: &Scope) -> Result<WorkspaceHandle>;

    /// Puts a workspace away and keeps its data. Does nothing for an id that is not cached.
    ///
    /// # Errors
    ///
    /// `conflict` when it is still in use after [`CloseOptions::wait`] and may not be forced; what `suspend` said.
    ///
    /// # Cancel safety
    ///
    /// A dropped call leaves the workspace open, or lets a putting-away that began go on.
    async fn close(&self, id: &WorkspaceId, options: CloseOptions) -> Result<()>;

    /// Closes every cached workspace at once. One failure stops none; the manager stays usable.
    ///
    /// # Cancel safety
    ///
    /// As for [`close`](Self::close).
    async fn close_all(&self, options: CloseOptions) -> CloseReport;

    /// Starts what the manager needs in the background. Called once, before the first request.
    ///
    /// # Errors
    ///
    /// Whatever makes the manager unusable.
    async fn start(&self) -> Result<()> {
        Ok(())
    }

    /// Refuses new requests, waits for uses to end until `deadline` has passed, and puts everything away.
    ///
    /// # Cancel safety
    ///
    /// A dropped call leaves the manager refusing requests; call it again.
    async fn shutdown(&self, deadline: Duration) -> CloseReport {
        self.close_all(CloseOptions::default().with_wait(deadline).with_force(true)).await
    }

    /// Ends a workspace, in use or not, and deletes its data. Succeeds for an id that does not exist.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be reached; nothing is deleted then.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have deleted it or not; ask again.
    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        Err(Error::unsupported("destroy").with_workspace(id))
    }

    /// What is cached now.
    fn cached(&self) -> Vec<CachedWorkspace> {
        Vec::new()
    }

    /// What exists, cached or not.
    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        futures::stream::once(async { Err(Error::unsupported("list")) }).boxed()
    }

    /// Looks one workspace up without opening it.
    ///
    /// # Errors
    ///
    /// `unavailable` when it can not be decided.
    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        Err(Error::unsupported("find").with_workspace(id))
    }

    /// What this installation has made in the engine and nothing needs any more, as
    /// [`Backend::leftovers`](crate::Backend::leftovers) says.
    ///
    /// # Errors
    ///
    /// As for that.
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        Ok(Vec::new())
    }

    /// Removes one of [`leftovers`](Self::leftovers), if nothing needs it by now. Tells whether it is gone.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be reached.
    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let _ = leftover;
        Ok(false)
    }

    /// Whether the engine can be reached.
    ///
    /// # Errors
    ///
    /// `unavailable` with what to do about it.
    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new(self.backend_kind()))
    }

    /// Hears what happens from now on.
    fn subscribe(&self) -> EventStream {
        futures::stream::empty().boxed()
    }
}

/// A request for a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GetRequest {
    /// Who asks.
    pub scope: Scope,
    /// The workspace asked for; none means the one that the policy assigns.
    pub workspace_id: Option<WorkspaceId>,
}

impl GetRequest {
    /// Asks for the workspace that the policy assigns.
    pub fn new(scope: Scope) -> Self {
        Self { scope, workspace_id: None }
    }

    /// Asks for this workspace, whatever the policy says.
    #[must_use]
    pub fn with_workspace_id(mut self, id: impl Into<Option<WorkspaceId>>) -> Self {
        self.workspace_id = id.into();
        self
    }
}

/// How to close a workspace that may be in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CloseOptions {
    /// How long to wait for its uses to end.
    pub wait: Duration,
    /// Whether to close it all the same when they do not: running calls end as `gone` or unknown.
    pub force: bool,
}

impl CloseOptions {
    /// Sets how long to wait.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets whether to close what is still in use.
    #[must_use]
    pub fn with_force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }
}

/// What closing many workspaces came to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CloseReport {
    /// How many were put away.
    pub closed: usize,
    /// Which were not, and why.
    pub failed: Vec<(WorkspaceId, Error)>,
}

/// A workspace in a manager's cache.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct CachedWorkspace {
    /// Its id.
    pub workspace_id: WorkspaceId,
    /// Whose it is.
    pub user_id: Option<UserId>,
    /// What the manager does with it.
    pub state: CachedState,
    /// How many handles, calls and streams use it.
    pub leases: u64,
    /// How long nobody has used it.
    pub idle: Duration,
    /// When it was opened.
    pub opened_at: Option<SystemTime>,
    /// How the last opening ended, once it did.
    pub opening: Option<Opening>,
}

/// What a manager does with a cached workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CachedState {
    /// It is being opened or checked.
    Opening,
    /// It can be used.
    Live,
    /// It is being put away.
    Suspending,
    /// Putting it away failed: the next request opens it anew, the next sweep tries again.
    Doubtful,
}
