//! What a search is asked for.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where a search goes, and when it stops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct WalkOptions {
    /// The directory or file to search, as a path of the workspace. None for the workspace directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether names that begin with a dot are looked at. By default they are not.
    pub hidden: bool,
    /// Whether `.gitignore` and `.ignore` files are obeyed, also outside of a git repository. By default they are.
    pub ignore_files: bool,
    /// Whether symbolic links are followed. By default they are not. One that leads out of `path` never is.
    pub follow_links: bool,
    /// How many directories deep to go; 1 is the directory itself. None for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<usize>,
    /// How many entries to look at; what was found until then is the result. 1,000,000 by default.
    pub max_entries: u64,
    /// How many milliseconds to search; what was found until then is the result. 60,000 by default.
    pub timeout_ms: u64,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            path: None,
            hidden: false,
            ignore_files: true,
            follow_links: false,
            max_depth: None,
            max_entries: 1_000_000,
            timeout_ms: 60_000,
        }
    }
}

impl WalkOptions {
    /// Searches this directory or file.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Sets [`hidden`](Self::hidden).
    #[must_use]
    pub fn with_hidden(mut self, yes: bool) -> Self {
        self.hidden = yes;
        self
    }

    /// Sets [`ignore_files`](Self::ignore_files).
    #[must_use]
    pub fn with_ignore_files(mut self, yes: bool) -> Self {
        self.ignore_files = yes;
        self
    }

    /// Sets [`follow_links`](Self::follow_links).
    #[must_use]
    pub fn with_follow_links(mut self, yes: bool) -> Self {
        self.follow_links = yes;
        self
    }

    /// Goes this many directories deep.
    #[must_use]
    pub fn with_max_depth(mut self, depth: usize) -> Self {
        self.max_depth = Some(depth);
        self
    }

    /// Looks at this many entries at most.
    #[must_use]
    pub fn with_max_entries(mut self, entries: u64) -> Self {
        self.max_entries = entries;
        self
    }

    /// Searches for this long at most, in whole milliseconds.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self
    }
}

/// What kinds of entries a [`GlobRequest`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GlobKind {
    /// Everything but directories.
    #[default]
    Files,
    /// Nothing but directories.
    Directories,
    /// Everything.
    Any,
}

/// Asks for the files whose path matches a pattern, the ones that were changed last first.
///
/// In a pattern, `*` and `?` stand for anything within one name, `**` for any number of directories, `[a-z]` for one
/// character of many, and `{a,b}` for one of several patterns. A pattern is matched against the whole path below
/// [`WalkOptions::path`]: `*.rs` finds what lies directly there, `**/*.rs` what lies anywhere below. An absolute pattern is
/// searched from where its first special character stands. Names that begin with a dot are looked at when the pattern names
/// one, such as `**/.env`.
///
/// ```
/// use wsm_gateway::{GlobRequest, WalkOptions};
///
/// let request = GlobRequest::new("**/*.rs").with_walk(WalkOptions::default().with_path("crates")).with_limit(50);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GlobRequest {
    /// The pattern.
    pub pattern: String,
    /// Where to look.
    #[serde(default)]
    pub walk: WalkOptions,
    /// What to look for.
    #[serde(default)]
    pub kind: GlobKind,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    pub case_insensitive: bool,
    /// How many entries to give, between 1 and 100,000. 1,000 by default.
    #[serde(default = "default_glob_limit")]
    pub limit: usize,
}

fn default_glob_limit() -> usize {
    1_000
}

impl GlobRequest {
    /// Asks for the files below the workspace directory that match a pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        let (walk, kind, limit) = (WalkOptions::default(), GlobKind::default(), default_glob_limit());
        Self { pattern: pattern.into(), walk, kind, case_insensitive: false, limit }
    }

    /// Sets [`walk`](Self::walk).
    #[must_use]
    pub fn with_walk(mut self, walk: WalkOptions) -> Self {
        self.walk = walk;
        self
    }

    /// Sets [`kind`](Self::kind).
    #[must_use]
    pub fn with_kind(mut self, kind: GlobKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets [`case_insensitive`](Self::case_insensitive).
    #[must_use]
    pub fn with_case_insensitive(mut self, yes: bool) -> Self {
        self.case_insensitive = yes;
        self
    }

    /// Sets [`limit`](Self::limit).
    #[must_use]
    pub fn with_limit(mut self, entries: usize) -> Self {
        self.limit = entries;
        self
    }
}

/// What a [`GrepRequest`] gives for a file with hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GrepMode {
    /// The lines.
    #[default]
    Content,
    /// Its path.
    FilesWithMatches,
    /// Its path, and how many hits it has.
    Count,
}

