//! File operations made of commands, for backends that have none of their own.

use std::{
    any::{Any, TypeId},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use tokio_util::task::TaskTracker;

use crate::{
    backend::Checkpoint,
    capability::Capabilities,
    error::{Error, ErrorKind, Result},
    exec::{Command, ExecResult, ExitStatus, Process},
    files::{ByteStream, DirEntry, FileKind, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions},
    id::WorkspaceId,
    workspace::{Connection, Endpoint, Health, ManagedWorkspace, Workspace, WorkspaceInfo},
};

/// How many bytes of a file go through one command.
const PIECE: usize = 1 << 20;

/// How many bytes a listing may take.
const LISTING_LIMIT: usize = 64 << 20;

/// How long one of these commands may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Exit codes by which the scripts say what is wrong. The shell itself uses 1, 2, and 126 upwards.
mod code {
    pub(super) const NOT_FOUND: i32 = 44;
    pub(super) const IS_A_DIRECTORY: i32 = 45;
    pub(super) const REFUSED: i32 = 46;
    pub(super) const EXISTS: i32 = 47;
    pub(super) const NOT_EMPTY: i32 = 48;
    pub(super) const NOT_A_DIRECTORY: i32 = 49;
}

/// What every script begins with: errors in one language, a test for anything, also a dangling link, and the making of a
/// directory in whose way something may be.
const PRELUDE: &str = r#"
LC_ALL=C; export LC_ALL
there() { [ -e "$1" ] || [ -L "$1" ]; }
make() {
  mkdir -p -- "$1" 2>/dev/null && return
  way=$1
  while ! there "$way"; do way=$(dirname -- "$way"); done
  [ -d "$way" ] || exit 47
  mkdir -p -- "$1" || exit 46
}
"#;

const STAT: &str = r#"
there "$1" || exit 44
stat -c '%F|%s|%Y|%a' -- "$1" || exit 46
"#;

/// Names first, separated by NUL, and what is known of each after an empty name. Both in the order of the directory.
const LIST: &str = r#"
there "$1" || exit 44
[ -d "$1" ] || exit 49
cd -- "$1" || exit 46
find . ! -name . -prune -print0 || exit 46
printf '\0'
find . ! -name . -prune -exec stat -c '%F|%s|%Y|%a' -- {} +
"#;

const READ: &str = r#"
[ -f "$1" ] || exit 44
tail -c "+$2" -- "$1" | head -c "$3"
"#;

/// Arguments: target, temporary file, whether to create parents, whether to overwrite, parent. The shell itself can not
/// tell the parent: what a command prints loses the newlines at its end, and a name may end in some.
const WRITE_BEGIN: &str = r#"
if [ "$3" = true ]; then make "$5"; else [ -d "$5" ] || exit 44; fi
[ -d "$1" ] && [ ! -L "$1" ] && exit 45
[ "$4" = true ] || ! there "$1" || exit 47
: > "$2" || exit 46
"#;

const WRITE_MORE: &str = r#"cat >> "$1" || exit 46"#;

/// Arguments: target, temporary file, mode or nothing, whether to overwrite.
const WRITE_END: &str = r#"
mode=$3
[ -n "$mode" ] || { [ -f "$1" ] && [ ! -L "$1" ] && mode=$(stat -c %a -- "$1"); }
[ -z "$mode" ] || chmod "$mode" -- "$2" || exit 46
if [ "$4" = true ]; then
  [ -d "$1" ] && { [ -L "$1" ] && rm -f -- "$1" || exit 45; }
  mv -f -- "$2" "$1" || exit 46
else
  ln -- "$2" "$1" 2>/dev/null || { there "$1" && exit 47; exit 46; }
  rm -f -- "$2"
fi
stat -c '%F|%s|%Y|%a' -- "$1"
"#;

const MAKE_DIR: &str = r#"make "$1""#;

/// Arguments: path, whether recursive.
const REMOVE: &str = r#"
there "$1" || exit 44
if [ -d "$1" ] && [ ! -L "$1" ]; then
  if [ "$2" = true ]; then rm -rf -- "$1" || exit 46
  else rmdir -- "$1" 2>/dev/null || { [ -n "$(ls -A -- "$1")" ] && exit 48; exit 46; }
  fi
else rm -f -- "$1" || exit 46
fi
"#;

/// An empty directory in the way is made again when the move fails after all, as into itself.
const RENAME: &str = r#"
there "$1" || exit 44
[ ! -L "$1" ] && [ ! -L "$2" ] && [ "$1" -ef "$2" ] && exit 0
removed=
if [ -d "$2" ] && [ ! -L "$2" ]; then
  [ -d "$1" ] && [ ! -L "$1" ] || exit 47
  rmdir -- "$2" 2>/dev/null || exit 48
  removed=true
elif there "$2"; then
  [ -d "$1" ] && [ ! -L "$1" ] && exit 47
  [ -L "$2" ] && rm -f -- "$2"
fi
mv -f -- "$1" "$2" || { [ -z "$removed" ] || mkdir -- "$2"; exit 46; }
"#;

/// Gives a workspace file operations that are made of commands: `sh`, `stat`, `find`, `mv` and their like.
///
/// The manager stacks it by itself when a backend has no [`files`](Capabilities::files) and has a
/// [`shell`](Capabilities::shell). It claims no [`confined_files`](Capabilities::confined_files): its commands reach
/// whatever commands reach. Large files go through in pieces of 1 MiB, so a file that is replaced while it is read may
/// be seen half old, half new.
#[derive(Debug)]
pub struct ExecFiles {
    inner: Arc<dyn ManagedWorkspace>,
    /// Removes what dropped writes leave.
    cleanups: TaskTracker,
}

impl ExecFiles {
    /// Adds file operations to `inner`.
    pub fn new(inner: Arc<dyn ManagedWorkspace>) -> Self {
        Self { inner, cleanups: TaskTracker::new() }
    }

    /// Whether a workspace needs this and can have it.
    pub fn applies_to(capabilities: Capabilities) -> bool {
        !capabilities.files && capabilities.shell
    }

    /// What a backend's workspaces can do with this on top, where it applies.
    pub fn capabilities_above(inner: Capabilities) -> Capabilities {
        if Self::applies_to(inner) { inner.with_files(true) } else { inner }
    }

    async fn run(&self, script: &str, args: &[&str]) -> Result<Bytes> {
        run(&*self.inner, script, args, Bytes::new(), LISTING_LIMIT).await
    }
}

/// Runs a script with `args` as its parameters, the first of which is the path that errors name.
async fn run(
    workspace: &dyn ManagedWorkspace,
    script: &str,
    args: &[&str],
    stdin: Bytes,
    limit: usize,
) -> Result<Bytes> {
    let path = args.first().copied().unwrap_or_default();
    let script = format!("{PRELUDE}{script}");
    let argv = ["sh", "-c", &script, "wsm"].into_iter().chain(args.iter().copied());
    let command = Command::from_argv(argv).with_stdin(stdin).with_output_limit(limit).with_timeout(COMMAND_TIMEOUT);
    let ExecResult { status, stdout, stderr, .. } = workspace.exec(command).await?;
    match status {
        ExitStatus::Exited { code: 0 } if stdout.dropped == 0 => Ok(stdout.bytes),
        ExitStatus::Exited { code: 0 } => {
            Err(Error::invalid("path", format!("`{path}` holds more than can be listed")).with_code("too_large"))
        }
        ExitStatus::Exited { code } => Err(explain(code, path, stderr.to_text().trim())),
        ExitStatus::TimedOut => {
            Err(Error::new(ErrorKind::Timeout, format!("the file operation took longer than {COMMAND_TIMEOUT:?}")))
        }
        status @ (ExitStatus::Signaled { .. } | ExitStatus::Unknown { .. }) => {
            Err(Error::new(ErrorKind::Unavailable, format!("the file operation ended early: {status}")))
        }
    }
}

fn explain(exit_code: i32, path: &str, stderr: &str) -> Error {
    match exit_code {
        code::NOT_FOUND => Error::new(ErrorKind::NotFound, format!("`{path}` does not exist")).with_field("path"),
        code::IS_A_DIRECTORY => {
            Error::invalid("path", format!("`{path}` is not a regular file")).with_code("is_a_directory")
        }
        code::NOT_A_DIRECTORY => {
            Error::invalid("path", format!("`{path}` is not a directory")).with_code("not_a_directory")
        }
        code::EXISTS => Error::new(ErrorKind::Conflict, format!("`{path}` is in the way")).with_field("path"),
        code::NOT_EMPTY => Error::new(ErrorKind::Conflict, format!("the directory `{path}` is not empty"))
            .with_code("directory_not_empty")
            .with_field("path"),
        code::REFUSED => {
            let kind = if stderr.contains("ermission denied") || stderr.contains("ead-only") {
                ErrorKind::PermissionDenied
            } else {
                ErrorKind::Backend
            };
            Error::new(kind, format!("`{path}`: {stderr}")).with_field("path")
        }
        other => Error::new(ErrorKind::Backend, format!("`{path}`: exit code {other}: {stderr}")),
    }
}

/// Keeps a path that begins with a hyphen from being read as an option.
fn argument(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("./{path}") }
}

