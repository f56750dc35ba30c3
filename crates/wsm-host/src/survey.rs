//! A basedir as backends show it to their callers: what is in it, and whether it can be used.

use std::{io, path::Path, sync::Arc};

use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use rustix::fs::{Access, AtFlags, CWD, accessat, statfs};
use wsm_core::{Error, ErrorKind, FoundState, FoundWorkspace, Probe, Result, WorkspaceId};

use crate::{Basedir, Record, blocking};

/// How many records are read at once for a list.
const LIST_CHUNK: usize = 256;

impl Basedir {
    /// Looks a workspace up, for [`Backend::find`](wsm_core::Backend::find).
    ///
    /// # Errors
    ///
    /// As for [`find`](Self::find).
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn find_workspace(
        self: &Arc<Self>,
        id: &WorkspaceId,
        is_open: impl Fn(&WorkspaceId) -> bool,
    ) -> Result<Option<FoundWorkspace>> {
        let (base, id) = (Arc::clone(self), id.clone());
        let record = blocking(move || base.find(&id)).await?;
        Ok(record.map(|(record, exists)| self.found(record, exists, &is_open)))
    }

    /// Everything in the basedir, for [`Backend::list`](wsm_core::Backend::list).
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list), and within the stream as for [`read_listed`](Self::read_listed).
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn list_workspaces<'a>(
        self: &'a Arc<Self>,
        is_open: impl Fn(&WorkspaceId) -> bool + Send + 'a,
    ) -> Result<BoxStream<'a, Result<FoundWorkspace>>> {
        let names = {
            let base = Arc::clone(self);
            blocking(move || base.list()).await?
        };
        let chunks: Vec<Vec<String>> = names.chunks(LIST_CHUNK).map(<[String]>::to_vec).collect();
        let records = stream::iter(chunks).then(|chunk| {
            let base = Arc::clone(self);
            blocking(move || base.read_listed(&chunk))
        });
        let records = records.map_ok(stream::iter).try_flatten();
        Ok(records.map_ok(move |(record, exists)| self.found(record, exists, &is_open)).boxed())
    }

    fn found(&self, record: Record, exists: bool, is_open: impl Fn(&WorkspaceId) -> bool) -> FoundWorkspace {
        let state = match (exists, is_open(&record.id)) {
            (false, _) => FoundState::Dead,
            (true, true) => FoundState::Running,
            (true, false) => FoundState::Suspended,
        };
        let location = self.path_of(&record);
        FoundWorkspace::new(record.id, state, location)
            .with_owner(record.owner)
            .with_generation(record.generation)
            .with_created_at(Some(record.created_at))
    }
}

/// Adds to a report what is to be said of a basedir, without making it. Blocks.
///
/// # Errors
///
/// `unavailable` when it can not be used, saying what to do.
pub fn probe_basedir(probe: Probe, basedir: &Path) -> Result<Probe> {
    let shown = basedir.display();
    match basedir.metadata() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            Ok(probe.with_warning(format!("`basedir` {shown} does not exist yet: it is made at the start")))
        }
        Err(cause) => Err(unusable(format!("`basedir` {shown} can not be looked at")).with_source(cause)),
        Ok(metadata) if !metadata.is_dir() => {
            Err(unusable(format!("`basedir` {shown} is not a directory: give a directory")))
        }
        Ok(_) => {
            let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            accessat(CWD, basedir, access, AtFlags::EACCESS).map_err(|errno| {
                let message = format!("`basedir` {shown} can not be written: give it to the user that wsm runs as");
                unusable(message).with_source(errno)
            })?;
            let file_system = statfs(basedir).map_or("unknown", |stat| file_system_name(stat.f_type as u64));
            Ok(probe.with_fact(format!("`basedir` is {shown}, on a file system of type {file_system}")))
        }
    }
}

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_field("basedir")
}

/// The usual file systems, by the magic number that `statfs` gives.
fn file_system_name(magic: u64) -> &'static str {
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        0x2FC1_2FC1 => "zfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        _ => "unknown",
    }
}
