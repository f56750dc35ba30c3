//! The outside of a call: answers every request by one run of the program in the workspace.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt};
use tokio::{io::AsyncWriteExt, sync::mpsc};
use tokio_util::task::TaskTracker;
use wsm_core::{Command, Error, ErrorKind, ExitStatus, Process, ProcessEvent, Result, Signal, Workspace};

use super::Head;
use crate::{
    client::{GatewayClient, Io},
    frame::{Frame, Kind},
    link::{Allowance, FrameSender, Window},
    message::{End, Hello, PROTOCOL_VERSION, Reply, Request, SignalRequest},
    server::{ClientEvent, Served, Task, serve},
};

/// How much goes in or comes out of a call where the workspace has no `spawn`: it is in memory as a whole.
const MOST_AT_ONCE: usize = 64 << 20;
/// How much of what a program that fails says on stderr is told.
const MOST_STDERR: usize = 2_000;
/// How much of a connection within this process is on its way.
const PIPE: usize = 256 << 10;

/// Runs the gateway's program in a workspace once for each request, through the backend's own `exec`.
///
/// For backends without `connect`. The program must be in the workspace already; see
/// [`GatewayClient::over_exec`].
#[derive(Debug, Clone)]
pub struct ExecCalls {
    workspace: Arc<dyn Workspace>,
    argv: Vec<String>,
}

impl ExecCalls {
    /// Runs `program`, which is a path in the workspace.
    pub fn new(workspace: Arc<dyn Workspace>, program: impl Into<String>) -> Self {
        Self { workspace, argv: vec![program.into(), "call".to_owned()] }
    }

    /// Has requests answered by a gateway that listens on this socket in the workspace, so that what it keeps from one
    /// request to the next can be reached.
    #[must_use]
    pub fn with_socket(mut self, path: impl Into<String>) -> Self {
        self.argv.extend(["--socket".to_owned(), path.into()]);
        self
    }

    fn command(&self) -> Command {
        Command::from_argv(self.argv.iter().cloned())
    }
}

impl GatewayClient {
    /// A client whose every request is one run of the gateway's program.
    ///
    /// Where the workspace has `spawn`, bodies are streamed. Where it has not, a request with its body, and its answer,
    /// must fit in 64 MiB, and commands can be run with [`exec`](Self::exec) alone.
    ///
    /// # Errors
    ///
    /// What `exec` says, `invalid_input` with code `program_not_found` when the program is not there among them; `conflict`
    /// with code `gateway_version` when it is another version.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn over_exec(calls: ExecCalls) -> Result<Self> {
        let tasks = TaskTracker::new();
        let servers = tasks.clone();
        let connect = move || {
            let (near, far) = tokio::io::duplex(PIPE);
            servers.spawn(serve(Served::through_calls(calls.clone()), far));
            async move { Ok(Box::new(near) as Box<dyn Io>) }.boxed()
        };
        let client = Self::within(connect, tasks).await?;
        client.ping().await?;
        Ok(client)
    }
}

impl Served {
    fn through_calls(calls: ExecCalls) -> Self {
        let mut served = Self::new(Arc::clone(&calls.workspace));
        served.calls = Some(calls);
        served
    }
}

impl Task {
    /// Has a request answered by the program.
    pub(crate) async fn call(mut self, calls: &ExecCalls, request: Request) {
        let (_, nothing) = mpsc::unbounded_channel();
        let events = std::mem::replace(&mut self.events, nothing);
        let input = Input {
            events,
            stream: self.stream,
            frames: self.frames.clone(),
            allowance: Arc::clone(&self.allowance),
            open: request.takes_body(),
        };
        let mut answer = Answer {
            stream: self.stream,
            frames: self.frames.clone(),
            window: self.window.clone(),
            has_body: request.answers_with_body(),
            buffer: BytesMut::new(),
            greeted: false,
            replied: false,
            done: false,
        };
        let called = async {
            let head = head(request)?;
            if calls.workspace.capabilities().spawn {
                stream(calls, head, input, &mut answer).await
            } else {
                at_once(calls, head, input, &mut answer).await
            }
        };
        if let Err(error) = called.await {
            answer.fail(&error);
        }
    }
}

fn head(request: Request) -> Result<Vec<u8>> {
    let head = Head { protocol: PROTOCOL_VERSION, request };
    let mut line = serde_json::to_vec(&head)
        .map_err(|cause| Error::new(ErrorKind::Backend, "a request can not be written").with_source(cause))?;
    line.push(b'\n');
    Ok(line)
}

/// What the client sends.
struct Input {
    events: mpsc::UnboundedReceiver<ClientEvent>,
    stream: u32,
    frames: FrameSender,
    allowance: Arc<parking_lot::Mutex<Allowance>>,
    /// Whether more of the body may come.
    open: bool,
}

/// Something that the client sends.
enum Sent {
    Body(Bytes),
    End,
    Signal(Signal),
}

impl Input {
    /// Never ends by itself. Cancel-safe.
    async fn next(&mut self) -> Sent {
        match self.events.recv().await {
            Some(ClientEvent::Data(bytes)) => Sent::Body(bytes),
            Some(ClientEvent::Finish) => Sent::End,
            Some(ClientEvent::Signal(SignalRequest(signal))) => Sent::Signal(signal),
            // The task is about to be dropped.
            None => std::future::pending().await,
        }
    }

    /// Lets the client send as much again.
    fn taken(&self, bytes: usize) {
        self.allowance.lock().grant(bytes);
        // At most one frame's worth.
        self.frames.send(Frame::credit(self.stream, bytes as u32));
    }
}

