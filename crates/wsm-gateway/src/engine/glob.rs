//! Finds files by their paths.

use std::{cmp::Reverse, collections::BinaryHeap, path::Path, time::SystemTime};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use tokio::sync::mpsc;
use wsm_core::{Error, ErrorKind, Metadata, Result};

use super::{
    emit::{Emitter, Flow, Stop},
    walk::{Place, builder, metadata, walk},
};
use crate::{GlobEntry, GlobEvent, GlobKind, GlobRequest, Problem, Truncated, WalkOptions};

const LONGEST_PATTERN: usize = 4096;
const MOST_ENTRIES: usize = 100_000;

/// A search that can begin.
#[derive(Debug)]
pub(super) struct Plan {
    /// None when the directory that the pattern names does not exist.
    place: Option<Place>,
    set: GlobSet,
    kind: GlobKind,
    limit: usize,
    walk: WalkOptions,
}

/// What was found. The larger one is to be told first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    modified: Option<SystemTime>,
    path: Reverse<String>,
    escaped: bool,
    size: u64,
    rest: Ignored<Metadata>,
}

/// What does not count in an order.
#[derive(Debug)]
struct Ignored<T>(T);

impl<T> PartialEq for Ignored<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Ignored<T> {}

impl<T> PartialOrd for Ignored<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Ignored<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Plan {
    /// # Errors
    ///
    /// `invalid_input` about `pattern`, `path` or `limit`; `not_found` about `path`.
    pub(super) fn new(workdir: &Path, request: GlobRequest) -> Result<Self> {
        let GlobRequest { pattern, mut walk, kind, case_insensitive, limit } = request;
        if pattern.is_empty() || pattern.len() > LONGEST_PATTERN || pattern.contains('\0') {
            let message = format!("a pattern has between 1 and {LONGEST_PATTERN} bytes, and no NUL");
            return Err(Error::invalid("pattern", message));
        }
        if !(1..=MOST_ENTRIES).contains(&limit) {
            return Err(Error::invalid("limit", format!("`limit` is between 1 and {MOST_ENTRIES}, not {limit}")));
        }
        let (literal, rest) = split(&pattern);
        let unclear = |cause: globset::Error| {
            Error::invalid("pattern", format!("`{pattern}` is not a pattern")).with_source(cause.kind().to_string())
        };
        let mut glob = GlobBuilder::new(rest);
        let glob = glob.literal_separator(true).backslash_escape(true).empty_alternates(true);
        let glob = glob.case_insensitive(case_insensitive).build().map_err(unclear)?;
        let set = GlobSetBuilder::new().add(glob).build().map_err(unclear)?;

        let given = Place::open(workdir, walk.path.as_deref())?;
        let place = match literal {
            "" => Some(given),
            literal => {
                let start = match &walk.path {
                    Some(path) if !literal.starts_with('/') => format!("{}/{literal}", path.trim_end_matches('/')),
                    _ => literal.to_owned(),
                };
                match Place::open(workdir, Some(&start)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    place => Some(place?),
                }
            }
        };
        walk.hidden |= rest.split('/').any(|name| name.starts_with('.'));
        if !rest.contains("**") {
            let deep = rest.matches('/').count() + 1;
            walk.max_depth = Some(walk.max_depth.map_or(deep, |depth| depth.min(deep)));
        }
        Ok(Self { place, set, kind, limit, walk })
    }

    pub(super) fn run(self, sender: mpsc::Sender<GlobEvent>) {
        let mut emitter = Emitter::new(sender, self.walk.timeout_ms, self.walk.max_entries);
        let flow = self.search(&mut emitter);
        emitter.finish(flow);
    }

    fn search(self, emitter: &mut Emitter<GlobEvent>) -> Flow {
        let Self { place: Some(place), set, kind, limit, walk: options } = self else { return Ok(()) };
        let mut best: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        let flow = walk(builder(&place, &options), &place, emitter, |emitter, entry| {
            let Ok(below) = entry.path().strip_prefix(&place.root) else { return Ok(()) };
            let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
            let wanted = match kind {
                GlobKind::Files => !is_dir,
                GlobKind::Directories => is_dir,
                GlobKind::Any => true,
            };
            if entry.depth() == 0 || !wanted || !set.is_match(below) {
                return Ok(());
            }
            let (path, escaped) = place.shown(entry.path());
            let found = match entry.metadata() {
                Ok(found) => metadata(&found),
                // It has vanished, or is a link to nothing.
                Err(_) if !options.follow_links => return Ok(()),
                Err(error) => return emitter.problem(Problem::new(path, error.to_string())),
            };
            emitter.end.matches += 1;
            best.push(Reverse(Candidate {
                modified: found.modified,
                path: Reverse(path),
                escaped,
                size: found.size,
                rest: Ignored(found),
            }));
            if best.len() > limit {
                best.pop();
            }
            Ok(())
        });
        if flow == Err(Stop::Abandoned) {
            return flow;
        }
        for Reverse(candidate) in best.into_sorted_vec() {
            let Candidate { path: Reverse(path), escaped, rest: Ignored(metadata), .. } = candidate;
            emitter.emit(GlobEvent::Entry(GlobEntry { path, escaped, metadata }))?;
        }
        if flow.is_ok() && emitter.end.matches > limit as u64 {
            return Err(Stop::Truncated(Truncated::Limit));
        }
        flow
    }
}

/// The part of a pattern that names one directory, and the pattern for what is below.
fn split(pattern: &str) -> (&str, &str) {
    let pattern = pattern.trim_end_matches('/').trim_start_matches("./");
    let special = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    match pattern[..special].rfind('/') {
        Some(0) => ("/", &pattern[1..]),
        Some(slash) => (&pattern[..slash], &pattern[slash + 1..]),
        None => ("", pattern),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_that_a_pattern_names_is_where_the_search_starts() {
        for (pattern, parts) in [
            ("*.rs", ("", "*.rs")),
            ("./*.rs", ("", "*.rs")),
            ("src/**/*.rs", ("src", "**/*.rs")),
            ("a/b/c.rs", ("a/b", "c.rs")),
            ("/*", ("/", "*")),
            ("/w/x*/y", ("/w", "x*/y")),
            ("a/{b/c,d}/", ("a", "{b/c,d}")),
            ("../x/[ab]", ("../x", "[ab]")),
        ] {
            assert_eq!(split(pattern), parts, "{pattern}");
        }
    }
}
