//! Installs the MCP servers of others that the gateway is tested with.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run::{is_installed, root, run};

const DIRECTORY: &str = "target/mcp";
/// Under the directory: what is there, so that nothing is asked over the network when it is all there already.
const INSTALLED: &str = "installed";
const NPM: [&str; 2] =
    ["@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/server-filesystem@2026.8.31"];
const PYTHON: [&str; 1] = ["mcp-server-time==2026.10.19"];

pub(crate) fn setup() -> Result<()> {
    let wanted = [&NPM[..], &PYTHON[..]].concat().join("\n");
    let directory = root().join(DIRECTORY);
    let marker = directory.join(INSTALLED);
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        println!("the MCP servers for tests are installed");
        return Ok(());
    }
    let missing: Vec<&str> = ["npm", "python3"].into_iter().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        bail!("not installed: {}. Tests with MCP servers of others are skipped without", missing.join(", "));
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
