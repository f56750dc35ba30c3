//! Tests against real engines, in every way in which they can be run here.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    docker, e2b, gateway,
    run::{command, is_installed, output, root, run_command, target_directory},
};

/// A user who exists for nobody: neither in a group, nor in the list of users.
const USER: &str = "12345";

/// Everything about sandboxes: with and without a network, and, as root, also as an ordinary user.
pub(crate) fn bubblewrap() -> Result<()> {
    let tests = executables("wsm-bubblewrap")?;
    // The checkout may lie where another user can not get to.
    let stage = Stage::new()?;
    let staged = stage.copy(&gateway::path())?;
    let tests = tests.into_iter().map(|(name, executable)| Ok((name, stage.copy(&executable)?)));
    let tests = tests.collect::<Result<Vec<_>>>()?;
    let users: &[Option<&str>] = if is_root() { &[None, Some(USER)] } else { &[None] };
    for &user in users {
        for (name, executable) in &tests {
            let networks: &[&str] = if name == "conformance" { &["none", "host"] } else { &["none"] };
            for network in networks {
                println!("\n{name}, as {}, WSM_TEST_NETWORK={network}", user.unwrap_or("this user"));
                let mut test = as_user(executable, user);
                test.current_dir(&stage.0).env("WSM_TEST_NETWORK", network);
                // Where it can not be tested, that is a failure here.
                // Servers of others lie in the checkout, too.
                let required = if user.is_none() { "bubblewrap,mcp" } else { "bubblewrap" };
                test.env("WSM_REQUIRE", required).env("WSM_GATEWAY", &staged);
                run_command(&mut test)?;
            }
        }
    }
    carried(&stage)
}

/// A `wsm` that carries the gateway in it needs no file beside it, and no variable.
fn carried(stage: &Stage) -> Result<()> {
    let build = ["build", "--package", "wsm-app", "--features", "embedded-gateway", "--locked"];
    run_command(command("cargo", &build).env("WSM_GATEWAY", gateway::path()))?;
    let directory = stage.0.join("carried");
    fs::create_dir(&directory)?;
    let wsm = directory.join("wsm");
    fs::copy(target_directory().join("debug/wsm"), &wsm).context("the built `wsm` can not be copied")?;
    let mut run = Command::new(wsm);
    run.args(["run", "--backend", "bubblewrap", "--basedir", "base", "--store", "wsm.db", "--", "true"]);
    run_command(run.current_dir(&directory).env("HOME", &directory).env_remove("WSM_GATEWAY"))
}

/// A directory that every user can read, removed when dropped.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("wsm-it-{}", std::process::id()));
        fs::create_dir(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        Ok(Self(directory))
    }

    fn copy(&self, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().context("a program has a name")?;
        let copy = self.0.join(name);
        fs::copy(program, &copy).with_context(|| format!("`{}` can not be copied", program.display()))?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        Ok(copy)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything about containers, with the gateway reached over its socket and through the engine.
pub(crate) fn docker() -> Result<()> {
    docker::setup()?;
    for (name, executable) in executables("wsm-docker")? {
        let ways: &[&str] = if name == "conformance" { &["socket", "engine"] } else { &["socket"] };
        for way in ways {
            println!("\n{name}, WSM_TEST_CONNECT={way}");
            let mut test = Command::new(&executable);
            test.current_dir(root().join("crates/wsm-docker")).env("WSM_TEST_CONNECT", way);
            test.env("WSM_REQUIRE", "docker").env("WSM_TEST_DOCKER_HOST", docker::host());
            run_command(test.env("WSM_GATEWAY", gateway::path()))?;
        }
    }
    Ok(())
}

/// The stand-in for the cloud, driven by the official SDKs; the backend, over it; and over the cloud itself, with a key for that.
pub(crate) fn e2b() -> Result<()> {
    e2b::setup()?;
    let gateway = gateway::gateway(false)?;
    let test = |package: &str, more: &[&str]| {
        let arguments = ["test", "--package", package, "--locked", "--no-fail-fast"];
        let mut tests = command("cargo", &[&arguments[..], more].concat());
        // What is only for the cloud would bring each of these there.
        tests.env("WSM_REQUIRE", "e2b,gateway").env("WSM_GATEWAY", &gateway).env_remove("WSM_TEST_E2B_CLOUD");
        tests
    };
    run_command(&mut test("wsm-fake-e2b", &[]))?;
    run_command(&mut test("wsm-e2b", &[]))?;
    run_command(&mut test("wsm-app", &["--test", "it", "cli::e2b"]))?;
    let has_key = std::env::var("E2B_API_KEY").is_ok_and(|key| !key.is_empty());
    if has_key {
        println!("\nthe suite, over the cloud: this makes sandboxes, which are paid for, and destroys them");
        // A few at a time: an account may not have many.
        let suite = ["--test", "conformance", "--", "--test-threads", "4"];
        return run_command(test("wsm-e2b", &suite).env("WSM_TEST_E2B_CLOUD", "1"));
    }
    println!("\nnot run over the cloud: that takes `E2B_API_KEY`");
    Ok(())
}

/// The integration tests of a crate, by name.
fn executables(package: &str) -> Result<Vec<(String, PathBuf)>> {
    let build =
        ["test", "--quiet", "--locked", "--package", package, "--tests", "--no-run", "--message-format", "json"];
    let messages = output("cargo", &build)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests: Vec<_> = messages
        .filter(|message| message["target"]["kind"][0] == "test")
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect();
    ensure!(!tests.is_empty(), "{package} has no tests");
    Ok(tests)
}

fn as_user(executable: &Path, user: Option<&str>) -> Command {
    let Some(user) = user else { return Command::new(executable) };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).arg(executable);
    // Not the home of whoever runs this.
    command.env("HOME", std::env::temp_dir());
    command
}

pub(crate) fn is_root() -> bool {
    is_installed("setpriv") && output("id", &["-u"]).is_ok_and(|id| id.trim() == "0")
}

/// Runs the tests of one kind of engine.
pub(crate) fn it(engine: &str) -> Result<()> {
    match engine {
        "bubblewrap" => bubblewrap().context("tests with real sandboxes"),
        "docker" => docker().context("tests with real containers"),
        "e2b" => e2b().context("tests with a stand-in for the cloud"),
        _ => anyhow::bail!("there are no tests for `{engine}`: only for `bubblewrap`, `docker`, and `e2b`"),
    }
}
