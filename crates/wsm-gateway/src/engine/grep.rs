//! Finds lines of text files.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};
use ignore::{DirEntry, WalkBuilder, overrides::OverrideBuilder, types::TypesBuilder};
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::sync::mpsc;
use wsm_core::{Error, Result};

use super::{
    emit::{Emitter, Flow, Stop, Watch},
    line::{Text, text},
    walk::{Place, builder, io_problem, walk},
};
use crate::{GrepBinary, GrepEvent, GrepFile, GrepLine, GrepMode, GrepRequest, Truncated};

const LONGEST_PATTERN: usize = 64 << 10;
/// How large a compiled pattern, and what it keeps while it searches, may become.
const MOST_PATTERN_BYTES: usize = 8 << 20;
/// How long a line, or a file that is searched over the borders of lines, may be.
const MOST_HEAP_BYTES: usize = 32 << 20;
const MOST_CONTEXT: usize = 1_000;
const MOST_HITS: usize = 1_000_000;
const LINE_BYTES: std::ops::RangeInclusive<usize> = 16..=65_536;
const MOST_GLOBS: usize = 1_000;

/// A search that can begin.
#[derive(Debug)]
pub(super) struct Plan {
    place: Place,
    walk: WalkBuilder,
    matcher: RegexMatcher,
    request: GrepRequest,
}

impl Plan {
    /// # Errors
    ///
    /// `invalid_input` about what in the request can not be used; `not_found` about `path`.
    pub(super) fn new(workdir: &Path, request: GrepRequest) -> Result<Self> {
        let matcher = matcher(&request)?;
        let GrepRequest { before, after, limit, max_line_bytes, .. } = request;
        if before.max(after) > MOST_CONTEXT {
            return Err(Error::invalid("context", format!("at most {MOST_CONTEXT} lines before and after a hit")));
        }
        if !(1..=MOST_HITS).contains(&limit) {
            return Err(Error::invalid("limit", format!("`limit` is between 1 and {MOST_HITS}, not {limit}")));
        }
        if !LINE_BYTES.contains(&max_line_bytes) {
            let (least, most) = (LINE_BYTES.start(), LINE_BYTES.end());
            let message = format!("`max_line_bytes` is between {least} and {most}, not {max_line_bytes}");
            return Err(Error::invalid("limit", message));
        }
        let place = Place::open(workdir, request.walk.path.as_deref())?;
        let mut walk = builder(&place, &request.walk);
        walk.sort_by_file_name(Ord::cmp);
        if !request.globs.is_empty() {
            let unclear = |cause: ignore::Error| {
                Error::invalid("globs", "the patterns of paths can not be used").with_source(cause)
            };
            if request.globs.len() > MOST_GLOBS || request.globs.iter().any(|glob| glob.len() > LONGEST_PATTERN) {
                return Err(Error::invalid("globs", "too many patterns of paths, or too long ones"));
            }
            let mut overrides = OverrideBuilder::new(&place.root);
            for glob in &request.globs {
                overrides.add(glob).map_err(unclear)?;
            }
            walk.overrides(overrides.build().map_err(unclear)?);
        }
        if !request.types.is_empty() {
            let mut types = TypesBuilder::new();
            types.add_defaults();
            for name in &request.types {
                types.select(name);
            }
            walk.types(
                types.build().map_err(|cause| {
                    Error::invalid("types", "the kinds of files can not be used").with_source(cause)
                })?,
            );
        }
        Ok(Self { place, walk, matcher, request })
    }

