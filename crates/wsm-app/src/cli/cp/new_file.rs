//! A local file that appears as a whole or not at all.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::{
    fs::{self, File, OpenOptions},
    io::AsyncWriteExt,
};

/// A file that is being written: under another name beside its place, until it is complete.
///
/// What is there and is no regular file, such as a device, is written to directly.
#[derive(Debug)]
pub(super) struct NewFile {
    file: File,
    move_to: Option<Move>,
}

/// Removes the file under its first name, unless it got its own.
#[derive(Debug)]
struct Move {
    from: PathBuf,
    to: PathBuf,
    done: bool,
}

impl Drop for Move {
    fn drop(&mut self) {
        if !self.done {
            // Nothing more can be done about a file that can not be removed.
            let _ = std::fs::remove_file(&self.from);
        }
    }
}

impl NewFile {
    /// Begins a file. `mode` is what it may be used for, unless one is there already, whose permissions stay.
    pub(super) async fn begin(target: &Path, mode: Option<u32>) -> io::Result<Self> {
        // Through links, as a file that is written in place would be.
        let target = fs::canonicalize(target).await.unwrap_or_else(|_| target.to_owned());
        let existing = fs::metadata(&target).await.ok();
        if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
            return Ok(Self { file: OpenOptions::new().write(true).open(&target).await?, move_to: None });
        }
        let from = target.with_file_name(format!(".wsm-cp-{}", uuid::Uuid::new_v4().simple()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode.unwrap_or(0o666));
        let file = options.open(&from).await?;
        let new = Self { file, move_to: Some(Move { from, to: target, done: false }) };
        if let Some(existing) = existing {
            new.file.set_permissions(existing.permissions()).await?;
        }
        Ok(new)
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).await
    }

    /// Puts the file in its place.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.file.flush().await?;
        if let Some(mut move_to) = self.move_to.take() {
            fs::rename(&move_to.from, &move_to.to).await?;
            move_to.done = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn the_old_file_stays_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("f"), dir.path().join("link"));
        std::fs::write(&target, "old").unwrap();
        std::fs::set_permissions(&target, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("f", &link).unwrap();
        let mut given_up = NewFile::begin(&target, None).await.unwrap();
        given_up.write(b"half").await.unwrap();
        drop(given_up);
        let mut new = NewFile::begin(&link, Some(0o777)).await.unwrap();
        new.write(b"new").await.unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        new.finish().await.unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
        let mut device = NewFile::begin(Path::new("/dev/null"), None).await.unwrap();
        device.write(b"gone").await.unwrap();
        device.finish().await.unwrap();
    }
}
