//! The life of a server from its start to its end.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use rmcp::{
    RoleClient,
    service::{ClientInitializeError, RunningService, serve_client_with_ct},
    transport::async_rw::AsyncRwTransport,
};
use tokio::{
    io::{AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wsm_core::{Command, Error, ErrorKind, ExitStatus, Process, ProcessEvent, ProcessOutput, Result};
use wsm_host::HostWorkspace;

use super::{
    McpLimits,
    connection::{Connection, Handler, ToolCache, causes},
    http::{HttpClient, SharedClient},
    lines::Lines,
    server::{Failure, Server},
    tail::Log,
};
use crate::mcp_types::McpTransport;

/// How long a server may take to start unless its spec says otherwise, and at most.
const START_LIMIT: Duration = Duration::from_secs(60);
const MAX_START_LIMIT: Duration = Duration::from_secs(600);
/// How much of a server's output is under way to the reader of messages.
const PIPE_BYTES: usize = 64 << 10;
/// How long the conversation may take to end once its server has.
const FAREWELL_LIMIT: Duration = Duration::from_secs(6);

/// What a server is started by.
#[derive(Debug, Clone)]
pub(super) struct Starter {
    pub(super) host: Arc<HostWorkspace>,
    pub(super) http: Arc<SharedClient>,
    pub(super) limits: McpLimits,
    pub(super) tasks: TaskTracker,
}

/// A program that runs as a server.
struct Program {
    /// Ends its whole tree.
    kill: CancellationToken,
    /// Follows it to its end.
    follow: JoinHandle<ExitStatus>,
}

impl Program {
    async fn ended(&mut self) -> ExitStatus {
        match (&mut self.follow).await {
            Ok(status) => status,
            Err(error) => ExitStatus::Unknown { reason: format!("its output was lost: {error}") },
        }
    }

    /// Waits for its end, which closing its stdin asks for, and ends it with its tree when that takes too long.
    async fn end(mut self, grace: Duration) -> ExitStatus {
        if let Ok(status) = timeout(grace, self.ended()).await {
            return status;
        }
        self.kill.cancel();
        self.ended().await
    }
}

impl Starter {
    /// Starts a server after others have ended, and stays with it until it has ended.
    ///
    /// # Cancel safety
    ///
    /// Runs on a task that is waited for.
    pub(super) async fn run(self, server: Arc<Server>, stop: CancellationToken, after: Vec<Arc<Server>>) {
        for other in after {
            other.settled().await;
        }
        let failure = match self.begin(&server, &stop).await {
            Ok((connection, conversation)) => self.live(&server, &stop, connection, conversation).await,
            Err(failure) => failure,
        };
        tracing::debug!(server = server.key.name, reason = failure.reason, "an MCP server is over");
        server.over(failure);
    }

    async fn begin(
        &self,
        server: &Server,
        stop: &CancellationToken,
    ) -> Result<(Arc<Connection>, Conversation), Failure> {
        let limit = server.spec.start_timeout.unwrap_or(START_LIMIT).min(MAX_START_LIMIT);
        let tools = Arc::<ToolCache>::default();
        let (handler, ct) = (Handler(Arc::clone(&tools)), CancellationToken::new());
        let (mut program, hello) = match &server.spec.transport {
            McpTransport::Stdio { .. } => {
                let (program, transport) = self.start_program(server).await?;
                let hello =
                    Self::hello(limit, stop, serve_client_with_ct(handler, transport, ct.clone()).boxed()).await;
                (Some(program), hello)
            }
            McpTransport::Http { url } => {
                let (headers, sessions) = (Arc::clone(&server.headers), Arc::clone(&server.sessions));
                let client = self.http.get();
                let client =
                    client.map_err(|error| server.start_failure(error.report().to_string(), None, error.kind()))?;
                let client = HttpClient::new(client, headers, sessions);
                let transport = client.transport(url, self.limits.max_message);
                (None, Self::hello(limit, stop, serve_client_with_ct(handler, transport, ct.clone()).boxed()).await)
            }
        };
        let service = match hello {
            Ok(service) => service,
            Err(fault) => {
                let exit = match (program.take(), fault.is_cut_off) {
                    // It has ended by itself, and is about to be seen so.
                    (Some(program), true) => Some(program.end(self.limits.exit_grace).await),
                    (Some(program), false) => {
                        program.end(Duration::ZERO).await;
                        None
                    }
                    (None, _) => None,
                };
                let reason = match &exit {
                    Some(exit) => format!("{}: {exit}", fault.reason),
                    None => fault.reason,
                };
                let mut failure = server.start_failure(reason, exit, fault.kind);
                if fault.kind == ErrorKind::PermissionDenied {
                    failure.error = failure.error.with_code("mcp_unauthorized");
                }
                return Err(failure);
            }
        };
        let connection = Arc::new(Connection {
            name: server.key.name.clone(),
            peer: service.peer().clone(),
            tools,
            log: Arc::clone(&server.log),
            over: CancellationToken::new(),
            stuck: CancellationToken::new(),
            sessions: Arc::clone(&server.sessions),
            tasks: self.tasks.clone(),
        });
        Ok((connection, Conversation { program, service, ct }))
    }

    async fn hello(
        limit: Duration,
        stop: &CancellationToken,
        serving: BoxFuture<'static, Result<RunningService<RoleClient, Handler>, ClientInitializeError>>,
    ) -> Result<RunningService<RoleClient, Handler>, Fault> {
        let fault = |kind, reason: String| Fault { kind, reason, is_cut_off: false };
        tokio::select! {
            result = timeout(limit, serving) => match result {
                Ok(Ok(service)) => Ok(service),
                Ok(Err(ClientInitializeError::ConnectionClosed(_))) => Err(Fault {
                    kind: ErrorKind::Backend,
                    reason: "it ended before it had answered `initialize`".to_owned(),
                    is_cut_off: true,
                }),
                Ok(Err(error)) if error.is_authorization_required() => {
                    Err(fault(ErrorKind::PermissionDenied, "it wants other credentials".to_owned()))
                }
                Ok(Err(error)) => {
                    // A program that takes no input has mostly ended.
                    let is_cut_off = matches!(error, ClientInitializeError::TransportError { .. });
                    let reason = match &error {
                        ClientInitializeError::TransportError { error, .. } => causes(error),
                        error => causes(error),
                    };
                    Err(Fault { kind: ErrorKind::Backend, reason, is_cut_off })
                }
                Err(_) => Err(fault(ErrorKind::Timeout, format!("it did not answer `initialize` within {limit:?}"))),
            },
            () = stop.cancelled() => Err(fault(ErrorKind::Backend, "it was removed while it was starting".to_owned())),
        }
    }

    async fn start_program(&self, server: &Server) -> Result<(Program, Transport), Failure> {
        let McpTransport::Stdio { command, args, env, cwd } = &server.spec.transport else {
            return Err(server.start_failure("it is no program".to_owned(), None, ErrorKind::Backend));
        };
        let mut start = Command::from_argv(std::iter::once(command).chain(args).cloned());
        start.env = env.clone();
        start.cwd = cwd.clone();
        let kill = CancellationToken::new();
        let process = match self.host.spawn_service(start, kill.clone()).await {
            Ok(process) => process,
            Err(error) => {
                let failure = server.start_failure(error.report().to_string(), None, error.kind());
                // What is wrong with the command says more than that it did not start.
                let is_exact = error.code() != error.kind().as_str();
                let told = if is_exact { failure.error.clone().with_code(error.code()) } else { failure.error.clone() };
                let told = error.field().map_or(told.clone(), |field| told.with_field(field));
                return Err(Failure { error: told, ..failure });
            }
        };
        let Process { stdin, output, .. } = process;
        let lines = Lines::new(self.limits.max_message);
        let reader_limit = lines.reader_limit();
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let follow = self.tasks.spawn(follow(output, lines, near, Arc::clone(&server.log)));
        let transport = AsyncRwTransport::new_client(far, stdin).with_max_line_length(reader_limit);
        Ok((Program { kill, follow }, transport))
    }

    /// Stays with a server that has answered until it is over.
    async fn live(
        &self,
        server: &Server,
        stop: &CancellationToken,
        connection: Arc<Connection>,
        conversation: Conversation,
    ) -> Failure {
        let Conversation { mut program, service, ct } = conversation;
        let waiting = service.waiting();
        tokio::pin!(waiting);
        let mut talks = true;
        let mut exit = None;
        let reason = if server.ready(Arc::clone(&connection)) {
            let ended = async {
                match &mut program {
                    Some(program) => program.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                status = ended => {
                    let reason = format!("it ended: {status}");
                    exit = Some(status);
                    reason
                }
                () = stop.cancelled() => "it was ended".to_owned(),
                () = connection.stuck.cancelled() => "it takes no messages any more".to_owned(),
                quit = &mut waiting => {
                    talks = false;
                    format!("the conversation with it broke off: {quit:?}")
                }
            }
        } else {
            "it was ended".to_owned()
        };
        if talks && exit.is_none() && stop.is_cancelled() {
            // What is being answered is given up before the server hears of the end.
            connection.over.cancel();
        }
        // Closes its stdin, or ends its HTTP session.
        ct.cancel();
        let farewell = async {
            if talks && timeout(FAREWELL_LIMIT, waiting).await.is_err() {
                tracing::warn!(server = connection.name, "the conversation with an MCP server does not end");
            }
        };
        let ending = async {
            if let Some(program) = program.take().filter(|_| exit.is_none()) {
                let grace = if stop.is_cancelled() { self.limits.exit_grace } else { Duration::ZERO };
                exit = Some(program.end(grace).await);
            }
        };
        tokio::join!(farewell, ending);
        let error = Error::new(
            ErrorKind::Unavailable,
            format!("MCP server `{}` does not run: {reason}{}", connection.name, server.log.explanation()),
        );
        let failure = Failure { reason, exit, error: error.with_code("mcp_server_ended") };
        server.log.problem(failure.reason.clone());
        connection.over.cancel();
        failure
    }
}

type Transport = AsyncRwTransport<RoleClient, DuplexStream, wsm_core::ProcessStdin>;

/// A server that has answered, and what carries its messages.
struct Conversation {
    program: Option<Program>,
    service: RunningService<RoleClient, Handler>,
    ct: CancellationToken,
}

/// Why there was no answer to `initialize`.
struct Fault {
    kind: ErrorKind,
    reason: String,
    /// Whether the server has closed its end.
    is_cut_off: bool,
}

/// Passes on what a server writes to its stdout, keeps the end of its stderr, and returns how it ended.
async fn follow(mut output: ProcessOutput, mut lines: Lines, mut reader: DuplexStream, log: Arc<Log>) -> ExitStatus {
    let mut is_read = true;
    let mut messages = Vec::new();
    while let Some(event) = output.next().await {
        match event {
            ProcessEvent::Stderr(bytes) => log.stderr(&bytes),
            ProcessEvent::Stdout(bytes) if is_read => {
                lines.filter(&bytes, &mut messages, |stray| log.stray(stray));
                // Once nobody reads it any more, it is only taken off the server's hands.
                is_read = reader.write_all(&messages).await.is_ok();
                messages.clear();
            }
            ProcessEvent::Stdout(_) => {}
            ProcessEvent::End(status) => return status,
        }
    }
    ExitStatus::Unknown { reason: "its output ended without a status".to_owned() }
}
