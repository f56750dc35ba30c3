//! What is tested.

use std::{any::Any, fmt, sync::Arc};

use tokio::sync::RwLock;
use wsm_core::{Backend, Result, WorkspaceId};

type Connect = dyn Fn() -> Result<Arc<dyn Backend>> + Send + Sync;

/// The backend under test.
#[derive(Clone)]
pub struct Subject {
    connect: Arc<Connect>,
    faults: Option<Arc<dyn Faults>>,
    /// Held alone by a case that makes the engine fail, and shared by all others.
    pub(crate) engine: Arc<RwLock<()>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Subject {
    /// Tests the backends that `connect` makes. Each call makes another one over the same engine, as a second replica or
    /// a restarted service would.
    pub fn new(connect: impl Fn() -> Result<Arc<dyn Backend>> + Send + Sync + 'static) -> Self {
        Self { connect: Arc::new(connect), faults: None, engine: Arc::default(), _keep: Arc::new(()) }
    }

    /// Adds a way to make the engine fail, for the cases that need one.
    #[must_use]
    pub fn with_faults(mut self, faults: impl Faults) -> Self {
        self.faults = Some(Arc::new(faults));
        self
    }

    /// Keeps something, such as a temporary directory, until the suite has run.
    #[must_use]
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Self {
        self._keep = Arc::new(thing);
        self
    }

    pub(crate) fn connect(&self) -> Result<Arc<dyn Backend>> {
        (self.connect)()
    }

    pub(crate) fn faults(&self) -> Option<&Arc<dyn Faults>> {
        self.faults.as_ref()
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("faults", &self.faults).finish_non_exhaustive()
    }
}

/// Makes an engine fail behind the backend's back. What a subject can not do, it leaves at the default.
pub trait Faults: fmt::Debug + Send + Sync + 'static {
    /// Makes the engine unreachable, or reachable again. Says whether it can.
    fn set_unreachable(&self, unreachable: bool) -> bool {
        let _ = unreachable;
        false
    }

    /// Ends a workspace's sandbox and leaves its files. Says whether it can.
    fn kill(&self, id: &WorkspaceId) -> bool {
        let _ = id;
        false
    }

    /// Ends a workspace's sandbox and deletes its files. Says whether it can.
    fn lose_files(&self, id: &WorkspaceId) -> bool {
        let _ = id;
        false
    }
}

/// Why a backend can not be tested here, such as "no Docker engine is running".
#[derive(Debug, Clone)]
pub struct Unavailable {
    pub(crate) kind: &'static str,
    pub(crate) reason: String,
}

impl Unavailable {
    /// The kind is the backend's name, as `WSM_REQUIRE` lists it.
    pub fn new(kind: &'static str, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}
