//! Where a search on a thread of its own leaves what it finds, and learns that it is to end.

use std::time::Duration;

use futures::{StreamExt, stream, stream::BoxStream};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinHandle,
    time::Instant,
};
use wsm_core::{Error, ErrorKind, Result};

use crate::{GlobEvent, GrepEvent, Problem, SearchEnd, Truncated};

/// How many events wait for a slow reader before the search waits too.
const WAITING: usize = 64;
/// How many problems are told one by one.
const MOST_PROBLEMS: u64 = 100;

/// Why a search does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nobody wants to know any more.
    Abandoned,
    /// A limit is reached.
    Truncated(Truncated),
}

/// The result of a step of a search.
pub(super) type Flow<T = ()> = std::result::Result<T, Stop>;

/// What every kind of search says.
pub(super) trait Event: Send + 'static {
    fn problem(problem: Problem) -> Self;
    fn end(end: SearchEnd) -> Self;
}

impl Event for GlobEvent {
    fn problem(problem: Problem) -> Self {
        Self::Problem(problem)
    }

    fn end(end: SearchEnd) -> Self {
        Self::End(end)
    }
}

impl Event for GrepEvent {
    fn problem(problem: Problem) -> Self {
        Self::Problem(problem)
    }

    fn end(end: SearchEnd) -> Self {
        Self::End(end)
    }
}

/// Whether a search is to go on.
#[derive(Debug)]
pub(super) struct Watch<T> {
    sender: mpsc::Sender<T>,
    /// None for a time that never comes.
    deadline: Option<Instant>,
}

impl<T> Watch<T> {
    pub(super) fn check(&self) -> Flow {
        if self.sender.is_closed() {
            return Err(Stop::Abandoned);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Stop::Truncated(Truncated::Timeout)),
            _ => Ok(()),
        }
    }
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), deadline: self.deadline }
    }
}

/// Takes what a search finds.
#[derive(Debug)]
pub(super) struct Emitter<T> {
    pub(super) watch: Watch<T>,
    pub(super) end: SearchEnd,
    max_entries: u64,
}

impl<T: Event> Emitter<T> {
    pub(super) fn new(sender: mpsc::Sender<T>, timeout_ms: u64, max_entries: u64) -> Self {
        let deadline = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        Self { watch: Watch { sender, deadline }, end: SearchEnd::default(), max_entries }
    }

    /// Waits for a slow reader.
    pub(super) fn emit(&mut self, event: T) -> Flow {
        self.watch.sender.blocking_send(event).map_err(|_| Stop::Abandoned)
    }

    pub(super) fn problem(&mut self, problem: Problem) -> Flow {
        self.end.problems += 1;
        if self.end.problems > MOST_PROBLEMS { Ok(()) } else { self.emit(T::problem(problem)) }
    }

    /// One more thing is going to be looked at.
    pub(super) fn entry(&mut self) -> Flow {
        self.watch.check()?;
        if self.end.entries == self.max_entries {
            return Err(Stop::Truncated(Truncated::Entries));
        }
        self.end.entries += 1;
        Ok(())
    }

    /// Says how it ended.
    pub(super) fn finish(mut self, flow: Flow) {
        match flow {
            Err(Stop::Abandoned) => return,
            Err(Stop::Truncated(why)) => self.end.truncated = Some(why),
            Ok(()) => {}
        }
        let end = self.end;
        // Whoever has gone does not need the end.
        let _ = self.emit(T::end(end));
    }
}

/// Runs a search on a thread that may block. Dropping the stream ends it, at the next thing that it looks at.
pub(super) fn events<T: Event>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce(mpsc::Sender<T>) + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let running = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work(sender);
    });
    stream::unfold((receiver, Some(running)), async |(mut receiver, mut running)| match receiver.recv().await {
        Some(event) => Some((Ok(event), (receiver, running))),
        None => Some((Err(failure(running.take()?).await?), (receiver, None))),
    })
    .boxed()
}

/// Why a search ended without saying so, if it did.
async fn failure(running: JoinHandle<()>) -> Option<Error> {
    let cause = running.await.err()?;
    Some(Error::new(ErrorKind::Backend, "the search broke off").with_source(cause))
}
