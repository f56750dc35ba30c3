//! Runs other programs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// A command in the root of the workspace.
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Runs a command and expects it to succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<()> {
    run_command(&mut command(program, args))
}

/// Runs a command and expects it to succeed.
pub(crate) fn run_command(command: &mut Command) -> Result<()> {
    println!("+ {}", shown(command));
    let status = command.status().with_context(|| format!("`{}` can not be started", shown(command)))?;
    ensure!(status.success(), "`{}` failed: {status}", shown(command));
    Ok(())
}

/// What a command prints on stdout.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String> {
    let mut command = command(program, args);
    let output = command.output().with_context(|| format!("`{}` can not be started", shown(&command)))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{}` failed: {}: {stderr}", shown(&command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
