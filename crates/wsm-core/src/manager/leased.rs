//! The outermost wrapper of an epoch: the `Arc<dyn Workspace>` that callers hold.

use std::{
    any::{Any, TypeId},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::epoch::{Epoch, Lease};
use crate::{
    capability::Capabilities,
    error::{Error, ErrorKind, Result},
    exec::{Command, ExecResult, ExitStatus, Process, ProcessEvent, ProcessOutput},
    files::{ByteStream, DirEntry, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions},
    workspace::{Connection, Endpoint, Workspace, WorkspaceInfo},
};

/// Takes a lease for every call and every stream until its end, refuses calls once the epoch is closed, and marks the
/// epoch as suspect when a call ends as a dead workspace's would.
#[derive(Debug)]
pub(super) struct LeasedWorkspace {
    epoch: Arc<Epoch>,
}

impl LeasedWorkspace {
    pub(super) fn new(epoch: Arc<Epoch>) -> Self {
        Self { epoch }
    }

    fn lease(&self) -> Result<Lease> {
        self.epoch.lease().ok_or_else(|| {
            let info = self.epoch.managed.info();
            Error::new(ErrorKind::Gone, "this workspace was put away: ask the manager for it again")
                .with_backend(info.backend)
                .with_workspace(&info.id)
        })
    }

    fn watch<T>(&self, result: Result<T>) -> Result<T> {
        watch(&self.epoch, result)
    }

    fn watch_status(&self, status: &ExitStatus) {
        watch_status(&self.epoch, status);
    }
}

fn watch<T>(epoch: &Epoch, result: Result<T>) -> Result<T> {
    if let Err(error) = &result
        && matches!(error.kind(), ErrorKind::Gone | ErrorKind::Unavailable)
    {
        epoch.mark_suspect();
    }
    result
}

fn watch_status(epoch: &Epoch, status: &ExitStatus) {
    if matches!(status, ExitStatus::Unknown { .. }) {
        epoch.mark_suspect();
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for LeasedWorkspace {
    fn info(&self) -> &WorkspaceInfo {
        self.epoch.managed.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.epoch.managed.capabilities()
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        let _lease = self.lease()?;
        let result = self.watch(self.epoch.managed.exec(command).await)?;
        self.watch_status(&result.status);
        Ok(result)
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        let lease = self.lease()?;
        let Process { stdin, output, control } = self.watch(self.epoch.managed.spawn(command).await)?;
        let epoch = Arc::clone(&self.epoch);
        let output = output.inspect(move |event| {
            if let ProcessEvent::End(status) = event {
                watch_status(&epoch, status);
            }
        });
        let input_lease = self.lease()?;
        Ok(Process::new(Box::pin(Held::new(stdin, input_lease)), ProcessOutput::new(Held::new(output, lease)), control))
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let lease = self.lease()?;
        let ReadFile { metadata, body } = self.watch(self.epoch.managed.read(path, options).await)?;
        let epoch = Arc::clone(&self.epoch);
        let body = Held::new(body.map(move |chunk| watch(&epoch, chunk)), lease).boxed();
        Ok(ReadFile::new(metadata, body))
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.write(path, body, options).await)
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.stat(path).await)
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.list(path).await)
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.make_dir(path).await)
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.remove(path, options).await)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _lease = self.lease()?;
        self.watch(self.epoch.managed.rename(from, to).await)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        let lease = self.lease()?;
        Ok(match self.watch(self.epoch.managed.connect(endpoint).await)? {
            Connection::Bytes(channel) => Connection::Bytes(Box::pin(Held::new(channel, lease))),
            http @ Connection::Http { .. } => http,
        })
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.epoch.managed.extension(type_id)
    }
}

/// Something that is used piece by piece, and the lease that goes with it until its end.
struct Held<T> {
    inner: T,
    lease: Option<Lease>,
}

impl<T> Held<T> {
    fn new(inner: T, lease: Lease) -> Self {
        Self { inner, lease: Some(lease) }
    }
}

impl<S: Stream + Unpin> Stream for Held<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let item = std::task::ready!(self.inner.poll_next_unpin(context));
        if item.is_none() {
            self.lease = None;
        }
        Poll::Ready(item)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Held<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Held<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}
