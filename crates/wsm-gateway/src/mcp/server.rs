//! One registered server: what it is at any moment, and the changes from one state to the next.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use wsm_core::{Error, ErrorKind, ExitStatus};

use super::{connection::Connection, http::RuntimeHeaders, tail::Log};
use crate::mcp_types::{McpServer, McpServerKey, McpServerSpec, McpState};

/// A registered server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) key: McpServerKey,
    pub(super) spec: McpServerSpec,
    pub(super) headers: Arc<RuntimeHeaders>,
    pub(super) log: Arc<Log>,
    /// How often an HTTP server was said hello to.
    pub(super) sessions: Arc<AtomicU64>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    calls: u64,
    used: Instant,
    /// Whether it has ever been ready, so that there was something to lose.
    was_ready: bool,
    restarts: u64,
}

#[derive(Debug)]
enum Phase {
    /// Nobody has tried to start it.
    New,
    Starting(CancellationToken),
    Ready(Arc<Connection>, CancellationToken),
    /// It is being ended on purpose.
    Stopping(String),
    Stopped(String),
    Failed(Failure),
}

/// Why a server does not live.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) exit: Option<ExitStatus>,
    pub(super) error: Error,
}

/// What a call finds.
#[derive(Debug)]
pub(super) enum Found {
    Ready(Lease),
    /// It is being started.
    Starting,
    /// It is about to end.
    Ending,
    Down {
        /// What to tell the caller about the state that was lost, if there was any.
        lost: Option<String>,
        error: Option<Error>,
    },
}

impl Server {
    pub(super) fn new(key: McpServerKey, spec: McpServerSpec) -> Arc<Self> {
        let state = State { phase: Phase::New, calls: 0, used: Instant::now(), was_ready: false, restarts: 0 };
        Arc::new(Self {
            key,
            spec,
            headers: Arc::default(),
            log: Arc::default(),
            sessions: Arc::default(),
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Waits until it is neither starting nor ending.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(super) async fn settled(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let is_moving = match &self.state.lock().phase {
                Phase::Starting(_) | Phase::Stopping(_) => true,
                // Its end is about to be taken note of.
                Phase::Ready(connection, _) => connection.over.is_cancelled(),
                Phase::New | Phase::Stopped(_) | Phase::Failed(_) => false,
            };
            if !is_moving {
                return;
            }
            changed.await;
        }
    }

    /// Begins a call when it is ready.
    pub(super) fn find(self: &Arc<Self>) -> Found {
        let mut state = self.state.lock();
        let was_ready = state.was_ready;
        match &state.phase {
            Phase::Ready(connection, _) if !connection.over.is_cancelled() => {
                let connection = Arc::clone(connection);
                state.calls += 1;
                state.used = Instant::now();
                Found::Ready(Lease { server: Arc::clone(self), connection })
            }
            Phase::Starting(_) => Found::Starting,
            Phase::Ready(..) | Phase::Stopping(_) => Found::Ending,
            Phase::New => Found::Down { lost: None, error: None },
            Phase::Stopped(reason) => Found::Down { lost: was_ready.then(|| reason.clone()), error: None },
            Phase::Failed(failure) => {
                Found::Down { lost: was_ready.then(|| failure.reason.clone()), error: Some(failure.error.clone()) }
            }
        }
    }

    /// Whether it takes one of the places that there are.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Starting(_) | Phase::Ready(..))
    }

    /// When it was used last, if it is ready and answers no call.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (matches!(state.phase, Phase::Ready(..)) && state.calls == 0).then_some(state.used)
    }

    /// Says that it is being started, unless it lives or is being ended. The token asks for its end.
    pub(super) fn begin(&self) -> Option<CancellationToken> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Starting(_) | Phase::Ready(..) | Phase::Stopping(_) => return None,
            Phase::New | Phase::Stopped(_) | Phase::Failed(_) => {}
        }
        if state.was_ready {
            state.restarts += 1;
        }
        let stop = CancellationToken::new();
        state.phase = Phase::Starting(stop.clone());
        drop(state);
        self.log.clear();
        self.sessions.store(0, Ordering::Relaxed);
        Some(stop)
    }

    /// It has answered. False when it is to end already.
    pub(super) fn ready(&self, connection: Arc<Connection>) -> bool {
        let mut state = self.state.lock();
        let Phase::Starting(stop) = &state.phase else { return false };
        state.phase = Phase::Ready(connection, stop.clone());
        state.was_ready = true;
        state.used = Instant::now();
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// It does not live any more.
    pub(super) fn over(&self, failure: Failure) {
        let mut state = self.state.lock();
        state.phase = match std::mem::replace(&mut state.phase, Phase::New) {
            Phase::Stopping(reason) | Phase::Stopped(reason) => Phase::Stopped(reason),
            Phase::New | Phase::Starting(_) | Phase::Ready(..) | Phase::Failed(_) => Phase::Failed(failure),
        };
        drop(state);
        self.changed.notify_waiters();
    }

    /// Asks for its end, if it lives.
    pub(super) fn stop(&self, reason: &str) {
        self.stop_if(reason, |_| true);
    }

    /// Asks for its end, if it answers no call. Returns whether it was so.
    pub(super) fn evict(&self, reason: &str) -> bool {
        self.stop_if(reason, |state| state.calls == 0)
    }

    fn stop_if(&self, reason: &str, condition: impl FnOnce(&State) -> bool) -> bool {
        let mut state = self.state.lock();
        if !condition(&state) {
            return false;
        }
        let reason = reason.to_owned();
        state.phase = match std::mem::replace(&mut state.phase, Phase::New) {
            Phase::Starting(stop) | Phase::Ready(_, stop) => {
                stop.cancel();
                Phase::Stopping(reason)
            }
            Phase::Stopping(before) => Phase::Stopping(before),
            Phase::New | Phase::Stopped(_) | Phase::Failed(_) => Phase::Stopped(reason),
        };
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// How it is.
    pub(super) fn status(&self) -> McpServer {
        let (stderr, stderr_bytes) = self.log.stderr_tail();
        let last_problem = self.log.last_problem();
        let state = self.state.lock();
        let (calls, restarts) = (state.calls, state.restarts);
        let shown = match &state.phase {
            Phase::Starting(_) => McpState::Starting,
            Phase::Ready(connection, _) => connection.state(),
            Phase::New => McpState::Stopped { reason: "it was never started".to_owned() },
            Phase::Stopping(reason) | Phase::Stopped(reason) => McpState::Stopped { reason: reason.clone() },
            Phase::Failed(failure) => McpState::Failed { reason: failure.reason.clone(), exit: failure.exit.clone() },
        };
        McpServer {
            key: self.key.clone(),
            state: shown,
            restarts,
            calls_in_flight: calls,
            stderr,
            stderr_bytes,
            last_problem,
        }
    }

    /// Why it could not be started.
    pub(super) fn start_failure(&self, reason: String, exit: Option<ExitStatus>, kind: ErrorKind) -> Failure {
        let message = format!("MCP server `{}` did not start: {reason}{}", self.key.name, self.log.explanation());
        Failure { reason, exit, error: Error::new(kind, message).with_code("mcp_start_failed") }
    }
}

/// The right to use a ready server, which is not evicted meanwhile.
#[derive(Debug)]
pub(super) struct Lease {
    server: Arc<Server>,
    pub(super) connection: Arc<Connection>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.server.state.lock();
        state.calls -= 1;
        state.used = Instant::now();
    }
}
