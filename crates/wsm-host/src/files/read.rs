//! Reading a file, piece by piece.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use rustix::fs::{OFlags, fstat};
use wsm_core::{ByteStream, Error, FileKind, Metadata, ReadOptions, Result};

use super::{Root, metadata};
use crate::{blocking::blocking, error};

/// How much is read at once.
const CHUNK: u64 = 256 << 10;

/// Opens a regular file.
pub(crate) fn open_for_reading(root: &Root, path: &str) -> Result<(File, Metadata)> {
    // Opening a pipe would wait for somebody who writes to it.
    let file = root.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(|error| {
        // A socket can not be opened at all.
        match super::stat(root, path) {
            Ok(metadata) if metadata.kind == FileKind::Other => not_a_file(path),
            _ => error,
        }
    })?;
    let metadata = fstat(&file).map(|stat| metadata(&stat)).map_err(|errno| error::file(path, errno))?;
    match metadata.kind {
        FileKind::File => Ok((file.into(), metadata)),
        FileKind::Directory => Err(error::is_a_directory(path)),
        _ => Err(not_a_file(path)),
    }
}

fn not_a_file(path: &str) -> Error {
    Error::invalid("path", format!("`{path}` is a pipe, socket or device, and not a file")).with_code("not_a_file")
}

/// The bytes of a part of a file, or of as much of it as there is.
pub(crate) fn body(file: File, options: ReadOptions) -> ByteStream {
    let ReadOptions { offset, length, .. } = options;
    let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
    let file = Arc::new(file);
    // None once the end was seen.
    stream::try_unfold(Some(offset), move |position| {
        let file = Arc::clone(&file);
        async move {
            let Some(position) = position.filter(|&position| position < end) else { return Ok(None) };
            let wanted = CHUNK.min(end - position);
            let bytes = blocking(move || read_at(&file, position, wanted)).await?;
            let read = bytes.len() as u64;
            // A piece that is shorter than asked for is the last one of a file.
            Ok((read > 0).then_some((bytes, (read == wanted).then_some(position + read))))
        }
    })
    .boxed()
}

fn read_at(file: &File, mut position: u64, wanted: u64) -> Result<Bytes> {
    let mut bytes = BytesMut::zeroed(usize::try_from(wanted).unwrap_or(usize::MAX).min(CHUNK as usize));
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], position) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                position += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Beyond what the file system can address there is nothing.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error::io("the rest of the file could not be read", error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.freeze())
}
