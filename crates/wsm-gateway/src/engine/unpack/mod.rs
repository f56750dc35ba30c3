//! Unpacks an archive beside its place, and moves it there as a whole.

mod body;
mod budget;
mod place;
mod stage;
mod tar;
mod zip;

use std::{
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use futures::TryStreamExt;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use wsm_core::{ByteStream, Error, ErrorKind, Result};
use wsm_host::blocking;

use self::{
    body::{Body, Piece},
    budget::Budget,
    place::Place,
    stage::Stage,
};
use crate::{ArchiveFormat, UnpackRequest, Unpacked, member::Members};

/// How many pieces of the archive wait for the disk.
const WAITING: usize = 8;

/// Unpacks on a thread of its own. Dropping the future undoes what was done, soon after.
pub(super) async fn unpack(
    workdir: PathBuf,
    request: UnpackRequest,
    mut archive: ByteStream,
    permit: OwnedSemaphorePermit,
) -> Result<Unpacked> {
    let abandoned = CancellationToken::new();
    let _abandon = abandoned.clone().drop_guard();
    let (sender, pieces) = mpsc::channel(WAITING);
    let work = blocking(move || {
        let _permit = permit;
        run(&workdir, request, pieces, abandoned)
    });
    let feed = async move {
        while let Some(bytes) = archive.try_next().await? {
            // Nobody takes it once the work has failed, which says why.
            if sender.send(Piece::Bytes(bytes)).await.is_err() {
                return Ok(());
            }
        }
        let _ = sender.send(Piece::End).await;
        Ok::<_, Error>(())
    };
    tokio::pin!(work, feed);
    tokio::select! {
        unpacked = &mut work => unpacked,
        fed = &mut feed => {
            // Without the last piece, the work undoes itself; that is waited for.
            let unpacked = work.await;
            fed.and(unpacked)
        }
    }
}

fn run(
    workdir: &Path,
    request: UnpackRequest,
    pieces: mpsc::Receiver<Piece>,
    abandoned: CancellationToken,
) -> Result<Unpacked> {
    let UnpackRequest { path, format, overwrite, max_bytes, max_entries, max_ratio } = request;
    let place = Place::prepare(workdir, &path, overwrite)?;
    let budget = Budget::new(max_bytes, max_entries, max_ratio, abandoned);
    let mut body = Body::new(pieces, budget.clone());
    let mut start = Vec::new();
    body.by_ref()
        .take(tar::FIRST_BYTES)
        .read_to_end(&mut start)
        .map_err(|cause| budget.failure("the archive can not be read", cause))?;
    let format = format.or_else(|| format_of(&start)).ok_or_else(|| {
        bad("what was sent is neither a zip archive nor a tar archive nor one that is compressed with gzip")
    })?;
    let mut reader = Cursor::new(start).chain(body);

    let stage = place.stage()?;
    let mut job = Job { stage, members: Members::new(max_entries), budget, unpacked: Unpacked::default() };
    match format {
        ArchiveFormat::Zip => zip::unpack(&mut reader, &mut job)?,
        ArchiveFormat::Tar => tar::unpack(&mut reader, &mut job)?,
        ArchiveFormat::TarGz => tar::unpack(MultiGzDecoder::new(&mut reader), &mut job)?,
    }
    job.members.check_links()?;
    // A body without its end is not whole, whatever the archive says.
    std::io::copy(&mut reader, &mut std::io::sink())
        .map_err(|cause| job.budget.failure("the archive can not be read", cause))?;
    job.budget.check()?;
    let Job { mut stage, members, unpacked, .. } = job;
    place.commit(&mut stage, &members)?;
    Ok(unpacked)
}

fn format_of(start: &[u8]) -> Option<ArchiveFormat> {
    if start.starts_with(b"\x1f\x8b") {
        Some(ArchiveFormat::TarGz)
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        Some(ArchiveFormat::Zip)
    } else if start.get(257..262) == Some(b"ustar") {
        Some(ArchiveFormat::Tar)
    } else {
        None
    }
}

/// An archive that is being unpacked.
struct Job {
    stage: Stage,
    members: Members,
    budget: Budget,
    unpacked: Unpacked,
}

impl Job {
    /// Makes a directory that the archive names.
    fn make_dir(&mut self, path: &str, mode: Option<u32>) -> Result<()> {
        self.unpacked.directories += 1;
        self.stage.make_dir(path, mode)
    }

    /// Writes a file as long as its bytes are within the limits.
    fn write_file(&mut self, path: &str, mode: Option<u32>, mut content: impl Read) -> Result<()> {
        let mut file = self.stage.create(path, mode)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.budget.check()?;
            let length = content
                .read(&mut buffer)
                .map_err(|cause| self.budget.failure(&format!("the member `{path}` can not be read"), cause))?;
            if length == 0 {
                break;
            }
            self.budget.take_content(length)?;
            stage::write(&mut file, &buffer[..length], path)?;
            self.unpacked.bytes += length as u64;
        }
        self.unpacked.files += 1;
        Ok(())
    }

    /// Makes a symbolic link, whose target is looked at when all members are known.
    fn make_symlink(&mut self, path: &str, target: &[u8]) -> Result<()> {
        let target = self.members.set_target(path, target)?;
        self.unpacked.links += 1;
        self.stage.symlink(path, &target)
    }
}

/// Can not be unpacked.
fn bad(message: impl Into<String>) -> Error {
    Error::invalid("archive", message).with_code("bad_archive")
}

/// The file system failed.
fn system(what: impl Into<String>, cause: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;

    let kind = match cause.kind() {
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Capacity,
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        Io::FileTooLarge | Io::InvalidFilename => ErrorKind::InvalidInput,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, what).with_source(cause)
}
