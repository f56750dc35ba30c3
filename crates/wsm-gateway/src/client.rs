//! The client: calls and streams over one connection, and a new connection when it broke.

pub(crate) mod mcp;

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{
    sync::{CancellationToken, PollSemaphore},
    task::TaskTracker,
};
use wsm_core::{
    ByteStream, Command, DirEntry, Error, ErrorKind, ExecResult, ExitStatus, Metadata, Process, ProcessControl,
    ProcessEvent, ProcessOutput, ReadFile, ReadOptions, RemoveOptions, Result, Signal, WriteOptions, byte_stream,
};

use crate::{
    frame::{Channel, Frame, Kind, MAX_DATA},
    link::{Allowance, FrameReader, FrameSender, Window, write_frames},
    message::{End, Hello, Reply, Request, SignalRequest, WireEntry},
};

/// How long the gateway may take to say hello.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Opens a connection to the gateway.
pub(crate) type Connect = dyn Fn() -> BoxFuture<'static, Result<Box<dyn Io>>> + Send + Sync;

/// A two-way stream of bytes.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// How long the gateway may say nothing while something is waited for, before it is asked whether it lives; and how long it may
/// take to answer then.
const SILENCE: Duration = Duration::from_secs(20);
/// How long the gateway may take to start a command.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How much later than its time limit a command may end: it has a grace, and the machine may be busy.
const LATENESS: Duration = Duration::from_secs(15);

/// None for a command that may run for ever.
fn last_moment(begun: Instant, command: &Command) -> Option<Instant> {
    begun.checked_add(command.timeout?)?.checked_add(LATENESS)
}

fn not_started(limit: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("the gateway did not start the command within {limit:?}"))
}

/// A client of the gateway of one workspace. Clones share the connection.
///
/// When the connection breaks, the next call makes a new one; a command that ran meanwhile ends as *unknown*, never as a
/// success, and nothing is sent twice. A gateway that does not answer for 40 seconds, because it or its whole sandbox was
/// stopped, counts as a broken connection: so no call waits for ever.
#[derive(Clone)]
pub struct GatewayClient(Arc<Inner>);

struct Inner {
    connect: Box<Connect>,
    /// The connection, once there is one. Locked while one is made, so that callers at once make one.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    tasks: TaskTracker,
    closed: CancellationToken,
    /// Whether the other side may stop without an end of the connection. One in this process does not.
    may_stop: bool,
}

impl GatewayClient {
    /// Connects for the first time.
    ///
    /// # Errors
    ///
    /// What `connect` said; `timeout` or `conflict` (code `gateway_version`) when the gateway can not be talked to.
    pub async fn new(
        connect: impl Fn() -> BoxFuture<'static, Result<Box<dyn Io>>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let client = Self::unconnected(connect, TaskTracker::new(), true);
        client.session().await?;
        Ok(client)
    }

    /// As [`new`](Self::new) for another side in this process, whose tasks end with this one's.
    pub(crate) async fn within(
        connect: impl Fn() -> BoxFuture<'static, Result<Box<dyn Io>>> + Send + Sync + 'static,
        tasks: TaskTracker,
    ) -> Result<Self> {
        let client = Self::unconnected(connect, tasks, false);
        client.session().await?;
        Ok(client)
    }

    /// A client that connects with its first call.
    pub(crate) fn connected_later(
        connect: impl Fn() -> BoxFuture<'static, Result<Box<dyn Io>>> + Send + Sync + 'static,
    ) -> Self {
        Self::unconnected(connect, TaskTracker::new(), true)
    }

    fn unconnected(
        connect: impl Fn() -> BoxFuture<'static, Result<Box<dyn Io>>> + Send + Sync + 'static,
        tasks: TaskTracker,
        may_stop: bool,
    ) -> Self {
        let (session, closed) = (tokio::sync::Mutex::new(None), CancellationToken::new());
        Self(Arc::new(Inner { connect: Box::new(connect), session, tasks, closed, may_stop }))
    }

