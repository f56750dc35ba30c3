//! The archive as it comes, for a thread that may block.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use tokio::sync::mpsc;
use wsm_core::{Error, ErrorKind};

use super::budget::Budget;

/// A piece of the archive.
#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Bytes),
    /// There is no more. Without it, the archive has broken off.
    End,
}

/// Reads the pieces.
#[derive(Debug)]
pub(super) struct Body {
    pieces: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
    budget: Budget,
}

impl Body {
    pub(super) fn new(pieces: mpsc::Receiver<Piece>, budget: Budget) -> Self {
        Self { pieces, current: Bytes::new(), ended: false, budget }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => {
                    self.budget.take_packed(bytes.len())?;
                    self.current = bytes;
                }
                Some(Piece::End) => self.ended = true,
                None => {
                    let error = Error::new(ErrorKind::Unavailable, "the archive broke off before its end");
                    return Err(self.budget.fail(error));
                }
            }
        }
        let length = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
