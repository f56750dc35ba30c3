//! What the tests of real sandboxes share.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test takes what it needs, and a failing one panics"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::process::{Pid, Signal, kill_process};
use wsm_bubblewrap::{BubblewrapBackend, BubblewrapConfig};
use wsm_conformance::{Layered, Unavailable};
use wsm_core::{
    Backend, BackendConfig, Encoding, InitProgram, ManagedWorkspace, OpenRequest, Opened, Result, WorkspaceId,
};
use wsm_gateway::{GatewayLayer, find_program, load_program};

pub(crate) type Gated = Layered<BubblewrapBackend>;

/// The static program, as `cargo xtask gateway` leaves it.
const BUILT: &str = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";

/// The gateway's program.
pub(crate) fn program() -> Result<InitProgram, Unavailable> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(BUILT);
    let program = find_program().or_else(|_| load_program(&built));
    program.map_err(|error| Unavailable::new("bubblewrap", error.to_string()))
}

/// The backend with the gateway on top.
pub(crate) fn gated(config: BubblewrapConfig, program: InitProgram) -> Result<Gated> {
    Ok(Layered { backend: config.build()?, layer: Arc::new(GatewayLayer::new(program)) })
}

/// Whether `bwrap` is there at all. If it is, whatever it refuses is a failure.
pub(crate) fn require_bwrap() -> Result<(), Unavailable> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|directory| directory.join("bwrap").is_file()) {
        true => Ok(()),
        false => Err(Unavailable::new("bubblewrap", "`bwrap` is not installed: `cargo xtask setup` installs it")),
    }
}

/// An id that no other run of a test has: sandboxes are found by it among all processes of the machine.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

/// A directory for workspaces that every user can get to.
pub(crate) fn basedir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The first processes of a workspace's sandboxes, as this machine numbers them.
pub(crate) fn inits(id: &str) -> Vec<Pid> {
    processes_with(id).into_iter().filter(|(_, line)| line.starts_with("/run/wsm/init\0")).map(|(pid, _)| pid).collect()
}

/// All processes whose command line holds a word, with that line.
pub(crate) fn processes_with(word: &str) -> Vec<(Pid, String)> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let lines = numbers.filter_map(|number| {
        let line = fs::read(PathBuf::from(format!("/proc/{number}/cmdline"))).ok()?;
        Some((Pid::from_raw(number)?, String::from_utf8_lossy(&line).into_owned()))
    });
    lines.filter(|(_, line)| line.split('\0').any(|part| part == word)).collect()
}

/// Ends a workspace's sandbox from outside.
pub(crate) fn kill_sandbox(id: &str) -> bool {
    let inits = inits(id);
    inits.iter().for_each(|&pid| {
        let _ = kill_process(pid, Signal::KILL);
    });
    !inits.is_empty()
}

/// Real sandboxes in a directory of their own.
pub(crate) struct Sandboxed {
    pub(crate) base: tempfile::TempDir,
    pub(crate) backend: Gated,
}

impl Sandboxed {
    /// None, said aloud, when this machine can not make any. `WSM_REQUIRE=bubblewrap` makes that a failure.
    pub(crate) async fn new(configure: impl FnOnce(BubblewrapConfig) -> BubblewrapConfig) -> Option<Self> {
        let program = match require_bwrap().and_then(|()| program()) {
            Ok(program) => program,
            Err(unavailable) => {
                let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
                assert!(!required.contains("bubblewrap"), "{unavailable:?}");
                println!("skipped: {unavailable:?}");
                return None;
            }
        };
        let base = basedir();
        let backend = gated(configure(BubblewrapConfig::new(base.path())), program).unwrap();
        Some(Self { base, backend })
    }

    /// Opens a workspace.
    pub(crate) async fn open(&self, id: &str) -> Arc<dyn ManagedWorkspace> {
        self.opened(id).await.workspace
    }

    /// Opens a workspace, and tells how that ended.
    pub(crate) async fn opened(&self, id: &str) -> Opened {
        self.backend.open(OpenRequest::new(WorkspaceId::new(id).unwrap())).await.unwrap()
    }

    /// The directory of a workspace without an owner.
    pub(crate) fn directory(&self, id: &str) -> PathBuf {
        self.base.path().join(Encoding::hash("")).join(Encoding::hash(id))
    }
}
