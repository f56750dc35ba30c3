//! The server: a workspace's side of the connection.

pub(crate) mod mcp;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{Notify, mpsc},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wsm_core::{
    ByteStream, Command, Error, ErrorKind, ExitStatus, Process, ProcessEvent, ReadOptions, RemoveOptions, Result,
    Workspace, WriteOptions,
};

use crate::{
    call::ExecCalls,
    client::Io,
    file_tools::FileTools,
    frame::{Channel, Frame, Kind},
    link::{Allowance, FrameReader, FrameSender, Window, write_frames},
    message::{End, Hello, Reply, Request, SignalRequest, WireEntry},
    unpack::unsupported,
};
use mcp::McpService;

/// How long the other side may take to read what was said last, once it has closed its own direction.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What is served to every connection: a workspace, and what else is done for it from its inside.
///
/// ```
/// # fn served(workspace: std::sync::Arc<dyn wsm_core::Workspace>) -> wsm_gateway::Served {
/// wsm_gateway::Served::new(workspace)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Served {
    workspace: Arc<dyn Workspace>,
    pub(crate) file_tools: Option<Arc<dyn FileTools>>,
    /// What answers in place of all else.
    pub(crate) calls: Option<ExecCalls>,
    mcp: Option<Arc<dyn McpService>>,
    /// Told at the end of each request.
    ended: Option<Arc<Notify>>,
}

impl Served {
    /// Serves the commands and files of a workspace.
    pub fn new(workspace: Arc<dyn Workspace>) -> Self {
        Self { workspace, file_tools: None, calls: None, mcp: None, ended: None }
    }

    /// Notifies at the end of each request, for whoever wants to tidy up in a pause.
    #[must_use]
    pub fn with_notice_of_ends(mut self, notify: Arc<Notify>) -> Self {
        self.ended = Some(notify);
        self
    }

    /// Serves MCP as well. Without, every request for it is `unsupported`.
    #[cfg(feature = "program")]
    #[must_use]
    pub fn with_mcp(mut self, registry: crate::McpRegistry) -> Self {
        self.mcp = Some(Arc::new(registry));
        self
    }

    /// Searches and unpacks too. Without it, such requests are answered `unsupported`.
    #[must_use]
    pub fn with_file_tools(mut self, tools: Arc<dyn FileTools>) -> Self {
        self.file_tools = Some(tools);
        self
    }
}

/// Serves a workspace over one connection until the other side closes it or it breaks.
///
/// Everything that goes on for the connection ends with it: commands are ended with their trees, half-written files are
/// undone. The other side has five seconds to read what was said last.
///
/// # Errors
///
/// `unavailable` when the connection broke, `backend` when the other side does not keep to the protocol.
///
/// # Cancel safety
///
/// Dropping the future ends the connection; what goes on for it is ended, though not awaited.
pub async fn serve(served: Served, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<()> {
    // One kind of connection for all of what follows, of which the program would else have a copy for each kind.
    let io: Box<dyn Io> = Box::new(io);
    let (reader, writer) = tokio::io::split(io);
    let (frames, queue) = FrameSender::channel();
    let tasks = TaskTracker::new();
    let closing = CancellationToken::new();
    let _ended = closing.clone().drop_guard();
    let hung_up = CancellationToken::new();
    let _hung_up = hung_up.clone().drop_guard();
    let writing = hung_up.clone();
    tasks.spawn(async move {
        let _ = writing.run_until_cancelled(write_frames(queue, writer)).await;
    });
    let workspace = &served.workspace;
    let hello =
        Hello { workdir: workspace.info().workdir.clone(), capabilities: workspace.capabilities(), ..Hello::client() };
    frames.send(Frame::json(Kind::Hello, 0, &hello)?);
    let connection =
        Connection { served, frames, tasks: tasks.clone(), closing: closing.clone(), streams: Arc::default() };
    let result = connection.read(FrameReader::new(reader)).await;
    closing.cancel();
    drop(connection);
    tasks.close();
    if tokio::time::timeout(LAST_WORDS, tasks.wait()).await.is_err() {
        // A peer that keeps the connection half open and does not read would be waited for without an end.
        hung_up.cancel();
        tasks.wait().await;
    }
    result
}

struct Connection {
    served: Served,
    frames: FrameSender,
    tasks: TaskTracker,
    closing: CancellationToken,
    streams: Streams,
}

type Streams = Arc<Mutex<HashMap<u32, ServerStream>>>;

/// What the reader knows of a stream.
struct ServerStream {
    events: mpsc::UnboundedSender<ClientEvent>,
    window: Window,
    allowance: Arc<Mutex<Allowance>>,
    cancelled: CancellationToken,
}

/// What the client does with an open stream.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    Data(Bytes),
    Finish,
    Signal(SignalRequest),
}

