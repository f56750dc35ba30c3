//! The contract of a backend: a plugin that can open, find, list and destroy workspaces of one kind.

use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::{
    capability::Capabilities,
    error::Result,
    id::{UserId, WorkspaceId},
    policy::IsolationPolicy,
    progress::Progress,
    scope::Scope,
    workspace::ManagedWorkspace,
};

/// The [code](crate::Error::code) of the error that refuses another user's workspace.
pub const FOREIGN_OWNER: &str = "foreign_owner";

/// A kind of place that workspaces live in.
///
/// # Contract
///
/// Every rule has a case of that number in `wsm-conformance`.
///
/// - **B1** `open` of an id that does not exist MUST create an empty workspace and say `created`.
/// - **B2** `open` MUST be idempotent per id: it never makes a second workspace for one, also when called at once from
///   two replicas. An open workspace is `reattached`.
/// - **B3** `open` of a suspended workspace MUST bring its files back and say what was lost.
/// - **B4** Only a definite "not found" may create. An engine that can not be reached MUST be `unavailable`, never an
///   empty workspace in place of a user's files.
/// - **B5** When the stored owner is another user, `open` MUST be `permission_denied` with code `foreign_owner`, naming
///   no owner and changing nothing, unless [`OpenRequest::allow_foreign_owner`] is set. Also after a restart.
/// - **B6** `find` MUST see what `open` made, running or suspended, give `None` only for a definite "not found", and
///   change nothing.
/// - **B7** `list` MUST give every workspace of this installation exactly once, over all pages.
/// - **B8** `destroy` MUST remove the workspace and its data; of an id that does not exist it MUST succeed. A workspace
///   object of that id is then `gone`, and the next `open` says `created`.
/// - **B9** `generation` MUST persist, and rise exactly when workspace files were lost.
/// - **B10** `open`, `find` and `destroy` MUST work from the id alone. Owner and placement in the request serve labels
///   and the first placement; whatever agent, session or policy asks later, the id keeps its place.
/// - **B11** A dropped `open` MUST leave nothing behind that `find`, `list` and `destroy` do not see.
/// - **B12** Two ids MUST never share a workspace, nor may one lie inside another.
///
/// # Cancel safety
///
/// Every future may be dropped at any await; see B11. The manager itself runs `open` on a task of its own.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The kind's name, as in `backend = "local"`.
    fn kind(&self) -> &'static str;

    /// What the workspaces of this backend can do before any layer adds to it.
    fn capabilities(&self) -> Capabilities;

    /// Makes sure that the workspace exists and runs, and attaches to it.
    ///
    /// # Errors
    ///
    /// `permission_denied` (B5), `unavailable` (B4), `conflict` for a workspace of another installation, `timeout`.
    async fn open(&self, request: OpenRequest) -> Result<Opened>;

    /// Looks a workspace up without attaching to it.
    ///
    /// # Errors
    ///
    /// `unavailable` when it can not be decided.
    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>>;

    /// Everything of this installation that exists. An error in the stream means that the list is not complete.
    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>>;

    /// Ends a workspace and deletes its data.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be reached; nothing is deleted then.
    async fn destroy(&self, id: &WorkspaceId) -> Result<()>;

    /// What this installation has made in the engine and nothing needs any more: what a crash has left, and what newer
    /// things have replaced. Never what a workspace is opened with, nor anything of another installation. Where it may hold
    /// files, as a second sandbox of one workspace does, the reason says so. By default there is never anything.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be reached.
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        Ok(Vec::new())
    }

    /// Removes one of [`leftovers`](Self::leftovers), after another look: something may need it by now. Tells whether it is
    /// gone.
    ///
    /// # Errors
    ///
    /// `unavailable` when the engine can not be reached.
    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let _ = leftover;
        Ok(false)
    }

    /// Whether the engine can be reached, its version, and what is missing. By default there is nothing to reach.
    ///
    /// # Errors
    ///
    /// `unavailable` with what to do about it.
    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new(self.kind()))
    }

    /// Called once before the first use: warnings for the operator, and putting right what a crash left.
    ///
    /// # Errors
    ///
    /// Whatever makes the backend unusable, such as a directory that can not be written.
    async fn start(&self) -> Result<()> {
        Ok(())
    }
}

/// Ties a configuration to the backend it makes, so that a manager can be built from the configuration alone.
pub trait BackendConfig: fmt::Debug {
    /// The backend that this configures.
    type Backend: Backend;

