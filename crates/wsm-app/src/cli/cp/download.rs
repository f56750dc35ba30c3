//! Out of a workspace.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::{fs, io::AsyncWriteExt};

use super::{
    Skipped,
    new_file::NewFile,
    remote_files::{Found, RemoteFiles, is_name, join, last},
};
use crate::http::FILE_MODE_HEADER;

/// Copies a file or a directory to a local path, or into it where it is a directory.
pub(super) async fn to_path(
    files: &RemoteFiles,
    path: &str,
    target: &Path,
    skipped: &mut Skipped,
) -> anyhow::Result<()> {
    let into_it = target.is_dir();
    match files.find(path).await? {
        Found::Nothing => anyhow::bail!("there is no `{}`", files.shown(path)),
        Found::File => {
            let must_be_directory = target.as_os_str().as_encoded_bytes().ends_with(b"/");
            anyhow::ensure!(into_it || !must_be_directory, "`{}` is no directory", target.display());
            let target = match last(path) {
                Some(name) if into_it => target.join(name),
                _ => target.to_owned(),
            };
            file(files, path, &target).await
        }
        Found::Directory(entries) => {
            let target = match last(path) {
                Some(name) if into_it => target.join(name),
                _ => target.to_owned(),
            };
            let mut open = vec![(path.to_owned(), target, Some(entries))];
            while let Some((path, target, entries)) = open.pop() {
                let entries = match entries {
                    Some(entries) => entries,
                    None => match files.find(&path).await? {
                        Found::Directory(entries) => entries,
                        Found::File | Found::Nothing => {
                            skipped.add(&path, "it changed meanwhile");
                            continue;
                        }
                    },
                };
                make_directory(&target).await?;
                for entry in entries {
                    let path = join(&path, &entry.name);
                    // The names come from somebody else, and must not lead anywhere else.
                    if entry.escaped || !is_name(&entry.name) {
                        skipped.add(&path, "its name is not UTF-8");
                    } else if entry.is_dir {
                        open.push((path, target.join(&entry.name), None));
                    } else if entry.size_bytes.is_none() {
                        skipped.add(&path, "it is neither a file nor a directory");
                    } else {
                        file(files, &path, &target.join(&entry.name)).await?;
                    }
                }
            }
            Ok(())
        }
    }
}

/// Copies a file to standard output.
pub(super) async fn to_stdout(files: &RemoteFiles, path: &str) -> anyhow::Result<()> {
    let mut response = files.read(path).await?;
    let mut stdout = tokio::io::stdout();
    while let Some(chunk) = response.chunk().await.map_err(|error| files.client().broken(error))? {
        stdout.write_all(&chunk).await?;
    }
    Ok(stdout.flush().await?)
}

async fn make_directory(target: &PathBuf) -> anyhow::Result<()> {
    match fs::create_dir(target).await {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && target.is_dir() => Ok(()),
        made => made.with_context(|| format!("the directory `{}` can not be made", target.display())),
    }
}

async fn file(files: &RemoteFiles, path: &str, target: &Path) -> anyhow::Result<()> {
    let mut response = files.read(path).await?;
    let mode = response.headers().get(FILE_MODE_HEADER).and_then(|value| value.to_str().ok());
    let mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok()).map(|mode| mode & 0o777);
    let failed = || format!("`{}` can not be written", target.display());
    let mut new = NewFile::begin(target, mode).await.with_context(failed)?;
    while let Some(chunk) = response.chunk().await.map_err(|error| files.client().broken(error))? {
        new.write(&chunk).await.with_context(failed)?;
    }
    new.finish().await.with_context(failed)
}
