//! Files of a workspace, by the daemon's own means: streamed both ways, and replaced as a whole.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use wsm_core::{
    ByteStream, DirEntry, Error, ErrorKind, ExitStatus, FileKind, Metadata, ReadFile, ReadOptions, RemoveOptions,
    Result, WriteOptions,
};

use crate::{
    KIND,
    envd::{Ran, SHORT, piece},
    error::{Failure, daemon},
    guest::Probed,
    sandbox::{Attached, End, Reach, Sandbox, Trouble, gone, refused},
};

/// How long a daemon may take nothing of a file that is there to be taken, or not answer once it has all of it.
const STALLED: Duration = Duration::from_secs(120);

const STAT: &str = "/filesystem.Filesystem/Stat";

/// Exit codes of the scripts.
const NOT_FOUND: i32 = 44;
const EXISTS: i32 = 47;
const NOT_EMPTY: i32 = 48;

/// Arguments: path, whether recursive. Unlike the daemon's own, it removes no more than it is asked to.
const REMOVE: &str = r#"
[ -e "$1" ] || [ -L "$1" ] || exit 44
if [ -d "$1" ] && [ ! -L "$1" ]; then
  if [ "$2" = true ]; then rm -rf -- "$1" || exit 46
  else rmdir -- "$1" 2>/dev/null || { [ -n "$(ls -A -- "$1")" ] && exit 48; exit 46; }
  fi
else rm -f -- "$1" || exit 46
fi
"#;

/// Arguments: the new file, its target, its mode or nothing, whether to overwrite. It may have run before, and its answer
/// have been lost: nobody but it takes the new file away.
const FINISH: &str = r#"
[ -e "$1" ] || [ "$4" = true ] || [ ! -e "$2" ] || exit 0
[ -z "$3" ] || chmod "$3" -- "$1" || exit 46
[ "$4" = true ] && exit 0
ln -- "$1" "$2" 2>/dev/null || [ "$1" -ef "$2" ] || { { [ -e "$2" ] || [ -L "$2" ]; } && exit 47; exit 46; }
rm -f -- "$1"
"#;

/// For a target on another file system. Arguments: the new file, its target, a name beside that.
const ACROSS: &str = r#"cp -p -- "$1" "$3" && mv -fT -- "$3" "$2" && rm -f -- "$1" || { rm -f -- "$3"; exit 46; }"#;

/// Names as they are, with NUL between all; the daemon's own list can not tell what is no text.
const LIST: &str = r#"cd -- "$1" && find . -mindepth 1 -maxdepth 1 -printf '%f\0%y\0%s\0%T@\0%m\0'"#;

/// Says what is wrong with a path.
fn about(path: &str, kind: ErrorKind, what: &str) -> Error {
    Error::new(kind, format!("`{path}` {what}")).with_field("path").with_backend(KIND)
}

fn not_found(path: &str) -> Error {
    about(path, ErrorKind::NotFound, "does not exist")
}

fn is_a_directory(path: &str) -> Error {
    about(path, ErrorKind::InvalidInput, "is a directory").with_code("is_a_directory")
}

/// What a refusal about a path is. The daemon's words are Go's, which are the kernel's.
fn explain(trouble: Trouble, path: &str, doing: &str) -> Error {
    let failure = match trouble {
        Trouble::Answered(failure) => failure,
        Trouble::Failed(error) => return error,
    };
    let Failure::Answer(answer) = &failure else { return daemon(&failure, doing) };
    let said = answer.message.to_ascii_lowercase();
    let has = |text: &str| said.contains(text);
    if answer.status == 507 || has("not enough disk space") || has("no space left") {
        return about(path, ErrorKind::Capacity, "does not fit: the sandbox's disk is full").with_code("disk_full");
    }
    if has("permission denied") || has("read-only file system") || has("operation not permitted") {
        return about(path, ErrorKind::PermissionDenied, &format!("is refused: {}", answer.message));
    }
    if has("file name too long") {
        return Error::invalid("path", format!("`{path}` has a name that is too long")).with_backend(KIND);
    }
    if answer.status == 404 && answer.code() != "unimplemented" {
        return not_found(path);
    }
    // Rename and the making of directories: something of another kind is there.
    if has("not empty") || has("file exists") {
        return about(path, ErrorKind::Conflict, "is in the way").with_code("directory_not_empty");
    }
    if has("not a directory") || has("is a directory") || has("path is a file") {
        return about(path, ErrorKind::Conflict, &format!("is in the way: {}", answer.message));
    }
    refused(&failure, doing)
}

