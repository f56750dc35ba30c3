//! Frames: how messages of many streams share one connection.
//!
//! A frame is a header of nine bytes and a payload. Integers are little-endian.
//!
//! ```text
//! 0        1               5               9
//! ┌────────┬───────────────┬───────────────┬─────────┐
//! │ kind   │ stream        │ length        │ payload │
//! └────────┴───────────────┴───────────────┴─────────┘
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use wsm_core::{Error, ErrorKind, Result};

/// The longest payload. Longer ones are a fault of the other side, and end the connection before anything is read.
pub(crate) const MAX_PAYLOAD: usize = 1 << 20;

/// How many bytes of data one frame carries at most, so that no stream holds the connection for long.
pub(crate) const MAX_DATA: usize = 64 << 10;

const HEADER: usize = 9;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The first frame of each side: who it is, in JSON.
    Hello = 0,
    /// The client begins a stream with a request, in JSON.
    Open = 1,
    /// The server's answer to the request, in JSON.
    Reply = 2,
    /// Bytes of one of the stream's channels; the first byte is the channel.
    Data = 3,
    /// No more bytes in this direction.
    Finish = 4,
    /// How a command ended, or why a body broke off, in JSON. The last frame of the server's.
    End = 5,
    /// The receiver has taken this many bytes of data (u32), and may be sent as many more.
    Credit = 6,
    /// The client has lost interest: what the stream does is to be ended.
    Cancel = 7,
    /// A signal for the stream's command, in JSON.
    Signal = 8,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const KINDS: [Kind; 9] = [
            Kind::Hello,
            Kind::Open,
            Kind::Reply,
            Kind::Data,
            Kind::Finish,
            Kind::End,
            Kind::Credit,
            Kind::Cancel,
            Kind::Signal,
        ];
        KINDS.get(usize::from(byte)).copied()
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) stream: u32,
    pub(crate) payload: Bytes,
}

/// A channel of a stream's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Channel {
    /// A file's body, or a command's stdin.
    Body = 0,
    /// A command's stdout.
    Stdout = 1,
    /// A command's stderr.
    Stderr = 2,
}

impl Frame {
    pub(crate) fn new(kind: Kind, stream: u32, payload: impl Into<Bytes>) -> Self {
        Self { kind, stream, payload: payload.into() }
    }

    /// A frame whose payload is JSON.
    pub(crate) fn json(kind: Kind, stream: u32, value: &impl serde::Serialize) -> Result<Self> {
        let payload = serde_json::to_vec(value).map_err(|error| protocol("a message can not be written", error))?;
        if payload.len() > MAX_PAYLOAD {
            let message = format!("the request is {} bytes long; at most {MAX_PAYLOAD} can be sent", payload.len());
            return Err(Error::new(ErrorKind::InvalidInput, message).with_code("too_large"));
        }
        Ok(Self::new(kind, stream, payload))
    }

    pub(crate) fn data(stream: u32, channel: Channel, bytes: &[u8]) -> Self {
        let mut payload = BytesMut::with_capacity(1 + bytes.len());
        payload.put_u8(channel as u8);
        payload.extend_from_slice(bytes);
        Self::new(Kind::Data, stream, payload)
    }

    pub(crate) fn credit(stream: u32, bytes: u32) -> Self {
        Self::new(Kind::Credit, stream, bytes.to_le_bytes().to_vec())
    }

    /// The payload as JSON.
    pub(crate) fn parse<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_slice(&self.payload).map_err(|error| protocol("a message can not be read", error))
    }

    /// The channel and the bytes of a `Data` frame.
    pub(crate) fn into_data(mut self) -> Result<(Channel, Bytes)> {
        let channel = match self.payload.first() {
            Some(0) => Channel::Body,
            Some(1) => Channel::Stdout,
            Some(2) => Channel::Stderr,
            other => return Err(Error::new(ErrorKind::Backend, format!("data of an unknown channel: {other:?}"))),
        };
        self.payload.advance(1);
        Ok((channel, self.payload))
    }

    /// The number of bytes in a `Credit` frame.
    pub(crate) fn into_credit(self) -> Result<u32> {
        let bytes: Result<[u8; 4], _> = self.payload.as_ref().try_into();
        bytes.map(u32::from_le_bytes).map_err(|error| protocol("a credit can not be read", error))
    }

    pub(crate) fn write_to(&self, buffer: &mut BytesMut) {
        buffer.reserve(HEADER + self.payload.len());
        buffer.put_u8(self.kind as u8);
        buffer.put_u32_le(self.stream);
        // At most `MAX_PAYLOAD`, by all constructors.
        buffer.put_u32_le(self.payload.len() as u32);
        buffer.extend_from_slice(&self.payload);
    }

    /// Takes the first frame off the buffer, when it is there as a whole.
    ///
    /// # Errors
    ///
    /// `backend` for what can not be the beginning of a frame.
    pub(crate) fn read_from(buffer: &mut BytesMut) -> Result<Option<Self>> {
        let Some(mut header) = buffer.get(..HEADER) else { return Ok(None) };
        let (kind, stream, length) = (header.get_u8(), header.get_u32_le(), header.get_u32_le() as usize);
        let Some(kind) = Kind::from_byte(kind) else {
            return Err(Error::new(ErrorKind::Backend, format!("a frame of the unknown kind {kind}")));
        };
        if length > MAX_PAYLOAD {
            return Err(Error::new(ErrorKind::Backend, format!("a frame of {length} bytes")));
        }
        if buffer.len() < HEADER + length {
            buffer.reserve(HEADER + length - buffer.len());
            return Ok(None);
        }
        buffer.advance(HEADER);
        Ok(Some(Self { kind, stream, payload: buffer.split_to(length).freeze() }))
    }
}

fn protocol(message: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Backend, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_announced_length_beyond_the_limit_is_refused_before_it_is_awaited() {
        let mut buffer = BytesMut::from(&[3u8, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(Frame::read_from(&mut buffer).is_err());
        let mut buffer = BytesMut::from(&[99u8, 0, 0, 0, 0, 0, 0, 0, 0][..]);
        assert!(Frame::read_from(&mut buffer).is_err());
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        (0u8..9, any::<u32>(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(kind, stream, payload)| Frame::new(Kind::from_byte(kind).unwrap(), stream, payload))
    }

    proptest! {
        #[test]
        fn frames_survive_however_the_bytes_are_cut(frames in prop::collection::vec(any_frame(), 0..8), cut in 1usize..40) {
            let mut wire = BytesMut::new();
            frames.iter().for_each(|frame| frame.write_to(&mut wire));
            let (mut buffer, mut read) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = Frame::read_from(&mut buffer).unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn bytes_that_are_no_frames_end_in_an_error_or_in_waiting(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = Frame::read_from(&mut buffer) {
                let _ = frame.clone().into_data();
                let _ = frame.clone().into_credit();
                let _: Result<crate::message::Request> = frame.parse();
            }
        }
    }
}
