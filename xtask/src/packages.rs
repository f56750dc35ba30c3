//! Installs packages of npm and PyPI that only tests need, below `target`.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::run::{is_installed, root, run};

/// Under the directory: what is there, so that nothing is asked over the network when it is all there already.
const INSTALLED: &str = "installed";

/// Packages with their versions, and where they go.
pub(crate) struct Packages<'a> {
    /// What they are, for messages.
    pub(crate) what: &'a str,
    pub(crate) directory: &'a str,
    pub(crate) npm: &'a [&'a str],
    pub(crate) python: &'a [&'a str],
}

impl Packages<'_> {
    pub(crate) fn install(&self) -> Result<()> {
        let Self { what, directory: place, npm, python } = *self;
        let wanted = [npm, python].concat().join("\n");
        let directory = root().join(place);
        let marker = directory.join(INSTALLED);
        if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
            println!("{what} for tests are installed");
            return Ok(());
        }
        let needed = ["npm", "node", "python3"];
        let missing: Vec<&str> = needed.into_iter().filter(|program| !is_installed(program)).collect();
        if !missing.is_empty() {
            bail!("not installed: {}. Tests with {what} are skipped without", missing.join(", "));
        }
        // Whatever is there is not what is wanted.
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| format!("`{}` can not be removed", directory.display()))?;
        }
        fs::create_dir_all(&directory)?;
        run("npm", &[&["install", "--prefix", place, "--no-audit", "--no-fund", "--no-save"], npm].concat())?;
        let environment = format!("{place}/python");
        run("python3", &["-m", "venv", &environment])?;
        let pip = format!("{environment}/bin/pip");
        run(&pip, &[&["install", "--quiet", "--disable-pip-version-check"], python].concat())?;
        fs::write(&marker, wanted).with_context(|| format!("`{}` can not be written", marker.display()))
    }
}
