//! A server that has answered `initialize`: calls, lists, and giving them up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ErrorCode, ErrorData,
        Implementation, ListToolsRequest, PaginatedRequestParams, ServerResult,
    },
    service::{NotificationContext, Peer, PeerRequestOptions, RequestHandle, ServiceError},
    transport::{DynamicTransportError, streamable_http_client::StreamableHttpError},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wsm_core::{Error, ErrorKind, Result};

use super::{lines::TOO_LONG, tail::Log, whole::unwrapped};
use crate::mcp_types::McpState;

/// How long a server may take to take note of a call that was given up. One that takes nothing any more is ended.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// More pages than any list has; a server that never ends one is at fault.
const MAX_PAGES: usize = 1000;

/// The list of tools, for as long as the server does not say that it has changed.
#[derive(Debug, Default)]
pub(super) struct ToolCache {
    changes: AtomicU64,
    kept: Mutex<Option<Arc<[u8]>>>,
}

impl ToolCache {
    fn forget(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        *self.kept.lock() = None;
    }

    /// Keeps a list that was asked for when there had been so many changes.
    fn keep(&self, list: &Arc<[u8]>, changes: u64) {
        let mut kept = self.kept.lock();
        if self.changes.load(Ordering::SeqCst) == changes {
            *kept = Some(Arc::clone(list));
        }
    }
}

/// This side of the conversation: it offers nothing to the server, and hears when its tools change.
#[derive(Debug, Clone)]
pub(super) struct Handler(pub(super) Arc<ToolCache>);

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("wsm", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.forget();
    }
}

/// A server that takes calls.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) name: String,
    pub(super) peer: Peer<RoleClient>,
    pub(super) tools: Arc<ToolCache>,
    pub(super) log: Arc<Log>,
    /// Cancelled when nothing is answered any more.
    pub(super) over: CancellationToken,
    /// Asks for the server to be ended, since it takes nothing any more.
    pub(super) stuck: CancellationToken,
    /// How often an HTTP server was said hello to.
    pub(super) sessions: Arc<AtomicU64>,
    pub(super) tasks: TaskTracker,
}

impl Connection {
    /// What the server has said of itself.
    pub(super) fn state(&self) -> McpState {
        let info = self.peer.peer_info();
        let server = info.as_ref().and_then(|info| info.server_info.as_ref());
        McpState::Ready {
            name: server.map(|server| server.name.clone()).unwrap_or_default(),
            version: server.map(|server| server.version.clone()).unwrap_or_default(),
            protocol: info.as_ref().map(|info| info.protocol_version.to_string()).unwrap_or_default(),
        }
    }

    /// Calls a tool. Returns its result, and whether an HTTP server has lost its session meanwhile.
    ///
    /// # Errors
    ///
    /// As for the client's call.
    ///
    /// # Cancel safety
    ///
    /// The server is told of a dropped call.
    pub(super) async fn call(
        &self,
        tool: String,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<(Map<String, Value>, bool)> {
        let sessions = self.sessions.load(Ordering::Relaxed);
        let what = format!("`{tool}`");
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self.request(ClientRequest::CallToolRequest(CallToolRequest::new(params)), limit, &what).await?;
        if let ServerResult::InputRequiredResult(_) | ServerResult::CreateTaskResult(_) = &result {
            return Err(self.refused(&what, "was answered by a question or a task, which no tool here may do"));
        }
        match unwrapped(result) {
            Some(result) => Ok((result, self.sessions.load(Ordering::Relaxed) != sessions)),
            None => Err(self.refused(&what, "was answered by something that is no result")),
        }
    }

    /// The list of all tools, as JSON.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// As for [`call`](Self::call).
    pub(super) async fn tools(&self, limit: Duration) -> Result<Arc<[u8]>> {
        let changes = self.tools.changes.load(Ordering::SeqCst);
        if let Some(kept) = self.tools.kept.lock().clone() {
            return Ok(kept);
        }
        let what = "the list of tools";
        let (mut tools, mut cursor): (Vec<Value>, Option<String>) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let params = cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            let request = ListToolsRequest { params, ..Default::default() };
            let page = self.request(ClientRequest::ListToolsRequest(request), limit, what).await?;
            let Some(Page { tools: more, next_cursor }) =
                unwrapped(page).and_then(|page| serde_json::from_value(Value::Object(page)).ok())
            else {
                return Err(self.refused(what, "was answered by something else"));
            };
            tools.extend(more);
            cursor = next_cursor.filter(|cursor| !cursor.is_empty());
            if cursor.is_none() {
                let list = serde_json::to_vec(&tools).map_err(|error| {
                    Error::new(ErrorKind::Backend, "the tools can not be written").with_source(error)
                })?;
                let list: Arc<[u8]> = list.into();
                self.tools.keep(&list, changes);
                return Ok(list);
            }
        }
        Err(self.refused(what, &format!("has more than {MAX_PAGES} pages")))
    }

