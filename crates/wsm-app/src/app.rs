//! The application: a router, and the life cycle of what stands behind it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Extension, Router};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use wsm_core::WorkspaceManager;

use crate::{auth::AuthConfig, http, http::DownloadTokens, lifecycle::Lifecycle, metrics::Metrics, service::Service};

/// What an application needs to know besides its manager.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AppConfig {
    /// The file that sessions and workspace records are in.
    pub store: PathBuf,
    /// Who is let in.
    pub auth: AuthConfig,
    /// What requests may ask for.
    pub limits: Limits,
    /// The name of this machine in workspace records.
    pub node: String,
    /// How long a stop waits for requests, and again for workspaces.
    pub shutdown_timeout: Duration,
    /// Whether a user may open another user's workspace by its id.
    pub allow_foreign_owner: bool,
    /// Whether sessions of the policy `per_session` take their workspace from the manager's buffer of ready ones.
    pub prewarmed: bool,
    /// Where hits are counted, when the manager was given the same as its listener.
    pub metrics: Option<Arc<Metrics>>,
}

impl AppConfig {
    /// The defaults, with sessions and workspace records in this file.
    pub fn new(store: impl AsRef<Path>) -> Self {
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            store: store.as_ref().to_owned(),
            auth: AuthConfig::default(),
            limits: Limits::default(),
            node,
            shutdown_timeout: Duration::from_secs(10),
            allow_foreign_owner: false,
            prewarmed: false,
            metrics: None,
        }
    }

    /// Sets who is let in.
    #[must_use]
    pub fn with_auth(mut self, auth: AuthConfig) -> Self {
        self.auth = auth;
        self
    }

    /// Sets what requests may ask for.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets where hits are counted.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }
}

/// What requests may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The time limit of a command that names none.
    pub exec_timeout: Duration,
    /// The longest time limit that a command may name.
    pub max_exec_timeout: Duration,
    /// How many bytes of each stream are kept when a command names no limit.
    pub exec_output_limit: usize,
    /// The highest output limit that a command may name.
    pub max_exec_output_limit: usize,
    /// The longest JSON body, in bytes.
    pub max_request_bytes: usize,
    /// The longest file that is uploaded, in bytes.
    pub max_upload_bytes: u64,
    /// For how long a client may send nothing of a body that it has begun.
    pub max_body_pause: Duration,
    /// For how long `wsm serve` waits for the head of a request, also on a connection that is kept open.
    pub head_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            exec_timeout: Duration::from_secs(300),
            max_exec_timeout: Duration::from_secs(3600),
            exec_output_limit: 1 << 20,
            max_exec_output_limit: 16 << 20,
            max_request_bytes: 16 << 20,
            max_upload_bytes: 1 << 30,
            max_body_pause: Duration::from_secs(60),
            // Longer than proxies usually keep a connection that nobody uses.
            head_timeout: Duration::from_secs(75),
        }
    }
}

/// An application: the router for a server, and the life cycle around it.
///
/// [`Lifecycle::start`] comes before the first request, [`Lifecycle::shutdown`] after the last one.
#[derive(Debug)]
#[non_exhaustive]
pub struct App {
    /// All routes. Serve it with the peers' addresses, or nobody counts as loopback:
    /// `router.into_make_service_with_connect_info::<SocketAddr>()`.
    pub router: Router,
    /// Starts and stops what stands behind the routes.
    pub lifecycle: Lifecycle,
    state: Arc<AppState>,
}

impl App {
    /// Lets routes of an embedder's own use the extractors of [`crate::http`]:
    /// `Router::new().route(…).layer(app.extractors())`.
    pub fn extractors(&self) -> Extension<SharedState> {
        Extension(SharedState(Arc::clone(&self.state)))
    }
}

/// Makes an application around anybody's manager.
///
/// Nothing is opened or started yet; see [`Lifecycle::start`].
pub fn create_app(manager: Arc<dyn WorkspaceManager>, config: AppConfig) -> App {
    let AppConfig { store, auth, limits, node, shutdown_timeout, allow_foreign_owner, prewarmed, metrics } = config;
    let state = Arc::new(AppState {
        service: Service::new(manager, node, allow_foreign_owner, prewarmed),
        auth,
        limits,
        metrics: metrics.unwrap_or_default(),
        downloads: DownloadTokens::new(),
        stopping: CancellationToken::new(),
        phase: Mutex::new(Phase::Created),
    });
    App {
        router: http::router(SharedState(Arc::clone(&state))),
        lifecycle: Lifecycle::new(Arc::clone(&state), store, shutdown_timeout),
        state,
    }
}

/// What the routes share. Opaque; the extractors of [`crate::http`] read it.
#[derive(Debug, Clone)]
pub struct SharedState(pub(crate) Arc<AppState>);

#[derive(Debug)]
pub(crate) struct AppState {
    pub(crate) service: Service,
    pub(crate) auth: AuthConfig,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) downloads: DownloadTokens,
    /// Ends the streams that would otherwise never end.
    pub(crate) stopping: CancellationToken,
    pub(crate) phase: Mutex<Phase>,
}

impl AppState {
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.lock()
    }
}

/// How far an application has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not been started.
    Created,
    /// It answers requests.
    Started,
    /// It is being stopped, or has been.
    Stopped,
}
