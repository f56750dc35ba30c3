//! What survives a restart: sessions, and the records of workspaces.

mod lock;
mod sqlite;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use wsm_core::{AgentId, Error, ErrorKind, IsolationPolicy, Result, Scope, SessionId, UserId, WorkspaceId};

pub use lock::{LockHolder, StoreLock};
pub use sqlite::{SqliteStore, StoreReport};

/// Keeps sessions and workspace records.
///
/// Every method is one transaction: it happens as a whole or not at all, also when several processes call at once.
///
/// # Cancel safety
///
/// A dropped call may have happened or not; asking again is always safe.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Makes a session and the record of its workspace, unless the session exists already.
    ///
    /// # Errors
    ///
    /// `permission_denied` with code `foreign_owner` when the workspace is another user's and `allow_foreign_owner` is
    /// not set; `conflict` with code `session_deleted` while a workspace of a deleted session of that id still exists.
    async fn claim_session(&self, claim: &SessionClaim) -> Result<Claimed>;

    /// Looks a session of a user up. A deleted one is none.
    async fn session(&self, user: &UserId, id: &SessionId) -> Result<Option<SessionRecord>>;

    /// A page of a user's sessions, oldest first.
    async fn sessions(&self, page: &SessionPage) -> Result<Vec<SessionRecord>>;

    /// Deletes a session. What belongs to the session alone must then be destroyed by the caller.
    async fn retire_session(&self, user: &UserId, id: &SessionId) -> Result<Retired>;

    /// Makes sure that a workspace has a record, and gives the record that is there.
    ///
    /// # Errors
    ///
    /// As for [`claim_session`](Self::claim_session).
    async fn ensure_workspace(&self, record: &WorkspaceRecord, allow_foreign_owner: bool) -> Result<WorkspaceRecord>;

    /// The records of a workspace, one for each backend that it was used on.
    async fn workspace(&self, id: &WorkspaceId) -> Result<Vec<WorkspaceRecord>>;

    /// Every workspace record.
    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>>;

    /// Removes what is known of a workspace that was destroyed.
    async fn forget_workspace(&self, id: &WorkspaceId, backend: &str) -> Result<()>;

    /// Remembers how often a workspace's files have been lost.
    async fn note_generation(&self, id: &WorkspaceId, backend: &str, generation: u64) -> Result<()>;

    /// Marks a session as told of a generation. True for exactly one of the callers that tell it the same loss.
    async fn tell_generation(&self, user: &UserId, id: &SessionId, generation: u64) -> Result<Told>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<()>;

    /// Writes everything out and closes the store.
    async fn close(&self);
}

/// A session that somebody wants to make.
#[derive(Debug, Clone)]
pub struct SessionClaim {
    /// Whose it is to be.
    pub scope: Scope,
    /// What people call it.
    pub name: Option<String>,
    /// Whether the request named the workspace.
    pub explicit: bool,
    /// The record of its workspace, should there be none.
    pub workspace: WorkspaceRecord,
    /// Whether the workspace may be another user's.
    pub allow_foreign_owner: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The session was made.
    Created(SessionRecord),
    /// It existed already, perhaps with other fields.
    Existing(SessionRecord),
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Whose it is.
    pub scope: Scope,
    /// The workspace that it works in, for ever.
    pub workspace_id: WorkspaceId,
    /// Whether the request named the workspace.
    pub explicit: bool,
    /// What people call it.
    pub name: Option<String>,
    /// The last generation of its workspace that it was told.
    pub told_generation: Option<u64>,
    /// When it was made.
    pub created_at: SystemTime,
    /// Its place in the order of creation.
    pub seq: i64,
}

/// Which sessions to list.
#[derive(Debug, Clone)]
pub struct SessionPage {
    /// Whose.
    pub user: UserId,
    /// Only this agent's.
    pub agent: Option<AgentId>,
    /// Only those made after this one.
    pub after: i64,
    /// At most so many.
    pub limit: u32,
}

/// What is left to do after a session was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retired {
    /// There is no such session.
    Unknown,
    /// Nothing: its workspace is not its own, or others still use it.
    Done(WorkspaceId),
    /// Its workspace was its alone and has to be destroyed.
    Orphaned(WorkspaceId),
}

/// Whether a session knows of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It knew, or this is its first use of the workspace.
    Knew,
    /// It did not, and is told now.
    Now,
}

/// What is known of a workspace that exists, or may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRecord {
    /// Its id.
    pub id: WorkspaceId,
    /// Who first asked for it: its owner, and where a backend puts it.
    pub first: Scope,
    /// The kind of backend that it lives on.
    pub backend: String,
    /// The machine that first opened it.
    pub node: String,
    /// How often its files have been lost.
    pub generation: u64,
    /// The policy that assigned the id, unless it was named.
    pub policy: Option<IsolationPolicy>,
    /// When the record was made.
    pub created_at: SystemTime,
}

impl WorkspaceRecord {
    /// The record of a workspace that nobody has opened yet.
    pub fn new(id: WorkspaceId, first: Scope, backend: &str, node: &str, policy: Option<IsolationPolicy>) -> Self {
        let (backend, node) = (backend.to_owned(), node.to_owned());
        Self { id, first, backend, node, generation: 0, policy, created_at: now_in_millis() }
    }

    /// Its owner.
    pub fn owner(&self) -> &UserId {
        &self.first.user_id
    }
}

/// The refusal of a workspace that is another user's. It names no owner.
pub(crate) fn foreign_owner(id: &WorkspaceId) -> Error {
    Error::new(ErrorKind::PermissionDenied, "this workspace belongs to somebody else")
        .with_code("foreign_owner")
        .with_field("workspace_id")
        .with_workspace(id)
}

/// The present time as exactly as it is stored.
fn now_in_millis() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(since.as_millis().try_into().unwrap_or(u64::MAX))
}
