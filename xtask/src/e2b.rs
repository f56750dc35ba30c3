//! Installs the official SDKs of E2B that the stand-in for its cloud is driven with.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run::{is_installed, root, run};

const DIRECTORY: &str = "target/e2b-sdk";
/// Under the directory: what is there, so that nothing is asked over the network when it is all there already.
const INSTALLED: &str = "installed";
const NPM: [&str; 1] = ["e2b@2.51.0"];
const PYTHON: [&str; 1] = ["e2b==2.63.0"];

pub(crate) fn setup() -> Result<()> {
    let wanted = [&NPM[..], &PYTHON[..]].concat().join("\n");
    let directory = root().join(DIRECTORY);
    let marker = directory.join(INSTALLED);
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        println!("the SDKs of E2B for tests are installed");
        return Ok(());
    }
    let missing: Vec<&str> = ["npm", "node", "python3"].into_iter().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        bail!("not installed: {}. Tests with the SDKs of E2B are skipped without", missing.join(", "));
    }
    // Whatever is there is not what is wanted.
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("`{}` can not be removed", directory.display()))?;
    }
    fs::create_dir_all(&directory)?;
    let install = ["install", "--prefix", DIRECTORY, "--no-audit", "--no-fund", "--no-save"];
    run("npm", &[&install[..], &NPM[..]].concat())?;
    let python = format!("{DIRECTORY}/python");
    run("python3", &["-m", "venv", &python])?;
    let install = ["install", "--quiet", "--disable-pip-version-check"];
    run(&format!("{python}/bin/pip"), &[&install[..], &PYTHON[..]].concat())?;
    fs::write(&marker, wanted).with_context(|| format!("`{}` can not be written", marker.display()))
}
