//! The gateway's program on this machine: where it is found.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use blake2::{
    Blake2b,
    digest::{Digest, consts::U16},
};
use wsm_core::{Error, ErrorKind, InitProgram, Result};

/// The program's name.
const NAME: &str = "wsm-gateway";
/// Names the program, before all other places where it may be.
const VARIABLE: &str = "WSM_GATEWAY";

/// Finds the program where the environment variable `WSM_GATEWAY` says it is, else beside the program that runs now, else
/// in it, if it was built with the feature `embedded`. Blocks.
///
/// # Errors
///
/// `unavailable` with code `gateway_missing`, saying where it was looked for and what to do.
pub fn find_program() -> Result<InitProgram> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return load_program(Path::new(&path));
    }
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.join(NAME)));
    if let Some(path) = beside.filter(|path| path.is_file()) {
        return load_program(&path);
    }
    match embedded() {
        Some(program) => program,
        None => Err(missing(&format!("`{NAME}` is neither beside this program nor named by `{VARIABLE}`"))),
    }
}

/// Takes a certain file for the program. Blocks.
///
/// # Errors
///
/// `unavailable` with code `gateway_missing` when it can not be read.
pub fn load_program(path: &Path) -> Result<InitProgram> {
    let unreadable = |cause| missing(&format!("the gateway `{}` can not be read", path.display())).with_source(cause);
    let path: PathBuf = fs::canonicalize(path).map_err(unreadable)?;
    let content = fs::read(&path).map_err(unreadable)?;
    Ok(InitProgram { path, hash: hash(&content), args: Vec::new() })
}

#[cfg(not(feature = "embedded"))]
fn embedded() -> Option<Result<InitProgram>> {
    None
}

/// The program that this one carries, as a file in memory that stays for as long as this process.
#[cfg(feature = "embedded")]
fn embedded() -> Option<Result<InitProgram>> {
    use std::{
        io::Write,
        os::fd::{AsRawFd, OwnedFd},
        sync::OnceLock,
    };

    use rustix::fs::{MemfdFlags, memfd_create};

    static PROGRAM: &[u8] = include_bytes!(env!("WSM_GATEWAY"));
    static FILE: OnceLock<OwnedFd> = OnceLock::new();

    let write = || -> std::io::Result<PathBuf> {
        if FILE.get().is_none() {
            let mut file = fs::File::from(memfd_create(NAME, MemfdFlags::CLOEXEC)?);
            file.write_all(PROGRAM)?;
            // Another thread's is as good.
            let _ = FILE.set(file.into());
        }
        let number = FILE.get().map_or(-1, AsRawFd::as_raw_fd);
        Ok(PathBuf::from(format!("/proc/self/fd/{number}")))
    };
    let program = write().map(|path| InitProgram { path, hash: hash(PROGRAM), args: Vec::new() });
    Some(program.map_err(|cause| missing("the gateway that this program carries can not be used").with_source(cause)))
}

fn hash(content: &[u8]) -> String {
    hex::encode(Blake2b::<U16>::digest(content))
}

fn missing(problem: &str) -> Error {
    let message = format!("{problem}: build it with `cargo xtask gateway`, and set `{VARIABLE}` to its path");
    Error::new(ErrorKind::Unavailable, message).with_code("gateway_missing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            load_program(&path).unwrap().hash
        };
        assert_eq!(file("a", "x"), file("b", "x"));
        assert_ne!(file("a", "y"), file("b", "x"));
    }

    #[cfg(feature = "embedded")]
    #[test]
    fn the_program_that_is_carried_is_the_one_that_was_built() {
        let carried = embedded().unwrap().unwrap();
        assert_eq!(carried.hash, load_program(Path::new(env!("WSM_GATEWAY"))).unwrap().hash);
        assert_eq!(hash(&fs::read(carried.path).unwrap()), carried.hash);
    }

    #[test]
    fn a_missing_program_says_how_to_get_one() {
        let error = load_program(Path::new("/nowhere/wsm-gateway")).unwrap_err();
        assert_eq!(error.code(), "gateway_missing");
        assert!(error.to_string().contains("/nowhere/wsm-gateway"), "{error}");
        assert!(error.to_string().contains("cargo xtask gateway"), "{error}");
    }
}
