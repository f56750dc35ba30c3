//! Unpacking an archive into a directory of a workspace: what is asked, what is answered, and how both travel.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use wsm_core::{ByteStream, Error, ErrorKind, Result};

use crate::{
    client::GatewayClient,
    message::{Reply, Request},
    server::{Served, Task, body_of},
};

/// How an archive is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ArchiveFormat {
    /// Zip, with members that are stored or deflated.
    Zip,
    /// Tar, as of GNU or POSIX.
    Tar,
    /// Tar, compressed with gzip.
    TarGz,
}

/// What happens when there is something in the place of the directory already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overwrite {
    /// It is a `conflict`, unless it is an empty directory. The directory appears at once and as a whole.
    #[default]
    Refuse,
    /// The directory is exchanged for the new one at once, and deleted.
    Replace,
    /// The members are moved into the directory one by one. Files and links are replaced; what the archive does not have
    /// stays. That one is a directory and the other is none is a `conflict`, before anything is moved.
    Merge,
}

/// Asks for an archive to be unpacked into a directory of the workspace.
///
/// Nothing appears in the directory's place before the last member has been looked at. An archive is refused as a whole when
/// a member has an absolute path, one with `..`, a backslash, a drive letter, a NUL or anything but UTF-8; when two members
/// have the same path; when a link leads out of the archive; when a member is neither a file nor a directory nor a link; or
/// when it is encrypted. Of the mode of a file, the bits to read, write and execute are kept; owners and times are not.
///
/// ```
/// use wsm_gateway::{ArchiveFormat, Overwrite, UnpackRequest};
///
/// let request = UnpackRequest::new("skills/pdf").with_overwrite(Overwrite::Replace).with_format(ArchiveFormat::Zip);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UnpackRequest {
    /// The directory, as a path of the workspace. Its parents are made.
    pub path: String,
    /// How the archive is packed. None to see it from its first bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ArchiveFormat>,
    /// What happens to what is there.
    #[serde(default)]
    pub overwrite: Overwrite,
    /// How many bytes the members, and the archive itself, may have. 1 GiB by default.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: u64,
    /// How many members the archive may have. 100,000 by default.
    #[serde(default = "default_max_entries")]
    pub max_entries: u64,
    /// How many times as many bytes as the archive the members may have, where they have more than 1 MiB. 200 by default.
    #[serde(default = "default_max_ratio")]
    pub max_ratio: u64,
}

fn default_max_bytes() -> u64 {
    1 << 30
}

fn default_max_entries() -> u64 {
    100_000
}

fn default_max_ratio() -> u64 {
    200
}

impl UnpackRequest {
    /// Asks for an archive to be unpacked into a directory that is not there yet.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            format: None,
            overwrite: Overwrite::default(),
            max_bytes: default_max_bytes(),
            max_entries: default_max_entries(),
            max_ratio: default_max_ratio(),
        }
    }

    /// Sets [`format`](Self::format).
    #[must_use]
    pub fn with_format(mut self, format: ArchiveFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets [`overwrite`](Self::overwrite).
    #[must_use]
    pub fn with_overwrite(mut self, overwrite: Overwrite) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets [`max_entries`](Self::max_entries).
    #[must_use]
    pub fn with_max_entries(mut self, entries: u64) -> Self {
        self.max_entries = entries;
        self
    }

    /// Sets [`max_ratio`](Self::max_ratio).
    #[must_use]
    pub fn with_max_ratio(mut self, times: u64) -> Self {
        self.max_ratio = times;
        self
    }
}

/// What was unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unpacked {
    /// How many files.
    pub files: u64,
    /// How many directories that the archive names.
    pub directories: u64,
    /// How many symbolic and hard links.
    pub links: u64,
    /// How many bytes the files have.
    pub bytes: u64,
}

impl GatewayClient {
    /// Unpacks an archive into a directory.
    ///
    /// # Errors
    ///
    /// `invalid_input` with code `unsafe_archive` for an archive that must not be unpacked, `bad_archive` for one that can
    /// not be read, `too_large` for one beyond the limits; `conflict` about `path` when something is in the way;
    /// `unsupported` when the gateway does not unpack; what `archive` said when it broke off. Whatever the error, nothing
    /// was changed, except that a [`Merge`](Overwrite::Merge) may have moved a part when the file system failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready undoes what was done, soon after.
    pub async fn unpack(&self, request: &UnpackRequest, archive: ByteStream) -> Result<Unpacked> {
        match self.send_body(&Request::Unpack(request.clone()), archive).await? {
            Reply::Unpacked(unpacked) => Ok(unpacked),
            other => Err(crate::client::unexpected(&other)),
        }
    }
}

impl Task {
    /// Unpacks what the client sends.
    pub(crate) async fn unpack(mut self, served: &Served, request: UnpackRequest) {
        let (_, nothing) = mpsc::unbounded_channel();
        let events = std::mem::replace(&mut self.events, nothing);
        let body = body_of(events, self.frames.clone(), self.stream, Arc::clone(&self.allowance));
        let unpacked = match &served.file_tools {
            Some(tools) => tools.unpack(request, body).await,
            None => Err(unsupported("unpack")),
        };
        self.reply(&unpacked.map_or_else(|error| Reply::Failed((&error).into()), Reply::Unpacked));
    }
}

/// The gateway was not given what does this.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this gateway does not support `{operation}`"))
}
