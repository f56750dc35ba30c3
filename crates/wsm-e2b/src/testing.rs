//! For fuzzing and measurements. Not a part of the interface.

use crate::{envelope::Decoder, process::Incoming};

/// Reads any bytes as a stream of envelopes with what happens to a command, in pieces of a length that the first byte says.
/// What comes in pieces is read as what comes at once.
pub fn envelopes(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let mut read = Vec::new();
    for size in [usize::from(*size).max(1), usize::MAX] {
        let mut decoder = Decoder::default();
        let mut count = 0;
        'all: for piece in bytes.chunks(size.min(bytes.len().max(1))) {
            decoder.push(piece);
            loop {
                match decoder.next_envelope() {
                    Ok(Some(envelope)) => {
                        count += 1;
                        let _ = Incoming::read(&envelope);
                    }
                    Ok(None) => break,
                    Err(_) => break 'all,
                }
            }
        }
        read.push(count);
    }
    assert!(read.windows(2).all(|pair| pair[0] == pair[1]), "pieces change what is read");
}