/// As a whole path, without what leads back or says nothing: so the daemon reads it, too.
fn absolute(workdir: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// What an entry of the daemon's tells of a file.
fn metadata(entry: &Value) -> Result<Metadata> {
    let malformed = || {
        Error::new(ErrorKind::Backend, "the sandbox describes a file in a way that makes no sense").with_backend(KIND)
    };
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    let number = |field: &str| match &entry[field] {
        Value::Null => Some(0),
        value => value.as_u64().or_else(|| value.as_str()?.parse().ok()),
    };
    // A letter for what is neither file nor directory; the type is that of what a link leads to.
    let kind = match (text("symlinkTarget"), text("type"), text("permissions").chars().next()) {
        (target, _, _) if !target.is_empty() => FileKind::Symlink,
        (_, "FILE_TYPE_SYMLINK", _) | (_, _, Some('L')) => FileKind::Symlink,
        (_, "FILE_TYPE_DIRECTORY", _) => FileKind::Directory,
        (_, _, Some('D' | 'p' | 'S')) => FileKind::Other,
        _ => FileKind::File,
    };
    let size = number("size").ok_or_else(malformed)?;
    let mode = u32::try_from(number("mode").ok_or_else(malformed)?).map_err(|_| malformed())?;
    let metadata = Metadata::new(kind, if kind == FileKind::File { size } else { 0 }).with_mode(mode);
    Ok(match humantime::parse_rfc3339(text("modifiedTime")) {
        Ok(modified) => metadata.with_modified(modified),
        Err(_) => metadata,
    })
}

impl Attached {
    fn path(&self, path: &str) -> String {
        absolute(&self.info.workdir, path)
    }

    async fn call(&self, procedure: &str, message: Value) -> Result<Value, Trouble> {
        self.sandbox.repeat(|| self.sandbox.daemon.call(procedure, &message, Some(SHORT))).await
    }

    /// Runs a script about a path. Its exit codes are ours to read.
    async fn file_script(&self, script: &str, args: &[&str], doing: &str) -> Result<Ran> {
        self.file_script_told(script, args, doing).await.0
    }

    /// Tells too whether it may have run more than once.
    async fn file_script_told(&self, script: &str, args: &[&str], doing: &str) -> (Result<Ran>, bool) {
        let (ran, was_lost) = self.sandbox.script_told(script, args).await;
        let ran = ran.map_err(|trouble| trouble.or_daemon(doing));
        (ran.and_then(|ran| Self::file_script_ended(ran, args, doing)), was_lost)
    }

    fn file_script_ended(ran: Ran, args: &[&str], doing: &str) -> Result<Ran> {
        let path = args.first().copied().unwrap_or_default();
        let stderr = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
        Err(match ran.status {
            ExitStatus::Exited { code: 0 } => return Ok(ran),
            ExitStatus::Exited { code: NOT_FOUND } => not_found(path),
            ExitStatus::Exited { code: EXISTS } => about(path, ErrorKind::Conflict, "is there already"),
            ExitStatus::Exited { code: NOT_EMPTY } => {
                about(path, ErrorKind::Conflict, "is not empty").with_code("directory_not_empty")
            }
            ExitStatus::Exited { .. } if stderr.contains("ermission denied") || stderr.contains("not permitted") => {
                about(path, ErrorKind::PermissionDenied, &format!("is refused: {stderr}"))
            }
            status => {
                Error::new(ErrorKind::Backend, format!("could not {doing}: {status}: {stderr}")).with_backend(KIND)
            }
        })
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Metadata> {
        let found = self.stat_whole(&self.path(path)).await?;
        found.ok_or_else(|| not_found(path))
    }

    /// None when there is nothing.
    async fn stat_whole(&self, path: &str) -> Result<Option<Metadata>> {
        match self.call(STAT, json!({ "path": path })).await {
            Ok(answer) => metadata(&answer["entry"]).map(Some),
            Err(Trouble::Answered(Failure::Answer(answer)))
                if answer.code() == "not_found" || answer.message.contains("not a directory") =>
            {
                Ok(None)
            }
            Err(trouble) => Err(explain(trouble, path, "look at the file")),
        }
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let whole = self.path(path);
        let answer = match self.call("/filesystem.Filesystem/ListDir", json!({ "path": whole, "depth": 1 })).await {
            Ok(answer) => answer,
            Err(Trouble::Answered(Failure::Answer(answer))) if answer.message.contains("is not a directory") => {
                return Err(about(path, ErrorKind::InvalidInput, "is not a directory").with_code("not_a_directory"));
            }
            Err(Trouble::Answered(Failure::Answer(answer))) if answer.message.contains("not a directory") => {
                return Err(not_found(path));
            }
            Err(trouble) => return Err(explain(trouble, path, "list the directory")),
        };
        let entries: Vec<&Value> = answer["entries"].as_array().into_iter().flatten().collect();
        // The path says it as well; what leaves out zeros may leave out a name that looks like one.
        let name = |entry: &Value| match entry["name"].as_str() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => entry["path"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned(),
        };
        if entries.iter().any(|entry| name(entry).contains(char::REPLACEMENT_CHARACTER))
            && let Some(entries) = self.list_raw(&whole).await?
        {
            return Ok(entries);
        }
        entries.into_iter().map(|entry| Ok(DirEntry::new(name(entry).as_bytes(), metadata(entry)?))).collect()
    }

    /// None where there are no tools for that.
    async fn list_raw(&self, whole: &str) -> Result<Option<Vec<DirEntry>>> {
        let Ok(Ran { stdout, .. }) = self.file_script(LIST, &[whole], "list the directory").await else {
            self.sandbox.life.check()?;
            return Ok(None);
        };
        let fields: Vec<&[u8]> = stdout.split(|byte| *byte == 0).collect();
        Ok(Some(fields.chunks_exact(5).map(raw_entry).collect()))
    }

    pub(crate) async fn make_dir(&self, path: &str) -> Result<()> {
        self.make_whole(&self.path(path), path).await
    }

    async fn make_whole(&self, whole: &str, shown: &str) -> Result<()> {
        let mut tries = 0;
        loop {
            let trouble = match self.call("/filesystem.Filesystem/MakeDir", json!({ "path": whole })).await {
                Ok(_) => return Ok(()),
                Err(trouble) => trouble,
            };
            let Trouble::Answered(Failure::Answer(answer)) = &trouble else {
                return Err(explain(trouble, shown, "make the directory"));
            };
            if answer.code() == "already_exists" {
                return Ok(());
            }
            // Somebody else makes the same ones.
            tries += 1;
            if tries > 10 || !answer.message.to_ascii_lowercase().contains("file exists") {
                return Err(explain(trouble, shown, "make the directory"));
            }
        }
    }

    pub(crate) async fn remove(&self, path: &str, options: RemoveOptions) -> Result<()> {
        let RemoveOptions { recursive, missing_ok, .. } = options;
        let whole = self.path(path);
        if whole == self.info.workdir {
            return Err(Error::invalid("path", "the workspace directory itself can not be removed").with_backend(KIND));
        }
        if recursive && missing_ok {
            let removed = self.call("/filesystem.Filesystem/Remove", json!({ "path": whole })).await;
            return removed.map(drop).map_err(|trouble| explain(trouble, path, "remove the file"));
        }
        let args = [whole.as_str(), if recursive { "true" } else { "false" }];
        let (removed, was_lost) = self.file_script_told(REMOVE, &args, "remove the file").await;
        match removed {
            // It is gone, as it should be; by the first try, if there was more than one.
            Err(error) if (missing_ok || was_lost) && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map(drop),
        }
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let message = json!({ "source": self.path(from), "destination": self.path(to) });
        if message["source"] == json!(self.info.workdir) {
            return Err(Error::invalid("path", "the workspace directory itself can not be moved").with_backend(KIND));
        }
        self.move_whole(&message, to).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::NotFound => not_found(from),
            _ => error,
        })
    }

    /// A move is not repeated after its answer was lost without a look: it may have been carried out.
    async fn move_whole(&self, message: &Value, shown: &str) -> Result<Value> {
        let sandbox = &self.sandbox;
        let mut was_lost = false;
        let lost = Mutex::new(false);
        let call = || async {
            let moved = sandbox.daemon.call("/filesystem.Filesystem/Move", message, Some(SHORT)).await;
            if let Err(failure) = &moved
                && matches!(Reach::of(failure), Reach::Doubtful | Reach::Broken)
            {
                *lost.lock() = true;
            }
            moved
        };
        let moved = sandbox.repeat(call).await;
        was_lost |= *lost.lock();
        match moved {
            Err(Trouble::Answered(Failure::Answer(answer))) if was_lost && answer.status == 404 => {
                // The source is gone, and what was to be there is there: it was carried out the first time.
                let destination = message["destination"].as_str().unwrap_or_default();
                let found = self.call(STAT, json!({ "path": destination })).await;
                found.map_err(|trouble| explain(trouble, shown, "move the file"))
            }
            moved => moved.map_err(|trouble| explain(trouble, shown, "move the file")),
        }
    }

    pub(crate) async fn read(&self, path: &str, options: ReadOptions) -> Result<ReadFile> {
        let ReadOptions { offset, length, .. } = options;
        let whole = self.path(path);
        let range = match length {
            None if offset == 0 => None,
            None => Some(format!("bytes={offset}-")),
            // Nothing is wanted, but how long the whole is: one byte tells that.
            Some(length) => match offset.checked_add(length.max(1)) {
                Some(end) => Some(format!("bytes={offset}-{}", end - 1)),
                None => Some(format!("bytes={offset}-")),
            },
        };
        let sandbox = &self.sandbox;
        let response = sandbox.repeat(|| sandbox.daemon.download(&whole, range.clone())).await;
        let response = response.map_err(|trouble| match trouble {
            Trouble::Answered(Failure::Answer(answer)) if answer.message.contains("is a directory") => {
                is_a_directory(path)
            }
            trouble => explain(trouble, path, "read the file"),
        })?;
        let size = size(&response).ok_or_else(|| {
            Error::new(ErrorKind::Backend, format!("the sandbox does not tell how long `{path}` is")).with_backend(KIND)
        })?;
        let mut metadata = Metadata::new(FileKind::File, size);
        let modified = response.headers().get("last-modified").and_then(|value| value.to_str().ok());
        if let Some(modified) = modified.and_then(http_date) {
            metadata = metadata.with_modified(modified);
        }
        let body = match response.status().as_u16() {
            416 => stream::empty().boxed(),
            _ if length == Some(0) => stream::empty().boxed(),
            // The range was not heeded.
            200 if range.is_some() => {
                let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
                body(Arc::clone(sandbox), response, offset, end)
            }
            _ => body(Arc::clone(sandbox), response, 0, u64::MAX),
        };
        Ok(ReadFile::new(metadata, body))
    }

    pub(crate) async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<Metadata> {
        let WriteOptions { mode, create_parents, overwrite, .. } = options;
        let whole = self.path(path);
        if whole == self.info.workdir || path.ends_with('/') {
            return Err(is_a_directory(path));
        }
        let there = self.stat_whole(&whole).await?;
        match &there {
            Some(found) if found.is_dir() => return Err(is_a_directory(path)),
            Some(_) if !overwrite => return Err(about(path, ErrorKind::Conflict, "is there already")),
            None if !create_parents && self.stat_whole(parent(&whole)).await?.is_none() => return Err(not_found(path)),
            _ => {}
        }
        let is_file = |found: &&Metadata| found.kind == FileKind::File;
        let mode = mode.or_else(|| there.as_ref().filter(is_file)?.mode).filter(|mode| *mode != UPLOADED_MODE);
        // Beside the workspace, so that nobody sees it; everything of the user's is on the same disk there.
        let home = Probed::home(&self.info.workdir);
        let temporary = format!("{home}/tmp/{}", uuid::Uuid::new_v4().simple());
        let mut unfinished = Unfinished { sandbox: Arc::clone(&self.sandbox), path: Some(temporary.clone()) };
        self.upload(&temporary, path, body).await?;
        if there.is_none() && create_parents && parent(&whole) != self.info.workdir {
            self.make_whole(parent(&whole), path).await?;
        }
        if mode.is_some() || !overwrite {
            let mode = mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
            let finished =
                self.file_script(FINISH, &[&temporary, &whole, &mode, &overwrite.to_string()], "write the file").await;
            finished.map_err(|error| {
                if error.kind() == ErrorKind::Conflict {
                    about(path, ErrorKind::Conflict, "is there already")
                } else {
                    error
                }
            })?;
        }
        let written = if overwrite {
            let message = json!({ "source": temporary, "destination": whole });
            match self.move_whole(&message, path).await {
                Err(error) if error.message().contains("cross-device") || error.message().contains("invalid cross") => {
                    let beside =
                        format!("{}/.wsm-{}", parent(&whole).trim_end_matches('/'), uuid::Uuid::new_v4().simple());
                    self.file_script(ACROSS, &[&temporary, &whole, &beside], "write the file").await?;
                    None
                }
                // It has become one meanwhile.
                Err(error) if error.message().to_ascii_lowercase().contains("is a directory") => {
                    return Err(is_a_directory(path));
                }
                moved => Some(moved?),
            }
        } else {
            None
        };
        unfinished.path = None;
        match written {
            Some(answer) => metadata(&answer["entry"]),
            None => self.stat_whole(&whole).await?.ok_or_else(|| not_found(path)),
        }
    }

    async fn upload(&self, temporary: &str, shown: &str, body: ByteStream) -> Result<()> {
        let state = Arc::new(Upload {
            failed: Mutex::new(None),
            given: Mutex::new(Some(Instant::now())),
            is_whole: AtomicBool::new(false),
        });
        let body = reqwest::Body::wrap_stream(Watched { body, state: Arc::clone(&state) });
        let uploading = self.sandbox.daemon.upload(temporary, body);
        let result = self.sandbox.while_alive(async {
            tokio::select! {
                result = uploading => result,
                () = state.stalled() => Err(Failure::NoAnswer(format!("it took nothing for {STALLED:?}"))),
            }
        });
        let result = result.await;
        if let Some(error) = state.failed.lock().take() {
            return Err(error);
        }
        let failure = match result? {
            Ok(()) if state.is_whole.load(Ordering::Acquire) => return Ok(()),
            Ok(()) => Failure::NoAnswer("the sandbox answered before it had the whole file".to_owned()),
            Err(failure) => failure,
        };
        match Reach::of(&failure) {
            Reach::Answered => Err(explain(Trouble::Answered(failure), shown, "write the file")),
            // The body can not be given again.
            _ => match self.sandbox.standing().await {
                crate::sandbox::Standing::Gone(end) => Err(gone(end)),
                crate::sandbox::Standing::Unknown(error) => Err(error),
                crate::sandbox::Standing::Runs => Err(daemon(&failure, "write the file")),
            },
        }
    }
}

