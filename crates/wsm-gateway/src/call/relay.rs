//! The inside of a call: reads one request and has it answered over a connection.

use futures::{StreamExt, stream::BoxStream};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
};
use wsm_core::{Error, ErrorKind, Result, Signal};

use super::Head;
use crate::{
    client::{HELLO_LIMIT, Io},
    frame::{Channel, Frame, Kind, MAX_DATA, MAX_PAYLOAD},
    link::{FrameReader, FrameSender, Window, write_frames},
    message::{End, Hello, Reply, Request, SignalRequest},
};

/// The number of the only stream of a call.
const STREAM: u32 = 1;

/// Reads one request and its body from `input`, has it answered by the gateway at the other end of `connection`, and writes
/// the answer to `output`. That there is no connection is an answer, too. Signals are passed on to the command, if the request is one.
///
/// # Errors
///
/// `backend` when `output` can not be written. Everything else that goes wrong is an answer.
///
/// # Cancel safety
///
/// Dropping the future ends what was requested, and leaves half an answer.
pub async fn relay_call(
    connection: Result<Box<dyn Io>>,
    mut input: impl AsyncBufRead + Unpin,
    output: impl AsyncWrite + Unpin,
    signals: BoxStream<'static, Signal>,
) -> Result<()> {
    let mut answer = Answer { output, replied: false };
    let relayed = async {
        let request = read_head(&mut input).await?;
        relay(connection?, &request, &mut input, &mut answer, signals).await
    };
    let relayed = relayed.await;
    if let Err(error) = relayed {
        answer.fail(&error).await?;
    }
    Ok(())
}

/// What is written.
struct Answer<W> {
    output: W,
    /// Whether the first part was.
    replied: bool,
}

impl<W: AsyncWrite + Unpin> Answer<W> {
    async fn write(&mut self, frame: &Frame) -> Result<()> {
        self.replied |= frame.kind == Kind::Reply;
        let mut bytes = bytes::BytesMut::new();
        frame.write_to(&mut bytes);
        self.output.write_all(&bytes).await.map_err(unwritten)?;
        // Whoever waits for the reply before it sends the body must not wait for a full buffer.
        self.output.flush().await.map_err(unwritten)
    }

    async fn fail(&mut self, error: &Error) -> Result<()> {
        let frame = if self.replied {
            Frame::json(Kind::End, STREAM, &End::Failed(error.into()))?
        } else {
            Frame::json(Kind::Reply, STREAM, &Reply::Failed(error.into()))?
        };
        self.write(&frame).await
    }
}

async fn read_head(input: &mut (impl AsyncBufRead + Unpin)) -> Result<Request> {
    let unreadable = |message: &str| Error::new(ErrorKind::InvalidInput, message);
    let mut line = Vec::new();
    let mut limited = input.take(MAX_PAYLOAD as u64);
    limited
        .read_until(b'\n', &mut line)
        .await
        .map_err(|cause| unreadable("stdin can not be read").with_source(cause))?;
    if line.len() == MAX_PAYLOAD {
        return Err(unreadable("the first line of stdin is too long for a request"));
    }
    let head: Head = serde_json::from_slice(&line).map_err(|cause| {
        unreadable("the first line of stdin is no request: {\"protocol\":1,\"request\":{\"op\":\"ping\"}} would be one")
            .with_source(cause)
    })?;
    Hello { protocol: head.protocol, ..Hello::client() }.check()?;
    Ok(head.request)
}

async fn relay<W: AsyncWrite + Unpin>(
    connection: Box<dyn Io>,
    request: &Request,
    input: &mut (impl AsyncBufRead + Unpin),
    answer: &mut Answer<W>,
    mut signals: BoxStream<'static, Signal>,
) -> Result<()> {
    let (reader, writer) = tokio::io::split(connection);
    let (frames, queue) = FrameSender::channel();
    // Dropped, and with it the connection, however this ends.
    let mut writing = JoinSet::new();
    writing.spawn(write_frames(queue, writer));
    frames.send(Frame::json(Kind::Hello, 0, &Hello::client())?);
    let mut reader = FrameReader::new(reader);
    let silent = |_| Error::new(ErrorKind::Timeout, format!("the gateway said no hello within {HELLO_LIMIT:?}"));
    let hello = tokio::time::timeout(HELLO_LIMIT, reader.hello()).await.map_err(silent)??;
    hello.parse::<Hello>()?.check()?;
    answer.write(&hello).await?;
    frames.send(Frame::json(Kind::Open, STREAM, request)?);

    let window = Window::new();
    let feed = async {
        if request.takes_body() {
            let mut buffer = vec![0; MAX_DATA];
            loop {
                match input.read(&mut buffer).await {
                    Ok(0) => break frames.send(Frame::new(Kind::Finish, STREAM, Vec::new())),
                    Ok(length) => {
                        if window.send(&frames, STREAM, Channel::Body, &buffer[..length]).await.is_err() {
                            break;
                        }
                    }
                    Err(cause) => {
                        return Error::new(ErrorKind::InvalidInput, "stdin can not be read").with_source(cause);
                    }
                }
            }
        }
        std::future::pending().await
    };
    let pass_on = async {
        while let Some(signal) = signals.next().await {
            match request {
                Request::Spawn(_) => match Frame::json(Kind::Signal, STREAM, &SignalRequest(signal)) {
                    Ok(frame) => frames.send(frame),
                    Err(error) => return error,
                },
                _ => return Error::new(ErrorKind::Unavailable, format!("ended by a signal ({signal:?})")),
            }
        }
        std::future::pending().await
    };
    let pump = async {
        while let Some(frame) = reader.next().await? {
            match frame.kind {
                Kind::Credit => window.give_back(frame.into_credit()?)?,
                Kind::Data => {
                    // Without the channel, which is the first byte; at most one frame's worth.
                    let length = frame.payload.len().saturating_sub(1) as u32;
                    answer.write(&frame).await?;
                    frames.send(Frame::credit(STREAM, length));
                }
                Kind::Reply => {
                    answer.write(&frame).await?;
                    if !request.answers_with_body() || matches!(frame.parse()?, Reply::Failed(_)) {
                        return Ok(());
                    }
                }
                Kind::Finish | Kind::End => return answer.write(&frame).await,
                Kind::Hello | Kind::Open | Kind::Cancel | Kind::Signal => {}
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the connection to the gateway broke"))
    };
    tokio::select! {
        pumped = pump => pumped,
        error = feed => Err(error),
        error = pass_on => Err(error),
    }
}

fn unwritten(cause: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, "the answer can not be written").with_source(cause)
}
