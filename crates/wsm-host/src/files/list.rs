//! Listing a directory.

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, statat},
    io::Errno,
};
use wsm_core::{DirEntry, Error, Result};

use super::{Root, metadata};
use crate::error;

/// Every entry of a directory, in no order.
pub(crate) fn list(root: &Root, path: &str) -> Result<Vec<DirEntry>> {
    let found = root.open(path, OFlags::PATH)?;
    let is_dir = fstat(&found).map(|stat| metadata(&stat).is_dir()).map_err(|errno| error::file(path, errno))?;
    if !is_dir {
        let error = Error::invalid("path", format!("`{path}` is not a directory"));
        return Err(error.with_code("not_a_directory"));
    }
    let entries = || -> Result<Vec<DirEntry>, Errno> {
        let directory = openat(&found, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match statat(&found, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => entries.push(DirEntry::new(name.to_bytes(), metadata(&stat))),
                // It was removed in the meantime.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(entries)
    };
    entries().map_err(|errno| error::file(path, errno))
}
