//! Who wants to know what happens to files.

use std::{
    collections::HashMap,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_stream::stream;
use axum::response::Response;
use futures::StreamExt;
use http::HeaderMap;
use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Call, Trouble,
    entry::entry,
    filesystem::path_of,
    process::{keepalive, limit, until},
    user,
};
use crate::{
    guest::{Run, user::User},
    rpc::{self, RpcError, RpcResult, field, text, without_zeros},
    shape,
    state::random_id,
};

/// How many events wait for who does not take them.
const WAITING: usize = 1024;
/// How often it is looked whether something happened.
const LOOK: Duration = Duration::from_millis(10);

/// Collects events for who asks for them now and then.
pub(crate) struct Watcher {
    events: Arc<Mutex<Vec<Value>>>,
    _guard: DropGuard,
}

/// What is watched.
struct Watch {
    directory: PathBuf,
    recursive: bool,
    with_entry: bool,
}

impl Watch {
    fn read(user: User, message: &Value) -> RpcResult<Self> {
        let flag = |name| field(message, name).as_bool().unwrap_or_default();
        Ok(Self {
            directory: path_of(user, message, "path")?,
            recursive: flag("recursive"),
            with_entry: flag("includeEntry"),
        })
    }
}

pub(super) async fn watch(call: &Call, headers: &HeaderMap, message: &Value) -> Result<Response, Trouble> {
    let watch = Watch::read(user(headers)?, message)?;
    let keepalive = keepalive(call, headers)?;
    let encoder = rpc::encoder(headers);
    let (guard, mut events) = begin(call, watch).await?;
    let (cut, connection) = (Arc::clone(&call.cut), call.connection.clone());
    let messages = stream! {
        let _guard = guard;
        yield Ok(encoder.message(&json!({ "start": {} })));
        loop {
            tokio::select! {
                () = cut.token.cancelled() => {
                    let ending = *cut.ending.lock();
                    for piece in shape::end(ending, &connection, true).await {
                        yield piece;
                    }
                    return;
                }
                event = events.recv() => match event {
                    Some(event) => yield Ok(encoder.message(&json!({ "filesystem": event }))),
                    None => {
                        yield Ok(encoder.end(None));
                        return;
                    }
                },
                () = sleep(keepalive) => yield Ok(encoder.message(&json!({ "keepalive": {} }))),
            }
        }
    };
    Ok(match limit(headers)? {
        None => rpc::streaming(messages),
        Some(limit) => rpc::streaming(until(limit, encoder, messages.boxed())),
    })
}

pub(super) async fn create_watcher(call: &Call, user: User, message: &Value) -> Result<Value, Trouble> {
    let (guard, mut events) = begin(call, Watch::read(user, message)?).await?;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = Arc::clone(&kept);
    call.fake.tasks.spawn(async move {
        while let Some(event) = events.recv().await {
            keeping.lock().push(event);
        }
    });
    let id = random_id();
    call.run.watchers.lock().insert(id.clone(), Watcher { events: kept, _guard: guard });
    Ok(json!({ "watcherId": id }))
}

pub(super) fn watcher_events(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let id = text(message, "watcherId");
    let watchers = call.run.watchers.lock();
    let watcher = watchers.get(id).ok_or_else(|| RpcError::not_found(format!("watcher with id {id} not found")))?;
    let events = std::mem::take(&mut *watcher.events.lock());
    Ok(without_zeros(json!({ "events": events })))
}

pub(super) fn remove_watcher(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let id = text(message, "watcherId");
    let removed = call.run.watchers.lock().remove(id);
    removed.ok_or_else(|| RpcError::not_found(format!("watcher with id {id} not found")))?;
    Ok(json!({}))
}

