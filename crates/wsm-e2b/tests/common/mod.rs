//! What the tests share: a stand-in for the cloud, and backends over it.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it stands, and says why it is skipped"
)]

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use wsm_core::{
    Backend, BackendConfig, Command, ExecResult, ManagedWorkspace, OpenRequest, Opened, UserId, WorkspaceExt,
    WorkspaceId,
};
use wsm_e2b::{E2bBackend, E2bConfig};
use wsm_fake_e2b::{API_KEY, FakeE2b, Operation, Options, SandboxInfo};

/// What sandboxes show to nobody: the fake's tokens are 64 digits, and the key is known.
pub(crate) const KEY: &str = API_KEY;

/// Why it can not be tested here, where it is said that it must be; else the tests pass and say that they did nothing.
pub(crate) fn can_run() -> bool {
    let Err(why) = FakeE2b::check() else { return true };
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == "e2b"), "`e2b` is required by WSM_REQUIRE: {why}");
    println!("skipped: the stand-in for E2B can not run here: {why}");
    false
}

/// A stand-in, with a backend over it.
pub(crate) struct Fixture {
    pub(crate) fake: FakeE2b,
    pub(crate) backend: Arc<E2bBackend>,
}

impl Fixture {
    pub(crate) async fn new() -> Option<Self> {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Option<Self> {
        if !can_run() {
            return None;
        }
        let fake = FakeE2b::start(options).await.unwrap();
        let backend = backend(&fake);
        Some(Self { fake, backend })
    }

    /// Another backend over the same cloud, as a second replica or after a restart.
    pub(crate) fn another(&self) -> Arc<E2bBackend> {
        backend(&self.fake)
    }

    pub(crate) async fn open(&self, name: &str) -> Opened {
        open(&self.backend, name).await
    }

    pub(crate) async fn workspace(&self) -> Arc<dyn ManagedWorkspace> {
        self.open("w").await.workspace
    }

    /// The only sandbox there is.
    pub(crate) fn only(&self) -> SandboxInfo {
        let all = self.fake.sandboxes().all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    pub(crate) fn count(&self, operation: Operation) -> usize {
        self.fake.requests().count(operation)
    }
}

pub(crate) fn config(fake: &FakeE2b) -> E2bConfig {
    E2bConfig::default().with_api_key(KEY).with_api_url(fake.api_url()).with_sandbox_url(fake.sandbox_url())
}

pub(crate) fn backend(fake: &FakeE2b) -> Arc<E2bBackend> {
    Arc::new(config(fake).build().unwrap())
}

pub(crate) fn id(name: &str) -> WorkspaceId {
    WorkspaceId::new(name).unwrap()
}

pub(crate) fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

pub(crate) fn request(name: &str) -> OpenRequest {
    OpenRequest::new(id(name)).with_owner(user("ann"))
}

pub(crate) async fn open(backend: &E2bBackend, name: &str) -> Opened {
    backend.open(request(name)).await.unwrap_or_else(|error| panic!("{}", error.report()))
}

pub(crate) async fn sh(workspace: &Arc<dyn ManagedWorkspace>, line: &str) -> ExecResult {
    workspace.exec(Command::shell(line)).await.unwrap_or_else(|error| panic!("{line}: {}", error.report()))
}

pub(crate) async fn text(workspace: &Arc<dyn ManagedWorkspace>, path: &str) -> String {
    workspace.read_text(path, 1 << 20).await.unwrap_or_else(|error| panic!("{path}: {}", error.report()))
}

pub(crate) async fn write(workspace: &Arc<dyn ManagedWorkspace>, path: &str, content: &str) {
    let written = workspace.write_bytes(path, content.to_owned().into()).await;
    written.unwrap_or_else(|error| panic!("{path}: {}", error.report()));
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
