//! Making directories.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags, mkdirat},
    io::Errno,
};
use wsm_core::{Error, ErrorKind, Result};

use super::{Root, resolve::refusal};
use crate::error;

/// Makes a directory and its parents. One that exists is fine.
pub(crate) fn make_dir(root: &Root, path: &str) -> Result<()> {
    make_dirs(root, path, root.relative(path)?).map(drop)
}

/// Makes `directory` and its parents, and opens it. `path` is what the caller asked for, of which it is a part.
pub(super) fn make_dirs(root: &Root, path: &str, directory: &str) -> Result<OwnedFd> {
    let open = |relative: &str| root.try_open(relative, OFlags::PATH | OFlags::DIRECTORY);
    // Mostly it is there already.
    match open(directory) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR) => return Err(in_the_way(path)),
        opened => return opened.map_err(|errno| refusal(path, errno)),
    }
    let directory = directory.trim_end_matches('/');
    let ends = directory.match_indices('/').map(|(end, _)| end).chain([directory.len()]);
    let start_of_all = if directory.starts_with('/') { "/" } else { "." };
    let mut parent = open(start_of_all).map_err(|errno| error::file(path, errno))?;
    let mut start = 0;
    for end in ends {
        let name = &directory[start..end];
        start = end + 1;
        if matches!(name, "" | ".") {
            continue;
        }
        // Every step is resolved from the root, since links and `..` may lead anywhere inside.
        let so_far = &directory[..end];
        parent = match open(so_far) {
            Err(Errno::NOENT) => {
                match mkdirat(&parent, name, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                    // Somebody else was faster, which is as good.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(error::file(path, errno)),
                }
                match open(so_far) {
                    // It exists, and does not lead to anything: a link to what is missing.
                    Err(Errno::NOENT | Errno::NOTDIR) => return Err(in_the_way(path)),
                    opened => opened.map_err(|errno| refusal(path, errno))?,
                }
            }
            Err(Errno::NOTDIR) => return Err(in_the_way(path)),
            opened => opened.map_err(|errno| refusal(path, errno))?,
        };
    }
    Ok(parent)
}

fn in_the_way(path: &str) -> Error {
    let message = format!("on the way to `{path}` there is something that is not a directory");
    Error::new(ErrorKind::Conflict, message).with_field("path")
}
