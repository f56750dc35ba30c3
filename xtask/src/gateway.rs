//! Builds the gateway's program.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::run::{command, root, run_command, target_directory};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Of its own, so that its flags do not make everything else be built again.
const TARGET_DIR: &str = "target/gateway";
const PROFILE: &str = "gateway";
/// `getrandom_backend`: in a static program, the crate of that name does not find the C library's function, and would look
/// for a device that an empty root file system does not have.
/// The linker's: one copy of functions that are the same, and relocations in few bytes.
const FLAGS: &str = r#"-C target-feature=+crt-static --cfg getrandom_backend="linux_getrandom" -C link-arg=-Wl,-O2 -C link-arg=-Wl,--icf=all -C link-arg=-Wl,--pack-dyn-relocs=relr"#;
/// It is put into every sandbox.
const MOST_BYTES: u64 = 6 << 20;
/// With TLS, which takes a good megabyte.
const MOST_BYTES_WITH_TLS: u64 = 8 << 20;

/// Where the built program is.
pub(crate) fn path() -> PathBuf {
    root().join(TARGET_DIR).join(TARGET).join(PROFILE).join("wsm-gateway")
}

/// Builds the program, checks that it runs anywhere and is small, and puts it where `wsm` looks for it: beside itself. Gives
/// its path.
pub(crate) fn gateway(tls: bool) -> Result<PathBuf> {
    let (features, most) = if tls { ("tls,quiet", MOST_BYTES_WITH_TLS) } else { ("program,quiet", MOST_BYTES) };
    let build = ["build", "--locked", "--profile", PROFILE, "--target", TARGET, "--target-dir", TARGET_DIR];
    let which = ["--package", "wsm-gateway", "--features", features, "--bin", "wsm-gateway"];
    run_command(command("cargo", &[&build[..], &which[..]].concat()).env("RUSTFLAGS", FLAGS))?;

    let path = path();
    let program = fs::read(&path).with_context(|| format!("`{}` can not be read", path.display()))?;
    let bytes = program.len() as u64;
    println!("{}: {bytes} bytes", path.display());
    ensure!(is_static(&program).context("the program is not what was expected")?, "the program is not static");
    ensure!(bytes <= most, "the program is larger than {most} bytes");
    for profile in ["debug", "release"] {
        let beside = target_directory().join(profile);
        fs::create_dir_all(&beside)?;
        // Renamed into place, since a running program can not be written to.
        let draft = beside.join("wsm-gateway.draft");
        fs::copy(&path, &draft)?;
        fs::rename(&draft, beside.join("wsm-gateway"))?;
    }
    Ok(path)
}

/// Whether a 64-bit ELF program names no interpreter, which would load libraries for it. None for anything else.
fn is_static(program: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;

    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = program.get(at..at + length)?;
        bytes.iter().rev().try_fold(0, |number: usize, &byte| number.checked_mul(256)?.checked_add(byte.into()))
    };
    if program.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let (table, entry_bytes, entries) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = (0..entries).map(|entry| number(table + entry * entry_bytes, 4));
    kinds.try_fold(true, |is_static, kind| Some(is_static && kind? != INTERPRETER as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_loads_libraries_is_not_static() {
        let dynamic = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&dynamic), Some(false));
        // The same one without its list of segments.
        let mut bare = dynamic;
        bare[56..58].fill(0);
        assert_eq!(is_static(&bare), Some(true));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
    }
}
