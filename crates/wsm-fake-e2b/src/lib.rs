#![doc = include_str!("../README.md")]

mod account;
mod clock;
mod control;
mod envd;
mod envelope;
mod fault;
mod guest;
mod lifecycle;
mod metadata;
mod operation;
mod proxy;
mod record;
mod remote;
mod rpc;
mod sandboxes;
mod serve;
mod shape;
mod state;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Result;

pub use account::Account;
pub use fault::{Ending, Fault, Faults, On, Unreachable, What};
pub use operation::Operation;
pub use record::{Recorded, Requests};
pub use sandboxes::{SandboxInfo, SandboxState, Sandboxes};

/// How a fake behaves while nothing goes wrong.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The port of the control plane. 0 is for any.
    pub port: u16,
    /// A port for sandboxes alone. They are reached at the other one too.
    pub sandbox_port: Option<u16>,
    /// Who may use it.
    pub accounts: Vec<Account>,
    /// Where files are kept. A temporary directory when there is none.
    pub directory: Option<PathBuf>,
    /// The templates that sandboxes can be made from, besides snapshots.
    pub templates: Vec<String>,
    /// Whether there is `POST /v2/sandboxes` and its like. Servers of one's own may not have these.
    pub v2: bool,
    /// The longest timeout that may be asked for.
    pub max_timeout: Duration,
    /// How often a filter by metadata is decoded: three times by the real one, less by some that stand in for it.
    pub metadata_decodings: usize,
    /// The largest page of a list.
    pub max_page: usize,
    /// What the daemon says that its version is.
    pub envd_version: String,
    /// The `domain` that create and connect answer with.
    pub domain: Option<String>,
    /// How long create, pause, and resume take at least.
    pub latency: Duration,
}

/// The key that is known when nobody says otherwise.
pub const API_KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 0,
            sandbox_port: None,
            accounts: vec![Account::new(API_KEY)],
            directory: None,
            templates: vec!["base".to_owned()],
            v2: true,
            max_timeout: Duration::from_secs(24 * 3600),
            metadata_decodings: 3,
            max_page: 100,
            envd_version: "0.6.13".to_owned(),
            domain: None,
            latency: Duration::ZERO,
        }
    }
}

impl Options {
    /// The usual ones, without what is called v2.
    #[must_use]
    pub fn without_v2() -> Self {
        Self { v2: false, ..Self::default() }
    }
}

/// A fake that runs until it is dropped.
pub struct FakeE2b {
    state: Arc<state::Fake>,
    api: SocketAddr,
    sandbox: SocketAddr,
}

impl std::fmt::Debug for FakeE2b {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { state: _, api, sandbox } = self;
        formatter.debug_struct("FakeE2b").field("api", api).field("sandbox", sandbox).finish_non_exhaustive()
    }
}

impl FakeE2b {
    /// Whether this machine can run one, and why not.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn check() -> Result<()> {
        state::check()
    }

    /// Starts one, which listens when this returns.
    ///
    /// # Errors
    ///
    /// When this machine can not run sandboxes, or a port is taken.
    pub async fn start(options: Options) -> Result<Self> {
        state::check()?;
        let ports = (options.port, options.sandbox_port);
        let state = Arc::new(state::Fake::new(options)?);
        let api = serve::listen(&state, ports.0, false).await?;
        let sandbox = match ports.1 {
            Some(port) => serve::listen(&state, port, true).await?,
            None => api,
        };
        lifecycle::watch(&state);
        Ok(Self { state, api, sandbox })
    }

    /// For `E2B_API_URL`.
    #[must_use]
    pub fn api_url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// For `E2B_SANDBOX_URL`.
    #[must_use]
    pub fn sandbox_url(&self) -> String {
        format!("http://{}", self.sandbox)
    }

    /// What shall go wrong.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.state.faults
    }

    /// What was asked.
    #[must_use]
    pub fn requests(&self) -> &Requests {
        &self.state.requests
    }

    /// The sandboxes, and what can be done to them without asking the API.
    #[must_use]
    pub fn sandboxes(&self) -> Sandboxes {
        Sandboxes::new(Arc::clone(&self.state))
    }

    /// Ends it, and waits until nothing of it runs any more. Dropped, it ends by and by.
    pub async fn shutdown(self) {
        let tasks = self.state.tasks.clone();
        self.state.stop();
        // Somebody may hold on to a body that was never read.
        let _ = tokio::time::timeout(Duration::from_secs(5), tasks.wait()).await;
    }

    /// Moves the clock forward. What expires by that has expired when this returns.
    pub async fn advance(&self, by: Duration) {
        self.state.clock.advance(by);
        lifecycle::expire_due(&self.state).await;
    }
}

impl Drop for FakeE2b {
    fn drop(&mut self) {
        self.state.stop();
    }
}