    /// Ends the connection. Later calls are `gone`.
    pub async fn close(&self) {
        self.0.closed.cancel();
        self.0.session.lock().await.take();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Asks the gateway whether it lives.
    ///
    /// # Errors
    ///
    /// `unavailable` when it does not answer.
    pub async fn ping(&self) -> Result<()> {
        self.call(&Request::Ping).await.map(drop)
    }

    pub(crate) async fn hello(&self) -> Result<Hello> {
        Ok(self.session().await?.hello.clone())
    }

    async fn session(&self) -> Result<Arc<Session>> {
        if self.0.closed.is_cancelled() {
            return Err(gone());
        }
        let mut current = self.0.session.lock().await;
        if let Some(session) = &*current
            && !session.broken.is_cancelled()
        {
            return Ok(Arc::clone(session));
        }
        let session = Session::start(&self.0).await?;
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Makes a request that is answered at once.
    async fn call(&self, request: &Request) -> Result<Reply> {
        let mut stream = self.open(request).await?;
        let reply = stream.reply().await?;
        stream.done();
        Ok(reply)
    }

    async fn open(&self, request: &Request) -> Result<Stream> {
        self.session().await?.open(request)
    }

    /// Starts a command, as [`Workspace::spawn`](wsm_core::Workspace::spawn) does. Its `stdin` and `output_limit` do not
    /// count: the process has a stdin, and [`Process::collect`] keeps to a limit.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::spawn`](wsm_core::Workspace::spawn); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future, or the output, ends the command with its tree.
    pub async fn spawn(&self, command: &Command) -> Result<Process> {
        let session = self.session().await?;
        if !session.hello.capabilities.spawn {
            return Err(Error::unsupported("spawn"));
        }
        let mut stream = session.open(&Request::Spawn(command.into()))?;
        let begun = Instant::now();
        let last_moment = last_moment(begun, command);
        let limit = last_moment.map_or(START_LIMIT, |moment| START_LIMIT.min(moment - begun));
        // Dropping the stream tells the gateway, should it ever listen again.
        expect_done(timeout(limit, stream.reply()).await.map_err(|_| not_started(limit))??)?;
        Ok(Self::process(stream, last_moment))
    }

    /// Runs a command to its end, as [`Workspace::exec`](wsm_core::Workspace::exec) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::exec`](wsm_core::Workspace::exec); `unavailable` when the connection broke before it began.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the command with its tree.
    pub async fn exec(&self, mut command: Command) -> Result<ExecResult> {
        let (stdin, limit) = (std::mem::take(&mut command.stdin), command.output_limit);
        if self.session().await?.hello.capabilities.spawn {
            return Ok(self.spawn(&command).await?.collect(stdin, limit).await);
        }
        // The other side takes everything before it begins.
        let request = Request::Spawn((&command).into());
        let last_moment = last_moment(Instant::now(), &command);
        let begin = self.send(&request, byte_stream(stdin));
        let begun = match last_moment {
            Some(moment) => timeout_at(moment, begin).await,
            None => Ok(begin.await),
        };
        let (reply, stream) = begun.map_err(|_| not_started(command.timeout.unwrap_or_default() + LATENESS))??;
        expect_done(reply)?;
        Ok(Self::process(stream, last_moment).collect(Bytes::new(), limit).await)
    }

    /// What is seen of a command, and until when at most: the gateway keeps to the command's time limit, but may itself be
    /// stopped, or wait for a broken disk.
    fn process(stream: Stream, last_moment: Option<Instant>) -> Process {
        let stdin = Stdin {
            window: PollSemaphore::new(Arc::clone(&stream.window.0)),
            frames: stream.session.frames.clone(),
            stream: stream.id,
            finished: false,
        };
        let control = Control { frames: stream.session.frames.clone(), stream: stream.id };
        let events = stream::unfold(stream, move |mut stream| async move {
            let next = stream.events.recv();
            let next = match last_moment {
                Some(moment) => timeout_at(moment, next).await,
                None => Ok(next.await),
            };
            // Dropping the stream tells the gateway, should it ever listen again.
            let Ok(next) = next else {
                let reason = "the gateway did not end the command in time".to_owned();
                return Some((ProcessEvent::End(ExitStatus::Unknown { reason }), stream));
            };
            let event = match next {
                Some(ServerEvent::Data(channel, bytes)) => {
                    stream.taken(bytes.len());
                    match channel {
                        Channel::Stderr => ProcessEvent::Stderr(bytes),
                        Channel::Stdout | Channel::Body => ProcessEvent::Stdout(bytes),
                    }
                }
                Some(ServerEvent::End(End::Exit(status))) => {
                    stream.done();
                    ProcessEvent::End(status)
                }
                other => {
                    stream.done();
                    let reason = match other {
                        Some(ServerEvent::End(End::Failed(error))) => Error::from(error).to_string(),
                        _ => "the connection to the gateway broke before the end was seen".to_owned(),
                    };
                    ProcessEvent::End(ExitStatus::Unknown { reason })
                }
            };
            Some((event, stream))
        });
        Process::new(Box::pin(stdin), ProcessOutput::new(events), Arc::new(control))
    }

    /// Opens a file, as [`Workspace::read`](wsm_core::Workspace::read) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::read`](wsm_core::Workspace::read); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the body ends the reading.
    pub async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let mut stream = self.open(&Request::read(path, options)).await?;
        let metadata = expect_metadata(stream.reply().await?)?;
        Ok(ReadFile::new(metadata, stream.into_body()))
    }

    /// Writes a file as a whole, as [`Workspace::write`](wsm_core::Workspace::write) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::write`](wsm_core::Workspace::write); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready leaves the file as it was, or as it was to be.
    pub async fn write(&self, path: &str, body: ByteStream, options: &WriteOptions) -> Result<Metadata> {
        expect_metadata(self.send_body(&Request::write(path, options), body).await?)
    }

    /// Makes a request that is answered after its body. Dropping the future cancels it, and the other side undoes it.
    pub(crate) async fn send_body(&self, request: &Request, body: ByteStream) -> Result<Reply> {
        let (reply, mut stream) = self.send(request, body).await?;
        stream.done();
        Ok(reply)
    }

    /// Makes a request and sends its body, until there is an answer, after which nobody takes more of it.
    async fn send(&self, request: &Request, mut body: ByteStream) -> Result<(Reply, Stream)> {
        let mut stream = self.open(request).await?;
        let (window, frames, id) = (stream.window.clone(), stream.session.frames.clone(), stream.id);
        let send = async {
            while let Some(bytes) = body.try_next().await? {
                if window.send(&frames, id, Channel::Body, &bytes).await.is_err() {
                    // Nobody takes it any more; the reply says why.
                    return Ok(());
                }
            }
            frames.send(Frame::new(Kind::Finish, id, Bytes::new()));
            Ok::<_, Error>(())
        };
        tokio::pin!(send);
        let mut sent = false;
        let reply = loop {
            tokio::select! {
                reply = stream.reply() => break reply?,
                result = &mut send, if !sent => {
                    result?;
                    sent = true;
                }
            }
        };
        Ok((reply, stream))
    }

    /// Makes a request whose answer is a body.
    pub(crate) async fn body_of(&self, request: &Request) -> Result<ByteStream> {
        let mut stream = self.open(request).await?;
        expect_done(stream.reply().await?)?;
        Ok(stream.into_body())
    }

    /// Tells what a path is, as [`Workspace::stat`](wsm_core::Workspace::stat) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::stat`](wsm_core::Workspace::stat); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn stat(&self, path: &str) -> Result<Metadata> {
        expect_metadata(self.call(&Request::Stat { path: path.to_owned() }).await?)
    }

