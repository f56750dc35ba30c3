//! The first process' program, put where every sandbox can start it.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use blake2::{Blake2b, Digest, digest::consts::U16};
use wsm_core::{Error, ErrorKind, InitProgram, Result};

/// Below the basedir. Not a name that an encoded id can have.
const DIRECTORY: &str = ".sandbox";
/// Entered by users that need not list it.
const ENTERABLE: u32 = 0o711;
/// Run by everybody, changed by nobody.
const RUNNABLE: u32 = 0o555;

/// The directory for programs, made where it does not exist. Blocks.
///
/// # Errors
///
/// What the system says of it.
pub(crate) fn directory(basedir: &Path) -> Result<PathBuf> {
    let directory = basedir.join(DIRECTORY);
    let made = DirBuilder::new().recursive(true).mode(ENTERABLE).create(&directory);
    // Whatever the mask of this process took away.
    let made = made.and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(ENTERABLE)));
    made.map_err(|cause| failed("the directory for the gateway could not be made", cause))?;
    Ok(directory)
}

/// Copies a program there, unless that very one is there already, and gives its path. Blocks.
///
/// A copy, since the original may lie where the sandbox' user can not get to, and may be replaced by an upgrade while
/// sandboxes are being made.
///
/// # Errors
///
/// `invalid_input` about a hash that is none; `unavailable` with code `gateway_replaced` when the program is not the one that
/// the hash is of; what the system says of it.
pub(crate) fn install(directory: &Path, program: &InitProgram) -> Result<PathBuf> {
    let InitProgram { path, hash, .. } = program;
    if hash.is_empty() || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let message = format!("the hash of the init program is {hash:?}: it must consist of hexadecimal digits");
        return Err(Error::invalid("init", message));
    }
    let target = directory.join(hash);
    if target.exists() {
        return Ok(target);
    }
    // Several may install it at once.
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = directory.join(format!("{hash}.{}.{number}", std::process::id()));
    let copy = || -> io::Result<bool> {
        fs::copy(path, &draft)?;
        // Of the copy, since the original may be replaced at any moment. What has the name is taken for it ever after.
        if hex(&Blake2b::<U16>::digest(fs::read(&draft)?)) != *hash {
            fs::remove_file(&draft)?;
            return Ok(false);
        }
        fs::set_permissions(&draft, Permissions::from_mode(RUNNABLE))?;
        // Under its name there is never half of it, also not after a power failure.
        File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &target)?;
        Ok(true)
    };
    let is_right = copy().map_err(|cause| {
        let _ = fs::remove_file(&draft);
        failed(&format!("the gateway `{}` could not be installed", path.display()), cause)
    })?;
    if !is_right {
        let message =
            format!("the gateway `{}` is not the one that it was at the start: start wsm again", path.display());
        return Err(Error::new(ErrorKind::Unavailable, message).with_code("gateway_replaced"));
    }
    Ok(target)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failed(what: &str, cause: io::Error) -> Error {
    let kind = match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Capacity,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, what).with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, content: &str) -> InitProgram {
        let hash = hex(&Blake2b::<U16>::digest(content));
        InitProgram { path: path.to_owned(), hash, args: Vec::new() }
    }

    #[test]
    fn a_program_is_installed_once_for_each_content() {
        let basedir = tempfile::tempdir().unwrap();
        let directory = directory(basedir.path()).unwrap();
        let original = basedir.path().join("original");
        fs::write(&original, "one").unwrap();
        let one = install(&directory, &program(&original, "one")).unwrap();
        assert_eq!(one.metadata().unwrap().permissions().mode() & 0o777, RUNNABLE);
        fs::write(&original, "two").unwrap();
        assert_eq!(install(&directory, &program(&original, "one")).unwrap(), one);
        let two = install(&directory, &program(&original, "two")).unwrap();
        assert_eq!(fs::read_to_string(one).unwrap() + &fs::read_to_string(two).unwrap(), "onetwo");
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2);
    }

    #[test]
    fn what_was_replaced_after_the_start_is_not_taken_for_what_it_was() {
        let basedir = tempfile::tempdir().unwrap();
        let directory = directory(basedir.path()).unwrap();
        let original = basedir.path().join("original");
        fs::write(&original, "who").unwrap();
        let wanted = program(&original, "whole");
        let error = install(&directory, &wanted).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "gateway_replaced"));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::write(&original, "whole").unwrap();
        assert_eq!(fs::read_to_string(install(&directory, &wanted).unwrap()).unwrap(), "whole");
    }

    #[test]
    fn what_can_not_be_installed_is_named_and_leaves_nothing() {
        let basedir = tempfile::tempdir().unwrap();
        let directory = directory(basedir.path()).unwrap();
        let program = |hash: &str| InitProgram { path: "/nowhere/gateway".into(), hash: hash.into(), args: Vec::new() };
        let error = install(&directory, &program("01")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/gateway"), "{error}");
        for hash in ["", "../x", "zz"] {
            assert_eq!(install(&directory, &program(hash)).unwrap_err().field(), Some("init"));
        }
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    }
}
