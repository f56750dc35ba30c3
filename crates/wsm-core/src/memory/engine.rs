//! The engine: what would be a daemon or a cloud elsewhere.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    fault::{Defect, Effect, Fault, Faults, Operation},
    tree::Tree,
};
use crate::{
    backend::{Cause, FoundState},
    id::{UserId, WorkspaceId},
};

/// What several backends share, as replicas share a daemon: every workspace that exists, and the faults to come.
#[derive(Debug, Clone, Default)]
pub struct MemoryEngine(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    boxes: Mutex<BTreeMap<WorkspaceId, Sandbox>>,
    faults: Mutex<Faults>,
    defects: Mutex<HashSet<Defect>>,
    violations: Mutex<Vec<String>>,
    opens: AtomicU64,
    creations: AtomicU64,
    suspensions: AtomicU64,
}

/// One workspace of the engine.
#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) tree: Tree,
    pub(super) owner: Option<UserId>,
    pub(super) generation: u64,
    pub(super) state: FoundState,
    pub(super) cause: Option<Cause>,
    /// Whether the files are still there.
    pub(super) intact: bool,
    pub(super) created_at: SystemTime,
    /// Ends everything that runs in this start of it.
    pub(super) running: CancellationToken,
    /// How many commands run.
    pub(super) commands: u64,
    /// When the engine stops it by itself, if it does.
    pub(super) stops_at: Option<tokio::time::Instant>,
}

impl Sandbox {
    pub(super) fn new(owner: Option<UserId>) -> Self {
        Self {
            tree: Tree::default(),
            owner,
            generation: 0,
            state: FoundState::Running,
            cause: None,
            intact: true,
            created_at: SystemTime::now(),
            running: CancellationToken::new(),
            commands: 0,
            stops_at: None,
        }
    }

    /// Stops what runs.
    pub(super) fn stop(&mut self, state: FoundState, cause: Cause) {
        self.state = state;
        self.cause = Some(cause);
        self.running.cancel();
        self.stops_at = None;
    }

    /// Stops it if its time is over. Call before looking at the state.
    fn tick(&mut self) {
        if self.stops_at.is_some_and(|at| tokio::time::Instant::now() >= at) {
            self.stop(FoundState::Dead, Cause::Expired);
        }
    }
}

impl MemoryEngine {
    /// An engine without workspaces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes something go wrong. Faults of one operation come in the order in which they were planted.
    pub fn plant(&self, fault: Fault) {
        self.0.faults.lock().push(fault);
    }

    /// Forgets the faults that are still to come.
    pub fn clear_faults(&self) {
        self.0.faults.lock().clear();
    }

    /// Builds a mistake into the engine for good.
    pub fn add_defect(&self, defect: Defect) {
        self.0.defects.lock().insert(defect);
    }

    /// Kills a workspace behind everybody's back; its files stay.
    pub fn kill(&self, id: &WorkspaceId, cause: Cause) {
        if let Some(sandbox) = self.0.boxes.lock().get_mut(id) {
            sandbox.stop(FoundState::Dead, cause);
        }
    }

    /// Kills a workspace and deletes its files behind everybody's back; that it existed is still known.
    pub fn lose_files(&self, id: &WorkspaceId) {
        if let Some(sandbox) = self.0.boxes.lock().get_mut(id) {
            sandbox.stop(FoundState::Dead, Cause::Deleted);
            sandbox.intact = false;
        }
    }

    /// What happened that must never happen, such as a workspace suspended while a command ran in it.
    pub fn violations(&self) -> Vec<String> {
        self.0.violations.lock().clone()
    }

    /// How often `open` was asked.
    pub fn opens(&self) -> u64 {
        self.0.opens.load(Ordering::Acquire)
    }

    /// How many workspaces were ever made.
    pub fn creations(&self) -> u64 {
        self.0.creations.load(Ordering::Acquire)
    }

    /// How many times a workspace was suspended.
    pub fn suspensions(&self) -> u64 {
        self.0.suspensions.load(Ordering::Acquire)
    }

    /// How many workspaces run now.
    pub fn running(&self) -> usize {
        self.0.boxes.lock().values().filter(|sandbox| sandbox.state == FoundState::Running).count()
    }

    pub(super) fn fault(&self, operation: Operation) -> Option<Effect> {
        self.0.faults.lock().next(operation)
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.0.defects.lock().contains(&defect)
    }

    pub(super) fn violation(&self, what: String) {
        self.0.violations.lock().push(what);
    }

    pub(super) fn count_open(&self) {
        self.0.opens.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_creation(&self) {
        self.0.creations.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_suspension(&self) {
        self.0.suspensions.fetch_add(1, Ordering::AcqRel);
    }

    /// Looks at all workspaces under the engine's lock.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut BTreeMap<WorkspaceId, Sandbox>) -> T) -> T {
        let mut boxes = self.0.boxes.lock();
        look(&mut boxes)
    }

    /// Looks at one workspace, if it exists.
    pub(super) fn with_one<T>(&self, id: &WorkspaceId, look: impl FnOnce(&mut Sandbox) -> T) -> Option<T> {
        self.with(|boxes| {
            boxes.get_mut(id).map(|sandbox| {
                sandbox.tick();
                look(sandbox)
            })
        })
    }

    /// Puts off the time at which the engine stops a workspace.
    pub(super) fn extend(&self, id: &WorkspaceId, duration: Duration) {
        self.with_one(id, |sandbox| sandbox.stops_at = Some(tokio::time::Instant::now() + duration));
    }
}