/// What the daemon gives files that it makes.
const UPLOADED_MODE: u32 = 0o644;

/// A body on its way to a daemon.
struct Upload {
    /// The body's own error.
    failed: Mutex<Option<Error>>,
    /// Since when the next piece waits to be asked for; none while it is asked for.
    given: Mutex<Option<Instant>>,
    is_whole: AtomicBool,
}

impl Upload {
    /// Comes when the daemon has taken nothing for long. A body that is slow itself is none of its business.
    async fn stalled(&self) {
        loop {
            sleep(STALLED / 8).await;
            let given = *self.given.lock();
            if given.is_some_and(|given| given.elapsed() >= STALLED) {
                return;
            }
        }
    }
}

struct Watched {
    body: ByteStream,
    state: Arc<Upload>,
}

impl Stream for Watched {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.body.poll_next_unpin(context);
        let (given, item) = match polled {
            Poll::Pending => (None, Poll::Pending),
            Poll::Ready(Some(Ok(bytes))) => (Some(Instant::now()), Poll::Ready(Some(Ok(bytes)))),
            Poll::Ready(Some(Err(error))) => {
                self.state.failed.lock().get_or_insert(error);
                (None, Poll::Ready(Some(Err(std::io::Error::other("the body broke")))))
            }
            Poll::Ready(None) => {
                self.state.is_whole.store(true, Ordering::Release);
                (Some(Instant::now()), Poll::Ready(None))
            }
        };
        *self.state.given.lock() = given;
        item
    }
}

