//! Files of a workspace. All of this blocks, and none of it leads out.

mod list;
mod make_dir;
mod read;
mod remove;
mod rename;
mod resolve;
mod write;

use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Stat};
use wsm_core::{FileKind, Metadata};

pub(crate) use list::list;
pub(crate) use make_dir::make_dir;
pub(crate) use read::{body, open_for_reading};
pub(crate) use remove::remove;
pub(crate) use rename::rename;
pub use resolve::Reach;
pub(crate) use resolve::{Root, stat};
pub(crate) use write::{Draft, FLUSH_AT};

/// What the kernel says of a file, in the words of the contract.
fn metadata(stat: &Stat) -> Metadata {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = if kind == FileKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    let metadata = Metadata::new(kind, size).with_mode(stat.st_mode & 0o7777);
    match modified(stat) {
        Some(modified) => metadata.with_modified(modified),
        None => metadata,
    }
}

/// None for a time that the standard library can not hold.
fn modified(stat: &Stat) -> Option<SystemTime> {
    let nanos = Duration::from_nanos(stat.st_mtime_nsec);
    let seconds = Duration::from_secs(stat.st_mtime.unsigned_abs());
    let whole = if stat.st_mtime < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole?.checked_add(nanos)
}
