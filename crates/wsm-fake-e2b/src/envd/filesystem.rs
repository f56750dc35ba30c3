//! Procedures about files.

use std::{
    fs, io,
    os::unix::fs::chown,
    path::{Component, Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Call, Trouble, entry::entry};
use crate::{
    guest::user::User,
    operation::Operation,
    rpc::{Code, RpcError, RpcResult, number, text, without_zeros},
};

pub(super) async fn call(call: &Call, operation: Operation, user: User, message: &Value) -> Result<Value, Trouble> {
    let message = message.clone();
    let work = move || match operation {
        Operation::Stat => stat(&path_of(user, &message, "path")?),
        Operation::ListDir => {
            let depth = number(&message, "depth").unwrap_or(1).max(1);
            list(&path_of(user, &message, "path")?, depth)
        }
        Operation::MakeDir => make(&path_of(user, &message, "path")?, user),
        Operation::Move => {
            let (source, destination) = (path_of(user, &message, "source")?, path_of(user, &message, "destination")?);
            rename(&source, &destination, user)
        }
        Operation::Remove => remove(&path_of(user, &message, "path")?),
        _ => Err(RpcError::new(Code::Unimplemented, "unknown procedure")),
    };
    Ok(call.run.machine.with_files(work).await??)
}

pub(super) fn path_of(user: User, message: &Value, field: &str) -> RpcResult<PathBuf> {
    let path = text(message, field);
    if path.contains('\0') {
        return Err(RpcError::invalid("invalid argument: a path with a NUL"));
    }
    Ok(clean(&user.resolve(path)))
}

/// Without dots, as Go's `filepath.Clean` does it: without looking at links.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(cleaned.pop()),
            Component::CurDir => {}
            other => cleaned.push(other),
        }
    }
    cleaned
}

/// An error as Go words it.
fn worded(operation: &str, path: &Path, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::NotADirectory => "not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "read-only file system".to_owned(),
        _ => error.to_string(),
    };
    format!("{operation} {}: {why}", path.display())
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn stat(path: &Path) -> RpcResult<Value> {
    match entry(path) {
        Ok(entry) => Ok(json!({ "entry": entry })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(RpcError::not_found(format!("file not found: {}", worded("lstat", path, &error))))
        }
        Err(error) => Err(RpcError::internal(format!("error getting file info: {}", worded("lstat", path, &error)))),
    }
}

fn list(path: &Path, depth: u64) -> RpcResult<Value> {
    let resolved = fs::canonicalize(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => RpcError::not_found(format!("path not found: {}", worded("lstat", path, &error))),
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            let message = format!("cyclic symlink or chain >255 links at \"{}\"", path.display());
            RpcError::new(Code::FailedPrecondition, message)
        }
        _ => RpcError::internal(format!("error resolving symlink: {}", worded("lstat", path, &error))),
    })?;
    if !resolved.is_dir() {
        return Err(RpcError::invalid(format!("path is not a directory: {}", path.display())));
    }
    let mut entries = Vec::new();
    walk(&resolved, path, depth, &mut entries)
        .map_err(|error| RpcError::internal(format!("error reading directory: {}", worded("open", path, &error))))?;
    Ok(without_zeros(json!({ "entries": entries })))
}

/// Adds what is below a directory, which the caller knows under another path.
fn walk(directory: &Path, shown: &Path, depth: u64, entries: &mut Vec<Value>) -> io::Result<()> {
    let mut names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let path = directory.join(&name);
        let shown = shown.join(&name);
        // What has gone meanwhile is not there.
        let Ok(mut described) = entry(&path) else { continue };
        described["path"] = json!(shown.to_string_lossy());
        entries.push(described);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir());
        if depth > 1 && is_directory {
            walk(&path, &shown, depth - 1, entries)?;
        }
    }
    Ok(())
}

fn make(path: &Path, user: User) -> RpcResult<Value> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let message = format!("directory already exists: {}", path.display());
            return Err(RpcError::new(Code::AlreadyExists, message));
        }
        Ok(_) => {
            let message = format!("path already exists but it is not a directory: {}", path.display());
            return Err(RpcError::invalid(message));
        }
        Err(_) => {}
    }
    make_all(path, user).map_err(|error| RpcError::internal(format!("error creating directory: {error}")))?;
    stat(path)
}

/// Makes a directory and those above it that are missing, for a user.
pub(super) fn make_all(path: &Path, user: User) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return Err(format!("path is a file: {}", path.display())),
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(worded("stat", path, &error)),
    }
    if let Some(parent) = path.parent() {
        make_all(parent, user)?;
    }
    let made = fs::create_dir(path).and_then(|()| chown(path, Some(user.id), Some(user.id)));
    made.map_err(|error| worded("mkdir", path, &error))
}

fn rename(source: &Path, destination: &Path, user: User) -> RpcResult<Value> {
    if let Some(parent) = destination.parent() {
        make_all(parent, user).map_err(RpcError::internal)?;
    }
    fs::rename(source, destination).map_err(|error| {
        let shown = format!("rename {} {}", source.display(), destination.display());
        match error.kind() {
            io::ErrorKind::NotFound => {
                RpcError::not_found(format!("source file not found: {shown}: no such file or directory"))
            }
            _ => RpcError::internal(format!("error renaming: {shown}: {error}")),
        }
    })?;
    stat(destination)
}

fn remove(path: &Path) -> RpcResult<Value> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => Ok(json!({})),
        // It is not there, as wanted.
        Err(error) if is_missing(&error) => Ok(json!({})),
        Err(error) => {
            Err(RpcError::internal(format!("error removing file or directory: {}", worded("unlinkat", path, &error))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_by_their_text() {
        for (path, wanted) in [("/a/../b", "/b"), ("/a/./b/", "/a/b"), ("/../x", "/x"), ("/", "/")] {
            assert_eq!(clean(Path::new(path)), Path::new(wanted));
        }
    }
}
