//! One side's half of a connection: what writes frames, and how much data each stream may send.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{AcquireError, Semaphore, mpsc},
};
use wsm_core::{Error, ErrorKind, Result};

use crate::frame::{Channel, Frame, Kind, MAX_DATA};

/// How many bytes of data a stream may have on the way in one direction. What bounds the memory of both sides.
pub(crate) const WINDOW: usize = 1 << 20;

/// How many bytes are collected before they are written, when there are as many.
const BATCH: usize = 256 << 10;

/// Queues frames for the writer. Never waits: data waits for its stream's window before, and all else is small.
#[derive(Debug, Clone)]
pub(crate) struct FrameSender(mpsc::UnboundedSender<Frame>);

impl FrameSender {
    pub(crate) fn channel() -> (Self, mpsc::UnboundedReceiver<Frame>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Queues a frame. After the connection broke it goes nowhere, and whoever waits for an answer learns of it.
    pub(crate) fn send(&self, frame: Frame) {
        let _ = self.0.send(frame);
    }
}

/// How much data a stream may still send. Cloned handles share it.
#[derive(Debug, Clone)]
pub(crate) struct Window(pub(crate) Arc<Semaphore>);

impl Window {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(WINDOW)))
    }

    /// The other side has taken this many bytes.
    ///
    /// # Errors
    ///
    /// When it can not have: more than were ever sent.
    pub(crate) fn give_back(&self, bytes: u32) -> Result<()> {
        let bytes = bytes as usize;
        if self.0.available_permits() + bytes > WINDOW {
            return Err(Error::new(ErrorKind::Backend, "credit for more data than was sent"));
        }
        self.0.add_permits(bytes);
        Ok(())
    }

    /// Ends the waiting of whoever wants to send: nobody takes the data any more.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Sends bytes as fast as the other side takes them.
    ///
    /// Cancel-safe: what was sent was sent, in whole frames.
    ///
    /// # Errors
    ///
    /// When nobody takes them any more.
    pub(crate) async fn send(
        &self,
        frames: &FrameSender,
        stream: u32,
        channel: Channel,
        bytes: &[u8],
    ) -> Result<(), AcquireError> {
        for piece in bytes.chunks(MAX_DATA) {
            // At most `MAX_DATA`.
            self.0.acquire_many(piece.len() as u32).await?.forget();
            frames.send(Frame::data(stream, channel, piece));
        }
        Ok(())
    }
}

/// How much data a stream may still receive, by what was granted.
#[derive(Debug)]
pub(crate) struct Allowance(usize);

impl Allowance {
    pub(crate) fn new() -> Self {
        Self(WINDOW)
    }

    /// Counts bytes that came in.
    ///
    /// # Errors
    ///
    /// When they are more than was granted.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<()> {
        self.0 = self
            .0
            .checked_sub(bytes)
            .ok_or_else(|| Error::new(ErrorKind::Backend, "the other side sends more data than it was granted"))?;
        Ok(())
    }

    /// Counts bytes that were granted anew.
    pub(crate) fn grant(&mut self, bytes: usize) {
        self.0 = (self.0 + bytes).min(WINDOW);
    }
}

/// Writes frames until there are no more senders or the connection breaks.
pub(crate) async fn write_frames(mut frames: mpsc::UnboundedReceiver<Frame>, mut io: impl AsyncWrite + Unpin) {
    let mut buffer = BytesMut::with_capacity(BATCH);
    while let Some(frame) = frames.recv().await {
        frame.write_to(&mut buffer);
        while buffer.len() < BATCH
            && let Ok(frame) = frames.try_recv()
        {
            frame.write_to(&mut buffer);
        }
        if io.write_all(&buffer).await.is_err() || io.flush().await.is_err() {
            return;
        }
        buffer.clear();
    }
    let _ = io.shutdown().await;
}

/// Reads frames one by one.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, buffer: BytesMut::with_capacity(BATCH) }
    }

    /// The next frame, or none when the other side has closed the connection.
    ///
    /// Cancel-safe: what was read stays in the buffer.
    ///
    /// # Errors
    ///
    /// `unavailable` when the connection broke, `backend` when what came is no frame.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = Frame::read_from(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(MAX_DATA);
            if self.io.read_buf(&mut self.buffer).await.map_err(broken)? == 0 {
                return Ok(None);
            }
        }
    }

    /// The first frame, which must be a hello.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next); `unavailable` when the connection closes before it.
    pub(crate) async fn hello(&mut self) -> Result<Frame> {
        match self.next().await? {
            Some(frame) if frame.kind == Kind::Hello => Ok(frame),
            Some(frame) => Err(Error::new(ErrorKind::Backend, format!("{:?} came instead of a hello", frame.kind))),
            None => Err(Error::new(ErrorKind::Unavailable, "the gateway closed the connection before it said hello")),
        }
    }
}

fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to the gateway broke").with_source(error)
}
