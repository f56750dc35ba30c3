//! An opened workspace.

use std::{sync::Arc, time::Duration, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use wsm_core::{
    ByteStream, Capabilities, Cause, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    ExitStatus, Health, ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Retry,
    Workspace, WorkspaceInfo, WriteOptions,
};

use crate::{
    KIND,
    backend::Shared,
    control::Paused,
    envd::SHORT,
    error::Failure,
    guest::{Marker, PUT_AWAY, Probed, RUN},
    pump,
    sandbox::{Attached, End, Standing, gone},
};

/// How long commands that were ended may take to be gone from here.
const LAST_TASKS: Duration = Duration::from_secs(5);
/// How long a service that was just started may take until its port is open.
const PORT_LIMIT: Duration = Duration::from_secs(3);

/// What a workspace of this backend can do.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::NONE
    .with_spawn(true)
    .with_files(true)
    .with_shell(true)
    .with_background(true)
    .with_connect(true)
    .with_network_control(true);

/// What is kept of a workspace that was put away: by it, one that wakes up older than it was is found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) sandbox: String,
    pub(crate) generation: u64,
    pub(crate) count: u64,
}

impl Kept {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Option<Self> {
        serde_json::from_slice(&checkpoint.0).ok()
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        serde_json::to_vec(self).ok().map(|bytes| Checkpoint(Bytes::from(bytes)))
    }

    pub(crate) fn marker(&self) -> Marker {
        Marker { generation: self.generation, count: self.count }
    }
}

/// A workspace that is a sandbox.
#[derive(Debug)]
pub(crate) struct E2bWorkspace {
    attached: Attached,
    shared: Arc<Shared>,
    /// What suspending it has left, once it was.
    put_away: Mutex<Option<Option<Checkpoint>>>,
}

impl E2bWorkspace {
    pub(crate) fn new(attached: Attached, shared: Arc<Shared>) -> Self {
        Self { attached, shared, put_away: Mutex::new(None) }
    }

    /// Waits for the commands, which end now; not for ever, since the pause freezes what is left.
    async fn settle(&self) {
        let tasks = &self.attached.sandbox.tasks;
        tasks.close();
        if timeout(LAST_TASKS, tasks.wait()).await.is_err() {
            tracing::debug!(sandbox = self.attached.sandbox.id, "commands are still being ended");
        }
    }

    /// Ends what runs inside and notes that this was the last word. None when the sandbox is not there to be told.
    async fn last_words(&self) -> Result<Option<Marker>> {
        let Attached { sandbox, info, .. } = &self.attached;
        let script = format!("{}{PUT_AWAY}", crate::guest::KILL);
        let home = Probed::home(&info.workdir);
        let mark = format!("{RUN}=");
        let mut tries = 0;
        loop {
            let failure = match sandbox.script_as_root(&script, &[&mark, "", "10", &home]).await {
                Ok(ran) if ran.status == (ExitStatus::Exited { code: 0 }) => {
                    return Ok(Marker::read(&String::from_utf8_lossy(&ran.stdout)));
                }
                Ok(ran) => Failure::NoAnswer(format!("it ended with {}", ran.status)),
                Err(failure) => failure,
            };
            match sandbox.control.get(&sandbox.id).await? {
                Some(found) if found.is_running => {}
                _ => return Ok(None),
            }
            tries += 1;
            if tries > 4 {
                // A daemon that is dead must not keep the files from being put away.
                tracing::warn!(sandbox = sandbox.id, failure = %failure.shown(), "what runs inside could not be ended before the pause");
                return Ok(None);
            }
            sleep(Duration::from_millis(200 * tries)).await;
        }
    }
}

#[async_trait]
impl Workspace for E2bWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        &self.attached.info
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        pump::exec(&self.attached, command).await
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        pump::spawn(&self.attached, command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        self.attached.read(path, options).await
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        self.attached.write(path, body, options).await
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        self.attached.stat(path).await
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        self.attached.list(path).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.attached.make_dir(path).await
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        self.attached.remove(path, options).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.attached.rename(from, to).await
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        let Endpoint::Port(port) = endpoint else { return Err(Error::unsupported("connect").with_backend(KIND)) };
        let sandbox = &self.attached.sandbox;
        let (url, headers) = sandbox.daemon.port(*port);
        let until = Instant::now() + PORT_LIMIT;
        // What has just been started takes up to a second until its port is forwarded.
        loop {
            let mut request = sandbox.daemon.http().head(&url).timeout(SHORT);
            for (name, value) in &headers {
                request = request.header(name, value);
            }
            let answered = sandbox.while_alive(request.send()).await?;
            if answered.is_ok_and(|answer| answer.status().as_u16() != 502) {
                return Ok(Connection::Http { url, headers });
            }
            if Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        match sandbox.standing().await {
            Standing::Gone(end) => Err(gone(end)),
            Standing::Unknown(error) => Err(error),
            Standing::Runs => {
                let message = format!("nothing answers HTTP on port {port} of the sandbox: is it bound to 0.0.0.0?");
                Err(Error::new(ErrorKind::Unavailable, message).with_backend(KIND).with_retry(Retry::After(PORT_LIMIT)))
            }
        }
    }
}

