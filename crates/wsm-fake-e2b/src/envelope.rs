//! The envelopes of a Connect stream: a byte of flags, the length as four bytes, the payload.

use std::io::{Read, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde_json::{Value, json};

use crate::rpc::{Code, RpcError};

const COMPRESSED: u8 = 1;
const END_OF_STREAM: u8 = 2;
const HEADER: usize = 5;
/// Nobody sends this much in one piece.
const MAX_PAYLOAD: usize = 64 << 20;

/// Writes envelopes, compressed if the client asked for that.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Encoder {
    pub(crate) gzip: bool,
}

impl Encoder {
    pub(crate) fn message(self, message: &Value) -> Bytes {
        self.envelope(0, &message.to_string())
    }

    pub(crate) fn end(self, error: Option<&RpcError>) -> Bytes {
        let payload = error.map_or_else(|| json!({}), |error| json!({ "error": error.json() }));
        self.end_with(&payload)
    }

    pub(crate) fn end_with(self, payload: &Value) -> Bytes {
        self.envelope(END_OF_STREAM, &payload.to_string())
    }

    fn envelope(self, flags: u8, payload: &str) -> Bytes {
        if self.gzip
            && let Ok(compressed) = gzip(payload.as_bytes())
        {
            return envelope(flags | COMPRESSED, &compressed);
        }
        envelope(flags, payload.as_bytes())
    }
}

fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER + payload.len());
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

pub(crate) fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

pub(crate) fn gunzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain)
}

/// What an envelope of ours says, for faults that change it.
pub(crate) fn open(frame: &Bytes) -> Option<(bool, Value)> {
    let mut decoder = Decoder::default();
    decoder.push(frame);
    decoder.next().ok().flatten()
}

/// Takes a stream of bytes apart into the messages of its envelopes.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next message, and whether it is the one that ends the stream. None when it has not come yet.
    pub(crate) fn next(&mut self) -> Result<Option<(bool, Value)>, RpcError> {
        let Some((header, _)) = self.buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [flags, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_PAYLOAD {
            let message = format!("message size {length} is larger than configured max {MAX_PAYLOAD}");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let mut payload = self.buffer.split_to(length).to_vec();
        if flags & COMPRESSED != 0 {
            payload = gunzip(&payload)
                .map_err(|error| RpcError::new(Code::InvalidArgument, format!("decompress: {error}")))?;
        }
        let message = if payload.is_empty() { Ok(json!({})) } else { serde_json::from_slice(&payload) };
        let message = message
            .map_err(|error| RpcError::new(Code::InvalidArgument, format!("unmarshal into message: {error}")))?;
        Ok(Some((flags & END_OF_STREAM != 0, message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_has_flags_and_a_length() {
        let bytes = Encoder::default().message(&json!({ "a": 1 }));
        assert_eq!(&bytes[..], b"\0\0\0\0\x07{\"a\":1}");
        assert_eq!(&Encoder::default().end(None)[..], b"\x02\0\0\0\x02{}");
    }

    #[test]
    fn messages_come_out_wherever_the_bytes_were_cut() {
        let error = RpcError::new(Code::DeadlineExceeded, "context deadline exceeded");
        for gzip in [false, true] {
            let encoder = Encoder { gzip };
            let bytes = [encoder.message(&json!({ "x": "y" })), encoder.message(&json!({})), encoder.end(Some(&error))];
            let bytes = bytes.concat();
            for cut in 1..bytes.len() {
                let mut decoder = Decoder::default();
                let mut messages = Vec::new();
                for part in bytes.chunks(cut) {
                    decoder.push(part);
                    while let Some(message) = decoder.next().unwrap() {
                        messages.push(message);
                    }
                }
                assert!(decoder.is_empty());
                assert_eq!(messages[..2], [(false, json!({ "x": "y" })), (false, json!({}))]);
                assert!(messages[2].0);
                assert_eq!(messages[2].1["error"]["code"], "deadline_exceeded");
            }
        }
    }

    #[test]
    fn compressed_envelopes_are_marked() {
        let encoder = Encoder { gzip: true };
        assert_eq!((encoder.message(&json!({}))[0], encoder.end(None)[0]), (1, 3));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&envelope(0, b"{"));
        assert_eq!(decoder.next().unwrap_err().code, Code::InvalidArgument);
        let mut decoder = Decoder::default();
        decoder.push(&[0, 255, 255, 255, 255]);
        assert_eq!(decoder.next().unwrap_err().code, Code::ResourceExhausted);
    }
}