    pub(super) fn run(self, sender: mpsc::Sender<GrepEvent>) {
        let Self { place, walk: builder, matcher, request } = self;
        let mut emitter = Emitter::new(sender, request.walk.timeout_ms, request.walk.max_entries);
        let mut searcher = searcher(&request);
        let (mut hits, mut bytes) = (0, 0);
        let flow = walk(builder, &place, &mut emitter, |emitter, entry| {
            let Some(file) = open(&place, emitter, entry, request.walk.follow_links)? else { return Ok(()) };
            let (path, escaped) = place.shown(entry.path());
            let reader = Watched { file, watch: emitter.watch.clone() };
            let mut hit = Hits {
                emitter,
                matcher: &matcher,
                request: &request,
                path,
                escaped,
                before: Vec::new(),
                count: 0,
                hits: &mut hits,
                bytes: &mut bytes,
                stop: None,
            };
            let result = searcher.search_reader(&matcher, reader, &mut hit);
            let Hits { path, stop, .. } = hit;
            if let Some(stop) = stop {
                return Err(stop);
            }
            if let Err(cause) = result {
                // That the search is to end comes from reading, too.
                emitter.watch.check()?;
                if let Some(problem) = io_problem(path, &cause) {
                    emitter.problem(problem)?;
                }
            }
            Ok(())
        });
        emitter.finish(flow);
    }
}

fn matcher(request: &GrepRequest) -> Result<RegexMatcher> {
    let GrepRequest { pattern, fixed_strings, case_insensitive, word, multiline, .. } = request;
    if pattern.is_empty() || pattern.len() > LONGEST_PATTERN {
        return Err(Error::invalid("pattern", format!("a pattern has between 1 and {LONGEST_PATTERN} bytes")));
    }
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .case_insensitive(*case_insensitive)
        .word(*word)
        .fixed_strings(*fixed_strings)
        .dot_matches_new_line(*multiline)
        .size_limit(MOST_PATTERN_BYTES)
        .dfa_size_limit(MOST_PATTERN_BYTES);
    if !multiline {
        builder.line_terminator(Some(b'\n'));
    }
    builder.build(pattern).map_err(|cause| {
        let message = match cause.kind() {
            grep_regex::ErrorKind::NotAllowed(_) => "a pattern with a line's end in it needs `multiline`",
            _ => "the pattern can not be used: use `fixed_strings` to find it as it is",
        };
        Error::invalid("pattern", message).with_source(cause)
    })
}

fn searcher(request: &GrepRequest) -> Searcher {
    let GrepRequest { multiline, before, after, mode, .. } = *request;
    let mut builder = SearcherBuilder::new();
    builder
        .line_number(true)
        .multi_line(multiline)
        .heap_limit(Some(MOST_HEAP_BYTES))
        .binary_detection(BinaryDetection::quit(0));
    if mode == GrepMode::Content {
        builder.before_context(before).after_context(after);
    }
    builder.build()
}

/// Opens what can be searched. None for everything else.
fn open(place: &Place, emitter: &mut Emitter<GrepEvent>, entry: &DirEntry, follow: bool) -> Flow<Option<File>> {
    if !entry.file_type().is_some_and(|kind| kind.is_file()) {
        return Ok(None);
    }
    // Opening what has become a pipe meanwhile must not wait for anybody.
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    let opened = openat(CWD, entry.path(), flags, Mode::empty()).map(File::from).map_err(io::Error::from);
    match opened.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
        Ok((true, file)) => Ok(Some(file)),
        Ok((false, _)) => Ok(None),
        Err(cause) => {
            if let Some(problem) = io_problem(place.shown(entry.path()).0, &cause) {
                emitter.problem(problem)?;
            }
            Ok(None)
        }
    }
}

/// Reads for as long as the search is to go on.
struct Watched {
    file: File,
    watch: Watch<GrepEvent>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.watch.check().is_err() {
            return Err(io::Error::other("the search is to end"));
        }
        self.file.read(buffer)
    }
}

/// Takes the hits of one file.
struct Hits<'a> {
    emitter: &'a mut Emitter<GrepEvent>,
    matcher: &'a RegexMatcher,
    request: &'a GrepRequest,
    path: String,
    escaped: bool,
    /// Lines before a hit that may be one too many.
    before: Vec<GrepLine>,
    /// How many hits the file has.
    count: u64,
    /// How many lines with hits, or files, were given.
    hits: &'a mut usize,
    /// How many bytes were given.
    bytes: &'a mut u64,
    stop: Option<Stop>,
}

