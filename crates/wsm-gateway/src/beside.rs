//! The gateway beside a backend's own commands and files, for what only it can do: MCP servers, search and archives.

use std::{
    any::{Any, TypeId},
    fmt, io,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use tokio_util::io::StreamReader;
use wsm_core::{
    ByteStream, Capabilities, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, InitProgram, Layer, ManagedWorkspace, Metadata, OpenRequest, OpenedInfo, Process, ProcessEvent, ReadFile,
    ReadOptions, RemoveOptions, Result, Workspace, WorkspaceInfo, WriteOptions, byte_stream,
};

use crate::{GatewayClient, Io};

/// Brings the gateway into workspaces whose backend runs commands and keeps files by itself, as cloud sandboxes do.
///
/// It is put there and started by the first call of its client
/// ([`extension_of::<GatewayClient>`](wsm_core::WorkspaceExt::extension_of)), so that who does not need it pays nothing. It
/// runs as a command of the workspace's own, which its stdin and stdout connect to, and ends with the workspace.
#[derive(Debug)]
pub struct GatewayBeside(Arc<InitProgram>);

impl GatewayBeside {
    /// Uses this build of the gateway.
    pub fn new(program: InitProgram) -> Self {
        Self(Arc::new(program))
    }
}

#[async_trait]
impl Layer for GatewayBeside {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn prepare(&self, inner: Capabilities, _: &mut OpenRequest) -> Result<()> {
        if !(inner.spawn && inner.files) {
            let message = "beside a backend the gateway needs that one's own `spawn` and `files`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, _: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>> {
        let (workspace, program) = (Arc::clone(&inner), Arc::clone(&self.0));
        let client = GatewayClient::connected_later(move || {
            let (workspace, program) = (Arc::clone(&workspace), Arc::clone(&program));
            async move { start(&*workspace, &program).await }.boxed()
        });
        Ok(Arc::new(Beside { inner, client }))
    }
}

/// Puts the program where it is not yet, and runs it.
async fn start(workspace: &dyn ManagedWorkspace, program: &InitProgram) -> Result<Box<dyn Io>> {
    let WorkspaceInfo { id, workdir, .. } = workspace.info();
    let path = format!(".wsm/gateway-{}", program.hash);
    install(workspace, program, &path).await?;
    let arguments = ["serve", "--stdio", "--id", id.as_str(), "--workdir", workdir];
    let command = arguments.into_iter().fold(Command::new(format!("{workdir}/{path}")), Command::arg);
    let Process { stdin, output, .. } = workspace.spawn(command).await?;
    // Dropping it ends the program.
    let bytes = output.filter_map(async |event| match event {
        ProcessEvent::Stdout(bytes) => Some(io::Result::Ok(bytes)),
        ProcessEvent::Stderr(said) => {
            tracing::debug!(said = %String::from_utf8_lossy(&said), "the gateway says");
            None
        }
        ProcessEvent::End(status) => {
            tracing::debug!(?status, "the gateway has ended");
            None
        }
    });
    Ok(Box::new(tokio::io::join(StreamReader::new(bytes.boxed()), stdin)))
}

async fn install(workspace: &dyn ManagedWorkspace, program: &InitProgram, path: &str) -> Result<()> {
    let source = program.path.clone();
    let read = tokio::task::spawn_blocking(move || std::fs::read(source)).await;
    let content = read.unwrap_or_else(|failed| Err(io::Error::other(failed))).map_err(|cause| {
        let message = format!("the gateway `{}` can not be brought into the workspace", program.path.display());
        Error::new(ErrorKind::Unavailable, message).with_source(cause)
    })?;
    // A file comes whole or not at all, and its name says what is in it.
    match workspace.stat(path).await {
        Ok(found) if found.size == content.len() as u64 => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    workspace.write(path, byte_stream(content), WriteOptions::default().with_mode(0o755)).await.map(drop)
}

/// A workspace with a gateway beside it.
struct Beside {
    inner: Arc<dyn ManagedWorkspace>,
    client: GatewayClient,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for Beside {
    fn info(&self) -> &WorkspaceInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.inner.exec(command).await
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.inner.spawn(command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        self.inner.read(path, options).await
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        self.inner.write(path, body, options).await
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        self.inner.stat(path).await
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        self.inner.list(path).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.inner.make_dir(path).await
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        self.inner.remove(path, options).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to).await
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.inner.connect(endpoint).await
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        if type_id == TypeId::of::<GatewayClient>() {
            return Some(Arc::new(self.client.clone()));
        }
        self.inner.extension(type_id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for Beside {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        self.client.close().await;
        self.inner.suspend().await
    }

    async fn detach(&self) -> Result<()> {
        self.client.close().await;
        self.inner.detach().await
    }

    /// The workspace lives as long as it does without its gateway, which is started again when it is needed.
    async fn health(&self) -> Result<Health> {
        self.inner.health().await
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.inner.keep_alive(duration).await
    }
}

#[cfg(test)]
mod tests {
    use wsm_core::WorkspaceId;

    use super::*;

    #[test]
    fn what_it_needs_of_a_backend_is_said() {
        let program = InitProgram { path: "/nowhere".into(), hash: "0".to_owned(), args: Vec::new() };
        let layer = GatewayBeside::new(program);
        let mut request = OpenRequest::new(WorkspaceId::random());
        let error = layer.prepare(Capabilities::NONE.with_spawn(true), &mut request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let enough = Capabilities::NONE.with_spawn(true).with_files(true);
        layer.prepare(enough, &mut request).unwrap();
        assert_eq!(request.init, None, "the first process is the backend's own");
        assert_eq!(layer.capabilities(enough), enough);
    }
}
