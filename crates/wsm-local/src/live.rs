//! An open workspace: what is shared by all objects that were handed out for it.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    io::Errno,
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use wsm_core::{Error, ErrorKind, Result, WorkspaceId, WorkspaceInfo};

use crate::{
    KIND,
    base::{Base, Identity},
    error,
    index::Record,
    process::{Host, Hunt, Launcher, Marked},
};

/// An open workspace. It holds no file open, so that an idle one costs memory alone.
#[derive(Debug)]
pub(crate) struct Live {
    info: WorkspaceInfo,
    identity: Identity,
    base: Arc<Base>,
    launcher: Arc<Launcher>,
    host: Host,
    /// Whether anything was ever started, and so might still run.
    has_run: AtomicBool,
}

impl Live {
    pub(crate) fn new(record: &Record, identity: Identity, base: &Arc<Base>, launcher: &Arc<Launcher>) -> Self {
        let workdir = format!("{}/{}", base.path().trim_end_matches('/'), record.path);
        Self {
            info: WorkspaceInfo::new(record.id.clone(), KIND, workdir).with_generation(record.generation),
            identity,
            base: Arc::clone(base),
            launcher: Arc::clone(launcher),
            host: Host { id: record.id.clone(), closing: CancellationToken::new(), tasks: TaskTracker::new() },
            has_run: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> &WorkspaceId {
        &self.info.id
    }

    pub(crate) fn info(&self) -> &WorkspaceInfo {
        &self.info
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) fn launcher(&self) -> &Arc<Launcher> {
        &self.launcher
    }

    /// Whether it was put away, or is being so.
    pub(crate) fn is_over(&self) -> bool {
        self.host.closing.is_cancelled()
    }

    /// Keeps the workspace from counting as put away for as long as the token lives.
    ///
    /// # Errors
    ///
    /// `gone` after it was put away.
    pub(crate) fn token(&self) -> Result<TaskTrackerToken> {
        // First the token, then the look: whoever ends the workspace does it the other way round.
        let token = self.host.tasks.token();
        if self.is_over() { Err(error::gone()) } else { Ok(token) }
    }

    /// What a command needs to start here. The token is for the time before the command is followed by a task.
    ///
    /// # Errors
    ///
    /// As for [`token`](Self::token).
    pub(crate) fn host(&self) -> Result<(Host, TaskTrackerToken)> {
        let token = self.token()?;
        self.has_run.store(true, Ordering::Relaxed);
        Ok((self.host.clone(), token))
    }

    /// Opens the workspace's directory.
    ///
    /// # Errors
    ///
    /// `gone` when it was deleted or is another one; `unavailable` when that can not be decided.
    pub(crate) fn open_directory(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, self.info.workdir.as_str(), flags, Mode::empty())
            .and_then(|directory| fstat(&directory).map(|stat| (directory, Identity::from(&stat))));
        match opened {
            Ok((directory, identity)) if identity == self.identity => Ok(directory),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // Unless the whole basedir is gone, which says nothing about the workspace.
                self.base.open()?;
                Err(error::directory_gone())
            }
            Err(errno) => {
                Err(Error::new(ErrorKind::Unavailable, "the workspace's directory can not be opened")
                    .with_source(errno))
            }
        }
    }

    /// Ends all that runs here, and everything that is waited for. May be called more than once.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has closed the workspace; its commands end, those in the background perhaps not. Call it again.
    pub(crate) async fn end(&self) -> Result<()> {
        self.host.closing.cancel();
        self.host.tasks.close();
        self.host.tasks.wait().await;
        if self.has_run.load(Ordering::Relaxed) {
            let marked = Marked::Workspace(self.launcher.instance().clone(), self.id().clone());
            hunt(&self.host.tasks, marked, &self.launcher).await?;
        }
        Ok(())
    }
}

/// Ends what is marked, on a task of its own: once begun, it is brought to its end.
pub(crate) async fn hunt(tasks: &TaskTracker, marked: Marked, launcher: &Launcher) -> Result<usize> {
    match tasks.spawn(Hunt::marked(marked).run(launcher.grace())).await {
        Ok(hunted) => hunted,
        Err(cause) => Err(Error::new(ErrorKind::Backend, "ending processes was broken off").with_source(cause)),
    }
}