impl Hits<'_> {
    /// Whether to go on with the file.
    fn goes_on(&mut self, flow: Flow) -> bool {
        self.stop = flow.err();
        self.stop.is_none()
    }

    fn line(&self, line: &[u8], number: u64, is_match: bool) -> GrepLine {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let hit = if is_match { self.matcher.find(line).ok().flatten() } else { None };
        let hit = hit.map(|hit| hit.start()..hit.end());
        let Text { text, lossy, cut } = text(line, hit.as_ref(), self.request.max_line_bytes);
        let column = hit.map(|hit| hit.start as u64 + 1);
        GrepLine { path: self.path.clone(), escaped: self.escaped, line: number, is_match, column, text, lossy, cut }
    }

    fn give_line(&mut self, line: GrepLine) -> Flow {
        if line.is_match {
            self.take_one()?;
        }
        self.pay(line.path.len() + line.text.len())?;
        self.emitter.emit(GrepEvent::Line(line))
    }

    fn give_file(&mut self, count: Option<u64>) -> Flow {
        self.take_one()?;
        self.pay(self.path.len())?;
        let file = GrepFile { path: self.path.clone(), escaped: self.escaped, count };
        self.emitter.emit(GrepEvent::File(file))
    }

    fn take_one(&mut self) -> Flow {
        if *self.hits == self.request.limit {
            return Err(Stop::Truncated(Truncated::Limit));
        }
        *self.hits += 1;
        Ok(())
    }

    fn pay(&mut self, bytes: usize) -> Flow {
        *self.bytes += bytes as u64;
        if *self.bytes > self.request.max_bytes { Err(Stop::Truncated(Truncated::Bytes)) } else { Ok(()) }
    }

    fn give_match(&mut self, found: &SinkMatch<'_>) -> Flow {
        if *self.hits == self.request.limit {
            return Err(Stop::Truncated(Truncated::Limit));
        }
        for line in std::mem::take(&mut self.before) {
            self.give_line(line)?;
        }
        let first = found.line_number().unwrap_or(1);
        for (number, line) in (first..).zip(found.lines()) {
            self.give_line(self.line(line, number, true))?;
        }
        Ok(())
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.count += 1;
        let flow = match self.request.mode {
            GrepMode::Content => {
                self.emitter.end.matches += 1;
                self.give_match(found)
            }
            // One is enough.
            GrepMode::FilesWithMatches => return Ok(false),
            GrepMode::Count => self.emitter.watch.check(),
        };
        Ok(self.goes_on(flow))
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = self.line(context.bytes(), context.line_number().unwrap_or(1), false);
        if matches!(context.kind(), SinkContextKind::Before) {
            self.before.push(line);
            return Ok(true);
        }
        let flow = self.give_line(line);
        Ok(self.goes_on(flow))
    }

    fn binary_data(&mut self, _: &Searcher, offset: u64) -> io::Result<bool> {
        let binary = GrepBinary { path: self.path.clone(), escaped: self.escaped, offset };
        let flow = self.pay(self.path.len()).and_then(|()| self.emitter.emit(GrepEvent::Binary(binary)));
        self.goes_on(flow);
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, _: &SinkFinish) -> io::Result<()> {
        if self.count == 0 || self.stop.is_some() {
            return Ok(());
        }
        let flow = match self.request.mode {
            GrepMode::Content => return Ok(()),
            GrepMode::FilesWithMatches => {
                self.emitter.end.matches += 1;
                self.give_file(None)
            }
            GrepMode::Count => {
                self.emitter.end.matches += self.count;
                self.give_file(Some(self.count))
            }
        };
        self.goes_on(flow);
        Ok(())
    }
}