/// Removes the temporary file of a write that did not come to its end.
struct Unfinished {
    sandbox: Arc<Sandbox>,
    path: Option<String>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        // Put away, it was removed with all others.
        if tokio::runtime::Handle::try_current().is_err()
            || self.sandbox.life.end().is_some_and(|end| end != End::LetGo)
        {
            return;
        }
        let sandbox = Arc::clone(&self.sandbox);
        self.sandbox.tasks.spawn(async move {
            let message = json!({ "path": path });
            // The upload may be on its way still.
            for pause in [0, 300] {
                sleep(Duration::from_millis(pause)).await;
                let _ = sandbox.daemon.call("/filesystem.Filesystem/Remove", &message, Some(SHORT)).await;
            }
        });
    }
}

/// How long a file is, of which this is a part or the whole.
fn size(response: &Response) -> Option<u64> {
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        206 | 416 => text("content-range")?.rsplit('/').next()?.parse().ok(),
        _ => text("content-length")?.parse().ok(),
    }
}

/// The bytes of a body between two positions.
fn body(sandbox: Arc<Sandbox>, response: Response, from: u64, to: u64) -> ByteStream {
    stream::try_unfold((sandbox, response, 0u64), move |(sandbox, mut response, position)| async move {
        let mut position = position;
        loop {
            if position >= to {
                return Ok(None);
            }
            let next = sandbox.while_alive(piece(&mut response)).await?;
            let bytes = match next {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(None),
                Err(failure) => return Err(daemon(&failure, "give the rest of the file")),
            };
            let length = bytes.len() as u64;
            let (skip, end) = (from.saturating_sub(position).min(length), (to - position).min(length));
            position += length;
            if skip < end {
                #[expect(clippy::cast_possible_truncation, reason = "both are at most the length of a piece in memory")]
                let bytes = bytes.slice(skip as usize..end as usize);
                return Ok(Some((bytes, (sandbox, response, position))));
            }
        }
    })
    .boxed()
}

