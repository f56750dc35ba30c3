//! The command and the service with containers.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use super::{DEADLINE, Service, exit_cases, told};

/// The static program, as `cargo xtask gateway` leaves it.
const BUILT: &str = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
/// The engine of `cargo xtask setup docker`.
const ENGINE: &str = "unix:///run/wsm-test-docker.sock";

/// A place for an installation, and the engine that it uses.
struct Site {
    dir: tempfile::TempDir,
    engine: String,
    gateway: PathBuf,
}

impl Site {
    /// None, said aloud, where there is no engine for tests. `WSM_REQUIRE=docker` makes that a failure.
    fn new() -> Option<Self> {
        let engine = std::env::var("WSM_TEST_DOCKER_HOST").unwrap_or_else(|_| ENGINE.to_owned());
        let named = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
        let gateway = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(BUILT));
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "backend = \"docker\"\nbasedir = \"base\"\nstore = \"wsm.db\"\nsweep_interval = \"1s\"\n[docker]\nhost = \"{engine}\"\n"
        );
        std::fs::write(dir.path().join("wsm.toml"), config).unwrap();
        let site = Self { dir, engine, gateway };
        if site.gateway.is_file() && site.docker(&["version"]).is_ok_and(|output| output.status.success()) {
            return Some(site);
        }
        let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
        assert!(
            !required.contains("docker"),
            "`cargo xtask setup docker` and `cargo xtask gateway` bring what is missing"
        );
        #[expect(clippy::print_stdout, reason = "a skipped test says why")]
        {
            println!("skipped: needs an engine and the gateway: `cargo xtask setup docker`, `cargo xtask gateway`");
        }
        None
    }

    fn docker(&self, args: &[&str]) -> std::io::Result<Output> {
        Command::new("docker").args(["--host", &self.engine]).args(args).output()
    }

    fn docker_says(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.docker(args).unwrap().stdout).trim().to_owned()
    }

    fn wsm(&self, args: &[&str]) -> Command {
        let mut command = super::wsm(self.dir.path(), args);
        command.env("WSM_GATEWAY", &self.gateway);
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.wsm(args).output().unwrap()
    }

    fn serve(&self) -> Service {
        Service::start_command(self.wsm(&["serve", "--listen", "127.0.0.1:0"]), self.dir.path())
    }

    fn owner(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("base/.wsm/installation")).unwrap()
    }

    /// The running containers of this installation.
    fn running(&self) -> usize {
        let filter = format!("label=wsm.owner={}", self.owner());
        self.docker_says(&["ps", "--quiet", "--filter", &filter]).lines().count()
    }

    /// A container of this installation that no record names. Gives its name.
    fn leak(&self) -> String {
        let (owner, leaked) = (self.owner(), unique("leaked"));
        let name = format!("wsm-{}_{leaked}", &owner[..8]);
        let (owner, id) = (format!("wsm.owner={owner}"), format!("agentscope.workspace.id={leaked}"));
        let run = ["run", "--detach", "--network", "none", "--name", &name, "--label", &owner, "--label", &id];
        let leaked = self.docker(&[&run[..], &["python:3.11-slim", "sleep", "1000"]].concat()).unwrap();
        assert!(leaked.status.success(), "{}", super::stderr(&leaked));
        name
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let Ok(owner) = std::fs::read_to_string(self.dir.path().join("base/.wsm/installation")) else { return };
        let filter = format!("label=wsm.owner={owner}");
        for id in self.docker_says(&["ps", "--all", "--quiet", "--filter", &filter]).lines() {
            let _ = self.docker(&["rm", "--force", "--volumes", id]);
        }
        for id in self.docker_says(&["network", "ls", "--quiet", "--filter", &filter]).lines() {
            let _ = self.docker(&["network", "rm", id]);
        }
    }
}

fn unique(name: &str) -> String {
    format!("{name}-{}", wsm_core::WorkspaceId::random())
}

