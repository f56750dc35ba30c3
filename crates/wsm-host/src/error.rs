//! What the kernel's error numbers mean in terms of the contract.

use std::path::Path;

use rustix::io::Errno;
use wsm_core::{Error, ErrorKind};

/// The path leads out of the workspace.
pub(crate) const PATH_OUTSIDE: &str = "path_outside";

/// This opening of the workspace is over.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Gone, "the workspace was put away: ask for it again")
}

/// The workspace's directory vanished, or is another one than it was.
pub(crate) fn directory_gone() -> Error {
    Error::new(ErrorKind::Gone, "the workspace's directory was deleted behind our back: ask for it again")
}

/// A path that leads out.
pub(crate) fn outside(path: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, format!("`{path}` leads out of the workspace"))
        .with_code(PATH_OUTSIDE)
        .with_field("path")
}

/// A directory where a file is needed.
pub(crate) fn is_a_directory(path: &str) -> Error {
    Error::invalid("path", format!("`{path}` is a directory")).with_code("is_a_directory")
}

/// An operation on a path of a workspace failed.
pub(crate) fn file(path: &str, errno: Errno) -> Error {
    let error = match errno {
        Errno::NOENT | Errno::NOTDIR => Error::new(ErrorKind::NotFound, format!("`{path}` does not exist")),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Error::new(ErrorKind::PermissionDenied, format!("the file system does not allow this on `{path}`"))
        }
        Errno::LOOP => Error::invalid("path", format!("`{path}` goes through too many links")).with_code("link_loop"),
        Errno::NAMETOOLONG => Error::invalid("path", format!("`{path}` has too long a name for the file system")),
        Errno::ISDIR => return is_a_directory(path),
        Errno::EXIST => Error::new(ErrorKind::Conflict, format!("`{path}` exists already")),
        Errno::NOTEMPTY => Error::new(ErrorKind::Conflict, format!("the directory `{path}` is not empty"))
            .with_code("directory_not_empty"),
        Errno::BUSY | Errno::TXTBSY => Error::new(ErrorKind::Conflict, format!("`{path}` is in use")),
        _ => return system(&format!("`{path}` could not be worked on"), errno).with_field("path"),
    };
    error.with_field("path").with_source(errno)
}

/// Something that is not about a path of the caller's failed.
pub(crate) fn system(what: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => ErrorKind::Capacity,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::PermissionDenied,
        Errno::STALE | Errno::HOSTDOWN | Errno::TIMEDOUT | Errno::NOTCONN | Errno::IO => ErrorKind::Unavailable,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, what).with_source(errno)
}

/// As [`system`], for calls of the standard library.
pub(crate) fn io(what: &str, error: std::io::Error) -> Error {
    match Errno::from_io_error(&error) {
        Some(errno) => system(what, errno),
        None => Error::new(ErrorKind::Backend, what).with_source(error),
    }
}

/// The basedir can not be used.
pub(crate) fn basedir(path: &Path, problem: &str) -> Error {
    Error::invalid("basedir", format!("`basedir` {} {problem}", path.display()))
}
