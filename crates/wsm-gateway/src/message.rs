//! What the two sides say to each other, as JSON inside of frames.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use wsm_core::{
    CONTRACT_VERSION, Capabilities, Command, DirEntry, Error, ErrorKind, ExitStatus, FileKind, Metadata, ReadOptions,
    RemoveOptions, Result, Retry, Signal, WriteOptions,
};

use crate::{
    mcp_types::McpRequest,
    search::{GlobRequest, GrepRequest},
    unpack::{UnpackRequest, Unpacked},
};

/// Rises with every change that an older side could not read.
pub const PROTOCOL_VERSION: u32 = 1;

/// Who a side is. The first thing that each says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) contract: u32,
    pub(crate) version: String,
    /// The directory that relative paths start at. Only the server knows it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) workdir: String,
    /// What the workspace behind the server can do.
    #[serde(default)]
    pub(crate) capabilities: Capabilities,
}

impl Hello {
    pub(crate) fn client() -> Self {
        Self {
            protocol: PROTOCOL_VERSION,
            contract: CONTRACT_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            workdir: String::new(),
            capabilities: Capabilities::NONE,
        }
    }

    /// Whether the two can talk.
    ///
    /// # Errors
    ///
    /// `conflict` with code `gateway_version` when they can not.
    pub(crate) fn check(&self) -> Result<()> {
        if self.protocol == PROTOCOL_VERSION {
            return Ok(());
        }
        let Self { protocol, version, .. } = self;
        let message = format!(
            "the gateway in the workspace is version {version} and speaks protocol {protocol}, this side {PROTOCOL_VERSION}"
        );
        // The next opening brings this version.
        Err(Error::new(ErrorKind::Conflict, message).with_code("gateway_version").with_retry(Retry::Now))
    }
}

/// What a client asks for when it opens a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    Spawn(SpawnRequest),
    Read { path: String, offset: u64, length: Option<u64> },
    Write { path: String, mode: Option<u32>, create_parents: bool, overwrite: bool },
    Stat { path: String },
    List { path: String },
    MakeDir { path: String },
    Remove { path: String, recursive: bool, missing_ok: bool },
    Rename { from: String, to: String },
    Mcp(McpRequest),
    Ping,
    Glob(GlobRequest),
    Grep(GrepRequest),
    Unpack(UnpackRequest),
}

/// A command, without its stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnRequest {
    argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

impl From<&Command> for SpawnRequest {
    fn from(command: &Command) -> Self {
        let timeout_ms = command.timeout.map(|timeout| {
            // Never rounded down to none at all.
            u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)
        });
        Self { argv: command.argv.clone(), cwd: command.cwd.clone(), env: command.env.clone(), timeout_ms }
    }
}

impl From<SpawnRequest> for Command {
    fn from(request: SpawnRequest) -> Self {
        let SpawnRequest { argv, cwd, env, timeout_ms } = request;
        let mut command = Self::from_argv(argv);
        command.cwd = cwd;
        command.env = env;
        command.timeout = timeout_ms.map(Duration::from_millis);
        command
    }
}

impl Request {
    /// Whether the client sends a body, and then its end.
    pub(crate) fn takes_body(&self) -> bool {
        match self {
            Self::Spawn(_) | Self::Write { .. } | Self::Unpack(_) | Self::Mcp(McpRequest::Call { .. }) => true,
            Self::Read { .. } | Self::Stat { .. } | Self::List { .. } | Self::MakeDir { .. } => false,
            Self::Remove { .. } | Self::Rename { .. } | Self::Ping | Self::Glob(_) | Self::Grep(_) => false,
            Self::Mcp(_) => false,
        }
    }

    /// Whether the reply is not all, and a body with an end comes after it.
    pub(crate) fn answers_with_body(&self) -> bool {
        match self {
            Self::Spawn(_) | Self::Read { .. } | Self::List { .. } | Self::Glob(_) | Self::Grep(_) | Self::Mcp(_) => {
                true
            }
            Self::Write { .. } | Self::Stat { .. } | Self::MakeDir { .. } | Self::Remove { .. } => false,
            Self::Rename { .. } | Self::Ping | Self::Unpack(_) => false,
        }
    }

    pub(crate) fn read(path: &str, options: ReadOptions) -> Self {
        let ReadOptions { offset, length, .. } = options;
        Self::Read { path: path.to_owned(), offset, length }
    }

    pub(crate) fn write(path: &str, options: &WriteOptions) -> Self {
        let WriteOptions { mode, create_parents, overwrite, .. } = *options;
        Self::Write { path: path.to_owned(), mode, create_parents, overwrite }
    }

    pub(crate) fn remove(path: &str, options: RemoveOptions) -> Self {
        let RemoveOptions { recursive, missing_ok, .. } = options;
        Self::Remove { path: path.to_owned(), recursive, missing_ok }
    }
}