fn parse_metadata(line: &str) -> Result<Metadata> {
    let malformed = || Error::new(ErrorKind::Backend, format!("`stat` printed something unexpected: {line:?}"));
    let fields: Vec<&str> = line.trim_end().split('|').collect();
    let [kind, size, modified, mode] = fields[..] else { return Err(malformed()) };
    let kind = match kind {
        "regular file" | "regular empty file" => FileKind::File,
        "directory" => FileKind::Directory,
        "symbolic link" => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = size.parse().map_err(|_| malformed())?;
    let modified = after_epoch(modified.parse().map_err(|_| malformed())?);
    let mode = u32::from_str_radix(mode, 8).map_err(|_| malformed())?;
    let metadata = Metadata::new(kind, if kind == FileKind::File { size } else { 0 }).with_mode(mode);
    Ok(match modified {
        Some(modified) => metadata.with_modified(modified),
        None => metadata,
    })
}

/// None for a time that the standard library can not hold.
fn after_epoch(seconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}

fn parse_listing(listing: &[u8]) -> Result<Vec<DirEntry>> {
    let malformed = || Error::new(ErrorKind::Backend, "the directory changed while it was listed: try again");
    // An entry's name is never empty, so the first empty one ends the names.
    let end = if listing.first() == Some(&0) {
        0
    } else {
        listing.windows(2).position(|pair| pair == [0, 0]).ok_or_else(malformed)? + 1
    };
    let (names, stats) = (&listing[..end], &listing[end + 1..]);
    let names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    let stats: Vec<String> = String::from_utf8_lossy(stats).lines().map(str::to_owned).collect();
    if names.len() != stats.len() {
        return Err(malformed());
    }
    names
        .into_iter()
        .zip(stats)
        .map(|(name, stat)| Ok(DirEntry::new(name.strip_prefix(b"./").unwrap_or(name), parse_metadata(&stat)?)))
        .collect()
}

/// Whether a path names the workspace directory itself, as far as its text tells.
fn is_workdir(path: &str, workdir: &str) -> bool {
    let plain = |path: &str| -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        parts
    };
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    plain(&whole) == plain(workdir)
}

