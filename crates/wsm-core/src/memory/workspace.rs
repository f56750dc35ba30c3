//! A workspace in memory.

use std::{
    any::{Any, TypeId},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    backend::KIND,
    engine::MemoryEngine,
    fault::{Defect, Operation, play},
    programs::{self, Machine},
    tree::{Tree, WORKDIR, resolve},
};
use crate::{
    backend::{Cause, Checkpoint, FoundState},
    capability::Capabilities,
    error::{Error, ErrorKind, Result},
    exec::{Command, ExecResult, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessOutput, Signal},
    files::{ByteStream, DirEntry, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions, byte_stream},
    id::WorkspaceId,
    workspace::{Connection, Endpoint, Health, ManagedWorkspace, Workspace, WorkspaceInfo},
};

/// How many pieces of output wait for a slow reader.
const OUTPUT_BACKLOG: usize = 16;

/// How many bytes of stdin wait for a slow command.
const STDIN_BUFFER: usize = 64 << 10;

/// A workspace in memory, as one start of it sees itself.
#[derive(Debug)]
pub(super) struct MemoryWorkspace {
    engine: MemoryEngine,
    info: WorkspaceInfo,
    idle_stop: Option<Duration>,
    /// Ends with this start of the sandbox.
    running: CancellationToken,
    /// Set by `suspend` and `detach`.
    closed: CancellationToken,
    tasks: TaskTracker,
}

impl MemoryWorkspace {
    pub(super) fn attach(
        engine: MemoryEngine,
        id: WorkspaceId,
        generation: u64,
        idle_stop: Option<Duration>,
    ) -> Result<Self> {
        let running = engine
            .with_one(&id, |sandbox| sandbox.running.clone())
            .ok_or_else(|| Error::new(ErrorKind::Gone, "the workspace was destroyed while it was opened"))?;
        let info = WorkspaceInfo::new(id, KIND, WORKDIR).with_generation(generation);
        let (closed, tasks) = (CancellationToken::new(), TaskTracker::new());
        Ok(Self { engine, info, idle_stop, running, closed, tasks })
    }

    /// Refuses calls on a workspace that is closed here, or not running any more.
    fn check_open(&self) -> Result<()> {
        if self.engine.has(Defect::SuspendedStillWorks) {
            return Ok(());
        }
        self.engine.with_one(&self.info.id, |_| ());
        if self.closed.is_cancelled() || self.running.is_cancelled() {
            return Err(Error::new(ErrorKind::Gone, "this workspace was put away or died: open it again"));
        }
        Ok(())
    }

    fn with_tree<T>(&self, look: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        self.check_open()?;
        self.engine
            .with_one(&self.info.id, |sandbox| look(&mut sandbox.tree))
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Gone, "this workspace was destroyed")))
    }

    fn resolve(&self, path: &str) -> Result<String> {
        match resolve("", path) {
            Err(_) if self.engine.has(Defect::PathsEscape) => Ok(path.trim_start_matches(['/', '.']).to_owned()),
            resolved => resolved,
        }
    }

    async fn start(&self, command: Command) -> Result<Process> {
        let after = play(self.engine.fault(Operation::Exec)).await?;
        self.check_open()?;
        if let Some(error) = after {
            return Err(error);
        }
        let cwd = resolve("", command.cwd.as_deref().unwrap_or("."))?;
        if !self.with_tree(|tree| Ok(tree.is_dir(&cwd)))? {
            return Err(Error::invalid("cwd", format!("`{cwd}` is not a directory of the workspace")));
        }
        let missing_is_a_result = self.engine.has(Defect::MissingProgramIsAResult);
        if !missing_is_a_result && !programs::is_program(command.program()) {
            let message = format!("`{}` was not found in the workspace", command.program());
            return Err(Error::invalid("command", message).with_code("program_not_found"));
        }
        let (stdin, input) = tokio::io::duplex(STDIN_BUFFER);
        let (events, output) = mpsc::channel(OUTPUT_BACKLOG);
        let killed = CancellationToken::new();
        let signals = Arc::new(Signals::default());
        let machine = Machine {
            engine: self.engine.clone(),
            id: self.info.id.clone(),
            cwd,
            env: if self.engine.has(Defect::EnvIgnored) { Default::default() } else { command.env.clone() },
            args: Vec::new(),
            stdin: Box::new(input),
            events: events.clone(),
            merged: self.engine.has(Defect::StreamsMerged),
        };
        let timeout = command.timeout.filter(|_| !self.engine.has(Defect::TimeoutIgnored));
        let (running, engine, id) = (self.running.clone(), self.engine.clone(), self.info.id.clone());
        let (kill, signalled) = (killed.clone(), Arc::clone(&signals));
        let dropped_runs_on = self.engine.has(Defect::DroppedOutputRunsOn);
        engine.with_one(&id, |sandbox| sandbox.commands += 1);
        let counted = Counted { engine: engine.clone(), id };
        self.tasks.spawn(async move {
            let reader = events.clone();
            let status = tokio::select! {
                biased;
                () = running.cancelled() => {
                    ExitStatus::Unknown { reason: "the workspace ended before the command did".to_owned() }
                }
                () = kill.cancelled() => ExitStatus::Signaled { signal: signalled.number() },
                () = reader.closed(), if !dropped_runs_on => ExitStatus::Signaled { signal: 9 },
                () = sleep_or_never(timeout) => ExitStatus::TimedOut,
                status = programs::run(command.argv, machine) => status,
            };
            let status = match status {
                ExitStatus::Exited { .. } if engine.has(Defect::ExitCodeLost) => ExitStatus::Exited { code: 0 },
                status => status,
            };
            // Before the end is told: whoever hears of it may have the workspace suspended at once.
            drop(counted);
            let _ = events.send(ProcessEvent::End(status)).await;
        });
        let output = stream_of(output);
        Ok(Process::new(Box::pin(stdin), ProcessOutput::new(output), Arc::new(MemoryControl { killed, signals })))
    }
}

