//! The MCP servers of a workspace, run from its inside.
//!
//! `server.rs` is one server as everybody sees it; `run.rs` is its life, on a task of its own; `connection.rs` talks to one
//! that is ready. `lines.rs` and `tail.rs` keep what a program writes within bounds, `http.rs` what a URL answers, and
//! `whole.rs` keeps results as they were. Nothing outside of this module knows the SDK.

mod connection;
mod http;
mod lines;
mod run;
mod server;
mod tail;
mod whole;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wsm_core::{Error, ErrorKind, Result};
use wsm_host::HostWorkspace;

use crate::{
    mcp_types::{McpHeaders, McpRequest, McpServer, McpServerKey, McpServerSpec, McpTransport},
    server::mcp::{Body, MAX_MESSAGE, McpService},
};
use run::Starter;
use server::{Found, Lease, Server};

/// The field of an [`McpToolResult`](crate::McpToolResult) that no server fills.
const STATE_LOST: &str = "wsmStateLost";
/// How long a list of tools may take.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// What MCP servers may take.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct McpLimits {
    /// How many live at once. One more puts away the one of another session that has been idle for longest. `[16]`
    pub max_servers: usize,
    /// The longest message of a server, in bytes; a longer answer is an error. `[16 MiB]`
    pub max_message: usize,
    /// How long a call may take that names no timeout. `[60 s]`
    pub call_timeout: Duration,
    /// How long any call may take. `[1 h]`
    pub max_call_timeout: Duration,
    /// How long a program has to end after its stdin was closed, before it is ended with all that it has started. `[2 s]`
    pub exit_grace: Duration,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            max_servers: 16,
            max_message: MAX_MESSAGE,
            call_timeout: Duration::from_secs(60),
            max_call_timeout: Duration::from_secs(3600),
            exit_grace: Duration::from_secs(2),
        }
    }
}

/// The MCP servers of a workspace. They outlive the connections that ask for them. Clones share them.
#[derive(Clone)]
pub struct McpRegistry(Arc<Inner>);

struct Inner {
    starter: Starter,
    servers: Mutex<BTreeMap<McpServerKey, Arc<Server>>>,
    closed: CancellationToken,
}

impl McpRegistry {
    /// No servers yet. Programs are started in `host`, and end with it at the latest.
    pub fn new(host: Arc<HostWorkspace>, limits: McpLimits) -> Self {
        let starter = Starter { host, http: Arc::default(), limits, tasks: TaskTracker::new() };
        Self(Arc::new(Inner { starter, servers: Mutex::default(), closed: CancellationToken::new() }))
    }

    /// Ends all servers and waits for them. Nothing is started any more.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has asked all of them to end.
    pub async fn close(&self) {
        {
            let mut servers = self.0.servers.lock();
            self.0.closed.cancel();
            std::mem::take(&mut *servers).values().for_each(|server| server.stop("the gateway ends"));
        }
        self.0.starter.tasks.close();
        self.0.starter.tasks.wait().await;
    }

    async fn register(&self, key: McpServerKey, spec: McpServerSpec, headers: &McpHeaders) -> Result<McpServer> {
        key.validate()?;
        check(&spec, headers)?;
        let (server, mut after) = {
            let mut servers = self.0.servers.lock();
            match servers.entry(key.clone()) {
                Entry::Occupied(entry) if entry.get().spec == spec => (Arc::clone(entry.get()), Vec::new()),
                entry => {
                    let server = Server::new(key, spec);
                    // Refused before anything changes.
                    server.headers.replace(headers)?;
                    let before = match entry {
                        Entry::Occupied(mut entry) => vec![entry.insert(Arc::clone(&server))],
                        Entry::Vacant(entry) => {
                            entry.insert(Arc::clone(&server));
                            Vec::new()
                        }
                    };
                    before.iter().for_each(|before| before.stop("it was replaced"));
                    (server, before)
                }
            }
        };
        server.headers.replace(headers)?;
        let mut is_tried = false;
        loop {
            match server.find() {
                Found::Ready(_) => return Ok(server.status()),
                Found::Starting => {
                    is_tried = true;
                    server.settled().await;
                }
                Found::Ending => server.settled().await,
                Found::Down { error, .. } if is_tried => return Err(error.unwrap_or_else(|| unknown(&server.key))),
                Found::Down { .. } => {
                    is_tried = true;
                    self.begin(&server, std::mem::take(&mut after))?;
                }
            }
        }
    }