/// What the client is told.
struct Answer {
    stream: u32,
    frames: FrameSender,
    window: Window,
    has_body: bool,
    buffer: BytesMut,
    greeted: bool,
    replied: bool,
    done: bool,
}

impl Answer {
    /// Passes on what the program has written. Data waits until the client takes it.
    async fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        while let Some(frame) = Frame::read_from(&mut self.buffer)? {
            match frame.kind {
                Kind::Hello => {
                    frame.parse::<Hello>()?.check()?;
                    self.greeted = true;
                }
                Kind::Reply => {
                    self.replied = true;
                    self.done = !self.has_body || matches!(frame.parse()?, Reply::Failed(_));
                    self.pass_on(frame);
                }
                Kind::Data => {
                    let (channel, bytes) = frame.into_data()?;
                    if self.window.send(&self.frames, self.stream, channel, &bytes).await.is_err() {
                        self.done = true;
                    }
                }
                Kind::Finish | Kind::End => {
                    self.done = true;
                    self.pass_on(frame);
                }
                Kind::Open | Kind::Credit | Kind::Cancel | Kind::Signal => {
                    return Err(Error::new(ErrorKind::Backend, format!("a call does not answer {:?}", frame.kind)));
                }
            }
        }
        Ok(())
    }

    fn pass_on(&self, mut frame: Frame) {
        frame.stream = self.stream;
        self.frames.send(frame);
    }

    fn fail(&self, error: &Error) {
        if self.done {
            return;
        }
        let frame = if self.replied {
            Frame::json(Kind::End, self.stream, &End::Failed(error.into()))
        } else {
            Frame::json(Kind::Reply, self.stream, &Reply::Failed(error.into()))
        };
        match frame {
            Ok(frame) => self.frames.send(frame),
            Err(error) => tracing::error!(%error, "an answer can not be sent"),
        }
    }

    /// The program has ended.
    fn finish(&self, status: &ExitStatus, stderr: &[u8]) -> Result<()> {
        if self.done {
            return Ok(());
        }
        let said = String::from_utf8_lossy(stderr);
        let said = said.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        let (kind, how) = match status {
            ExitStatus::Unknown { reason } => (ErrorKind::Unavailable, format!("was lost sight of ({reason})")),
            status if self.greeted => (ErrorKind::Unavailable, format!("ended within its answer ({status:?})")),
            status => (ErrorKind::Backend, format!("gave no answer ({status:?})")),
        };
        Err(Error::new(kind, format!("the gateway's program in the workspace {how}{said}")))
    }
}

/// Streams in both directions.
async fn stream(calls: &ExecCalls, head: Vec<u8>, mut input: Input, answer: &mut Answer) -> Result<()> {
    let Process { mut stdin, mut output, control, .. } = calls.workspace.spawn(calls.command()).await?;
    let feed = async {
        // A program that does not read has ended, or has all that it needs.
        let mut heard = stdin.write_all(&head).await.is_ok();
        if !input.open {
            let _ = stdin.shutdown().await;
        }
        loop {
            match input.next().await {
                Sent::Body(bytes) => {
                    heard = heard && stdin.write_all(&bytes).await.is_ok() && stdin.flush().await.is_ok();
                    input.taken(bytes.len());
                }
                Sent::End => {
                    let _ = stdin.shutdown().await;
                }
                Sent::Signal(Signal::Kill) => return killed(),
                Sent::Signal(signal) => {
                    if let Err(error) = control.signal(signal).await {
                        tracing::warn!(%error, "a signal could not be sent");
                    }
                }
            }
        }
    };
    let forward = async {
        let mut stderr = Vec::new();
        while let Some(event) = output.next().await {
            match event {
                ProcessEvent::Stdout(bytes) => answer.take(&bytes).await?,
                ProcessEvent::Stderr(bytes) => {
                    let room = MOST_STDERR.saturating_sub(stderr.len());
                    stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                ProcessEvent::End(status) => return answer.finish(&status, &stderr),
            }
        }
        Ok(())
    };
    tokio::select! {
        forwarded = forward => forwarded,
        error = feed => Err(error),
    }
}

/// First everything in, then everything out.
async fn at_once(calls: &ExecCalls, mut stdin: Vec<u8>, mut input: Input, answer: &mut Answer) -> Result<()> {
    while input.open {
        match input.next().await {
            Sent::Body(bytes) => {
                if stdin.len() + bytes.len() > MOST_AT_ONCE {
                    let message = format!("without `spawn`, this workspace takes at most {MOST_AT_ONCE} bytes at once");
                    return Err(Error::new(ErrorKind::InvalidInput, message).with_code("too_large"));
                }
                stdin.extend_from_slice(&bytes);
                input.taken(bytes.len());
            }
            Sent::End => input.open = false,
            // Nobody has a command to be signalled before it is answered.
            Sent::Signal(_) => {}
        }
    }
    let command = calls.command().with_stdin(stdin).with_output_limit(MOST_AT_ONCE);
    let result = calls.workspace.exec(command).await?;
    if result.stdout.dropped > 0 {
        let message = format!("without `spawn`, this workspace gives at most {MOST_AT_ONCE} bytes at once");
        return Err(Error::new(ErrorKind::InvalidInput, message).with_code("too_large"));
    }
    answer.take(&result.stdout.bytes).await?;
    let stderr = &result.stderr.bytes;
    answer.finish(&result.status, &stderr[..stderr.len().min(MOST_STDERR)])
}

fn killed() -> Error {
    Error::new(ErrorKind::Unavailable, "the command was killed, and its end was not seen")
}
