//! Into a workspace.

use std::{os::unix::fs::PermissionsExt, path::Path};

use anyhow::Context;
use reqwest::Body;
use tokio::{
    fs::{self, File},
    io::AsyncReadExt,
};
use tokio_util::io::ReaderStream;

use super::{
    Skipped,
    remote_files::{Found, RemoteFiles, join, last},
};

/// How much of a file is read at once.
const CHUNK: usize = 256 << 10;

/// Copies a local file or directory to a path of the workspace, or into it where it is a directory.
pub(super) async fn from_path(
    files: &RemoteFiles,
    source: &Path,
    path: &str,
    skipped: &mut Skipped,
) -> anyhow::Result<()> {
    let unreadable = || format!("`{}` can not be read", source.display());
    let metadata = fs::metadata(source).await.with_context(unreadable)?;
    let found = files.find(path).await?;
    let into_it = matches!(found, Found::Directory(_));
    // A directory that is named by its place, such as `.`, is copied without its name: what is in it.
    let by_place = source.as_os_str().as_encoded_bytes().ends_with(b"/.");
    let name = source.file_name().filter(|_| !by_place);
    let target = match name {
        Some(name) if into_it => {
            let name = name.to_str().with_context(|| format!("the name {name:?} is not UTF-8"))?;
            join(path, name)
        }
        _ => path.to_owned(),
    };
    if !metadata.is_dir() {
        anyhow::ensure!(into_it || !path.ends_with('/'), "`{}` is no directory", files.shown(path));
        return file(files, source, &target).await;
    }
    let occupied = matches!(found, Found::File);
    anyhow::ensure!(!occupied, "`{}` is no directory, and can not become one", files.shown(path));
    let mut open = vec![(source.to_owned(), target)];
    while let Some((source, path)) = open.pop() {
        files.make_directory(&path).await?;
        let unreadable = || format!("`{}` can not be read", source.display());
        let mut entries = fs::read_dir(&source).await.with_context(unreadable)?;
        while let Some(entry) = entries.next_entry().await.with_context(unreadable)? {
            let kind = entry.file_type().await.with_context(unreadable)?;
            let Ok(name) = entry.file_name().into_string() else {
                skipped.add(&entry.path(), "its name is not UTF-8");
                continue;
            };
            if kind.is_dir() {
                open.push((entry.path(), join(&path, &name)));
            } else if kind.is_file() {
                file(files, &entry.path(), &join(&path, &name)).await?;
            } else {
                skipped.add(&entry.path(), "it is neither a file nor a directory");
            }
        }
    }
    Ok(())
}

/// Copies standard input to a file of the workspace.
pub(super) async fn from_stdin(files: &RemoteFiles, path: &str) -> anyhow::Result<()> {
    let named = last(path).is_some() && !path.ends_with('/');
    anyhow::ensure!(named, "`{}` names no file for what is read", files.shown(path));
    files.write(path, Body::wrap_stream(ReaderStream::with_capacity(tokio::io::stdin(), CHUNK)), None, None).await
}

async fn file(files: &RemoteFiles, source: &Path, path: &str) -> anyhow::Result<()> {
    let unreadable = || format!("`{}` can not be read", source.display());
    let file = File::open(source).await.with_context(unreadable)?;
    let metadata = file.metadata().await.with_context(unreadable)?;
    if !metadata.is_file() {
        return files.write(path, Body::wrap_stream(ReaderStream::with_capacity(file, CHUNK)), None, None).await;
    }
    // What is added while it is read comes too late.
    let (length, mode) = (metadata.len(), metadata.permissions().mode());
    let body = Body::wrap_stream(ReaderStream::with_capacity(file.take(length), CHUNK));
    files.write(path, body, Some(length), Some(mode)).await
}
