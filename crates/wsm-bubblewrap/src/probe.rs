//! Whether sandboxes can be made here: shown by making one.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;
use wsm_core::{Error, ErrorKind, Result};

use crate::refusal;

/// Options that not every `bwrap` has. Distributions add some to older versions, so the number says little.
const NEEDED: [&str; 5] = ["--add-seccomp-fd", "--as-pid-1", "--disable-userns", "--json-status-fd", "--size"];

/// The `bwrap` program of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Bwrap {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

impl Bwrap {
    /// Finds the program, and asks what it can do.
    ///
    /// # Errors
    ///
    /// `unavailable` with what to do when it is missing or too old.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(crate) async fn find(program: &Path) -> Result<Self> {
        let path = locate(program).ok_or_else(|| refusal::missing(program))?;
        let version = output(&path, "--version").await?;
        let version = version.trim().trim_start_matches("bubblewrap ").to_owned();
        let help = output(&path, "--help").await?;
        let missing: Vec<_> = NEEDED.into_iter().filter(|option| !help.contains(option)).collect();
        if !missing.is_empty() {
            let message = format!(
                "`{}` is version {version}, which lacks {}: install bubblewrap 0.8 or newer",
                path.display(),
                missing.join(", ")
            );
            return Err(Error::new(ErrorKind::Unavailable, message).with_code("bwrap_too_old"));
        }
        Ok(Self { path, version })
    }
}

/// Where a program is. One that is only a name is looked for on `PATH`.
fn locate(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

async fn output(program: &Path, option: &str) -> Result<String> {
    let run = Command::new(program).arg(option).env_clear().stdin(Stdio::null()).kill_on_drop(true).output().await;
    match run {
        // Old versions print their help on the other stream.
        Ok(output) => Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        Err(cause) => {
            let message = format!("`{} {option}` could not be run", program.display());
            Err(Error::new(ErrorKind::Unavailable, message).with_code("bwrap_refused").with_source(cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    async fn find(script: &str) -> Result<Bwrap> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("bwrap");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Bwrap::find(&program).await
    }

    #[tokio::test]
    async fn a_program_without_an_option_that_is_needed_is_too_old() {
        let error =
            find("[ $1 = --version ] && echo bubblewrap 0.4.0 || echo --as-pid-1 --json-status-fd").await.unwrap_err();
        assert_eq!(error.code(), "bwrap_too_old");
        let text = error.to_string();
        assert!(text.contains("0.4.0") && text.contains("--disable-userns") && !text.contains("--as-pid-1"), "{text}");
    }

    #[tokio::test]
    async fn a_missing_program_is_told_as_such() {
        for program in ["/nowhere/bwrap", "no-such-bwrap"] {
            assert_eq!(Bwrap::find(Path::new(program)).await.unwrap_err().code(), "bwrap_missing");
        }
    }
}
