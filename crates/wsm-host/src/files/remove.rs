//! Removing files and directories.

use rustix::{
    fs::{AtFlags, statat, unlinkat},
    io::Errno,
};
use wsm_core::{Error, ErrorKind, RemoveOptions, Result};

use super::{Root, metadata, resolve::Target};
use crate::{error, tree::remove_tree};

/// Removes what `path` names; a link itself, never what it leads to.
pub(crate) fn remove(root: &Root, path: &str, options: RemoveOptions) -> Result<()> {
    let RemoveOptions { recursive, missing_ok, .. } = options;
    match remove_target(root, path, recursive) {
        Err(error) if missing_ok && error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn remove_target(root: &Root, path: &str, recursive: bool) -> Result<()> {
    let Some(Target { parent, name }) = root.target(path, false)? else {
        let message = format!("`{path}` is the workspace directory or ends in `..`: name what is to be removed");
        return Err(Error::invalid("path", message));
    };
    let removed =
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).and_then(|stat| match (metadata(&stat).is_dir(), recursive) {
            (true, true) => remove_tree(&parent, name),
            (true, false) => unlinkat(&parent, name, AtFlags::REMOVEDIR),
            (false, _) => unlinkat(&parent, name, AtFlags::empty()),
        });
    removed.map_err(|errno| match errno {
        // Some file systems say so of a directory that is not empty.
        Errno::EXIST => error::file(path, Errno::NOTEMPTY),
        errno => error::file(path, errno),
    })
}
