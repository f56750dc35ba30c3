//! Goes through directories the way every search does.

use std::{
    fs,
    io::ErrorKind as IoErrorKind,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ignore::{DirEntry, WalkBuilder};
use parking_lot::Mutex;
use wsm_core::{DirEntry as CoreEntry, Error, ErrorKind, FileKind, Metadata, Result, validate_path};

use super::emit::{Emitter, Event, Flow};
use crate::{Problem, WalkOptions};

/// Where a search starts, and how the caller calls it.
#[derive(Debug)]
pub(super) struct Place {
    /// Without links, so that what is below can be told from what is not.
    pub(super) root: PathBuf,
    shown: String,
}

impl Place {
    /// # Errors
    ///
    /// `invalid_input` or `not_found` about `path`.
    pub(super) fn open(workdir: &Path, path: Option<&str>) -> Result<Self> {
        let shown = path.unwrap_or(".");
        validate_path(shown)?;
        let root = fs::canonicalize(workdir.join(shown)).map_err(|cause| {
            let error = match cause.kind() {
                IoErrorKind::NotFound | IoErrorKind::NotADirectory => {
                    Error::new(ErrorKind::NotFound, format!("`{shown}` does not exist"))
                }
                IoErrorKind::PermissionDenied => {
                    Error::new(ErrorKind::PermissionDenied, format!("the file system does not allow this on `{shown}`"))
                }
                _ => Error::invalid("path", format!("`{shown}` can not be searched")),
            };
            error.with_field("path").with_source(cause)
        })?;
        Ok(Self { root, shown: shown.trim_end_matches('/').to_owned() })
    }

    /// A path below the start as a path of the workspace, and whether it had to be escaped.
    pub(super) fn shown(&self, path: &Path) -> (String, bool) {
        let below = path.strip_prefix(&self.root).unwrap_or(path).as_os_str().as_bytes();
        let prefix = match self.shown.as_str() {
            "." => None,
            shown => Some(shown),
        };
        let whole = match (prefix, below) {
            (None, b"") => b".".to_vec(),
            (None, below) => below.to_vec(),
            // The root of all was trimmed to nothing.
            (Some(""), b"") => b"/".to_vec(),
            (Some(prefix), b"") => prefix.as_bytes().to_vec(),
            (Some(prefix), below) => [prefix.as_bytes(), b"/", below].concat(),
        };
        let CoreEntry { name, escaped, .. } = CoreEntry::new(&whole, Metadata::new(FileKind::Other, 0));
        (name, escaped)
    }
}

/// Prepares for going through a directory.
pub(super) fn builder(place: &Place, options: &WalkOptions) -> WalkBuilder {
    // The other two are for the emitter.
    let WalkOptions { path: _, hidden, ignore_files, follow_links, max_depth, max_entries: _, timeout_ms: _ } = options;
    let mut builder = WalkBuilder::new(&place.root);
    builder
        .current_dir(&place.root)
        .hidden(!hidden)
        .ignore(*ignore_files)
        .parents(*ignore_files)
        .git_ignore(*ignore_files)
        .git_exclude(*ignore_files)
        // What somebody's own settings ignore elsewhere is no business of a workspace.
        .git_global(false)
        .require_git(false)
        .follow_links(*follow_links)
        .max_depth(*max_depth);
    builder
}

/// Looks at everything, until something says to stop.
pub(super) fn walk<T: Event>(
    mut builder: WalkBuilder,
    place: &Place,
    emitter: &mut Emitter<T>,
    mut visit: impl FnMut(&mut Emitter<T>, &DirEntry) -> Flow,
) -> Flow {
    let outside: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
    let (root, found_outside) = (place.root.clone(), Arc::clone(&outside));
    builder.filter_entry(move |entry| {
        // Without following, a link is an entry like any other.
        let followed = entry.depth() > 0 && entry.path_is_symlink() && !is_symlink(entry);
        if !followed || fs::canonicalize(entry.path()).is_ok_and(|target| target.starts_with(&root)) {
            return true;
        }
        found_outside.lock().push(entry.path().to_owned());
        false
    });
    for entry in builder.build() {
        match entry {
            Ok(entry) => {
                emitter.entry()?;
                // An ignore file with a line that can not be understood.
                if let Some(problem) = entry.error().and_then(|error| problem_of(place, error)) {
                    emitter.problem(problem)?;
                }
                visit(emitter, &entry)?;
            }
            Err(error) => {
                emitter.watch.check()?;
                if let Some(problem) = problem_of(place, &error) {
                    emitter.problem(problem)?;
                }
            }
        }
        let outside = std::mem::take(&mut *outside.lock());
        for path in outside {
            emitter.problem(Problem::new(place.shown(&path).0, "the link leads out of what is searched"))?;
        }
    }
    Ok(())
}

fn is_symlink(entry: &DirEntry) -> bool {
    entry.file_type().is_some_and(|kind| kind.is_symlink())
}

/// None for what has only vanished meanwhile.
fn problem_of(place: &Place, error: &ignore::Error) -> Option<Problem> {
    use ignore::Error::{Io, Loop, Partial, WithDepth, WithLineNumber, WithPath};

    match error {
        WithPath { path, err } => {
            problem_of(place, err).map(|problem| Problem { path: place.shown(path).0, ..problem })
        }
        WithDepth { err, .. } => problem_of(place, err),
        WithLineNumber { line, err } => {
            let problem = problem_of(place, err)?;
            Some(Problem { message: format!("line {line}: {}", problem.message), ..problem })
        }
        Partial(errors) => errors.iter().find_map(|error| problem_of(place, error)),
        Loop { child, .. } => Some(Problem::new(place.shown(child).0, "the link leads back to where it is")),
        Io(cause) => io_problem("", cause),
        other => Some(Problem::new("", other.to_string())),
    }
}

/// None for what has only vanished meanwhile.
pub(super) fn io_problem(path: impl Into<String>, cause: &std::io::Error) -> Option<Problem> {
    match cause.kind() {
        IoErrorKind::NotFound => None,
        IoErrorKind::PermissionDenied => Some(Problem::new(path, "the file system does not allow to read it")),
        _ => Some(Problem::new(path, cause.to_string())),
    }
}

/// What is known of an entry, in the words of the contract.
pub(super) fn metadata(found: &fs::Metadata) -> Metadata {
    let kind = match found.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = if kind == FileKind::File { found.len() } else { 0 };
    let metadata = Metadata::new(kind, size).with_mode(found.permissions().mode() & 0o7777);
    match found.modified() {
        Ok(modified) => metadata.with_modified(modified),
        Err(_) => metadata,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn paths_are_called_as_the_caller_calls_the_start() {
        for (shown, below, expected) in [
            (".", "/r/a/b", "a/b"),
            (".", "/r", "."),
            ("x", "/r/a", "x/a"),
            ("x/", "/r", "x"),
            ("/", "/r/a", "/a"),
            ("/", "/r", "/"),
            ("../y", "/r/a", "../y/a"),
        ] {
            let place = Place { root: "/r".into(), shown: shown.trim_end_matches('/').to_owned() };
            assert_eq!(place.shown(Path::new(below)), (expected.to_owned(), false), "{shown} {below}");
        }
        let place = Place { root: "/r".into(), shown: "x".to_owned() };
        let odd = Path::new("/r").join(OsStr::from_bytes(b"\xff"));
        assert_eq!(place.shown(&odd), ("x/\\xFF".to_owned(), true));
    }
}