/// Asks for the lines of text files that match a regular expression, file by file in the order of their paths.
///
/// The syntax is that of the `regex` crate: like Perl's without look-around and references to groups, and it needs time in
/// proportion to the text, whatever the pattern.
///
/// ```
/// use wsm_gateway::{GrepMode, GrepRequest};
///
/// let request = GrepRequest::new(r"fn \w+_test").with_types(["rust"]).with_mode(GrepMode::FilesWithMatches);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GrepRequest {
    /// The regular expression, or the text with `fixed_strings`.
    pub pattern: String,
    /// Where to look.
    #[serde(default)]
    pub walk: WalkOptions,
    /// Whether the pattern is a text to be found as it is.
    #[serde(default)]
    pub fixed_strings: bool,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    pub case_insensitive: bool,
    /// Whether a hit must begin and end at the border of a word.
    #[serde(default)]
    pub word: bool,
    /// Whether a hit may span lines, and `.` stands for a line's end too. A file is then read as a whole, up to 32 MiB.
    #[serde(default)]
    pub multiline: bool,
    /// How many lines before each hit to give, up to 1,000.
    #[serde(default)]
    pub before: usize,
    /// How many lines after each hit to give, up to 1,000.
    #[serde(default)]
    pub after: usize,
    /// Patterns of which a file's path must match one, as those of `.gitignore`: `*.rs`, `src/**`, `!*.min.js` for what to
    /// leave out. A file that matches one is searched even if an ignore file names it.
    #[serde(default)]
    pub globs: Vec<String>,
    /// Kinds of files to search, such as `rust`, `py` or `markdown`. All when empty.
    #[serde(default)]
    pub types: Vec<String>,
    /// What to give for a file with hits.
    #[serde(default)]
    pub mode: GrepMode,
    /// How many lines with hits to give, or files where no lines are given; between 1 and 1,000,000. 1,000 by default.
    #[serde(default = "default_grep_limit")]
    pub limit: usize,
    /// How many bytes of a line to give, around its first hit; between 16 and 65,536. 2,000 by default.
    #[serde(default = "default_max_line_bytes")]
    pub max_line_bytes: usize,
    /// How many bytes of paths and lines to give in all. 8 MiB by default.
    #[serde(default = "default_max_bytes")]
    pub max_bytes: u64,
}

fn default_grep_limit() -> usize {
    1_000
}

fn default_max_line_bytes() -> usize {
    2_000
}

fn default_max_bytes() -> u64 {
    8 << 20
}

impl GrepRequest {
    /// Asks for the lines below the workspace directory that match a regular expression.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            walk: WalkOptions::default(),
            fixed_strings: false,
            case_insensitive: false,
            word: false,
            multiline: false,
            before: 0,
            after: 0,
            globs: Vec::new(),
            types: Vec::new(),
            mode: GrepMode::default(),
            limit: default_grep_limit(),
            max_line_bytes: default_max_line_bytes(),
            max_bytes: default_max_bytes(),
        }
    }

    /// Sets [`walk`](Self::walk).
    #[must_use]
    pub fn with_walk(mut self, walk: WalkOptions) -> Self {
        self.walk = walk;
        self
    }

    /// Sets [`fixed_strings`](Self::fixed_strings).
    #[must_use]
    pub fn with_fixed_strings(mut self, yes: bool) -> Self {
        self.fixed_strings = yes;
        self
    }

    /// Sets [`case_insensitive`](Self::case_insensitive).
    #[must_use]
    pub fn with_case_insensitive(mut self, yes: bool) -> Self {
        self.case_insensitive = yes;
        self
    }

    /// Sets [`word`](Self::word).
    #[must_use]
    pub fn with_word(mut self, yes: bool) -> Self {
        self.word = yes;
        self
    }

    /// Sets [`multiline`](Self::multiline).
    #[must_use]
    pub fn with_multiline(mut self, yes: bool) -> Self {
        self.multiline = yes;
        self
    }

    /// Sets [`before`](Self::before) and [`after`](Self::after).
    #[must_use]
    pub fn with_context(mut self, before: usize, after: usize) -> Self {
        (self.before, self.after) = (before, after);
        self
    }

    /// Sets [`globs`](Self::globs).
    #[must_use]
    pub fn with_globs<S: Into<String>>(mut self, globs: impl IntoIterator<Item = S>) -> Self {
        self.globs = globs.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`types`](Self::types).
    #[must_use]
    pub fn with_types<S: Into<String>>(mut self, types: impl IntoIterator<Item = S>) -> Self {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(mut self, mode: GrepMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`limit`](Self::limit).
    #[must_use]
    pub fn with_limit(mut self, hits: usize) -> Self {
        self.limit = hits;
        self
    }

    /// Sets [`max_line_bytes`](Self::max_line_bytes).
    #[must_use]
    pub fn with_max_line_bytes(mut self, bytes: usize) -> Self {
        self.max_line_bytes = bytes;
        self
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }
}
