//! Children of this process that it did not start: what a first process inherits when their own parents end.

use std::{collections::HashSet, sync::Arc};

use parking_lot::{Mutex, RwLock};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::vfork::ended_child;

/// Which children are commands of ours, that somebody waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnChildren(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Shared by those who start a child, until it is known as one of ours; held alone by who looks for orphans. So no
    /// command that ends at once is mistaken for an orphan.
    starting: RwLock<()>,
    pids: Mutex<HashSet<Pid>>,
}

/// What was done about ended children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    /// No child has ended that is not reaped.
    All,
    /// A command of ours has ended that somebody else is about to reap. The kernel shows what is behind it only then.
    Blocked,
}

impl OwnChildren {
    /// Starts a child and takes note of it.
    pub(super) fn start<T, E>(&self, start: impl FnOnce() -> Result<(Pid, T), E>) -> Result<(Pid, T), E> {
        let _starting = self.0.starting.read();
        let started = start()?;
        self.0.pids.lock().insert(started.0);
        Ok(started)
    }

    /// Runs `reap`, which says whether it has reaped `pid`, and forgets the child if so. No other child gets the number
    /// in between.
    pub(super) fn reap<T>(&self, pid: Pid, reap: impl FnOnce() -> (T, bool)) -> T {
        let mut pids = self.0.pids.lock();
        let (result, reaped) = reap();
        if reaped {
            pids.remove(&pid);
        }
        result
    }

    /// Reaps all ended children that are not ours.
    pub(super) fn reap_orphans(&self) -> Reaped {
        let _alone = self.0.starting.write();
        loop {
            let Some(pid) = ended_child() else { return Reaped::All };
            if self.0.pids.lock().contains(&pid) {
                return Reaped::Blocked;
            }
            // It is a zombie, so that the number is still its own.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}