    /// Lists a directory, as [`Workspace::list`](wsm_core::Workspace::list) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::list`](wsm_core::Workspace::list); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let body = self.body_of(&Request::List { path: path.to_owned() }).await?;
        let listing = body.try_fold(Vec::new(), async |mut whole, piece| {
            whole.extend_from_slice(&piece);
            Ok(whole)
        });
        let entries: Vec<WireEntry> = serde_json::from_slice(&listing.await?)
            .map_err(|error| Error::new(ErrorKind::Backend, "the listing can not be read").with_source(error))?;
        Ok(entries.into_iter().map(Into::into).collect())
    }

    /// Makes a directory and its parents, as [`Workspace::make_dir`](wsm_core::Workspace::make_dir) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::make_dir`](wsm_core::Workspace::make_dir); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have happened.
    pub async fn make_dir(&self, path: &str) -> Result<()> {
        expect_done(self.call(&Request::MakeDir { path: path.to_owned() }).await?)
    }

    /// Deletes a file or directory, as [`Workspace::remove`](wsm_core::Workspace::remove) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::remove`](wsm_core::Workspace::remove); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have happened.
    pub async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        expect_done(self.call(&Request::remove(path, options)).await?)
    }

    /// Moves a file or directory, as [`Workspace::rename`](wsm_core::Workspace::rename) does.
    ///
    /// # Errors
    ///
    /// As for [`Workspace::rename`](wsm_core::Workspace::rename); `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have happened.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        expect_done(self.call(&Request::Rename { from: from.to_owned(), to: to.to_owned() }).await?)
    }
}

impl fmt::Debug for GatewayClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayClient").field("closed", &self.0.closed.is_cancelled()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