/// What the task of a stream works with.
pub(crate) struct Task {
    pub(crate) stream: u32,
    pub(crate) frames: FrameSender,
    pub(crate) window: Window,
    pub(crate) events: mpsc::UnboundedReceiver<ClientEvent>,
    pub(crate) allowance: Arc<Mutex<Allowance>>,
}

impl Connection {
    async fn read(&self, mut reader: FrameReader<impl AsyncRead + Unpin>) -> Result<()> {
        let hello: Hello = reader.hello().await?.parse()?;
        hello.check()?;
        while let Some(frame) = reader.next().await? {
            self.take(frame)?;
        }
        Ok(())
    }

    fn take(&self, frame: Frame) -> Result<()> {
        match frame.kind {
            Kind::Open => return self.open(&frame),
            Kind::Hello | Kind::Reply | Kind::End => {
                return Err(Error::new(ErrorKind::Backend, format!("a client does not send {:?}", frame.kind)));
            }
            Kind::Data | Kind::Finish | Kind::Credit | Kind::Cancel | Kind::Signal => {}
        }
        let streams = self.streams.lock();
        // A stream that has ended here may still be spoken to by a client that does not know yet.
        let Some(stream) = streams.get(&frame.stream) else { return Ok(()) };
        let event = match frame.kind {
            Kind::Credit => return stream.window.give_back(frame.into_credit()?),
            Kind::Cancel => {
                stream.cancelled.cancel();
                return Ok(());
            }
            Kind::Data => {
                let (_, bytes) = frame.into_data()?;
                stream.allowance.lock().take(bytes.len())?;
                ClientEvent::Data(bytes)
            }
            Kind::Signal => ClientEvent::Signal(frame.parse()?),
            Kind::Finish | Kind::Hello | Kind::Open | Kind::Reply | Kind::End => ClientEvent::Finish,
        };
        let _ = stream.events.send(event);
        Ok(())
    }

    fn open(&self, frame: &Frame) -> Result<()> {
        let id = frame.stream;
        let request = match frame.parse() {
            Ok(request) => request,
            Err(error) => {
                // One request that can not be read is that request's trouble.
                self.frames.send(Frame::json(Kind::Reply, id, &Reply::Failed((&error).into()))?);
                return Ok(());
            }
        };
        let (sender, events) = mpsc::unbounded_channel();
        let (window, allowance, cancelled) =
            (Window::new(), Arc::new(Mutex::new(Allowance::new())), self.closing.child_token());
        let task = Task {
            stream: id,
            frames: self.frames.clone(),
            window: window.clone(),
            events,
            allowance: Arc::clone(&allowance),
        };
        let stream = ServerStream { events: sender, window, allowance, cancelled: cancelled.clone() };
        if self.streams.lock().insert(id, stream).is_some() {
            return Err(Error::new(ErrorKind::Backend, format!("stream {id} is open already")));
        }
        let (served, streams) = (self.served.clone(), Arc::clone(&self.streams));
        let frames = self.frames.clone();
        self.tasks.spawn(async move {
            let work = AssertUnwindSafe(task.run(&served, request)).catch_unwind();
            // Dropping the work is what ends a command or undoes a write.
            if let Some(Err(_)) = cancelled.run_until_cancelled(work).await {
                // Else the other side would wait for ever.
                let error = Error::new(ErrorKind::Backend, "the gateway failed in the middle of the call");
                if let Ok(frame) = Frame::json(Kind::Reply, id, &Reply::Failed((&error).into())) {
                    frames.send(frame);
                }
            }
            streams.lock().remove(&id);
            if let Some(ended) = &served.ended {
                ended.notify_one();
            }
        });
        Ok(())
    }
}

