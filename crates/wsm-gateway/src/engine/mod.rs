//! Searches and unpacks in the file system of this process.

mod emit;
mod glob;
mod grep;
mod line;
mod unpack;
mod walk;

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::sync::Semaphore;
use wsm_core::{ByteStream, Error, ErrorKind, Result};
use wsm_host::blocking;

use crate::{FileTools, GlobEvent, GlobRequest, GrepEvent, GrepRequest, UnpackRequest, Unpacked};

/// How many searches and unpackings go on at once. Each has a thread; the others wait.
const AT_ONCE: usize = 4;

/// Searches and unpacks in the file system as this process sees it. Relative paths start at a directory; nothing keeps
/// absolute ones, or `..`, from leaving it. For the inside of a sandbox.
///
/// Four calls are worked on at once, the others wait for their turn.
#[derive(Debug, Clone)]
pub struct HostFileTools {
    workdir: PathBuf,
    permits: Arc<Semaphore>,
}

impl HostFileTools {
    /// Starts relative paths at this directory, whose path is absolute.
    pub fn new(workdir: impl Into<PathBuf>) -> Self {
        Self { workdir: workdir.into(), permits: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    async fn permit(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        // Nobody closes it.
        let closed = |cause| Error::new(ErrorKind::Backend, "no more searches are done").with_source(cause);
        Arc::clone(&self.permits).acquire_owned().await.map_err(closed)
    }
}

#[async_trait]
impl FileTools for HostFileTools {
    async fn glob(&self, request: GlobRequest) -> Result<BoxStream<'static, Result<GlobEvent>>> {
        let (permit, workdir) = (self.permit().await?, self.workdir.clone());
        let plan = blocking(move || glob::Plan::new(&workdir, request)).await?;
        Ok(emit::events(permit, move |sender| plan.run(sender)))
    }

    async fn grep(&self, request: GrepRequest) -> Result<BoxStream<'static, Result<GrepEvent>>> {
        let (permit, workdir) = (self.permit().await?, self.workdir.clone());
        let plan = blocking(move || grep::Plan::new(&workdir, request)).await?;
        Ok(emit::events(permit, move |sender| plan.run(sender)))
    }

    async fn unpack(&self, request: UnpackRequest, archive: ByteStream) -> Result<Unpacked> {
        let permit = self.permit().await?;
        unpack::unpack(self.workdir.clone(), request, archive, permit).await
    }
}
