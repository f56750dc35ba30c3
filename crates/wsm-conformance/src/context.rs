//! What a case works with.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use wsm_core::{
    Backend, Capabilities, CapabilityGuard, Command, ExecFiles, ExecResult, ManagedWorkspace, OpenRequest, Opened,
    Result, UserId, WorkspaceExt, WorkspaceId,
};

use crate::subject::{Faults, Subject};

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a case works with: a backend, and the ids that it has used.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) backend: Arc<dyn Backend>,
    subject: Subject,
    used: Arc<Mutex<Vec<WorkspaceId>>>,
}

impl Context {
    pub(crate) fn new(subject: Subject) -> std::result::Result<Self, String> {
        let backend = subject.connect().map_err(|error| format!("the backend can not be made: {}", error.report()))?;
        Ok(Self { backend, subject, used: Arc::default() })
    }

    /// Another backend over the same engine.
    pub(crate) async fn reconnect(&self) -> Arc<dyn Backend> {
        let backend = self.subject.connect().expect("the backend can be made again");
        backend.start().await.expect("the backend starts again");
        backend
    }

    pub(crate) fn faults(&self) -> Arc<dyn Faults> {
        Arc::clone(self.subject.faults().expect("a case that needs faults runs only with them"))
    }

    /// A fresh id, destroyed at the end of the case.
    pub(crate) fn id(&self) -> WorkspaceId {
        self.use_id(WorkspaceId::random())
    }

    /// An id of a certain form, made unlike any other run's.
    pub(crate) fn use_id(&self, id: WorkspaceId) -> WorkspaceId {
        self.used.lock().push(id.clone());
        id
    }

    /// A fresh open workspace.
    pub(crate) async fn workspace(&self) -> Arc<dyn ManagedWorkspace> {
        self.open(&self.id()).await.workspace
    }

    pub(crate) async fn open(&self, id: &WorkspaceId) -> Opened {
        open(&*self.backend, request(id)).await.unwrap_or_else(|error| panic!("open failed: {}", error.report()))
    }

    /// Destroys what the case used, and shows that nothing is left of it.
    pub(crate) async fn clean_up(&self) -> std::result::Result<(), String> {
        if let Some(faults) = self.subject.faults() {
            faults.set_unreachable(false);
        }
        let used = std::mem::take(&mut *self.used.lock());
        for id in &used {
            let destroyed = self.backend.destroy(id).await;
            destroyed.map_err(|error| format!("`{id}` can not be destroyed: {}", error.report()))?;
        }
        Ok(())
    }
}

pub(crate) fn user(name: &str) -> UserId {
    UserId::new(name).expect("a valid user id")
}

/// A request in the name of the suite's user.
pub(crate) fn request(id: &WorkspaceId) -> OpenRequest {
    OpenRequest::new(id.clone()).with_owner(user("conformance"))
}

/// Opens a workspace and puts on it what the manager would: the guard, and file operations where it has none.
pub(crate) async fn open(backend: &dyn Backend, request: OpenRequest) -> Result<Opened> {
    backend.start().await?;
    let mut opened = backend.open(request).await?;
    let capabilities = backend.capabilities();
    opened.workspace = Arc::new(CapabilityGuard::new(opened.workspace, capabilities));
    if ExecFiles::applies_to(capabilities) {
        opened.workspace = Arc::new(ExecFiles::new(opened.workspace));
    }
    Ok(opened)
}

/// What a workspace of the backend can do when it is opened by [`open`].
pub(crate) fn effective(capabilities: Capabilities) -> Capabilities {
    ExecFiles::capabilities_above(capabilities)
}

/// Runs a line in `sh -c` and expects it to begin.
pub(crate) async fn sh(workspace: &Arc<dyn ManagedWorkspace>, line: &str) -> ExecResult {
    exec(workspace, Command::shell(line)).await
}

/// Runs a command and expects it to begin.
pub(crate) async fn exec(workspace: &Arc<dyn ManagedWorkspace>, command: Command) -> ExecResult {
    let shown = format!("{command:?}");
    workspace.exec(command).await.unwrap_or_else(|error| panic!("{shown} did not begin: {}", error.report()))
}

/// A file's content as text.
pub(crate) async fn text(workspace: &Arc<dyn ManagedWorkspace>, path: &str) -> String {
    let read = workspace.read_text(path, 1 << 20).await;
    read.unwrap_or_else(|error| panic!("`{path}` can not be read: {}", error.report()))
}

pub(crate) async fn write(workspace: &Arc<dyn ManagedWorkspace>, path: &str, content: impl Into<bytes::Bytes>) {
    let written = workspace.write_bytes(path, content.into()).await;
    written.unwrap_or_else(|error| panic!("`{path}` can not be written: {}", error.report()));
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Which of the processes whose numbers stand in a file of the workspace are still there. Zombies do not count: they
/// run no more, and it is the init's business to collect them.
pub(crate) async fn alive(workspace: &Arc<dyn ManagedWorkspace>, pid_file: &str) -> String {
    let line = format!(
        "for p in $(cat {pid_file} 2>/dev/null); do s=$(cut -d' ' -f3 /proc/$p/stat 2>/dev/null); \
         [ -n \"$s\" ] && [ \"$s\" != Z ] && echo $p; done; true"
    );
    sh(workspace, &line).await.stdout.to_text()
}
