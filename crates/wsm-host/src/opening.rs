//! One opening of a workspace: what is shared by all objects that were handed out for it.

use std::{
    fmt,
    fs::File,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use wsm_core::{Capabilities, Result, WorkspaceId, WorkspaceInfo};

use crate::{
    error,
    files::{Reach, Root},
    process::{Host, Launcher},
};

/// Where the directory of a workspace is.
pub trait Place: fmt::Debug + Send + Sync + 'static {
    /// Opens the directory. Called for each operation, on a thread that may block.
    ///
    /// # Errors
    ///
    /// `gone` when it was deleted or is another one; `unavailable` when that can not be decided.
    fn open(&self) -> Result<OwnedFd>;
}

/// A directory that stays open.
impl Place for File {
    fn open(&self) -> Result<OwnedFd> {
        self.try_clone().map(OwnedFd::from).map_err(|cause| error::io("the directory could not be opened again", cause))
    }
}

/// One opening of a workspace, from the moment on when it is there until it is put away. [`HostWorkspace`]s are what is
/// handed out of it.
///
/// [`HostWorkspace`]: crate::HostWorkspace
#[derive(Debug)]
pub struct Opening {
    info: WorkspaceInfo,
    capabilities: Capabilities,
    reach: Reach,
    place: Box<dyn Place>,
    launcher: Arc<Launcher>,
    host: Host,
    /// Whether anything was ever started, and so might still run.
    has_run: AtomicBool,
}

impl Opening {
    /// A workspace in a directory. The directory's absolute path is `info.workdir`, and `capabilities` are
    /// [`HostWorkspace::CAPABILITIES`] or more.
    ///
    /// [`HostWorkspace::CAPABILITIES`]: crate::HostWorkspace::CAPABILITIES
    pub fn new(
        info: WorkspaceInfo,
        capabilities: Capabilities,
        reach: Reach,
        place: impl Place,
        launcher: Arc<Launcher>,
    ) -> Self {
        let host = Host { id: info.id.clone(), closing: CancellationToken::new(), tasks: TaskTracker::new() };
        let (place, has_run) = (Box::new(place), AtomicBool::new(false));
        Self { info, capabilities, reach, place, launcher, host, has_run }
    }

    /// The workspace's id.
    pub fn id(&self) -> &WorkspaceId {
        &self.info.id
    }

    /// What never changes while the workspace is open.
    pub fn info(&self) -> &WorkspaceInfo {
        &self.info
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub(crate) fn launcher(&self) -> &Arc<Launcher> {
        &self.launcher
    }

    /// Whether it was put away, or is being so.
    pub fn is_over(&self) -> bool {
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
    /// As for [`Place::open`].
    pub(crate) fn open_root(&self) -> Result<Root> {
        Ok(Root::new(self.place.open()?, self.info.workdir.as_str(), self.reach))
    }

    /// Ends all that runs here, and everything that is waited for. Later calls of its workspaces are `gone`. May be called
    /// more than once.
    ///
    /// # Errors
    ///
    /// When `/proc` can not be read, or processes are left that nothing ends.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has closed the workspace; its commands end, those in the background perhaps not. Call it again.
    pub async fn end(&self) -> Result<()> {
        self.host.closing.cancel();
        self.host.tasks.close();
        self.host.tasks.wait().await;
        if self.has_run.load(Ordering::Relaxed) {
            self.launcher.end_own(&self.host.tasks, self.id()).await?;
        }
        Ok(())
    }
}