    /// Makes the backend. Does no work that could fail for want of an engine; that is [`Backend::start`]'s.
    ///
    /// # Errors
    ///
    /// `invalid_input` naming the option at fault.
    fn build(self) -> Result<Self::Backend>;

    /// When the manager looks for idle workspaces.
    fn sweep(&self) -> SweepTrigger {
        SweepTrigger::Interval
    }
}

/// A backend that is there already, as a configuration of itself.
#[derive(Debug)]
pub struct Ready<B>(pub B);

impl<B: Backend> BackendConfig for Ready<B> {
    type Backend = B;

    fn build(self) -> Result<B> {
        Ok(self.0)
    }
}

/// What makes a manager look for idle workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SweepTrigger {
    /// A timer, every `sweep_interval`.
    Interval,
    /// A `get_workspace`, in the background and not too often. `sweep_interval` does nothing.
    Get,
}

/// What a backend is told when it opens a workspace.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenRequest {
    /// The workspace's id. All else is advice.
    pub id: WorkspaceId,
    /// Who asks. Stored at the first opening, compared at every later one; `None` claims and checks nothing.
    pub owner: Option<UserId>,
    /// Who asked, and by which policy the id is theirs. `None` for an explicit id that no policy gives the asker.
    pub placement: Option<Placement>,
    /// What `suspend` returned last, where a coordinator kept it.
    pub checkpoint: Option<Checkpoint>,
    /// The program to run as the first process, for backends with that capability.
    pub init: Option<InitProgram>,
    /// Whether a workspace of another user may be opened.
    pub allow_foreign_owner: bool,
    /// Where to tell how far the opening is, when it takes long.
    pub progress: Progress,
}

impl OpenRequest {
    /// A request by id alone.
    pub fn new(id: WorkspaceId) -> Self {
        Self {
            id,
            owner: None,
            placement: None,
            checkpoint: None,
            init: None,
            allow_foreign_owner: false,
            progress: Progress::default(),
        }
    }

    /// Sets who asks.
    #[must_use]
    pub fn with_owner(mut self, owner: UserId) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Sets by which policy the id is the asker's.
    #[must_use]
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.placement = Some(placement);
        self
    }

    /// Sets what `suspend` returned last.
    #[must_use]
    pub fn with_checkpoint(mut self, checkpoint: Option<Checkpoint>) -> Self {
        self.checkpoint = checkpoint;
        self
    }

    /// Sets where to tell how far the opening is.
    #[must_use]
    pub fn with_progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Allows a workspace of another user.
    #[must_use]
    pub fn with_foreign_owner_allowed(mut self, yes: bool) -> Self {
        self.allow_foreign_owner = yes;
        self
    }
}

/// By which policy an id was assigned to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The policy.
    pub policy: IsolationPolicy,
    /// Whom.
    pub scope: Scope,
}

/// A program that a layer wants run as the first process of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitProgram {
    /// Where the program is on this machine.
    pub path: std::path::PathBuf,
    /// The hash of its content: BLAKE2b with 128 bits, in hexadecimal digits.
    pub hash: String,
    /// Its arguments. The backend adds its own, which say how the program is connected to and where it works: those of
    /// `wsm-gateway serve`.
    pub args: Vec<String>,
}

/// What `suspend` left for the next `open`: opaque to everybody but the backend, at most 64 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint(pub Bytes);

/// An opened workspace.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The workspace.
    pub workspace: Arc<dyn ManagedWorkspace>,
    /// How the opening ended.
    pub outcome: Outcome,
    /// After how long without use the backend itself stops the workspace; none means never.
    pub idle_stop: Option<Duration>,
}

impl Opened {
    /// An opened workspace that the backend never stops by itself.
    pub fn new(workspace: Arc<dyn ManagedWorkspace>, outcome: Outcome) -> Self {
        Self { workspace, outcome, idle_stop: None }
    }

    /// Sets after how long the backend itself stops the workspace.
    #[must_use]
    pub fn with_idle_stop(mut self, idle_stop: Duration) -> Self {
        self.idle_stop = Some(idle_stop);
        self
    }
}

/// How an opening ended: what kind it was, what was lost, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// What happened.
    pub kind: OutcomeKind,
    /// What did not survive.
    pub lost: BTreeSet<Loss>,
    /// Why, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
}

impl Outcome {
    /// An outcome without a loss.
    pub fn new(kind: OutcomeKind) -> Self {
        Self { kind, lost: BTreeSet::new(), cause: None }
    }

    /// Sets what was lost.
    #[must_use]
    pub fn with_lost(mut self, lost: impl IntoIterator<Item = Loss>) -> Self {
        self.lost.extend(lost);
        self
    }