/// Watches until the guard is dropped, or the sandbox is gone.
async fn begin(call: &Call, watch: Watch) -> Result<(DropGuard, mpsc::Receiver<Value>), Trouble> {
    let directory = watch.directory.clone();
    let shown = directory.display().to_string();
    let recursive = watch.recursive;
    let work = move || -> RpcResult<(OwnedFd, HashMap<i32, PathBuf>)> {
        let failed = |error: rustix::io::Errno| RpcError::internal(format!("error watching: {error}"));
        if !directory.exists() {
            let message = format!("path {shown} not found: stat {shown}: no such file or directory");
            return Err(RpcError::not_found(message));
        }
        if !directory.is_dir() {
            return Err(RpcError::invalid(format!("path {shown} not a directory")));
        }
        let watching = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let mut directories = HashMap::new();
        add(&watching, &directory, Path::new(""), recursive, &mut directories).map_err(failed)?;
        Ok((watching, directories))
    };
    let (watching, directories) = call.run.machine.with_files(work).await??;
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    let (sender, events) = mpsc::channel(WAITING);
    let (run, gone) = (Arc::downgrade(&call.run), call.run.over.clone());
    call.fake.tasks.spawn(async move {
        let relay = relay(watching, directories, watch, run, sender);
        tokio::select! {
            () = stop.cancelled() => {}
            () = gone.cancelled() => {}
            () = relay => {}
        }
    });
    Ok((guard, events))
}

fn add(
    watching: &OwnedFd,
    directory: &Path,
    name: &Path,
    recursive: bool,
    directories: &mut HashMap<i32, PathBuf>,
) -> rustix::io::Result<()> {
    let flags = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ATTRIB;
    directories.insert(inotify::add_watch(watching, directory, flags)?, name.to_owned());
    if !recursive {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // What has gone meanwhile needs no watching.
            let _ = add(watching, &entry.path(), &name.join(entry.file_name()), recursive, directories);
        }
    }
    Ok(())
}

async fn relay(
    watching: OwnedFd,
    mut directories: HashMap<i32, PathBuf>,
    watch: Watch,
    run: std::sync::Weak<Run>,
    sender: mpsc::Sender<Value>,
) {
    loop {
        let happened = read(&watching);
        if happened.is_empty() {
            sleep(LOOK).await;
        }
        for (descriptor, flags, name) in happened {
            let Some(kind) = kind_of(flags) else { continue };
            let Some(name) = directories.get(&descriptor).map(|directory| directory.join(name)) else { continue };
            let mut event = json!({ "name": name.to_string_lossy(), "type": kind });
            let Some(run) = run.upgrade() else { return };
            let path = watch.directory.join(&name);
            if watch.with_entry {
                let path = path.clone();
                if let Ok(Ok(entry)) = run.machine.with_files(move || entry(&path)).await {
                    event["entry"] = entry;
                }
            }
            let is_new_directory = flags.contains(ReadFlags::ISDIR) && kind == "EVENT_TYPE_CREATE";
            if watch.recursive && is_new_directory {
                let Ok(watching) = watching.try_clone() else { return };
                let work = move || {
                    let mut added = HashMap::new();
                    let _ = add(&watching, &path, &name, true, &mut added);
                    added
                };
                directories.extend(run.machine.with_files(work).await.unwrap_or_default());
            }
            drop(run);
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// What has happened since.
fn read(watching: &OwnedFd) -> Vec<(i32, ReadFlags, PathBuf)> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(watching, &mut buffer);
    let mut happened = Vec::new();
    // It says so when there is nothing more.
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|name| PathBuf::from(name.to_string_lossy().into_owned()));
        happened.push((event.wd(), event.events(), name.unwrap_or_default()));
    }
    happened
}

fn kind_of(flags: ReadFlags) -> Option<&'static str> {
    [
        (ReadFlags::CREATE | ReadFlags::MOVED_TO, "EVENT_TYPE_CREATE"),
        (ReadFlags::MODIFY, "EVENT_TYPE_WRITE"),
        (ReadFlags::DELETE, "EVENT_TYPE_REMOVE"),
        (ReadFlags::MOVED_FROM, "EVENT_TYPE_RENAME"),
        (ReadFlags::ATTRIB, "EVENT_TYPE_CHMOD"),
    ]
    .into_iter()
    .find_map(|(bits, kind)| flags.intersects(bits).then_some(kind))
}
