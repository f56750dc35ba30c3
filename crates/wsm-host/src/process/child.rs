//! A command's own process: its end, and signals for it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid},
};
use tokio::io::unix::AsyncFd;
use wsm_core::{ExitStatus, ProcessControl, Result, Signal};

use super::{orphans::OwnChildren, table::ProcessId, vfork::watch};
use crate::error;

/// A child that leads a process group. As long as it is not reaped, its number and its group are its own.
///
/// Nobody else reaps it, so that nothing comes between looking at its number and signalling it, and so that it stays in
/// place while its tree is being ended.
#[derive(Debug)]
pub(super) struct Root {
    /// Readable once it has ended.
    end: AsyncFd<OwnedFd>,
    group: Group,
    siblings: OwnChildren,
}

impl Root {
    /// Takes charge of a child that was just started.
    pub(super) fn new(pid: Pid, pidfd: OwnedFd, siblings: OwnChildren) -> io::Result<Self> {
        match watch(pidfd) {
            Ok(end) => Ok(Self { end, group: Group(Arc::new(Mutex::new(Some(pid)))), siblings }),
            Err(error) => {
                // Nobody would hear of its end, so it must not run.
                let _ = kill_process_group(pid, rustix::process::Signal::KILL);
                wait_and_reap(pid, &siblings);
                Err(error)
            }
        }
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

    /// Waits for its end, and leaves it in place: its number and its group stay its own until it is reaped.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(super) async fn exited(&self) {
        // An error means that it can not be watched, of which reaping it tells.
        while let Ok(mut ready) = self.end.readable().await {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::PidFd(self.end.as_fd()), look), Ok(None) | Err(Errno::INTR)) {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Waits for its end, and reaps it.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has not reaped it.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        loop {
            let mut ready = match self.end.readable().await {
                Ok(ready) => ready,
                Err(error) => {
                    return ExitStatus::Unknown { reason: format!("the command can not be watched: {error}") };
                }
            };
            // Only under this lock is it reaped, and only under this lock is its group signalled: once its number may
            // be given to another process, nobody uses it any more.
            let mut group = self.group.0.lock();
            let Some(pid) = *group else {
                return ExitStatus::Unknown { reason: "the command's end was seen before".to_owned() };
            };
            let reap = || {
                let ended = waitid(WaitId::PidFd(self.end.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
                let is_reaped = !matches!(ended, Ok(None) | Err(Errno::INTR));
                (ended, is_reaped)
            };
            match self.siblings.reap(pid, reap) {
                Ok(Some(status)) => {
                    *group = None;
                    return exit_status(&status);
                }
                Ok(None) | Err(Errno::INTR) => ready.clear_ready(),
                Err(errno) => {
                    // Somebody else in this process reaped it, or it ignores `SIGCHLD` so that nobody has to.
                    *group = None;
                    return ExitStatus::Unknown { reason: format!("the command's end was not seen: {errno}") };
                }
            }
        }
    }
}

impl Drop for Root {
    /// The runtime ends without waiting for its tasks, or the command does not end although it was killed: the best that
    /// is left is the process group. What escaped from it is found by its mark at the next start.
    fn drop(&mut self) {
        self.signal_group(rustix::process::Signal::KILL);
        let Some(pid) = self.group.0.lock().take() else { return };
        // There may be no runtime any more that could hear of its end. Mostly that comes at once.
        let siblings = self.siblings.clone();
        let reap = move || wait_and_reap(pid, &siblings);
        if let Err(error) = std::thread::Builder::new().name("wsm-reap".to_owned()).spawn(reap) {
            tracing::warn!(%error, "a killed command stays a zombie");
        }
    }
}

/// Blocks until a child has ended.
fn wait_and_reap(pid: Pid, siblings: &OwnChildren) {
    // Reaped only when that no longer waits, since others wait for whoever reaps.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended));
    siblings.reap(pid, || {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        ((), true)
    });
}

fn exit_status(status: &WaitIdStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Exited { code },
        (None, Some(signal)) => ExitStatus::Signaled { signal },
        (None, None) => ExitStatus::Unknown { reason: format!("the command ended strangely: {status:?}") },
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