    /// Sets why.
    #[must_use]
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Joins an earlier outcome that nobody was told with this later one: the loss is that of both, and the kind is
    /// the one that says more about the files.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        let mut lost = earlier.lost;
        lost.extend(self.lost);
        Self { kind: self.kind.max(earlier.kind), lost, cause: self.cause.or(earlier.cause) }
    }
}

/// What happened when a workspace was opened, in the order of how much it says about the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutcomeKind {
    /// It was running.
    Reattached,
    /// It was put away, and was brought back.
    Resumed,
    /// It did not exist.
    Created,
    /// It had existed, and its files are gone.
    Recreated,
}

/// A part of a workspace's state that can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// Running processes.
    Processes,
    /// Memory, such as a `tmpfs`.
    Memory,
    /// Files outside the workspace directory, such as installed packages.
    SystemFiles,
    /// Files of the workspace directory.
    WorkspaceFiles,
}

/// Why a workspace died or had to be opened anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// Its lifetime ended.
    Expired,
    /// Somebody or something ended its processes.
    Killed,
    /// It used more memory than it may.
    OutOfMemory,
    /// The engine put it out to make room.
    Evicted,
    /// The engine was restarted.
    EngineRestarted,
    /// Its data were deleted behind our back.
    Deleted,
    /// wsm put it away.
    Suspended,
    /// Nobody knows.
    Unknown,
}

/// A workspace that exists, open here or not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// Its owner, where one is stored.
    pub owner: Option<UserId>,
    /// Whether it runs.
    pub state: FoundState,
    /// How often its files have been lost.
    pub generation: u64,
    /// Where it is, for people: a directory, a container's name.
    pub location: String,
    /// When it was made, where that is known.
    pub created_at: Option<SystemTime>,
    /// Whether it runs for nobody: the service that had opened it ended without putting it away.
    pub is_abandoned: bool,
}

impl FoundWorkspace {
    /// A workspace without a known owner.
    pub fn new(id: WorkspaceId, state: FoundState, location: impl Into<String>) -> Self {
        Self { id, owner: None, state, generation: 0, location: location.into(), created_at: None, is_abandoned: false }
    }

    /// Sets the owner.
    #[must_use]
    pub fn with_owner(mut self, owner: Option<UserId>) -> Self {
        self.owner = owner;
        self
    }

    /// Sets how often the files have been lost.
    #[must_use]
    pub fn with_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// Sets when it was made.
    #[must_use]
    pub fn with_created_at(mut self, created_at: Option<SystemTime>) -> Self {
        self.created_at = created_at;
        self
    }
}

/// Something that a backend has made and nothing needs any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Leftover {
    /// What kind of thing it is.
    pub kind: LeftoverKind,
    /// Its name in the engine, or its path.
    pub name: String,
    /// Why nothing needs it, for people.
    pub reason: String,
    /// Whose it was, where it was a workspace's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
}

impl Leftover {
    /// A leftover that was no workspace's.
    pub fn new(kind: LeftoverKind, name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { kind, name: name.into(), reason: reason.into(), workspace_id: None }
    }

    /// Sets whose it was.
    #[must_use]
    pub fn with_workspace(mut self, id: Option<WorkspaceId>) -> Self {
        self.workspace_id = id;
        self
    }
}

/// The kinds of things that backends make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeftoverKind {
    /// A container, Pod or cloud sandbox.
    Sandbox,
    /// A volume.
    Volume,
    /// A network.
    Network,
    /// An image.
    Image,
    /// A directory of the backend's own.
    Directory,
}

impl fmt::Display for LeftoverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandbox => "sandbox",
            Self::Volume => "volume",
            Self::Network => "network",
            Self::Image => "image",
            Self::Directory => "directory",
        })
    }
}

/// Whether a found workspace runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FoundState {
    /// It runs.
    Running,
    /// It is put away.
    Suspended,
    /// It is broken: opening it says what is left.
    Dead,
}

/// What a backend says about its engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// The engine and its version.
    pub engine: String,
    /// What works, one line each.
    pub facts: Vec<String>,
    /// What does not, and what to do about it, one line each.
    pub warnings: Vec<String>,
}

impl Probe {
    /// A report without facts.
    pub fn new(engine: impl Into<String>) -> Self {
        Self { engine: engine.into(), facts: Vec::new(), warnings: Vec::new() }
    }

    /// Adds what works.
    #[must_use]
    pub fn with_fact(mut self, fact: impl Into<String>) -> Self {
        self.facts.push(fact.into());
        self
    }

    /// Adds what does not work.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}
