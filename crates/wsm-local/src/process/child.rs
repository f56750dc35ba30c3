//! A command's own process: its end, and signals for it.

use std::{future::poll_fn, io, pin::pin, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, kill_process_group},
};
use tokio::process::Child;
use wsm_core::{ExitStatus, ProcessControl, Result, Signal};

use super::table::ProcessId;
use crate::error;

/// A child that leads a process group. As long as it is not reaped, its number and its group are its own.
#[derive(Debug)]
pub(super) struct Root {
    child: Child,
    group: Group,
}

impl Root {
    /// Takes charge of a child that was just started.
    pub(super) fn new(child: Child) -> Self {
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        Self { child, group: Group(Arc::new(Mutex::new(pid))) }
    }

    /// Sends signals to the command for as long as it lives.
    pub(super) fn control(&self) -> Arc<dyn ProcessControl> {
        Arc::new(self.group.clone())
    }

    /// Sends a signal to its whole process group.
    pub(super) fn signal_group(&self, signal: rustix::process::Signal) {
        if let Some(group) = *self.group.0.lock() {
            // A group without a member that could get the signal is what we are after.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Which process it is.
    ///
    /// # Errors
    ///
    /// When it is reaped already, or `/proc` can not be read.
    pub(super) fn id(&self) -> io::Result<ProcessId> {
        let pid = *self.group.0.lock();
        ProcessId::of(pid.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Waits for its end, and reaps it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has not reaped it.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        let mut wait = pin!(self.child.wait());
        let ended = poll_fn(|context| {
            // Only under this lock is it reaped, and only under this lock is its group signalled: once its number may
            // be given to another process, nobody uses it any more.
            let mut group = self.group.0.lock();
            let ended = wait.as_mut().poll(context);
            if ended.is_ready() {
                *group = None;
            }
            ended
        });
        match ended.await {
            Ok(status) => exit_status(status),
            // Somebody else in this process reaped it, as a handler of `SIGCHLD` may.
            Err(error) => ExitStatus::Unknown { reason: format!("the command's end was not seen: {error}") },
        }
    }
}

impl Drop for Root {
    /// The runtime ends without waiting for its tasks: the best that is left is the process group. What escaped from
    /// it is found by its mark at the next start.
    fn drop(&mut self) {
        self.signal_group(rustix::process::Signal::KILL);
        // The runtime reaps it now, whenever it can.
        *self.group.0.lock() = None;
    }
}

fn exit_status(status: std::process::ExitStatus) -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;

    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Exited { code },
        (None, Some(signal)) => ExitStatus::Signaled { signal },
        (None, None) => ExitStatus::Unknown { reason: format!("the command ended strangely: {status}") },
    }
}

/// The process group of a command; none once the command was reaped.
#[derive(Debug, Clone)]
struct Group(Arc<Mutex<Option<Pid>>>);

#[async_trait]
impl ProcessControl for Group {
    async fn signal(&self, signal: Signal) -> Result<()> {
        let Some(signal) = rustix::process::Signal::from_named_raw(signal.number()) else {
            return Err(wsm_core::Error::unsupported("signal"));
        };
        // Under the lock the process can not be reaped, so its number is not given to another group.
        let group = self.0.lock();
        match group.map(|group| kill_process_group(group, signal)) {
            None | Some(Ok(()) | Err(Errno::SRCH)) => Ok(()),
            Some(Err(errno)) => Err(error::system("the signal could not be delivered", errno)),
        }
    }
}