#[test]
fn one_line_puts_commands_into_a_container() {
    let Some(site) = Site::new() else { return };
    let line = "cat /proc/1/comm; pwd; echo kept > f; node --version | cut -c1";
    let (code, out, errors) = told(site.output(&["run", "--", "sh", "-c", line]));
    assert_eq!((code, out.as_str()), (0, "gateway\n/workspace\nv\n"), "{errors}");
    let (code, out, errors) = told(site.output(&["run", "--", "cat", "f"]));
    assert_eq!((code, out.as_str()), (0, "kept\n"), "{errors}");
    std::fs::write(site.dir.path().join("plain"), "").unwrap();
    assert_eq!(told(site.output(&["run", "--", "sh", "-c", "echo > plain"])).0, 0);
    for (options, command, code) in exit_cases("./plain") {
        let output = site.output(&[&["run"], options, &["--"], &command].concat());
        assert_eq!(output.status.code(), Some(code), "{options:?} {command:?}: {}", super::stderr(&output));
    }
    assert_eq!(site.running(), 0, "nothing runs on after the command");
}

#[test]
fn what_is_left_over_is_listed_with_reasons_and_then_removed() {
    let Some(site) = Site::new() else { return };
    assert_eq!(told(site.output(&["run", "--", "true"])).0, 0);
    let (code, out, errors) = told(site.output(&["gc"]));
    assert_eq!((code, out.as_str()), (0, ""), "a used network is none: {errors}");
    let name = site.leak();
    let (code, out, errors) = told(site.output(&["gc", "--dry-run"]));
    assert_eq!(code, 0, "{errors}");
    let line = out.lines().find(|line| line.contains(&name)).unwrap();
    assert!(line.contains("sandbox") && line.contains("found") && line.contains("has no record"), "{out}");
    assert_eq!(site.running(), 1, "it was only listed");
    let (code, out, errors) = told(site.output(&["gc", "--json"]));
    assert_eq!(code, 0, "{errors}");
    let lines: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((lines[0]["name"].as_str(), lines[0]["fate"].as_str()), (Some(&*name), Some("removed")), "{out}");
    assert_eq!(site.running(), 0);
    let (code, _, errors) = told(site.output(&["gc"]));
    assert!(code == 0 && errors.contains("nothing is left over"), "{errors}");
    let (code, _, errors) = told(site.output(&["gc", "--set", "docker.host=unix:///nowhere.sock"]));
    assert!(code == 1 && errors.contains("is it running?"), "{code} {errors}");
}

#[tokio::test]
async fn a_service_takes_over_what_a_killed_one_left_and_removes_leaks_by_itself() {
    let Some(site) = Site::new() else { return };
    let service = site.serve();
    for session in ["a", "b"] {
        service.session(session).await;
    }
    assert_eq!(service.sh("a", "echo kept > f; (sleep 600 &) > /dev/null 2>&1").await["exit_code"], 0);
    service.kill();
    assert_eq!(site.running(), 1, "a crash leaves it running");
    let name = site.leak();
    let service = site.serve();
    let begun = tokio::time::Instant::now();
    loop {
        let (_, workspaces) = service.call("GET", "/admin/workspaces", None).await;
        let items = workspaces["items"].as_array().unwrap();
        let adopted = items.iter().any(|item| item["opening"]["kind"] == "reattached");
        if adopted && site.docker_says(&["ps", "--all", "--quiet", "--filter", &format!("name={name}")]).is_empty() {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{workspaces}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(service.sh("a", "cat f; ps -eo args | grep -c '[s]leep 600'").await["stdout"], "kept\n1\n");
    service.stop();
    assert_eq!(site.running(), 0, "a shutdown puts everything away");
}

#[test]
fn a_terminal_is_shown_how_far_the_image_is() {
    let Some(site) = Site::new() else { return };
    // An image that nobody has built before.
    let base = unique("base");
    assert!(site.docker(&["tag", "python:3.11-slim", &base]).unwrap().status.success());
    let option = format!("docker.base_image={base}");
    let args = ["run", "--set", &option, "--", "echo", "ran"];
    // `script` gives it a terminal.
    let inner = site.wsm(&args);
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let line = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(site.dir.path()).env_clear();
    script.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TERM", "xterm");
    let (code, out, errors) = told(script.stdin(Stdio::null()).output().unwrap());
    assert_eq!(code, 0, "{out}{errors}");
    assert!(out.contains("building the image of workspaces") && out.contains("ran"), "{out}");
    let plain = site.output(&args);
    assert_eq!((super::stderr(&plain).as_str(), &*plain.stdout), ("", &b"ran\n"[..]), "and nobody else is");
    let tag = std::fs::read_to_string(site.dir.path().join("base/.wsm/image")).unwrap();
    for image in [&tag, &base] {
        let _ = site.docker(&["image", "rm", image]);
    }
}