/// A time as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = fields[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    humantime::parse_rfc3339(&format!("{year}-{month:02}-{day:0>2}T{time}Z")).ok()
}

fn raw_entry(fields: &[&[u8]]) -> DirEntry {
    let [name, kind, size, modified, mode] = fields else {
        return DirEntry::new(b"", Metadata::new(FileKind::Other, 0));
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let kind = match *kind {
        b"f" => FileKind::File,
        b"d" => FileKind::Directory,
        b"l" => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = if kind == FileKind::File { text(size).parse().unwrap_or_default() } else { 0 };
    let mut metadata =
        Metadata::new(kind, size).with_mode(u32::from_str_radix(&text(mode), 8).unwrap_or_default() & 0o777);
    let seconds: Option<f64> = text(modified).parse().ok();
    if let Some(age) = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        metadata = metadata.with_modified(SystemTime::UNIX_EPOCH + age);
    }
    DirEntry::new(name, metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_whole_by_their_text() {
        for (path, whole) in [("a", "/w/a"), ("./a/../b/", "/w/b"), ("/x//y", "/x/y"), (".", "/w"), ("../../..", "/")] {
            assert_eq!(absolute("/w", path), whole);
        }
        assert_eq!((parent("/a/b"), parent("/a"), parent("/")), ("/a", "/", "/"));
    }

    #[test]
    fn entries_are_read_as_the_protocol_leaves_out_what_is_zero() {
        let read = |entry: Value| metadata(&entry).unwrap();
        let file = read(json!({ "type": "FILE_TYPE_FILE", "size": "3", "mode": 420, "permissions": "-rw-r--r--" }));
        assert_eq!((file.kind, file.size, file.mode), (FileKind::File, 3, Some(0o644)));
        assert_eq!(read(json!({ "type": "FILE_TYPE_FILE" })).size, 0);
        assert_eq!(read(json!({ "type": "FILE_TYPE_DIRECTORY", "size": "4096" })).size, 0);
        let link = json!({ "type": "FILE_TYPE_FILE", "symlinkTarget": "/x", "size": "9", "permissions": "Lrwxrwxrwx" });
        assert_eq!(read(link).kind, FileKind::Symlink);
        assert_eq!(read(json!({ "type": "FILE_TYPE_FILE", "permissions": "prw-r--r--" })).kind, FileKind::Other);
        assert!(metadata(&json!({ "size": "x" })).is_err());
    }

    #[test]
    fn dates_of_http_are_read() {
        let read = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(read, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(http_date("yesterday"), None);
    }
}
