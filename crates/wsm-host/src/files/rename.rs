//! Moving files and directories.

use rustix::{fs::renameat, io::Errno};
use wsm_core::{Error, ErrorKind, Result};

use super::{Root, resolve::Target};
use crate::error;

/// Moves `from` to `to`, and replaces a file or an empty directory that is there.
pub(crate) fn rename(root: &Root, from: &str, to: &str) -> Result<()> {
    let target = |path| {
        root.target(path, false)?.ok_or_else(|| {
            let message = format!("`{path}` is the workspace directory or ends in `..`: name what is to be moved");
            Error::invalid("path", message)
        })
    };
    let Target { parent: from_parent, name: from_name } = target(from)?;
    let Target { parent: to_parent, name: to_name } = target(to)?;
    renameat(&from_parent, from_name, &to_parent, to_name).map_err(|errno| match errno {
        Errno::NOENT => error::file(from, errno),
        Errno::EXIST | Errno::NOTEMPTY => error::file(to, Errno::NOTEMPTY),
        Errno::ISDIR | Errno::NOTDIR => {
            let message = format!(
                "`{from}` and `{to}` are not of one kind: a directory can not replace a file, nor a file a directory"
            );
            Error::new(ErrorKind::Conflict, message).with_field("path").with_source(errno)
        }
        Errno::INVAL => Error::invalid("path", format!("`{to}` lies inside of `{from}`")).with_source(errno),
        Errno::XDEV => {
            let message = format!("`{from}` and `{to}` are on two file systems: copy it, then remove it");
            Error::new(ErrorKind::Unsupported, message).with_field("path").with_source(errno)
        }
        errno => error::file(to, errno),
    })
}