/// Removes the temporary file of a write that did not come to its end.
struct Unfinished<'a> {
    files: &'a ExecFiles,
    path: Option<String>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let inner = Arc::clone(&self.files.inner);
        if tokio::runtime::Handle::try_current().is_ok() {
            self.files.cleanups.spawn(async move {
                let _ = run(&*inner, r#"rm -f -- "$1""#, &[&path], Bytes::new(), PIECE).await;
            });
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Workspace for ExecFiles {
    fn info(&self) -> &WorkspaceInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        Self::capabilities_above(self.inner.capabilities())
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        self.inner.exec(command).await
    }

    async fn spawn(&self, command: Command) -> Result<Process> {
        self.inner.spawn(command).await
    }

    async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let argument = argument(path);
        // The file that a link leads to, which is the one that is read.
        let followed = "[ -e \"$1\" ] || exit 44\n[ -f \"$1\" ] || exit 45\nstat -L -c '%F|%s|%Y|%a' -- \"$1\"";
        let stat = self.run(followed, &[&argument]).await?;
        let metadata = parse_metadata(&String::from_utf8_lossy(&stat))?;
        let ReadOptions { offset, length } = options;
        let end = metadata.size.min(offset.saturating_add(length.unwrap_or(u64::MAX)));
        let inner = Arc::clone(&self.inner);
        let body = stream::try_unfold(offset, move |from| {
            let (inner, argument) = (Arc::clone(&inner), argument.clone());
            async move {
                if from >= end {
                    return Ok(None);
                }
                let count = (end - from).min(PIECE as u64);
                let args = [argument.as_str(), &(from + 1).to_string(), &count.to_string()];
                let piece = run(&*inner, READ, &args, Bytes::new(), PIECE).await?;
                if piece.is_empty() {
                    // Cut short meanwhile: what there was has been read.
                    return Ok(None);
                }
                let next = from + piece.len() as u64;
                Ok(Some((piece, next)))
            }
        });
        Ok(ReadFile::new(metadata, body.boxed()))
    }

    async fn write(&self, path: &str, mut body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let WriteOptions { mode, create_parents, overwrite } = options;
        let target = argument(path);
        let directory = target.rsplit_once('/').map_or(".", |(directory, _)| directory);
        let temporary = format!("{directory}/.wsm-{}.tmp", WorkspaceId::random());
        let overwrite = overwrite.to_string();
        let mut unfinished = Unfinished { files: self, path: Some(temporary.clone()) };
        let parent = match target.trim_end_matches('/').rsplit_once('/') {
            Some(("", _)) | None => "/",
            Some((parent, _)) => parent,
        };
        self.run(WRITE_BEGIN, &[&target, &temporary, &create_parents.to_string(), &overwrite, parent]).await?;
        let mut piece = BytesMut::new();
        loop {
            let next = body.try_next().await?;
            if let Some(next) = &next {
                piece.extend_from_slice(next);
            }
            while piece.len() >= PIECE || (next.is_none() && !piece.is_empty()) {
                let bytes = piece.split_to(piece.len().min(PIECE)).freeze();
                run(&*self.inner, WRITE_MORE, &[&temporary], bytes, PIECE).await?;
            }
            if next.is_none() {
                break;
            }
        }
        let mode = mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let stat = self.run(WRITE_END, &[&target, &temporary, &mode, &overwrite]).await?;
        unfinished.path = None;
        parse_metadata(&String::from_utf8_lossy(&stat))
    }

    async fn stat(&self, path: &str) -> Result<Metadata> {
        let stat = self.run(STAT, &[&argument(path)]).await?;
        parse_metadata(&String::from_utf8_lossy(&stat))
    }

    async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        parse_listing(&self.run(LIST, &[&argument(path)]).await?)
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        self.run(MAKE_DIR, &[&argument(path)]).await.map(drop)
    }

    async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let RemoveOptions { recursive, missing_ok } = options;
        if is_workdir(path, &self.info().workdir) {
            return Err(Error::invalid("path", "the workspace directory itself can not be removed"));
        }
        match self.run(REMOVE, &[&argument(path), &recursive.to_string()]).await {
            Err(error) if missing_ok && error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.map(drop),
        }
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.run(RENAME, &[&argument(from), &argument(to)]).await.map(drop)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.inner.connect(endpoint).await
    }

    fn extension(&self, type_id: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.inner.extension(type_id)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ManagedWorkspace for ExecFiles {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        self.cleanups.close();
        self.cleanups.wait().await;
        self.inner.suspend().await
    }

    async fn detach(&self) -> Result<()> {
        self.cleanups.close();
        self.cleanups.wait().await;
        self.inner.detach().await
    }

    async fn health(&self) -> Result<Health> {
        self.inner.health().await
    }

    async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
        self.inner.keep_alive(duration).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_keep_names_of_any_bytes() {
        let listing = b"./a\n|b\0./\xff\0\0regular file|3|10|644\ndirectory|4096|10|755\n";
        let entries = parse_listing(listing).unwrap();
        assert_eq!(entries[0].name, "a\n|b");
        assert_eq!((entries[0].metadata.size, entries[0].metadata.mode), (3, Some(0o644)));
        assert!(entries[1].escaped && entries[1].metadata.is_dir() && entries[1].metadata.size == 0);
        assert_eq!(parse_listing(b"\0").unwrap(), []);
        assert!(parse_listing(b"./a\0\0").is_err());
        assert!(parse_listing(b"").is_err());
    }

    proptest::proptest! {
        #[test]
        fn whatever_a_command_prints_is_read_or_refused(listing in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = parse_listing(&listing);
            let _ = parse_metadata(&String::from_utf8_lossy(&listing));
        }
    }

    /// Who works in the workspace can set any time, and can put another `stat` in the place of the real one.
    #[test]
    fn a_time_that_nobody_can_tell_hides_neither_the_file_nor_its_neighbours() {
        let epoch = SystemTime::UNIX_EPOCH;
        for (seconds, modified) in [
            ("10", Some(epoch + Duration::from_secs(10))),
            ("-1", Some(epoch - Duration::from_secs(1))),
            ("-9223372036854775808", epoch.checked_sub(Duration::from_secs(1 << 63))),
            ("9223372036854775807", epoch.checked_add(Duration::from_secs(i64::MAX as u64))),
        ] {
            let metadata = parse_metadata(&format!("regular file|3|{seconds}|644\n")).unwrap();
            assert_eq!((metadata.size, metadata.modified), (3, modified), "{seconds}");
        }
        for line in ["regular file|3|18446744073709551615|644", "regular file|3|x|644", "regular file|3|1", ""] {
            assert!(parse_metadata(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_workspace_directory_is_known_by_all_its_names() {
        for path in [".", "./", "/w/x", "/w/x/", "a/..", "../x", "/w/./x/y/.."] {
            assert!(is_workdir(path, "/w/x"), "{path}");
        }
        for path in ["a", "..", "/w", "/w/x/y"] {
            assert!(!is_workdir(path, "/w/x"), "{path}");
        }
    }
}