    /// Starts a server, after others have ended. Does nothing when it lives.
    fn begin(&self, server: &Arc<Server>, mut after: Vec<Arc<Server>>) -> Result<()> {
        let servers = self.0.servers.lock();
        if self.0.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::ShuttingDown, "the gateway ends"));
        }
        if !servers.get(&server.key).is_some_and(|current| Arc::ptr_eq(current, server)) {
            return Err(unknown(&server.key));
        }
        let limit = self.0.starter.limits.max_servers;
        let others = servers.values().filter(|other| !Arc::ptr_eq(other, server));
        if !server.is_live() && others.filter(|other| other.is_live()).count() >= limit {
            match self.make_room(&servers, &server.key) {
                Some(evicted) => after.push(evicted),
                None => {
                    let reason = format!(
                        "{limit} MCP servers live, as many as may, and none of another session's is idle: remove one"
                    );
                    let error = Error::new(ErrorKind::Capacity, reason.clone());
                    server.over(server::Failure { reason, exit: None, error: error.clone() });
                    return Err(error);
                }
            }
        }
        if let Some(stop) = server.begin() {
            let starter = self.0.starter.clone();
            self.0.starter.tasks.spawn(starter.run(Arc::clone(server), stop, after));
        }
        Ok(())
    }

    /// Puts away the server of another session that has been idle for longest.
    fn make_room(&self, servers: &BTreeMap<McpServerKey, Arc<Server>>, key: &McpServerKey) -> Option<Arc<Server>> {
        let mut idle: Vec<_> = servers
            .values()
            .filter(|other| !other.key.is_neighbour(key))
            .filter_map(|other| Some((other.idle_since()?, other)))
            .collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        let reason = "it was put away to make room for another session's server";
        idle.into_iter().map(|(_, other)| other).find(|other| other.evict(reason)).cloned()
    }

    /// A server that is ready, started anew if need be, and what was lost by that.
    async fn lease(&self, key: &McpServerKey) -> Result<(Lease, Option<String>)> {
        let server = self.0.servers.lock().get(key).cloned().ok_or_else(|| unknown(key))?;
        let (mut is_tried, mut noted) = (false, None);
        loop {
            match server.find() {
                Found::Ready(lease) => return Ok((lease, noted)),
                Found::Starting | Found::Ending => server.settled().await,
                Found::Down { error, .. } if is_tried => return Err(error.unwrap_or_else(|| unknown(key))),
                Found::Down { lost, .. } => {
                    is_tried = true;
                    noted = lost.map(|reason| {
                        format!("the server was started anew, and what it remembered before is lost: {reason}")
                    });
                    self.begin(&server, Vec::new())?;
                }
            }
        }
    }

    async fn remove(&self, key: &McpServerKey) -> bool {
        let removed = self.0.servers.lock().remove(key);
        let Some(server) = removed else { return false };
        server.stop("it was removed");
        server.settled().await;
        true
    }

    fn list(&self) -> Vec<McpServer> {
        self.0.servers.lock().values().map(|server| server.status()).collect()
    }

    fn set_headers(&self, key: &McpServerKey, headers: &McpHeaders) -> Result<()> {
        let server = self.0.servers.lock().get(key).cloned().ok_or_else(|| unknown(key))?;
        check(&server.spec, headers)?;
        server.headers.replace(headers)
    }

    async fn call(
        &self,
        key: &McpServerKey,
        tool: String,
        arguments: Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>> {
        let limits = &self.0.starter.limits;
        let limit = limit.unwrap_or(limits.call_timeout).min(limits.max_call_timeout);
        let begun = tokio::time::Instant::now();
        // A start that takes longer goes on, for the next call.
        let Ok(lease) = tokio::time::timeout(limit, self.lease(key)).await else {
            let message = format!("MCP server `{}` was not ready within {limit:?}; the tool was not called", key.name);
            return Err(Error::new(ErrorKind::Timeout, message));
        };
        let (lease, noted) = lease?;
        let left = limit.saturating_sub(begun.elapsed());
        let (mut result, lost_session) = lease.connection.call(tool, arguments, left).await?;
        let renewed = || "the server had forgotten the session, and a new one was begun".to_owned();
        // A server can not say so.
        result.remove(STATE_LOST);
        if let Some(lost) = noted.or_else(|| lost_session.then(renewed)) {
            result.insert(STATE_LOST.to_owned(), lost.into());
        }
        write(&result)
    }
}

#[async_trait]
impl McpService for McpRegistry {
    async fn answer(&self, request: McpRequest, body: Body) -> Result<Vec<u8>> {
        match request {
            McpRequest::Register { key, spec, headers } => write(&self.register(key, spec, &headers).await?),
            McpRequest::List => write(&self.list()),
            McpRequest::Remove { key } => write(&self.remove(&key).await),
            McpRequest::Tools { key } => {
                let (lease, _) = self.lease(&key).await?;
                Ok(lease.connection.tools(LIST_LIMIT).await?.to_vec())
            }
            McpRequest::Call { key, tool, timeout } => {
                let arguments = serde_json::from_slice(&body.read().await?).map_err(|error| {
                    Error::invalid("arguments", "the arguments are not a JSON object").with_source(error)
                })?;
                self.call(&key, tool, arguments, timeout).await
            }
            McpRequest::SetHeaders { key, headers } => write(&self.set_headers(&key, &headers)?),
        }
    }
}

impl fmt::Debug for McpRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpRegistry").field("servers", &self.0.servers.lock().keys()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    /// Programs end with their workspace; what else there is ends with its task.
    fn drop(&mut self) {
        self.servers.lock().values().for_each(|server| server.stop("the gateway ends"));
    }
}

fn check(spec: &McpServerSpec, headers: &McpHeaders) -> Result<()> {
    match &spec.transport {
        McpTransport::Http { url } => http::check_url(url),
        McpTransport::Stdio { command, .. } if command.is_empty() => {
            Err(Error::invalid("command", "`command` is empty: give the program and its arguments"))
        }
        McpTransport::Stdio { .. } if headers.is_empty() => Ok(()),
        McpTransport::Stdio { .. } => {
            Err(Error::invalid("headers", "only a server behind a URL has headers; a program has `env`"))
        }
    }
}

fn unknown(key: &McpServerKey) -> Error {
    let McpServerKey { agent, session, name } = key;
    let message =
        format!("no MCP server `{name}` is registered for session `{session}` of agent `{agent}`: register it");
    Error::new(ErrorKind::NotFound, message).with_code("mcp_server_unknown")
}

fn write(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Backend, "the answer can not be written").with_source(error))
}