fn expect_done(reply: Reply) -> Result<()> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn expect_metadata(reply: Reply) -> Result<Metadata> {
    match reply {
        Reply::Metadata(metadata) => Ok(metadata.into()),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn unexpected(reply: &Reply) -> Error {
    Error::new(ErrorKind::Backend, format!("the gateway answered something else than it was asked for: {reply:?}"))
}

fn gone() -> Error {
    Error::new(ErrorKind::Gone, "this workspace was put away: ask for it again")
}

/// One connection.
struct Session {
    frames: FrameSender,
    streams: Mutex<HashMap<u32, ClientStream>>,
    next: AtomicU32,
    hello: Hello,
    /// Whether anything came since it was last looked.
    heard: AtomicBool,
    /// Whether it is over because the gateway did not answer any more.
    silent: AtomicBool,
    /// Whether the connection is over.
    broken: CancellationToken,
    /// Whether it is over because the client was closed.
    closed: CancellationToken,
}

/// What the reader knows of a stream.
struct ClientStream {
    events: mpsc::UnboundedSender<ServerEvent>,
    window: Window,
    allowance: Allowance,
}

/// What the server does with an open stream.
#[derive(Debug)]
enum ServerEvent {
    Reply(Reply),
    Data(Channel, Bytes),
    Finish,
    End(End),
}

impl Session {
    async fn start(inner: &Inner) -> Result<Arc<Self>> {
        let io = (inner.connect)().await?;
        let (reader, writer) = tokio::io::split(io);
        let (frames, queue) = FrameSender::channel();
        frames.send(Frame::json(Kind::Hello, 0, &Hello::client())?);
        let broken = inner.closed.child_token();
        let writing = broken.clone();
        inner.tasks.spawn(async move {
            let _ = writing.run_until_cancelled(write_frames(queue, writer)).await;
        });
        let mut reader = FrameReader::new(reader);
        let hello = tokio::time::timeout(HELLO_LIMIT, reader.hello()).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, format!("the gateway said no hello within {HELLO_LIMIT:?}")))
        });
        let hello: Hello = match hello.and_then(|frame| frame.parse()) {
            Ok(hello) => hello,
            Err(error) => {
                broken.cancel();
                return Err(error);
            }
        };
        hello.check()?;
        let (streams, next) = (Mutex::default(), AtomicU32::new(1));
        let (heard, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let (ending, closed, may_stop) = (broken.clone(), inner.closed.clone(), inner.may_stop);
        let session = Arc::new(Self { frames, streams, next, hello, heard, silent, broken, closed });
        let read = Arc::clone(&session);
        inner.tasks.spawn(async move {
            let talk = async {
                tokio::select! {
                    read = read.read(reader) => read,
                    () = read.watch(), if may_stop => Err(read.over()),
                }
            };
            if let Some(Err(error)) = ending.run_until_cancelled(talk).await {
                tracing::warn!(error = %error.report(), "the connection to a gateway broke");
            }
            read.end();
        });
        Ok(session)
    }

    async fn read(&self, mut reader: FrameReader<impl AsyncRead + Unpin>) -> Result<()> {
        while let Some(frame) = reader.next().await? {
            self.take(frame)?;
        }
        Ok(())
    }

    /// Ends once the gateway does not answer any more, although somebody waits for it.
    async fn watch(self: &Arc<Self>) {
        loop {
            sleep(SILENCE).await;
            if self.heard.swap(false, Ordering::Relaxed) || self.streams.lock().is_empty() {
                continue;
            }
            let asked = async { Arc::clone(self).open(&Request::Ping)?.reply().await };
            let answered = timeout(SILENCE, asked).await;
            // Whatever comes shows that it lives; an answer may have to wait behind much else.
            if answered.is_err() && !self.heard.load(Ordering::Relaxed) {
                self.silent.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    fn take(&self, frame: Frame) -> Result<()> {
        self.heard.store(true, Ordering::Relaxed);
        let mut streams = self.streams.lock();
        // A stream that was cancelled here may still be spoken to.
        let Some(stream) = streams.get_mut(&frame.stream) else { return Ok(()) };
        let event = match frame.kind {
            Kind::Credit => return stream.window.give_back(frame.into_credit()?),
            Kind::Reply => ServerEvent::Reply(frame.parse()?),
            Kind::Finish => ServerEvent::Finish,
            Kind::End => ServerEvent::End(frame.parse()?),
            Kind::Data => {
                let (channel, bytes) = frame.into_data()?;
                stream.allowance.take(bytes.len())?;
                ServerEvent::Data(channel, bytes)
            }
            Kind::Hello | Kind::Open | Kind::Cancel | Kind::Signal => {
                return Err(Error::new(ErrorKind::Backend, format!("a gateway does not send {:?}", frame.kind)));
            }
        };
        let _ = stream.events.send(event);
        Ok(())
    }

    /// Tells all who wait that nothing comes any more.
    fn end(&self) {
        self.broken.cancel();
        for (_, stream) in self.streams.lock().drain() {
            stream.window.close();
        }
    }

    /// Why nothing more comes.
    fn over(&self) -> Error {
        if self.closed.is_cancelled() {
            return gone();
        }
        if self.silent.load(Ordering::Relaxed) {
            let message = "the gateway does not answer any more: was it or its sandbox stopped?";
            return Error::new(ErrorKind::Unavailable, message).with_code("gateway_silent");
        }
        Error::new(ErrorKind::Unavailable, "the connection to the gateway broke")
    }

    fn open(self: Arc<Self>, request: &Request) -> Result<Stream> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::unbounded_channel();
        let window = Window::new();
        let frame = Frame::json(Kind::Open, id, request)?;
        let stream = ClientStream { events: sender, window: window.clone(), allowance: Allowance::new() };
        self.streams.lock().insert(id, stream);
        // Looked at after the insertion: an end that came before it would have missed the stream.
        if self.broken.is_cancelled() {
            self.streams.lock().remove(&id);
            return Err(self.over());
        }
        self.frames.send(frame);
        Ok(Stream { id, session: self, window, events, open: true })
    }
}

/// An open stream. Dropping it before its end cancels it.
struct Stream {
    id: u32,
    session: Arc<Session>,
    window: Window,
    events: mpsc::UnboundedReceiver<ServerEvent>,
    open: bool,
}

impl Stream {
    /// The answer to the request. Cancel-safe.
    async fn reply(&mut self) -> Result<Reply> {
        match self.events.recv().await {
            Some(ServerEvent::Reply(Reply::Failed(error))) => {
                self.done();
                Err(error.into())
            }
            Some(ServerEvent::Reply(reply)) => Ok(reply),
            Some(ServerEvent::Data(..) | ServerEvent::Finish | ServerEvent::End(_)) | None => Err(self.session.over()),
        }
    }

    /// The bytes that follow the reply.
    fn into_body(self) -> ByteStream {
        stream::try_unfold(self, async |mut stream| match stream.events.recv().await {
            Some(ServerEvent::Data(_, bytes)) => {
                stream.taken(bytes.len());
                Ok(Some((bytes, stream)))
            }
            Some(ServerEvent::Finish) => {
                stream.done();
                Ok(None)
            }
            Some(ServerEvent::End(End::Failed(error))) => {
                stream.done();
                Err(error.into())
            }
            Some(ServerEvent::End(End::Exit(_)) | ServerEvent::Reply(_)) | None => Err(stream.session.over()),
        })
        .boxed()
    }

    /// Grants as many bytes as were taken.
    fn taken(&mut self, bytes: usize) {
        if let Some(stream) = self.session.streams.lock().get_mut(&self.id) {
            stream.allowance.grant(bytes);
        }
        // At most one frame's worth.
        self.session.frames.send(Frame::credit(self.id, bytes as u32));
    }

    /// The stream has ended on the other side.
    fn done(&mut self) {
        self.open = false;
        self.session.streams.lock().remove(&self.id);
        self.window.close();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.open {
            self.done();
            self.session.frames.send(Frame::new(Kind::Cancel, self.id, Bytes::new()));
        }
    }
}

/// A command's stdin.
struct Stdin {
    window: PollSemaphore,
    frames: FrameSender,
    stream: u32,
    finished: bool,
}

impl Stdin {
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.frames.send(Frame::new(Kind::Finish, self.stream, Bytes::new()));
        }
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let piece = &bytes[..bytes.len().min(MAX_DATA)];
        // At most `MAX_DATA`.
        let Some(permit) = ready!(self.window.poll_acquire_many(context, piece.len() as u32)) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        permit.forget();
        self.frames.send(Frame::data(self.stream, Channel::Body, piece));
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        self.finish();
    }
}

#[derive(Debug)]
struct Control {
    frames: FrameSender,
    stream: u32,
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.frames.send(Frame::json(Kind::Signal, self.stream, &SignalRequest(signal))?);
        Ok(())
    }
}
