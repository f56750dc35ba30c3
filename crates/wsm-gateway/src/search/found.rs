//! What a search finds.

use serde::{Deserialize, Serialize};
use wsm_core::Metadata;

use crate::message::wire_metadata;

/// One path that matches a [`GlobRequest`](crate::GlobRequest).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GlobEntry {
    /// The path, as a path of the workspace that begins like the request's. What is not UTF-8 is written `\xNN`.
    pub path: String,
    /// Whether the real path is not UTF-8, so that `path` does not open the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// What is known of the entry itself, not of what a link points to, unless links are followed.
    #[serde(with = "wire_metadata")]
    pub metadata: Metadata,
}

impl GlobEntry {
    /// An entry with a path that is UTF-8.
    pub fn new(path: impl Into<String>, metadata: Metadata) -> Self {
        Self { path: path.into(), escaped: false, metadata }
    }
}

/// Something that could not be looked at. The search went on without it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// Where, as a path of the workspace; empty when it is about no path. What is not UTF-8 is written `\xNN`.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl Problem {
    /// Says what is wrong at a path.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// Why a search ended before it had seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Truncated {
    /// There is more than `limit` allows.
    Limit,
    /// There is more than `max_bytes` allows.
    Bytes,
    /// `max_entries` were looked at.
    Entries,
    /// The time was over.
    Timeout,
}

/// How a search ended. Always its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SearchEnd {
    /// Why it is not all; none when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
    /// How many files, directories and others were looked at.
    pub entries: u64,
    /// How many hits there were until the end, also those beyond the limit that were seen.
    pub matches: u64,
    /// How many things could not be looked at. The first 100 are told as [`Problem`]s.
    #[serde(default)]
    pub problems: u64,
}

/// One thing that a [`GlobRequest`](crate::GlobRequest) gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum GlobEvent {
    /// A path that matches.
    Entry(GlobEntry),
    /// Something that could not be looked at.
    Problem(Problem),
    /// The end.
    End(SearchEnd),
}

/// All that a [`GlobRequest`](crate::GlobRequest) gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GlobResult {
    /// The paths that match, the ones that were changed last first; at the same time, in the order of their paths.
    pub entries: Vec<GlobEntry>,
    /// What could not be looked at.
    pub problems: Vec<Problem>,
    /// How it ended.
    pub end: SearchEnd,
}

/// One line of a file with a hit, or beside one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GrepLine {
    /// The file, as a path of the workspace that begins like the request's. What is not UTF-8 is written `\xNN`.
    pub path: String,
    /// Whether the real path is not UTF-8, so that `path` does not open the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// The number of the line, from 1 on.
    pub line: u64,
    /// Whether the line has a hit; else it is there for its neighbour.
    pub is_match: bool,
    /// The byte of the line at which its first hit begins, from 1 on. None for lines without one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// The line without its end.
    pub text: String,
    /// Whether the line is not UTF-8, so that `text` has replacement characters in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// Whether `text` is a part of the line.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

impl GrepLine {
    /// A whole line of a file, both UTF-8.
    pub fn new(path: impl Into<String>, line: u64, text: impl Into<String>, is_match: bool) -> Self {
        let (path, text) = (path.into(), text.into());
        Self { path, escaped: false, line, is_match, column: None, text, lossy: false, cut: false }
    }
}

/// A file with hits, where no lines are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GrepFile {
    /// The file, as in [`GrepLine::path`].
    pub path: String,
    /// As [`GrepLine::escaped`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// How many lines of it have hits, or with `multiline` how many hits there are; none when it was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

impl GrepFile {
    /// A file with a path that is UTF-8.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), escaped: false, count: None }
    }
}

/// A file that is not text, and was searched no further than where that shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GrepBinary {
    /// The file, as in [`GrepLine::path`].
    pub path: String,
    /// As [`GrepLine::escaped`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
    /// The first byte that no text has.
    pub offset: u64,
}

impl GrepBinary {
    /// A file with a path that is UTF-8.
    pub fn new(path: impl Into<String>, offset: u64) -> Self {
        Self { path: path.into(), escaped: false, offset }
    }
}

/// One thing that a [`GrepRequest`](crate::GrepRequest) gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum GrepEvent {
    /// A line.
    Line(GrepLine),
    /// A file, where no lines are asked for.
    File(GrepFile),
    /// A file that is not text.
    Binary(GrepBinary),
    /// Something that could not be looked at.
    Problem(Problem),
    /// The end.
    End(SearchEnd),
}

/// All that a [`GrepRequest`](crate::GrepRequest) gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GrepResult {
    /// The lines, file by file.
    pub lines: Vec<GrepLine>,
    /// The files, where no lines are asked for.
    pub files: Vec<GrepFile>,
    /// The files that are not text.
    pub binaries: Vec<GrepBinary>,
    /// What could not be looked at.
    pub problems: Vec<Problem>,
    /// How it ended.
    pub end: SearchEnd,
}
