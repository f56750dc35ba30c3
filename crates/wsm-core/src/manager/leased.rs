//! An epoch as callers see it: the workspace, with a lease for every use.

use std::{
    any::{Any, TypeId},
    io,
    pin::Pin,
    sync::{Arc, Weak},
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

impl Epoch {
    fn lease_for_call(&self) -> Result<Lease> {
        self.this.upgrade().and_then(|this| this.lease()).ok_or_else(|| {
            let info = self.managed.info();
            Error::new(ErrorKind::Gone, "this workspace was put away: ask the manager for it again")
                .with_backend(info.backend)
                .with_workspace(&info.id)
        })
    }
}

fn watch<T>(epoch: &Epoch, result: Result<T>) -> Result<T> {
    result.inspect_err(|error| watch_error(epoch, error))
}

fn watch_error(epoch: &Epoch, error: &Error) {
    if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Unavailable) {
        epoch.mark_suspect();
    }
}

fn watch_status(epoch: &Epoch, status: &ExitStatus) {
    if matches!(status, ExitStatus::Unknown { .. }) {
        epoch.mark_suspect();
    }
}

/// Takes a lease for every call and every stream until its end, refuses calls once the epoch is closed, and marks the
/// epoch as suspect when a call ends as a dead workspace's would.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for Epoch {
    fn info(&self) -> &WorkspaceInfo {
        self.managed.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.managed.capabilities()
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        let _lease = self.lease_for_call()?;
        let result = watch(self, self.managed.exec(command).await)?;
        watch_status(self, &result.status);
        Ok(result)
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        let lease = self.lease_for_call()?;
        let Process { stdin, output, control } = watch(self, self.managed.spawn(command).await)?;
        let epoch = Weak::clone(&self.this);
        // Given back at the end that the stream tells: whoever reads it need not ask for more, nor drop it.
        let mut lease = Some(lease);
        let output = output.inspect(move |event| {
            if let ProcessEvent::End(status) = event {
                if let Some(epoch) = epoch.upgrade() {
                    watch_status(&epoch, status);
                }
                drop(lease.take());
            }
        });
        // The input needs no lease of its own: the command does not outlive its output.
        Ok(Process::new(stdin, ProcessOutput::new(output), control))
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let lease = self.lease_for_call()?;
        let ReadFile { metadata, body } = watch(self, self.managed.read(path, options).await)?;
        let epoch = Weak::clone(&self.this);
        let body = body.inspect(move |chunk| {
            if let (Err(error), Some(epoch)) = (chunk, epoch.upgrade()) {
                watch_error(&epoch, error);
            }
        });
        let body = Held::new(body, lease).boxed();
        Ok(ReadFile::new(metadata, body))
    }

    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.write(path, body, options).await)
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.stat(path).await)
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.list(path).await)
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.make_dir(path).await)
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.remove(path, options).await)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _lease = self.lease_for_call()?;
        watch(self, self.managed.rename(from, to).await)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        let lease = self.lease_for_call()?;
        Ok(match watch(self, self.managed.connect(endpoint).await)? {
            Connection::Bytes(channel) => Connection::Bytes(Box::pin(Held::new(channel, lease))),
            http @ Connection::Http { .. } => http,
        })
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.managed.extension(type_id)
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
