//! The backend over a [`MemoryEngine`].

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};

use super::{
    engine::{MemoryEngine, Sandbox},
    fault::{Defect, Operation, play},
    workspace::MemoryWorkspace,
};
use crate::{
    backend::{
        Backend, BackendConfig, Cause, FOREIGN_OWNER, FoundState, FoundWorkspace, Loss, OpenRequest, Opened, Outcome,
        OutcomeKind, Probe, SweepTrigger,
    },
    capability::Capabilities,
    error::{Error, ErrorKind, Result},
    id::WorkspaceId,
};

/// Configures a [`MemoryBackend`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// The engine. Two backends over one engine are two replicas, or one before and after a restart.
    pub engine: MemoryEngine,
    /// After how long without `keep_alive` the engine stops a workspace \[never\].
    pub idle_stop: Option<Duration>,
    /// What makes the manager look for idle workspaces \[its timer\].
    pub sweep: SweepTrigger,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self::new(MemoryEngine::new())
    }
}

impl MemoryConfig {
    /// A backend over `engine`.
    pub fn new(engine: MemoryEngine) -> Self {
        Self { engine, idle_stop: None, sweep: SweepTrigger::Interval }
    }

    /// Makes the engine stop workspaces by itself.
    #[must_use]
    pub fn with_idle_stop(mut self, idle_stop: Duration) -> Self {
        self.idle_stop = Some(idle_stop);
        self
    }

    /// Sets what makes the manager look for idle workspaces.
    #[must_use]
    pub fn with_sweep(mut self, sweep: SweepTrigger) -> Self {
        self.sweep = sweep;
        self
    }
}

impl BackendConfig for MemoryConfig {
    type Backend = MemoryBackend;

    fn build(self) -> Result<MemoryBackend> {
        Ok(MemoryBackend { engine: self.engine, idle_stop: self.idle_stop })
    }

    fn sweep(&self) -> SweepTrigger {
        self.sweep
    }
}

/// Workspaces in memory. See the [module](super).
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    engine: MemoryEngine,
    idle_stop: Option<Duration>,
}

pub(super) const KIND: &str = "memory";

impl MemoryBackend {
    /// The engine below.
    pub fn engine(&self) -> &MemoryEngine {
        &self.engine
    }

    fn open_now(&self, request: &OpenRequest) -> Result<(Outcome, u64)> {
        let OpenRequest { id, owner, allow_foreign_owner, .. } = request;
        self.engine.with_one(id, |_| ());
        self.engine.with(|boxes| {
            if self.engine.has(Defect::OpenNotIdempotent) {
                boxes.remove(id);
            }
            let Some(sandbox) = boxes.get_mut(id) else {
                boxes.insert(id.clone(), Sandbox::new(owner.clone()));
                self.engine.count_creation();
                return Ok((Outcome::new(OutcomeKind::Created), 0));
            };
            match (&sandbox.owner, owner) {
                (Some(stored), Some(asking))
                    if stored != asking && !allow_foreign_owner && !self.engine.has(Defect::OwnerIgnored) =>
                {
                    let error = Error::new(ErrorKind::PermissionDenied, "this workspace belongs to another user");
                    return Err(error.with_code(FOREIGN_OWNER));
                }
                (None, Some(_)) => sandbox.owner.clone_from(owner),
                _ => {}
            }
            let cause = sandbox.cause.take();
            let mut outcome = match sandbox.state {
                FoundState::Running => Outcome::new(OutcomeKind::Reattached),
                _ if sandbox.intact => Outcome::new(OutcomeKind::Resumed).with_lost([Loss::Processes, Loss::Memory]),
                _ => {
                    sandbox.tree = super::tree::Tree::default();
                    sandbox.intact = true;
                    if !self.engine.has(Defect::GenerationStuck) {
                        sandbox.generation += 1;
                    }
                    Outcome::new(OutcomeKind::Recreated).with_lost([
                        Loss::Processes,
                        Loss::Memory,
                        Loss::WorkspaceFiles,
                    ])
                }
            };
            outcome.cause = cause;
            if sandbox.state != FoundState::Running {
                sandbox.state = FoundState::Running;
                sandbox.running = tokio_util::sync::CancellationToken::new();
                sandbox.commands = 0;
            }
            Ok((outcome, sandbox.generation))
        })
    }
}

fn describe(id: &WorkspaceId, sandbox: &Sandbox) -> FoundWorkspace {
    FoundWorkspace::new(id.clone(), sandbox.state, format!("memory:{id}"))
        .with_owner(sandbox.owner.clone())
        .with_generation(sandbox.generation)
        .with_created_at(Some(sandbox.created_at))
}

#[async_trait]
impl Backend for MemoryBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE.with_spawn(true).with_files(true).with_confined_files(true)
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        self.engine.count_open();
        let after = match play(self.engine.fault(Operation::Open)).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && self.engine.has(Defect::CreatesWhenUnreachable) => {
                self.engine.with(|boxes| boxes.remove(&request.id));
                None
            }
            played => played?,
        };
        let (outcome, generation) = self.open_now(&request)?;
        if let Some(error) = after {
            return Err(error);
        }
        if let Some(idle_stop) = self.idle_stop {
            self.engine.extend(&request.id, idle_stop);
        }
        let workspace = MemoryWorkspace::attach(self.engine.clone(), request.id, generation, self.idle_stop)?;
        let opened = Opened::new(Arc::new(workspace), outcome);
        Ok(match self.idle_stop {
            Some(idle_stop) => opened.with_idle_stop(idle_stop),
            None => opened,
        })
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        let after = play(self.engine.fault(Operation::Find)).await?;
        let found = self.engine.with_one(id, |sandbox| describe(id, sandbox));
        after.map_or(Ok(found), Err)
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let look = async {
            let after = play(self.engine.fault(Operation::List)).await?;
            let forgets = self.engine.has(Defect::ListForgetsSuspended);
            let found: Vec<_> = self.engine.with(|boxes| {
                let kept = boxes.iter().filter(|(_, sandbox)| !forgets || sandbox.state == FoundState::Running);
                kept.map(|(id, sandbox)| Ok(describe(id, sandbox))).collect()
            });
            after.map_or(Ok(stream::iter(found)), Err)
        };
        stream::once(look).try_flatten().boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let after = play(self.engine.fault(Operation::Destroy)).await?;
        self.engine.with(|boxes| {
            if self.engine.has(Defect::DestroyKeepsFiles) {
                if let Some(sandbox) = boxes.get_mut(id) {
                    sandbox.stop(FoundState::Suspended, Cause::Suspended);
                }
            } else if let Some(mut sandbox) = boxes.remove(id) {
                sandbox.stop(FoundState::Dead, Cause::Deleted);
            }
        });
        after.map_or(Ok(()), Err)
    }

    async fn probe(&self) -> Result<Probe> {
        let after = play(self.engine.fault(Operation::Probe)).await?;
        let probe = Probe::new("in memory").with_warning("workspaces are gone when the process ends");
        after.map_or(Ok(probe), Err)
    }
}
