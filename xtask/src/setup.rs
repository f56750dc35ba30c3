//! Installs what the build and the tests need.

use anyhow::{Result, bail};

use crate::run::{is_installed, run};

/// A program, and the Debian package that brings it. Sandboxes see what is below `/usr`, and no other Python.
const NEEDED: [(&str, &str); 6] = [
    ("bwrap", "bubblewrap"),
    ("cc", "build-essential"),
    ("git", "git"),
    ("perl", "perl"),
    ("/usr/bin/python3", "python3-venv"),
    ("setsid", "util-linux"),
];

pub(crate) fn setup() -> Result<()> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !is_installed(program)).collect();
    if missing.is_empty() {
        println!("everything that the build and the tests need is installed");
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    if !is_installed("apt-get") {
        bail!("not installed: {}. Install what brings these with this machine's own tool", packages.join(", "));
    }
    run("apt-get", &["update"])?;
    let install = ["install", "--yes", "--no-install-recommends"];
    run("apt-get", &[&install[..], &packages[..]].concat())
}
