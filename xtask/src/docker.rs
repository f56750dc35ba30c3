//! A Docker engine for tests: installed, started, and given the images that the documented defaults name.
//!
//! It has directories and a socket of its own, so that it neither sees nor touches what another engine on the machine has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{command, is_installed, output, run, run_command};

/// What brings the engine, and what images are made with.
const PACKAGES: [(&str, &str); 3] = [("dockerd", "docker.io"), ("iptables", "iptables"), ("mmdebstrap", "mmdebstrap")];
/// Where the engine keeps everything.
const PLACE: &str = "/var/lib/wsm-test-docker";
const SOCKET: &str = "/run/wsm-test-docker.sock";
const BASE_IMAGE: &str = "python:3.11-slim";
const NODE_IMAGE: &str = "node:20-slim";
/// How often, and after which pause each, a started engine is asked whether it answers.
const LOOKS: u32 = 120;
const PAUSE: Duration = Duration::from_millis(500);

/// Where the engine is, as `DOCKER_HOST` says it.
pub(crate) fn host() -> String {
    format!("unix://{SOCKET}")
}

/// Makes sure that the engine answers and has its images.
pub(crate) fn setup() -> Result<()> {
    ensure!(output("id", &["-u"])?.trim() == "0", "only root can start an engine");
    install()?;
    start()?;
    base_image()?;
    node_image()?;
    println!("the engine for tests answers: DOCKER_HOST={}", host());
    Ok(())
}

fn install() -> Result<()> {
    let missing: Vec<_> =
        PACKAGES.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    run("apt-get", &["update"])?;
    let install = ["install", "--yes", "--no-install-recommends"];
    run("apt-get", &[&install[..], &missing].concat())
}

fn is_there(program: &str) -> bool {
    is_installed(program) || Path::new("/usr/sbin").join(program).exists()
}

fn engine(args: &[&str]) -> Command {
    let mut docker = command("docker", args);
    docker.env("DOCKER_HOST", host());
    docker
}

fn answers() -> bool {
    let asked = engine(&["version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

fn start() -> Result<()> {
    if answers() {
        return Ok(());
    }
    let place = PathBuf::from(PLACE);
    fs::create_dir_all(&place)?;
    forget_killed(&place);
    let log = fs::File::create(place.join("log"))?;
    let at = |name: &str| place.join(name).display().to_string();
    let mut dockerd = command("dockerd", &["--host", &host(), "--data-root", &at("data"), "--exec-root", &at("exec")]);
    dockerd.args(["--pidfile", &at("pid"), "--bridge", "none", "--log-level", "warn"]);
    // It outlives this process.
    let mut dockerd = {
        let mut session = Command::new("setsid");
        session.arg(dockerd.get_program()).args(dockerd.get_args()).env("PATH", path_with_sbin());
        session
    };
    dockerd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    println!("+ dockerd at {SOCKET}, in {PLACE}");
    let mut child = dockerd.spawn().context("`dockerd` can not be started")?;
    for _ in 0..LOOKS {
        if answers() {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!("`dockerd` ended with {status}: {}", last_of(&place.join("log")));
        }
        pause();
    }
    bail!("`dockerd` does not answer: {}", last_of(&place.join("log")))
}

/// Removes what a killed engine leaves, without which it starts, and with which it waits in vain for the part of it that was
/// killed along.
fn forget_killed(place: &Path) {
    let _ = fs::remove_file(place.join("pid"));
    let _ = fs::remove_file(SOCKET);
    let containerd = place.join("exec/containerd");
    let pid = fs::read_to_string(containerd.join("containerd.pid")).unwrap_or_default();
    let command = fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    if !command.contains(PLACE) {
        let _ = fs::remove_dir_all(containerd);
    }
}

#[expect(clippy::disallowed_methods, reason = "a task of this program waits for another one")]
fn pause() {
    thread::sleep(PAUSE);
}

fn path_with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn last_of(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn has_image(name: &str) -> bool {
    let asked = engine(&["image", "inspect", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Debian with Python, as small as it gets.
fn base_image() -> Result<()> {
    if has_image(BASE_IMAGE) {
        return Ok(());
    }
    let archive = PathBuf::from(PLACE).join("base.tar");
    let mut bootstrap = command("mmdebstrap", &["--variant=minbase", "--quiet"]);
    bootstrap.args(["--include=python3,python3-venv,ca-certificates,procps", "bookworm"]).arg(&archive).arg("-");
    // From where this machine has its own packages.
    let sources = sources()?;
    let mut child = bootstrap.stdin(Stdio::piped()).spawn().context("`mmdebstrap` can not be started")?;
    println!("+ mmdebstrap, for {BASE_IMAGE}");
    std::io::Write::write_all(&mut child.stdin.take().context("it has a stdin")?, sources.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "`mmdebstrap` failed: {status}");
    let imported = archive.display().to_string();
    run_command(&mut engine(&["import", "--change", "CMD [\"python3\"]", &imported, BASE_IMAGE]))?;
    fs::remove_file(archive)?;
    Ok(())
}

fn sources() -> Result<String> {
    let mut texts = vec![fs::read_to_string("/etc/apt/sources.list").unwrap_or_default()];
    if let Ok(directory) = fs::read_dir("/etc/apt/sources.list.d") {
        for entry in directory {
            let path = entry?.path();
            // Others hold packages of others.
            if path.file_stem().is_some_and(|name| name == "debian") {
                texts.push(fs::read_to_string(path)?);
            }
        }
    }
    Ok(texts.into_iter().filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n"))
}

/// The Node.js of this machine, where the image of that name has it.
fn node_image() -> Result<()> {
    if has_image(NODE_IMAGE) {
        return Ok(());
    }
    let node = ["/usr/local/bin/node", "/usr/bin/node"].into_iter().find(|path| Path::new(path).exists());
    let modules = ["/usr/local/lib/node_modules", "/usr/lib/node_modules", "/usr/share/nodejs"];
    let modules = modules.into_iter().find(|path| Path::new(path).join("npm").exists());
    let (Some(node), Some(modules)) = (node, modules) else {
        bail!("`{NODE_IMAGE}` is made of this machine's Node.js, which is not there: `apt-get install nodejs npm`");
    };
    let context = PathBuf::from(PLACE).join("node");
    let _ = fs::remove_dir_all(&context);
    fs::create_dir_all(context.join("node_modules"))?;
    fs::copy(fs::canonicalize(node)?, context.join("node"))?;
    run("cp", &["-r", &format!("{modules}/npm"), &context.join("node_modules").display().to_string()])?;
    let dockerfile =
        format!("FROM {BASE_IMAGE}\nCOPY node /usr/local/bin/node\nCOPY node_modules /usr/local/lib/node_modules\n");
    fs::write(context.join("Dockerfile"), dockerfile)?;
    let built = run_command(&mut engine(&["build", "--quiet", "--tag", NODE_IMAGE, &context.display().to_string()]));
    fs::remove_dir_all(&context)?;
    built
}
