//! The sandboxes, for tests: what there is, and what can happen to it behind the client's back.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    clock::shown,
    fault::{Ending, Hits, Unreachable},
    lifecycle,
    state::{Down, Fake, Phase, Sandbox},
};

/// What a sandbox does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SandboxState {
    /// It runs, or is being copied.
    Running,
    /// It is being paused.
    Pausing,
    /// It is paused.
    Paused,
    /// It is being woken.
    Resuming,
}

/// A sandbox.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// Its id.
    pub id: String,
    /// What it was made from.
    pub template: String,
    /// What it does.
    pub state: SandboxState,
    /// What it was created with.
    pub metadata: BTreeMap<String, String>,
    /// When its last run began, as the API writes times.
    pub started_at: String,
    /// When it expires, or since when it is paused.
    pub end_at: String,
    /// Whether it is paused at its end, rather than killed.
    pub auto_pause: bool,
    /// Whether its daemon wants a token.
    pub secure: bool,
    /// How many commands run in it.
    pub processes: usize,
}

/// All sandboxes of a fake, whoever made them.
#[derive(Clone)]
pub struct Sandboxes {
    fake: Arc<Fake>,
}

impl std::fmt::Debug for Sandboxes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.all()).finish()
    }
}

impl Sandboxes {
    pub(crate) fn new(fake: Arc<Fake>) -> Self {
        Self { fake }
    }

    /// All there are, by id.
    #[must_use]
    pub fn all(&self) -> Vec<SandboxInfo> {
        self.fake.all().iter().map(|sandbox| info(sandbox)).collect()
    }

    /// One, while it exists.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<SandboxInfo> {
        self.fake.sandbox(id).map(|sandbox| info(&sandbox))
    }

    /// Lets the time of a running one be over: it is killed, or paused.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub async fn expire(&self, id: &str) -> Result<()> {
        self.find(id)?.live.lock().end_at = self.fake.clock.now();
        lifecycle::expire_due(&self.fake).await;
        Ok(())
    }

    /// Kills one without anybody having asked for it, as when its node is lost.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub async fn vanish(&self, id: &str) -> Result<()> {
        let sandbox = self.fake.remove(&self.find(id)?.id).context("it has vanished already")?;
        lifecycle::destroy(&sandbox, Ending::Reset).await;
        Ok(())
    }

    /// Pauses a running one without anybody having asked for it.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub async fn pause(&self, id: &str) -> Result<()> {
        let sandbox = self.find(id)?;
        let _turn = sandbox.turn.lock().await;
        if sandbox.phase() == Phase::Running {
            lifecycle::pause(&self.fake, &sandbox, true, &Hits::default()).await;
        }
        Ok(())
    }

    /// Kills the daemon of one, and all commands with it. Only connect with `memory: false` after a pause brings it back.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub fn kill_envd(&self, id: &str) -> Result<()> {
        lifecycle::crash(&*self.find(id)?);
        Ok(())
    }

    /// Makes the daemon of one unreachable for so many requests.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub fn take_envd_down(&self, id: &str, times: u32, says: Unreachable) -> Result<()> {
        self.find(id)?.live.lock().down = Some(Down { times, until: None, says });
        Ok(())
    }

    /// Ends all open streams of one.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub fn cut_streams(&self, id: &str, ending: Ending) -> Result<()> {
        self.find(id)?.guest.cut_streams(ending);
        Ok(())
    }

    /// Keeps a copy of the files of one, in place of the one before.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox, or it could not be copied.
    pub fn checkpoint(&self, id: &str) -> Result<()> {
        self.find(id)?.guest.checkpoint().context("the checkpoint could not be made")
    }

    /// Puts the files of one back to its checkpoint; to those of a new one when there is none.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox, or it could not be copied.
    pub fn roll_back(&self, id: &str) -> Result<()> {
        self.find(id)?.guest.roll_back().context("the files could not be put back")
    }

    /// Where a file of a sandbox is on this machine. Links in the path are not followed as in the sandbox.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox.
    pub fn path(&self, id: &str, path: &str) -> Result<PathBuf> {
        Ok(self.find(id)?.guest.outside(path))
    }

    fn find(&self, id: &str) -> Result<Arc<Sandbox>> {
        self.fake.sandbox(id).with_context(|| format!("there is no sandbox `{id}`"))
    }
}

fn info(sandbox: &Sandbox) -> SandboxInfo {
    let processes = sandbox.guest.run().map_or(0, |run| {
        let processes = run.processes.lock();
        processes.values().filter(|process| !process.has_ended()).count()
    });
    let live = sandbox.live.lock();
    SandboxInfo {
        id: sandbox.id.clone(),
        template: sandbox.template.clone(),
        state: match live.phase {
            Phase::Running | Phase::Snapshotting => SandboxState::Running,
            Phase::Pausing => SandboxState::Pausing,
            Phase::Paused => SandboxState::Paused,
            Phase::Resuming => SandboxState::Resuming,
        },
        metadata: sandbox.metadata.clone(),
        started_at: shown(live.started_at),
        end_at: shown(live.end_at),
        auto_pause: sandbox.auto_pause,
        secure: sandbox.token.is_some(),
        processes,
    }
}