#[async_trait]
impl ManagedWorkspace for E2bWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        let Attached { sandbox, info, .. } = &self.attached;
        let _turn = self.shared.locks.turn(&info.id).await;
        if let Some(checkpoint) = &*self.put_away.lock() {
            return Ok(checkpoint.clone());
        }
        match sandbox.life.end() {
            // Whoever put it away or let it go had the last word: a later opening is none of ours.
            Some(End::LetGo | End::Destroyed) => return Ok(None),
            // It has paused by itself, or is gone: how new its files should be is known all the same.
            Some(End::Died(_)) => return Ok(self.shared.recall(&info.id).and_then(|kept| kept.checkpoint())),
            Some(End::PutAway) if !self.shared.is_to_be_put_away(&sandbox.id) => {
                return Ok(self.shared.recall(&info.id).and_then(|kept| kept.checkpoint()));
            }
            Some(End::PutAway) | None => {}
        }
        // All streams are closed before a pause, also those of other openings here: what hangs on one is lost.
        self.shared.finish_sandbox(&info.id, &sandbox.id, End::PutAway);
        self.shared.set_to_be_put_away(&sandbox.id, true);
        self.settle().await;
        let marker = self.last_words().await?;
        let paused = sandbox.control.pause(&sandbox.id).await?;
        self.shared.set_to_be_put_away(&sandbox.id, false);
        let checkpoint = match (paused, marker) {
            (Paused::Done, Some(Marker { generation, count })) => {
                let kept = Kept { sandbox: sandbox.id.clone(), generation, count };
                let checkpoint = kept.checkpoint();
                self.shared.remember(&info.id, kept);
                checkpoint
            }
            (Paused::Done, None) => self.shared.recall(&info.id).and_then(|kept| kept.checkpoint()),
            (Paused::Gone, _) => {
                tracing::warn!(workspace_id = %info.id, sandbox = sandbox.id, "the sandbox was gone before it could be put away");
                // So that the next opening, wherever it is, knows that there were files.
                self.shared.recall(&info.id).and_then(|kept| kept.checkpoint())
            }
        };
        *self.put_away.lock() = Some(checkpoint.clone());
        Ok(checkpoint)
    }

    async fn detach(&self) -> Result<()> {
        self.attached.sandbox.life.finish(End::LetGo);
        self.settle().await;
        Ok(())
    }

    async fn health(&self) -> Result<Health> {
        let sandbox = &self.attached.sandbox;
        match sandbox.life.end() {
            Some(End::Died(cause)) => return Ok(Health::Dead(cause)),
            Some(end) => return Err(gone(end)),
            None => {}
        }
        let found = sandbox.control.get_surely(&sandbox.id, crate::sandbox::SECOND_LOOK).await?;
        let cause = match &found {
            Some(found) if found.is_running => {
                // It runs for the service; whether it does for us its daemon tells.
                let asked = sandbox.repeat(|| sandbox.daemon.health(SHORT)).await;
                return match asked {
                    Ok(()) => {
                        let told = found.end_at.and_then(|end| end.duration_since(SystemTime::now()).ok());
                        let left = told.unwrap_or_else(|| sandbox.left());
                        Ok(Health::Alive(Some(left)))
                    }
                    Err(trouble) => match sandbox.life.end() {
                        Some(End::Died(cause)) => Ok(Health::Dead(cause)),
                        _ => Err(trouble.or_daemon("answer")),
                    },
                };
            }
            Some(_) => Cause::Suspended,
            None => Cause::Deleted,
        };
        sandbox.life.finish(End::Died(cause));
        Ok(Health::Dead(cause))
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        let sandbox = &self.attached.sandbox;
        sandbox.extend(duration.max(sandbox.timeout)).await.map(Some)
    }
}