/// The server's answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// It is done, or has begun.
    Done,
    Metadata(WireMetadata),
    Failed(WireError),
    Unpacked(Unpacked),
}

/// The last word of the server about a stream that was more than one answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Exit(ExitStatus),
    /// The body broke off.
    Failed(WireError),
}

/// A signal for a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignalRequest(pub(crate) Signal);

/// Metadata as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMetadata {
    kind: FileKind,
    size: u64,
    /// Seconds and nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<(i64, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
}

impl From<Metadata> for WireMetadata {
    fn from(metadata: Metadata) -> Self {
        let modified = metadata.modified.map(|at| match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
            Err(before) => (-i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX), 0),
        });
        Self { kind: metadata.kind, size: metadata.size, modified, mode: metadata.mode }
    }
}

impl From<WireMetadata> for Metadata {
    fn from(wire: WireMetadata) -> Self {
        let mut metadata = Self::new(wire.kind, wire.size);
        metadata.mode = wire.mode;
        metadata.modified = wire.modified.and_then(|(seconds, nanos)| {
            let whole = Duration::from_secs(seconds.unsigned_abs());
            let epoch = SystemTime::UNIX_EPOCH;
            let at = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
            at?.checked_add(Duration::from_nanos(nanos.into()))
        });
        metadata
    }
}

/// Metadata within a message that callers see.
pub(crate) mod wire_metadata {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use wsm_core::Metadata;

    use super::WireMetadata;

    pub(crate) fn serialize<S: Serializer>(metadata: &Metadata, serializer: S) -> Result<S::Ok, S::Error> {
        WireMetadata::from(metadata.clone()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        WireMetadata::deserialize(deserializer).map(Into::into)
    }
}

/// An entry of a directory as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireEntry {
    name: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    escaped: bool,
    metadata: WireMetadata,
}

impl From<DirEntry> for WireEntry {
    fn from(entry: DirEntry) -> Self {
        Self { name: entry.name, escaped: entry.escaped, metadata: entry.metadata.into() }
    }
}

impl From<WireEntry> for DirEntry {
    fn from(wire: WireEntry) -> Self {
        let mut entry = Self::new(wire.name.as_bytes(), wire.metadata.into());
        entry.escaped = wire.escaped;
        entry
    }
}

/// An error as it travels: what a caller decides by, and the text. The source is in the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireError {
    kind: ErrorKind,
    code: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

/// The codes and fields that callers know. Anything else travels as the kind's own name.
const CODES: [&str; 17] = [
    "program_not_found",
    "program_not_executable",
    "path_outside",
    "is_a_directory",
    "not_a_directory",
    "not_a_file",
    "directory_not_empty",
    "too_large",
    "not_utf8",
    "gateway_version",
    "unsafe_archive",
    "bad_archive",
    "mcp_server_unknown",
    "mcp_start_failed",
    "mcp_server_ended",
    "mcp_request_failed",
    "mcp_unauthorized",
];
const FIELDS: [&str; 16] = [
    "command",
    "cwd",
    "env",
    "stdin",
    "timeout",
    "path",
    "pattern",
    "limit",
    "globs",
    "types",
    "context",
    "archive",
    "name",
    "url",
    "headers",
    "arguments",
];

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        let mut message = error.message().to_owned();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            message.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Self { kind: error.kind(), code: error.code().to_owned(), message, field: error.field().map(str::to_owned) }
    }
}

impl From<WireError> for Error {
    fn from(wire: WireError) -> Self {
        let WireError { kind, code, message, field } = wire;
        let mut error = Self::new(kind, message);
        if let Some(known) = CODES.into_iter().find(|known| *known == code) {
            error = error.with_code(known);
        }
        if let Some(known) = field.and_then(|field| FIELDS.into_iter().find(|known| *known == field)) {
            error = error.with_field(known);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_what_callers_decide_by() {
        let error = Error::invalid("command", "the program does not exist").with_code("program_not_found");
        let back = Error::from(WireError::from(&error.clone().with_source(std::io::Error::other("why"))));
        assert_eq!((back.kind(), back.code(), back.field()), (error.kind(), error.code(), error.field()));
        assert_eq!(back.message(), "the program does not exist: why");
    }

    #[test]
    fn times_before_1970_and_odd_names_survive() {
        for at in [SystemTime::UNIX_EPOCH - Duration::from_secs(5), SystemTime::UNIX_EPOCH + Duration::new(7, 9)] {
            let metadata = Metadata::new(FileKind::File, 3).with_modified(at).with_mode(0o644);
            assert_eq!(Metadata::from(WireMetadata::from(metadata.clone())), metadata);
        }
        let entry = DirEntry::new(b"bad\xffname", Metadata::new(FileKind::File, 0));
        assert_eq!(DirEntry::from(WireEntry::from(entry.clone())), entry);
    }
}
