//! Why a command could not start.

use std::{
    ffi::OsStr,
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, accessat},
    io::Errno,
};
use wsm_core::{Error, ErrorKind};

use crate::error;

/// Says what kept `program` from starting in `directory`. `path` is the value of its `PATH`.
pub(super) fn explain(program: &str, path: &OsStr, directory: BorrowedFd<'_>, cause: io::Error) -> Error {
    let Some(errno) = Errno::from_io_error(&cause) else {
        return Error::invalid("command", "the command holds what no program can be given").with_source(cause);
    };
    let message = match errno {
        Errno::NOENT if exists(program, path, directory) => {
            return not_executable(format!("`{program}` is there, but not the interpreter that it names"), errno);
        }
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP => return not_found(program, errno),
        Errno::ACCESS if !may_enter(directory) => {
            return Error::invalid("cwd", "the directory to run in may not be entered").with_source(errno);
        }
        // Some place in `PATH` may not be looked into, and the program is nowhere else.
        Errno::ACCESS if !program.contains('/') && !exists(program, path, directory) => {
            return not_found(program, errno);
        }
        Errno::ACCESS | Errno::PERM | Errno::NOEXEC | Errno::ISDIR | Errno::INVAL | Errno::LIBBAD | Errno::TXTBSY => {
            return not_executable(format!("`{program}` can not be executed"), errno);
        }
        Errno::TOOBIG => {
            return Error::invalid("command", "the arguments and variables are longer than the system allows")
                .with_source(errno);
        }
        Errno::AGAIN | Errno::NOMEM => "no room for one more process",
        Errno::MFILE | Errno::NFILE => "no room for one more open file",
        _ => "the command could not be started",
    };
    let kind = match error::system(message, errno).kind() {
        // Of a process, this is never about the workspace's files.
        ErrorKind::PermissionDenied => ErrorKind::Backend,
        kind => kind,
    };
    Error::new(kind, message).with_source(errno)
}

/// Whether the file is being written at this moment. It may have been closed already, but by a process that was forked
/// before and is about to become another command.
pub(super) fn is_busy(cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::TXTBSY)
}

fn not_found(program: &str, errno: Errno) -> Error {
    Error::invalid("command", format!("the program `{program}` does not exist"))
        .with_code("program_not_found")
        .with_source(errno)
}

fn not_executable(message: String, errno: Errno) -> Error {
    Error::invalid("command", message).with_code("program_not_executable").with_source(errno)
}

/// Looks a program up as `execvp` does.
fn exists(program: &str, path: &OsStr, directory: BorrowedFd<'_>) -> bool {
    let is_there = |file: PathBuf| accessat(directory, file, Access::EXISTS, AtFlags::empty()).is_ok();
    if program.contains('/') {
        return is_there(program.into());
    }
    !program.is_empty() && std::env::split_paths(path).any(|place| is_there(Path::new(".").join(place).join(program)))
}

fn may_enter(directory: BorrowedFd<'_>) -> bool {
    accessat(directory, ".", Access::EXEC_OK, AtFlags::empty()).is_ok()
}
