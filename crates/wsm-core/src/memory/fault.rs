//! What can be made to go wrong.

use std::{collections::VecDeque, time::Duration};

use crate::error::{Error, ErrorKind, Result};

/// A call of the backend or of a workspace that can be made to go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`Backend::open`](crate::Backend::open).
    Open,
    /// [`Backend::find`](crate::Backend::find).
    Find,
    /// [`Backend::list`](crate::Backend::list).
    List,
    /// [`Backend::destroy`](crate::Backend::destroy).
    Destroy,
    /// [`Backend::probe`](crate::Backend::probe).
    Probe,
    /// `exec` and `spawn`.
    Exec,
    /// [`ManagedWorkspace::suspend`](crate::ManagedWorkspace::suspend).
    Suspend,
    /// [`ManagedWorkspace::detach`](crate::ManagedWorkspace::detach).
    Detach,
    /// [`ManagedWorkspace::health`](crate::ManagedWorkspace::health).
    Health,
    /// [`ManagedWorkspace::keep_alive`](crate::ManagedWorkspace::keep_alive).
    KeepAlive,
}

/// How a call goes wrong.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Effect {
    /// It takes this much longer, and then works.
    Delay(Duration),
    /// It fails with this error and does nothing.
    Fail(Error),
    /// It does its work, and then fails with this error: an answer lost on the way.
    FailAfter(Error),
    /// It never answers.
    Hang,
    /// It panics.
    Panic,
}

impl Effect {
    /// The engine can not be reached.
    pub fn unavailable() -> Self {
        Self::Fail(Error::new(ErrorKind::Unavailable, "the engine can not be reached"))
    }
}

/// One thing that goes wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    operation: Operation,
    effect: Effect,
    /// How many more calls it hits.
    times: usize,
}

impl Fault {
    /// Goes wrong once, the next time.
    pub fn once(operation: Operation, effect: Effect) -> Self {
        Self::times(operation, effect, 1)
    }

    /// Goes wrong `times` times in a row.
    pub fn times(operation: Operation, effect: Effect, times: usize) -> Self {
        Self { operation, effect, times }
    }

    /// Goes wrong every time.
    pub fn always(operation: Operation, effect: Effect) -> Self {
        Self::times(operation, effect, usize::MAX)
    }
}

/// The faults that are still to come, in order.
#[derive(Debug, Default)]
pub(super) struct Faults(VecDeque<Fault>);

impl Faults {
    pub(super) fn push(&mut self, fault: Fault) {
        self.0.push_back(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn next(&mut self, operation: Operation) -> Option<Effect> {
        let position = self.0.iter().position(|fault| fault.operation == operation)?;
        let fault = &mut self.0[position];
        fault.times = fault.times.saturating_sub(1);
        let effect = fault.effect.clone();
        if fault.times == 0 {
            self.0.remove(position);
        }
        Some(effect)
    }
}

/// Plays the part of a fault that comes before the work, and gives the error that comes after it.
pub(super) async fn play(effect: Option<Effect>) -> Result<Option<Error>> {
    match effect {
        None => Ok(None),
        Some(Effect::Delay(duration)) => {
            tokio::time::sleep(duration).await;
            Ok(None)
        }
        Some(Effect::Fail(error)) => Err(error),
        Some(Effect::FailAfter(error)) => Ok(Some(error)),
        Some(Effect::Hang) => std::future::pending().await,
        #[expect(clippy::panic, reason = "to panic is what this fault is for")]
        Some(Effect::Panic) => panic!("a planted panic"),
    }
}

/// A mistake that a backend can be built with, to show that a test notices it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Defect {
    /// Every command's exit code is 0.
    ExitCodeLost,
    /// stderr comes out of stdout.
    StreamsMerged,
    /// Output is passed on as text.
    OutputNotBinary,
    /// A timeout is not enforced.
    TimeoutIgnored,
    /// Output that was dropped is not counted.
    DropsNotCounted,
    /// A command's variables do not reach it.
    EnvIgnored,
    /// stdin is not passed on.
    StdinLost,
    /// A missing program is exit code 127 rather than an error.
    MissingProgramIsAResult,
    /// A failed body leaves half a file.
    WriteNotAtomic,
    /// A range is ignored.
    RangeIgnored,
    /// `open` makes a new workspace every time.
    OpenNotIdempotent,
    /// `open` creates when the engine can not be reached.
    CreatesWhenUnreachable,
    /// Anybody's workspace is opened for anybody.
    OwnerIgnored,
    /// Suspending loses the files.
    SuspendLosesFiles,
    /// The generation does not rise when files are lost.
    GenerationStuck,
    /// `destroy` leaves the files.
    DestroyKeepsFiles,
    /// `list` forgets the suspended.
    ListForgetsSuspended,
    /// A dead workspace is reported alive.
    DeadIsAlive,
    /// Calls on a suspended workspace still work.
    SuspendedStillWorks,
    /// Paths lead out of the workspace.
    PathsEscape,
    /// Dropping a process' output leaves it running.
    DroppedOutputRunsOn,
}
