//! What a fake knows.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::RngExt;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Account, Options, clock::Clock, fault::Faults, fault::Unreachable, guest::Guest, record::Requests};

pub(crate) struct Fake {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    pub(crate) requests: Requests,
    pub(crate) tasks: TaskTracker,
    pub(crate) stopped: CancellationToken,
    pub(crate) snapshots: Mutex<BTreeMap<String, Snapshot>>,
    /// By account and key.
    pub(crate) idempotency: Mutex<HashMap<(String, String), Idempotent>>,
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    directory: PathBuf,
    _temporary: Option<TempDir>,
}

/// A create that was asked for with a key.
#[derive(Debug, Clone)]
pub(crate) struct Idempotent {
    pub(crate) request: Value,
    /// None while it is being made.
    pub(crate) answer: Option<Value>,
}

pub(crate) struct Snapshot {
    pub(crate) account: String,
    pub(crate) names: Vec<String>,
    pub(crate) sandbox: String,
    pub(crate) files: PathBuf,
}

pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) account: String,
    pub(crate) template: String,
    /// What the daemon wants to see. None for sandboxes that are open to all.
    pub(crate) token: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env_vars: BTreeMap<String, String>,
    pub(crate) auto_pause: bool,
    pub(crate) auto_pause_memory: bool,
    pub(crate) auto_resume: bool,
    pub(crate) timeout: Duration,
    pub(crate) network: Mutex<Value>,
    pub(crate) internet: Value,
    pub(crate) volumes: Value,
    pub(crate) guest: Guest,
    /// One change of its state at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) live: Mutex<Live>,
}

#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) phase: Phase,
    pub(crate) started_at: Timestamp,
    pub(crate) end_at: Timestamp,
    pub(crate) down: Option<Down>,
    /// Its daemon has crashed.
    pub(crate) crashed: bool,
    /// Why it was paused without its memory, for what is said of it.
    pub(crate) disk_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Pausing,
    Paused,
    Resuming,
    Snapshotting,
}

/// Its daemon can not be reached for some time, or for some requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Down {
    pub(crate) times: u32,
    pub(crate) until: Option<Instant>,
    pub(crate) says: Unreachable,
}

impl Fake {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let (directory, temporary) = match &options.directory {
            Some(directory) => (directory.clone(), None),
            None => {
                let temporary = tempfile::Builder::new().prefix("wsm-fake-e2b-").tempdir()?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        std::fs::create_dir_all(&directory)?;
        // bubblewrap starts elsewhere.
        let directory = directory.canonicalize()?;
        Ok(Self {
            options,
            clock: Clock::default(),
            faults: Faults::default(),
            requests: Requests::default(),
            tasks: TaskTracker::new(),
            stopped: CancellationToken::new(),
            snapshots: Mutex::default(),
            idempotency: Mutex::default(),
            sandboxes: Mutex::default(),
            directory,
            _temporary: temporary,
        })
    }

    pub(crate) fn account(&self, key: &str) -> Option<&Account> {
        self.options.accounts.iter().find(|account| account.key == key)
    }

    /// A sandbox, whoever has it. The end of the long form of an id is not looked at.
    pub(crate) fn sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        let id = id.split('-').next().unwrap_or_default();
        self.sandboxes.lock().get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.sandboxes.lock().values().cloned().collect()
    }

    pub(crate) fn insert(&self, sandbox: Arc<Sandbox>) {
        self.sandboxes.lock().insert(sandbox.id.clone(), sandbox);
    }

    /// Takes it away. Whoever gets it destroys it; all others find nothing.
    pub(crate) fn remove(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.sandboxes.lock().remove(id)
    }

    pub(crate) fn running(&self, account: &str) -> usize {
        let is_running = |sandbox: &&Arc<Sandbox>| sandbox.account == account && sandbox.phase() != Phase::Paused;
        self.sandboxes.lock().values().filter(is_running).count()
    }

    pub(crate) fn directory_of(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    pub(crate) fn stop(&self) {
        self.stopped.cancel();
        self.tasks.close();
        for sandbox in self.all() {
            sandbox.guest.halt();
        }
    }
}

impl Sandbox {
    pub(crate) fn phase(&self) -> Phase {
        self.live.lock().phase
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.live.lock().phase = phase;
    }
}

/// `i` and 20 letters or digits.
pub(crate) fn random_id() -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = rand::rng();
    let letter = |_| char::from(LETTERS[random.random_range(0..LETTERS.len())]);
    std::iter::once('i').chain((0..20).map(letter)).collect()
}

/// Always the same one for the same sandbox.
pub(crate) fn token_of(id: &str) -> String {
    hex::encode(Sha256::digest(format!("access to {id}")))
}

/// Whether sandboxes can be made here.
pub(crate) fn check() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = |program: &str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    for (program, package) in [("bwrap", "bubblewrap"), ("setsid", "util-linux"), ("nice", "coreutils")] {
        ensure!(is_installed(program), "`{program}` is not installed ({package}): `cargo xtask setup` installs it");
    }
    ensure!(rustix::process::geteuid().is_root(), "only root can enter the namespaces of sandboxes");
    ensure!(Path::new("/bin/bash").is_file(), "`/bin/bash` is not installed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_tokens_look_like_real_ones() {
        let id = random_id();
        assert_eq!(id.len(), 21);
        assert!(id.starts_with('i') && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(token_of(&id).len(), 64);
        assert_eq!(token_of(&id), token_of(&id));
    }
}