impl Task {
    pub(crate) fn reply(&self, reply: &Reply) {
        self.send(Kind::Reply, reply);
    }

    pub(crate) fn send(&self, kind: Kind, value: &impl serde::Serialize) {
        match Frame::json(kind, self.stream, value) {
            Ok(frame) => self.frames.send(frame),
            Err(error) => tracing::error!(%error, "an answer can not be sent"),
        }
    }

    async fn run(self, served: &Served, request: Request) {
        if let Some(calls) = &served.calls {
            return self.call(calls, request).await;
        }
        let workspace = &*served.workspace;
        let result = match request {
            Request::Spawn(request) => return self.spawn(workspace, request.into()).await,
            Request::Read { path, offset, length } => {
                return self.read(workspace, &path, ReadOptions::range(offset, length)).await;
            }
            Request::Write { path, mode, create_parents, overwrite } => {
                let mut options = WriteOptions::default().with_create_parents(create_parents).with_overwrite(overwrite);
                options.mode = mode;
                return self.write(workspace, &path, options).await;
            }
            Request::Stat { path } => workspace.stat(&path).await.map(|found| Reply::Metadata(found.into())),
            Request::List { path } => return self.list(workspace, &path).await,
            Request::MakeDir { path } => workspace.make_dir(&path).await.map(|()| Reply::Done),
            Request::Remove { path, recursive, missing_ok } => {
                let options = RemoveOptions::default().with_recursive(recursive).with_missing_ok(missing_ok);
                workspace.remove(&path, options).await.map(|()| Reply::Done)
            }
            Request::Rename { from, to } => workspace.rename(&from, &to).await.map(|()| Reply::Done),
            Request::Mcp(request) => return self.mcp(served.mcp.clone(), request).await,
            Request::Ping => Ok(Reply::Done),
            Request::Glob(request) => {
                return self
                    .send_events(match &served.file_tools {
                        Some(tools) => tools.glob(request).await,
                        None => Err(unsupported("glob")),
                    })
                    .await;
            }
            Request::Grep(request) => {
                return self
                    .send_events(match &served.file_tools {
                        Some(tools) => tools.grep(request).await,
                        None => Err(unsupported("grep")),
                    })
                    .await;
            }
            Request::Unpack(request) => return self.unpack(served, request).await,
        };
        self.reply(&result.unwrap_or_else(|error| Reply::Failed((&error).into())));
    }

    async fn spawn(self, workspace: &dyn Workspace, command: Command) {
        let Process { mut stdin, mut output, control, .. } = match workspace.spawn(command).await {
            Ok(process) => process,
            Err(error) => return self.reply(&Reply::Failed((&error).into())),
        };
        self.reply(&Reply::Done);
        let Self { stream, frames, window, mut events, allowance } = self;
        let forward = async {
            while let Some(event) = output.next().await {
                let (channel, bytes) = match event {
                    ProcessEvent::Stdout(bytes) => (Channel::Stdout, bytes),
                    ProcessEvent::Stderr(bytes) => (Channel::Stderr, bytes),
                    ProcessEvent::End(status) => return status,
                };
                if window.send(&frames, stream, channel, &bytes).await.is_err() {
                    break;
                }
            }
            ExitStatus::Unknown { reason: "the gateway lost sight of the command".to_owned() }
        };
        // Apart from the feeding, since a command that does not read is to hear signals all the same.
        // No more waits in between than the stream's window allows.
        let (to_feed, mut fed) = mpsc::unbounded_channel();
        let listen = async {
            while let Some(event) = events.recv().await {
                match event {
                    ClientEvent::Data(bytes) => drop(to_feed.send(Some(bytes))),
                    ClientEvent::Finish => drop(to_feed.send(None)),
                    ClientEvent::Signal(SignalRequest(signal)) => {
                        // What was said before comes first, if it is read.
                        tokio::task::yield_now().await;
                        if let Err(error) = control.signal(signal).await {
                            tracing::warn!(%error, "a signal could not be sent");
                        }
                    }
                }
            }
        };
        let feed = async {
            let mut open = true;
            while let Some(input) = fed.recv().await {
                match input {
                    Some(bytes) => {
                        // What a command does not read is dropped; its end tells what happened.
                        open = open && stdin.write_all(&bytes).await.is_ok() && stdin.flush().await.is_ok();
                        allowance.lock().grant(bytes.len());
                        // At most one frame's worth.
                        frames.send(Frame::credit(stream, bytes.len() as u32));
                    }
                    None => {
                        open = false;
                        let _ = stdin.shutdown().await;
                    }
                }
            }
        };
        let serve = async {
            tokio::join!(listen, feed);
            std::future::pending::<()>().await;
        };
        let status = tokio::select! {
            status = forward => status,
            () = serve => return,
        };
        if let Ok(frame) = Frame::json(Kind::End, stream, &End::Exit(status)) {
            frames.send(frame);
        }
    }

