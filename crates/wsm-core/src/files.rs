//! Files of a workspace: what is known of them, and how they are read and written.

use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest path that is accepted, in bytes (Linux' `PATH_MAX`).
pub const MAX_PATH_BYTES: usize = 4096;

/// A body that is read or written piece by piece.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// A body that is in memory already.
pub fn byte_stream(bytes: impl Into<Bytes>) -> ByteStream {
    let bytes = bytes.into();
    futures::stream::once(async move { Ok(bytes) }).boxed()
}

/// What an entry of a directory is. Symbolic links are told, not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, pipe or device.
    Other,
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Its length in bytes; 0 for anything but a regular file.
    pub size: u64,
    /// When it was last changed, as exactly as the backend tells.
    pub modified: Option<SystemTime>,
    /// Its permission bits, where the backend has them.
    pub mode: Option<u32>,
}

impl Metadata {
    /// Metadata without a time or a mode.
    pub fn new(kind: FileKind, size: u64) -> Self {
        Self { kind, size, modified: None, mode: None }
    }

    /// Sets when it was last changed.
    #[must_use]
    pub fn with_modified(mut self, modified: SystemTime) -> Self {
        self.modified = Some(modified);
        self
    }

    /// Sets the permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// Its name. What is not UTF-8 is written `\xNN`; see `escaped`.
    pub name: String,
    /// Whether the real name is not UTF-8, so that `name` does not open the entry.
    pub escaped: bool,
    /// What is known of the entry itself, not of what a link points to.
    pub metadata: Metadata,
}

impl DirEntry {
    /// An entry from the bytes of its name.
    pub fn new(name: &[u8], metadata: Metadata) -> Self {
        match std::str::from_utf8(name) {
            Ok(name) => Self { name: name.to_owned(), escaped: false, metadata },
            Err(_) => Self { name: escape_name(name), escaped: true, metadata },
        }
    }
}

fn escape_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\x5C"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02X}"));
        }
    }
    text
}

/// Which part of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadOptions {
    /// How many bytes to skip. Past the end is an empty body, not an error.
    pub offset: u64,
    /// How many bytes to read at most; none means to the end.
    pub length: Option<u64>,
}

impl ReadOptions {
    /// Reads `length` bytes from `offset` on.
    pub fn range(offset: u64, length: Option<u64>) -> Self {
        Self { offset, length }
    }
}

/// An opened file: what is known of it, and its bytes.
#[non_exhaustive]
pub struct ReadFile {
    /// What was known when it was opened. `size` is that of the whole file, whatever part is read.
    pub metadata: Metadata,
    /// The bytes. An error in the stream means that the rest could not be read.
    pub body: ByteStream,
}

impl ReadFile {
    /// Puts an opened file together.
    pub fn new(metadata: Metadata, body: ByteStream) -> Self {
        Self { metadata, body }
    }
}

impl std::fmt::Debug for ReadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFile").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// How to write a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Permission bits of the written file; none means those of the file that it replaces, or the backend's default.
    pub mode: Option<u32>,
    /// Whether missing parent directories are created.
    pub create_parents: bool,
    /// Whether an existing file is replaced. Without it, an existing path is a `conflict`.
    pub overwrite: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { mode: None, create_parents: true, overwrite: true }
    }
}

impl WriteOptions {
    /// Sets the permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Sets whether missing parents are created.
    #[must_use]
    pub fn with_create_parents(mut self, yes: bool) -> Self {
        self.create_parents = yes;
        self
    }

    /// Sets whether an existing file is replaced.
    #[must_use]
    pub fn with_overwrite(mut self, yes: bool) -> Self {
        self.overwrite = yes;
        self
    }
}

/// How to remove a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RemoveOptions {
    /// Whether a directory goes with all that it holds. Without it, a directory that is not empty is a `conflict`.
    pub recursive: bool,
    /// Whether a path that names nothing is fine.
    pub missing_ok: bool,
}

impl RemoveOptions {
    /// Sets whether directories go with all that they hold.
    #[must_use]
    pub fn with_recursive(mut self, yes: bool) -> Self {
        self.recursive = yes;
        self
    }

    /// Sets whether a path that names nothing is fine.
    #[must_use]
    pub fn with_missing_ok(mut self, yes: bool) -> Self {
        self.missing_ok = yes;
        self
    }
}

/// Checks what no backend can take as a path.
///
/// # Errors
///
/// `invalid_input` about `path`: empty, longer than [`MAX_PATH_BYTES`], or with a NUL byte.
pub fn validate_path(path: &str) -> Result<()> {
    let problem = if path.is_empty() {
        "`path` is empty: use `.` for the workspace directory"
    } else if path.len() > MAX_PATH_BYTES {
        "`path` is longer than 4096 bytes"
    } else if path.contains('\0') {
        "`path` holds a NUL byte"
    } else {
        return Ok(());
    };
    Err(Error::invalid("path", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_text_are_escaped_and_flagged() {
        let entry = DirEntry::new(b"a\\\xff\xc3\xa9\xd5", Metadata::new(FileKind::File, 0));
        assert_eq!((entry.name.as_str(), entry.escaped), ("a\\x5C\\xFFé\\xD5", true));
        let entry = DirEntry::new("报告 ü\\.txt".as_bytes(), Metadata::new(FileKind::File, 0));
        assert_eq!((entry.name.as_str(), entry.escaped), ("报告 ü\\.txt", false));
    }

    #[test]
    fn impossible_paths_are_refused() {
        for path in ["", "a\0b", &"x".repeat(4097)] {
            assert_eq!(validate_path(path).unwrap_err().field(), Some("path"));
        }
        assert!(validate_path("..").is_ok());
    }
}