/// Counts a running command until its task ends, however it does.
struct Counted {
    engine: MemoryEngine,
    id: WorkspaceId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.engine.with_one(&self.id, |sandbox| sandbox.commands = sandbox.commands.saturating_sub(1));
    }
}

async fn sleep_or_never(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

fn stream_of(events: mpsc::Receiver<ProcessEvent>) -> impl futures::Stream<Item = ProcessEvent> + Send {
    futures::stream::unfold(events, async |mut events| events.recv().await.map(|event| (event, events)))
}

/// The signal that ended a command, for its status.
#[derive(Debug, Default)]
struct Signals(std::sync::atomic::AtomicI32);

impl Signals {
    fn number(&self) -> i32 {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

#[derive(Debug)]
struct MemoryControl {
    killed: CancellationToken,
    signals: Arc<Signals>,
}

#[async_trait]
impl ProcessControl for MemoryControl {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.signals.0.store(signal.number(), std::sync::atomic::Ordering::Release);
        self.killed.cancel();
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for MemoryWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        &self.info
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE.with_spawn(true).with_files(true).with_confined_files(true)
    }

    async fn exec(&self, mut command: Command) -> Result<ExecResult> {
        let mut stdin = std::mem::take(&mut command.stdin);
        if self.engine.has(Defect::StdinLost) {
            stdin = Bytes::new();
        }
        let limit = command.output_limit;
        let mut result = self.start(command).await?.collect(stdin, limit).await;
        if self.engine.has(Defect::DropsNotCounted) {
            result.stdout.dropped = 0;
            result.stdout.dropped_at = None;
        }
        if self.engine.has(Defect::OutputNotBinary) {
            result.stdout.bytes = result.stdout.to_text().into();
        }
        Ok(result)
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.start(command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let resolved = self.resolve(path)?;
        let (metadata, bytes) = self.with_tree(|tree| tree.read(&resolved))?;
        let ReadOptions { offset, length } = options;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        let until = from.saturating_add(length).min(bytes.len());
        let body = if self.engine.has(Defect::RangeIgnored) { bytes } else { bytes.slice(from..until) };
        Ok(ReadFile::new(metadata, byte_stream(body)))
    }

    async fn write(&self, path: &str, mut body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let WriteOptions { mode, create_parents, overwrite } = options;
        let path = self.resolve(path)?;
        self.with_tree(|tree| tree.check_write(&path, create_parents, overwrite))?;
        let mut bytes = Vec::new();
        loop {
            match body.try_next().await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => {
                    if self.engine.has(Defect::WriteNotAtomic) {
                        self.with_tree(|tree| tree.write(&path, bytes.into(), mode, create_parents, overwrite))?;
                    }
                    return Err(error);
                }
            }
        }
        self.with_tree(|tree| tree.write(&path, bytes.into(), mode, create_parents, overwrite))
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        let path = self.resolve(path)?;
        self.with_tree(|tree| tree.stat(&path))
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let path = self.resolve(path)?;
        self.with_tree(|tree| tree.list(&path))
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        let path = self.resolve(path)?;
        self.with_tree(|tree| tree.make_dir(&path))
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let path = self.resolve(path)?;
        self.with_tree(|tree| tree.remove(&path, options.recursive, options.missing_ok))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.resolve(from)?, self.resolve(to)?);
        self.with_tree(|tree| tree.rename(&from, &to))
    }

    async fn connect(&self, _: &Endpoint) -> Result<Connection> {
        Err(Error::unsupported("connect"))
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for MemoryWorkspace {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        let after = play(self.engine.fault(Operation::Suspend)).await?;
        self.closed.cancel();
        let loses_files = self.engine.has(Defect::SuspendLosesFiles);
        self.engine.with_one(&self.info.id, |sandbox| {
            if sandbox.state == FoundState::Running && !self.running.is_cancelled() {
                if sandbox.commands > 0 {
                    self.engine.violation(format!("`{}` was suspended while a command ran in it", self.info.id));
                }
                sandbox.stop(FoundState::Suspended, Cause::Suspended);
                if loses_files {
                    sandbox.tree = Tree::default();
                }
                self.engine.count_suspension();
            }
        });
        self.tasks.close();
        self.tasks.wait().await;
        after.map_or(Ok(None), Err)
    }

    async fn detach(&self) -> Result<()> {
        let after = play(self.engine.fault(Operation::Detach)).await?;
        self.closed.cancel();
        after.map_or(Ok(()), Err)
    }

    async fn health(&self) -> Result<Health> {
        let after = play(self.engine.fault(Operation::Health)).await?;
        let (alive, cause) = self
            .engine
            .with_one(&self.info.id, |sandbox| {
                let alive = sandbox.state == FoundState::Running && !self.running.is_cancelled();
                (alive, sandbox.cause.unwrap_or(Cause::Unknown))
            })
            .unwrap_or((false, Cause::Deleted));
        if let Some(error) = after {
            return Err(error);
        }
        if alive || self.engine.has(Defect::DeadIsAlive) {
            return Ok(Health::Alive(self.idle_stop));
        }
        Ok(Health::Dead(cause))
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        let after = play(self.engine.fault(Operation::KeepAlive)).await?;
        self.check_open()?;
        if let Some(error) = after {
            return Err(error);
        }
        if self.idle_stop.is_none() {
            return Ok(None);
        }
        self.engine.extend(&self.info.id, duration);
        Ok(Some(duration))
    }
}
