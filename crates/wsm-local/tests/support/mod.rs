//! What the tests of this crate share.
#![allow(dead_code, reason = "every test file uses another part")]

use std::{path::Path, sync::Arc, time::Duration};

use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use wsm_core::{
    Backend, BackendConfig, Command, ExecResult, ManagedWorkspace, OpenRequest, Opened, WorkspaceExt, WorkspaceId,
};
use wsm_local::{LocalBackend, LocalConfig};

/// Much longer than anything takes, and short enough to wait for when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Short, so that tests need not wait long for what ignores `SIGTERM`.
pub(crate) const GRACE: Duration = Duration::from_millis(300);

pub(crate) fn id(text: &str) -> WorkspaceId {
    WorkspaceId::new(text).unwrap()
}

pub(crate) fn config(basedir: &Path) -> LocalConfig {
    LocalConfig::new(basedir).with_kill_grace(GRACE)
}

pub(crate) fn backend(basedir: &Path) -> LocalBackend {
    config(basedir).build().unwrap()
}

/// A backend on a fresh basedir with one open workspace.
pub(crate) struct Fixture {
    pub(crate) basedir: TempDir,
    pub(crate) backend: LocalBackend,
    pub(crate) workspace: Arc<dyn ManagedWorkspace>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let basedir = tempfile::tempdir().unwrap();
        let backend = backend(basedir.path());
        backend.start().await.unwrap();
        let workspace = open(&backend, "w").await.workspace;
        Self { basedir, backend, workspace }
    }

    pub(crate) async fn exec(&self, command: Command) -> ExecResult {
        self.workspace.exec(command).await.unwrap()
    }

    /// Runs a line that must succeed, and gives what it printed.
    pub(crate) async fn sh(&self, line: &str) -> String {
        let result = self.workspace.sh(line).await.unwrap();
        assert!(result.status.success(), "{line}: {result:?}");
        result.stdout.to_text().trim_end().to_owned()
    }

    /// Where a path of the workspace is on this machine.
    pub(crate) fn host_path(&self, path: &str) -> std::path::PathBuf {
        Path::new(&self.workspace.info().workdir).join(path)
    }

    /// Waits until a command has written its process number to the file, and gives it.
    pub(crate) async fn pid_in(&self, path: &str) -> u32 {
        let path = self.host_path(path);
        let mut pid = None;
        wait_until("the process number is written", || {
            pid =
                std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')).map(|text| text.trim().parse());
            pid.is_some()
        })
        .await;
        pid.unwrap().unwrap()
    }
}

pub(crate) async fn open(backend: &LocalBackend, text: &str) -> Opened {
    backend.open(OpenRequest::new(id(text))).await.unwrap()
}

pub(crate) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Fails instead of hanging.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Whether the process runs, and is not just a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
    !matches!(state, Some('Z' | 'X'))
}

pub(crate) async fn wait_for_death(pid: u32) {
    wait_until(&format!("process {pid} is dead"), || !is_alive(pid)).await;
}