    async fn read(self, workspace: &dyn Workspace, path: &str, options: ReadOptions) {
        let mut file = match workspace.read(path, options).await {
            Ok(file) => file,
            Err(error) => return self.reply(&Reply::Failed((&error).into())),
        };
        self.reply(&Reply::Metadata(file.metadata.into()));
        loop {
            match file.body.try_next().await {
                Ok(Some(bytes)) => {
                    if self.window.send(&self.frames, self.stream, Channel::Body, &bytes).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return self.frames.send(Frame::new(Kind::Finish, self.stream, Bytes::new())),
                Err(error) => return self.send(Kind::End, &End::Failed((&error).into())),
            }
        }
    }

    /// A directory may have more entries than one frame can hold, so they travel as a body.
    async fn list(self, workspace: &dyn Workspace, path: &str) {
        let listing = workspace.list(path).await.and_then(|entries| {
            let entries: Vec<WireEntry> = entries.into_iter().map(Into::into).collect();
            serde_json::to_vec(&entries)
                .map_err(|error| Error::new(ErrorKind::Backend, "the listing can not be written").with_source(error))
        });
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return self.reply(&Reply::Failed((&error).into())),
        };
        self.reply(&Reply::Done);
        if self.window.send(&self.frames, self.stream, Channel::Body, &listing).await.is_ok() {
            self.frames.send(Frame::new(Kind::Finish, self.stream, Bytes::new()));
        }
    }

    async fn write(mut self, workspace: &dyn Workspace, path: &str, options: WriteOptions) {
        let (_, nothing) = mpsc::unbounded_channel();
        let events = std::mem::replace(&mut self.events, nothing);
        let body = body_of(events, self.frames.clone(), self.stream, Arc::clone(&self.allowance));
        let written = workspace.write(path, body, options).await;
        self.reply(&match written {
            Ok(metadata) => Reply::Metadata(metadata.into()),
            Err(error) => Reply::Failed((&error).into()),
        });
    }
}

/// The body that a client sends, granting more as it is read.
pub(crate) fn body_of(
    events: mpsc::UnboundedReceiver<ClientEvent>,
    frames: FrameSender,
    id: u32,
    allowance: Arc<Mutex<Allowance>>,
) -> ByteStream {
    stream::try_unfold((events, frames, allowance), move |(mut events, frames, allowance)| async move {
        match events.recv().await {
            Some(ClientEvent::Data(bytes)) => {
                allowance.lock().grant(bytes.len());
                // At most one frame's worth.
                frames.send(Frame::credit(id, bytes.len() as u32));
                Ok(Some((bytes, (events, frames, allowance))))
            }
            Some(ClientEvent::Finish) => Ok(None),
            Some(ClientEvent::Signal(_)) | None => {
                Err(Error::new(ErrorKind::Unavailable, "the connection broke before the body's end"))
            }
        }
    })
    .boxed()
}
