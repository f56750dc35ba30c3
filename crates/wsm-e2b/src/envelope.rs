//! The envelopes of the Connect protocol: a byte of flags, a length, a payload. Pure, since it reads bytes from outside.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Longer payloads are taken for nonsense: one event of output has some 44 KB.
pub(crate) const LONGEST: usize = 16 << 20;

const HEAD: usize = 5;
const COMPRESSED: u8 = 0b01;
const END: u8 = 0b10;

/// One envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Whether it is the last one, which says how the stream ended.
    pub(crate) is_end: bool,
    /// What it holds.
    pub(crate) payload: Bytes,
}

/// Why bytes are no envelopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It is compressed, which nobody has asked for.
    Compressed,
    /// It is longer than anything that is sent.
    TooLong(usize),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compressed => f.write_str("an envelope is compressed, which was not asked for"),
            Self::TooLong(length) => write!(f, "an envelope says that it has {length} bytes"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Puts one payload into an envelope.
pub(crate) fn encode(payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD + payload.len());
    bytes.put_u8(0);
    // A request is never near 4 GiB; what would be is cut off by the other side, not here.
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

/// Takes envelopes out of bytes that come in pieces of any length.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: BytesMut,
    ended: bool,
}

impl Decoder {
    /// Takes the next piece. What comes after the end is ignored.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        if !self.ended {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// The next envelope, if it is there as a whole. Not an iterator: none means "not yet".
    ///
    /// # Errors
    ///
    /// When the bytes can not be envelopes; so it stays.
    pub(crate) fn next_envelope(&mut self) -> Result<Option<Envelope>, Malformed> {
        if self.ended || self.buffer.len() < HEAD {
            return Ok(None);
        }
        let flags = self.buffer[0];
        let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if length > LONGEST {
            return Err(Malformed::TooLong(length));
        }
        // An empty one has nothing to unpack, whatever its flag says.
        if flags & COMPRESSED != 0 && length > 0 {
            return Err(Malformed::Compressed);
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let payload = self.buffer.split_to(length).freeze();
        let is_end = flags & END != 0;
        if is_end {
            self.ended = true;
            self.buffer = BytesMut::new();
        }
        Ok(Some(Envelope { is_end, payload }))
    }

    /// Whether bytes are left that are no whole envelope: then a stream that ends here was cut.
    pub(crate) fn has_rest(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(payload: &[u8]) -> Vec<u8> {
        let mut bytes = encode(payload).to_vec();
        bytes[0] = END;
        bytes
    }

    fn all(decoder: &mut Decoder) -> Vec<Envelope> {
        std::iter::from_fn(|| decoder.next_envelope().unwrap()).collect()
    }

    #[test]
    fn an_envelope_is_read_as_it_was_written_at_every_cut() {
        let bytes = [&encode(b"{\"a\":1}")[..], &encode(b""), &end(b"{}"), b"trailing"].concat();
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::default();
            decoder.push(&bytes[..cut]);
            let mut seen = all(&mut decoder);
            decoder.push(&bytes[cut..]);
            seen.extend(all(&mut decoder));
            let payloads: Vec<&[u8]> = seen.iter().map(|envelope| &envelope.payload[..]).collect();
            assert_eq!(payloads, [&b"{\"a\":1}"[..], b"", b"{}"], "cut at {cut}");
            assert!(seen[2].is_end && !seen[0].is_end && !decoder.has_rest());
        }
    }

    #[test]
    fn nonsense_is_refused_and_stays_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        for _ in 0..2 {
            assert_eq!(decoder.next_envelope(), Err(Malformed::TooLong(u32::MAX as usize)));
        }
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 1, 7]);
        assert_eq!(decoder.next_envelope(), Err(Malformed::Compressed));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_read_alike(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 1usize..20) {
            let mut whole = Decoder::default();
            whole.push(&bytes);
            let mut pieces = Decoder::default();
            let (mut one, mut other) = (Vec::new(), Vec::new());
            while let Ok(Some(envelope)) = whole.next_envelope() {
                one.push(envelope);
            }
            'all: for piece in bytes.chunks(size) {
                pieces.push(piece);
                loop {
                    match pieces.next_envelope() {
                        Ok(Some(envelope)) => other.push(envelope),
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
            }
            prop_assert_eq!(one, other);
        }
    }
}
