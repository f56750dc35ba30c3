//! How much an archive may be, counted in what really comes.

use std::{
    cell::{Cell, RefCell},
    io::{self, Read},
    rc::Rc,
};

use tokio_util::sync::CancellationToken;
use wsm_core::{Error, ErrorKind, Result};

use super::bad;
use crate::member::too_large;

/// What may be in a small archive whatever the ratio.
const NO_RATIO_BELOW: u64 = 1 << 20;
/// What a member of a tar archive may need besides its content.
const OVERHEAD_EACH: u64 = 2 << 10;
const OVERHEAD: u64 = 1 << 20;

/// Counts, and remembers why it was too much: the readers in between know only that something failed.
#[derive(Debug, Clone)]
pub(super) struct Budget(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    max_bytes: u64,
    max_entries: u64,
    max_ratio: u64,
    packed: Cell<u64>,
    /// All that was made of it, headers and padding included.
    unpacked: Cell<u64>,
    content: Cell<u64>,
    failure: RefCell<Option<Error>>,
    abandoned: CancellationToken,
}

impl Budget {
    pub(super) fn new(max_bytes: u64, max_entries: u64, max_ratio: u64, abandoned: CancellationToken) -> Self {
        Self(Rc::new(Counts {
            max_bytes,
            max_entries,
            max_ratio,
            packed: Cell::new(0),
            unpacked: Cell::new(0),
            content: Cell::new(0),
            failure: RefCell::new(None),
            abandoned,
        }))
    }

    /// Whether anybody still wants it.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.abandoned.is_cancelled() {
            return Err(Error::new(ErrorKind::Unavailable, "nobody waits for the archive any more"));
        }
        Ok(())
    }

    /// Counts bytes of the archive.
    pub(super) fn take_packed(&self, bytes: usize) -> io::Result<()> {
        let packed = self.0.packed.get().saturating_add(bytes as u64);
        self.0.packed.set(packed);
        if packed > self.0.max_bytes.saturating_add(self.overhead()) {
            return Err(self.fail(too_large(format!("the archive has more than {} bytes", self.0.max_bytes))));
        }
        Ok(())
    }

    /// Counts bytes that decompressing has made.
    fn take_unpacked(&self, bytes: usize) -> Result<()> {
        let Counts { max_bytes, max_ratio, packed, unpacked, .. } = &*self.0;
        unpacked.set(unpacked.get().saturating_add(bytes as u64));
        if unpacked.get() > max_bytes.saturating_add(self.overhead()) {
            return Err(too_large(format!("the archive has more than {max_bytes} bytes when it is unpacked")));
        }
        if unpacked.get() > NO_RATIO_BELOW && unpacked.get() / max_ratio.max(&1) > packed.get() {
            let message = format!("the archive is more than {max_ratio} times as large when it is unpacked");
            return Err(too_large(message));
        }
        Ok(())
    }

    /// Counts bytes of a member.
    pub(super) fn take_content(&self, bytes: usize) -> Result<()> {
        let content = &self.0.content;
        content.set(content.get().saturating_add(bytes as u64));
        self.check_more(0)?;
        // Those of a tar archive are counted on their way here, and the larger of two is no more than that.
        if content.get() > self.0.unpacked.get() {
            let more = content.get() - self.0.unpacked.get();
            return self.take_unpacked(usize::try_from(more).unwrap_or(usize::MAX));
        }
        Ok(())
    }

    /// Whether a member may have this many bytes, as it says itself. Refuses early what would be refused later.
    pub(super) fn check_more(&self, bytes: u64) -> Result<()> {
        let max_bytes = self.0.max_bytes;
        if self.0.content.get().saturating_add(bytes) > max_bytes {
            return Err(too_large(format!("the members have more than {max_bytes} bytes")));
        }
        Ok(())
    }

    pub(super) fn max_entries(&self) -> u64 {
        self.0.max_entries
    }

    fn overhead(&self) -> u64 {
        self.0.max_entries.saturating_mul(OVERHEAD_EACH).saturating_add(OVERHEAD)
    }

    /// Remembers an error, and makes one for whoever only knows those of reading.
    pub(super) fn fail(&self, error: Error) -> io::Error {
        let cause = io::Error::other(error.to_string());
        self.0.failure.borrow_mut().get_or_insert(error);
        cause
    }

    /// Why reading failed: what was remembered, or else the archive's fault.
    pub(super) fn failure(&self, what: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.failure.borrow_mut().take().unwrap_or_else(|| bad(what).with_source(cause))
    }

    /// Counts what is read.
    pub(super) fn counted<R: Read>(&self, inner: R) -> Counted<R> {
        Counted { inner, budget: self.clone() }
    }
}

/// Counts what decompressing makes.
#[derive(Debug)]
pub(super) struct Counted<R> {
    inner: R,
    budget: Budget,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.budget
            .check()
            .and_then(|()| self.budget.take_unpacked(length))
            .map_err(|error| self.budget.fail(error))?;
        Ok(length)
    }
}
