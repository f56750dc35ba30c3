//! Refuses what a backend did not declare, before the backend sees it.

use std::{
    any::{Any, TypeId},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    backend::Checkpoint,
    capability::Capabilities,
    error::{Error, Result},
    exec::{Command, ExecResult, Process},
    files::{ByteStream, DirEntry, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions, validate_path},
    workspace::{Connection, Endpoint, Health, ManagedWorkspace, Workspace, WorkspaceInfo},
};

/// A decorator that checks every call against the declared capabilities and the rules that hold for all backends, so
/// that no backend can ignore an option in silence and none has to check the same things again.
///
/// The manager puts one directly above the backend and one, with the effective capabilities, outermost.
#[derive(Debug)]
pub struct CapabilityGuard {
    inner: Arc<dyn ManagedWorkspace>,
    capabilities: Capabilities,
}

impl CapabilityGuard {
    /// Guards `inner`, which can do what `capabilities` says.
    pub fn new(inner: Arc<dyn ManagedWorkspace>, capabilities: Capabilities) -> Self {
        Self { inner, capabilities }
    }

    fn require(&self, declared: bool, operation: &'static str) -> Result<()> {
        if declared { Ok(()) } else { Err(self.place(Error::unsupported(operation), operation)) }
    }

    fn require_files(&self, operation: &'static str, paths: &[&str]) -> Result<()> {
        self.require(self.capabilities.files, operation)?;
        paths.iter().try_for_each(|path| validate_path(path)).map_err(|error| self.place(error, operation))
    }

    /// Says where an error happened, for those that the backend left bare.
    fn place(&self, error: Error, operation: &'static str) -> Error {
        let info = self.inner.info();
        error.with_backend(info.backend).with_operation(operation).with_workspace(&info.id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for CapabilityGuard {
    fn info(&self) -> &WorkspaceInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        command.validate().map_err(|error| self.place(error, "exec"))?;
        self.inner.exec(command).await.map_err(|error| self.place(error, "exec"))
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.require(self.capabilities.spawn, "spawn")?;
        command.validate().map_err(|error| self.place(error, "spawn"))?;
        if !command.stdin.is_empty() {
            let error = Error::invalid("stdin", "a spawned command takes its input through `Process::stdin`");
            return Err(self.place(error, "spawn"));
        }
        self.inner.spawn(command).await.map_err(|error| self.place(error, "spawn"))
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        self.require_files("read", &[path])?;
        self.inner.read(path, options).await.map_err(|error| self.place(error, "read"))
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        self.require_files("write", &[path])?;
        self.inner.write(path, body, options).await.map_err(|error| self.place(error, "write"))
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        self.require_files("stat", &[path])?;
        self.inner.stat(path).await.map_err(|error| self.place(error, "stat"))
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        self.require_files("list", &[path])?;
        self.inner.list(path).await.map_err(|error| self.place(error, "list"))
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.require_files("make_dir", &[path])?;
        self.inner.make_dir(path).await.map_err(|error| self.place(error, "make_dir"))
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        self.require_files("remove", &[path])?;
        self.inner.remove(path, options).await.map_err(|error| self.place(error, "remove"))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.require_files("rename", &[from, to])?;
        self.inner.rename(from, to).await.map_err(|error| self.place(error, "rename"))
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.require(self.capabilities.connect, "connect")?;
        self.inner.connect(endpoint).await.map_err(|error| self.place(error, "connect"))
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.extension(type_id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for CapabilityGuard {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        self.inner.suspend().await.map_err(|error| self.place(error, "suspend"))
    }

    async fn detach(&self) -> Result<()> {
        self.inner.detach().await.map_err(|error| self.place(error, "detach"))
    }

    async fn health(&self) -> Result<Health> {
        self.inner.health().await.map_err(|error| self.place(error, "health"))
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.inner.keep_alive(duration).await.map_err(|error| self.place(error, "keep_alive"))
    }
}