    async fn request(&self, request: ClientRequest, limit: Duration, what: &str) -> Result<ServerResult> {
        let late = sleep(limit);
        tokio::pin!(late);
        let sessions = self.sessions.load(Ordering::Relaxed);
        let sending = self.peer.send_cancellable_request(request, PeerRequestOptions::no_options());
        let handle = tokio::select! {
            biased;
            handle = sending => handle.map_err(|error| self.failed(what, error, sessions))?,
            () = self.over.cancelled() => return Err(self.ended(what)),
            () = &mut late => return Err(self.late(what, limit)),
        };
        let mut pending = Pending { connection: self, handle: Some(handle) };
        let Some(handle) = pending.handle.as_mut() else { return Err(self.ended(what)) };
        tokio::select! {
            biased;
            answer = &mut handle.rx => {
                pending.handle = None;
                match answer {
                    Ok(Ok(result)) => Ok(result),
                    Ok(Err(error)) => Err(self.failed(what, error, sessions)),
                    Err(_) => Err(self.ended(what)),
                }
            }
            () = self.over.cancelled() => {
                pending.handle = None;
                Err(self.ended(what))
            }
            () = late => {
                pending.give_up("the request timed out");
                Err(self.late(what, limit))
            }
        }
    }

    fn late(&self, what: &str, limit: Duration) -> Error {
        let problem = format!("{what} was not answered within {limit:?}");
        self.log.problem(problem.clone());
        Error::new(
            ErrorKind::Timeout,
            format!("MCP server `{}`: {problem}; the server was told to cancel it", self.name),
        )
    }

    /// What it means for a request that the server ended.
    fn ended(&self, what: &str) -> Error {
        let (name, why) = (&self.name, self.log.explanation());
        let message = format!(
            "MCP server `{name}` ended before it had answered {what}: nobody knows how far it got, and what the server \
             remembered is lost; the next call starts it anew{why}"
        );
        Error::new(ErrorKind::Unavailable, message).with_code("mcp_server_ended")
    }

    fn refused(&self, what: &str, problem: &str) -> Error {
        let message = format!("MCP server `{}`: {what} {problem}", self.name);
        Error::new(ErrorKind::Backend, message).with_code("mcp_request_failed")
    }

    /// `sessions` is how often an HTTP server had been said hello to when the request was made.
    fn failed(&self, what: &str, error: ServiceError, sessions: u64) -> Error {
        match error {
            // What the SDK answers in the place of a session that is over.
            ServiceError::McpError(ErrorData { code: ErrorCode::INTERNAL_ERROR, data: None, .. })
                if self.sessions.load(Ordering::Relaxed) != sessions =>
            {
                let message = format!(
                    "MCP server `{}` forgot the session before it had answered {what}: nobody knows how far it got, and \
                     what the server remembered is lost",
                    self.name
                );
                Error::new(ErrorKind::Unavailable, message).with_code("mcp_server_ended")
            }
            ServiceError::McpError(error) => self.answered(what, &error),
            ServiceError::TransportClosed | ServiceError::Cancelled { .. } => self.ended(what),
            error if error.is_authorization_required() => {
                let message = format!("MCP server `{}` wants other credentials: replace its headers", self.name);
                Error::new(ErrorKind::PermissionDenied, message).with_code("mcp_unauthorized")
            }
            error => {
                let why = match &error {
                    ServiceError::TransportSend(error) => causes(error),
                    error => causes(error),
                };
                let problem = format!("MCP server `{}`: {what} was not answered: {why}", self.name);
                self.log.problem(problem.clone());
                Error::new(ErrorKind::Unavailable, problem).with_code("mcp_request_failed")
            }
        }
    }

    /// An error that the server itself has answered with.
    fn answered(&self, what: &str, error: &ErrorData) -> Error {
        let problem = format!("was answered by error {}: {}", error.code.0, error.message);
        match error.code {
            ErrorCode(code) if i64::from(code) == TOO_LONG => {
                let message = format!("MCP server `{}`: {what}: {}", self.name, error.message);
                Error::new(ErrorKind::InvalidInput, message).with_code("too_large")
            }
            ErrorCode::INVALID_PARAMS => {
                Error::invalid("arguments", format!("MCP server `{}`: {what} {problem}", self.name))
            }
            _ => self.refused(what, &problem),
        }
    }
}

/// A page of the list of tools.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Value>,
    next_cursor: Option<String>,
}

/// An error and what caused it, as far as that adds anything.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        // These two only say that something is wrong with what they hold.
        if let Some(transport) = cause.downcast_ref::<DynamicTransportError>() {
            next = Some(transport.error.as_ref());
            continue;
        }
        if let Some(StreamableHttpError::Client(client)) = cause.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            next = Some(client);
            continue;
        }
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.push_str(&format!("{colon}{cause_text}"));
        }
        next = cause.source();
    }
    text
}

/// A request that is waited for. Dropping it tells the server.
struct Pending<'c> {
    connection: &'c Connection,
    handle: Option<RequestHandle<RoleClient>>,
}

impl Pending<'_> {
    fn give_up(&mut self, reason: &str) {
        let Some(handle) = self.handle.take() else { return };
        let (stuck, reason) = (self.connection.stuck.clone(), reason.to_owned());
        self.connection.tasks.spawn(async move {
            if timeout(CANCEL_LIMIT, handle.cancel(Some(reason))).await.is_err() {
                stuck.cancel();
            }
        });
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.give_up("the caller has gone");
    }
}
