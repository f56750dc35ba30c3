//! An engine that is restarted, killed and away, at the worst moments. An engine of its own, since others use the one for
//! tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command as Program, Stdio},
    time::Duration,
};

use common::{Gated, engine, gated, program};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{task::block_in_place, time::Instant};
use wsm_core::{
    Backend, Cause, Endpoint, ErrorKind, ExitStatus, Health, Loss, OpenRequest, Opened, OutcomeKind, Result,
    WorkspaceExt, WorkspaceId,
};
use wsm_docker::{Connect, DockerConfig, DockerNetwork};

/// A `dockerd` that can be restarted.
struct Engine {
    place: tempfile::TempDir,
    child: Option<Child>,
    /// Whether containers live on while there is no engine.
    live_restore: bool,
}

impl Engine {
    /// None, said aloud, when there is none to be had. Has the images of the engine for tests.
    async fn start() -> Option<Self> {
        let Ok(host) = engine() else {
            assert!(!std::env::var("WSM_REQUIRE").unwrap_or_default().contains("docker"), "there is no engine");
            println!("skipped: `cargo xtask setup docker` installs an engine");
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can start an engine");
            return None;
        }
        let mut engine = Self { place: tempfile::tempdir().unwrap(), child: None, live_restore: true };
        engine.up().await;
        let images = "python:3.11-slim";
        let line = format!("docker --host {host} save {images} | docker --host {} load", engine.host());
        assert!(Program::new("sh").args(["-c", &line]).stdout(Stdio::null()).status().unwrap().success());
        Some(engine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path("socket").display())
    }

    fn docker(&self, args: &[&str]) -> String {
        let output = Program::new("docker").args(["--host", &self.host()]).args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    async fn up(&mut self) {
        let mut dockerd = Program::new("dockerd");
        dockerd.args(["--host", &self.host(), "--bridge", "none", "--iptables=false", "--ip6tables=false"]);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            dockerd.arg(flag).arg(self.path(name));
        }
        if self.live_restore {
            dockerd.arg("--live-restore");
        }
        let path = format!("{}:/usr/local/sbin:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        dockerd.env("PATH", path).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = dockerd.spawn().unwrap();
        self.child = Some(child);
        let begun = Instant::now();
        while self.docker(&["version", "--format", "{{.Server.Version}}"]).is_empty() {
            let log = fs::read_to_string(self.path("log")).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "dockerd does not answer: {log}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops it as an operator does, or as the kernel does that is short of memory.
    fn down(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap();
        // What ended with it may wait for a parent that never looks, and then counts as running.
        for file in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(self.path(file));
        }
    }

    fn backend(&self, connect: Connect) -> Gated {
        let config = DockerConfig::new(self.path("workspaces")).with_host(self.host()).with_connect(connect);
        let config = config.with_network(DockerNetwork::None).with_node_version("");
        gated(config, program().unwrap()).unwrap()
    }

    fn containers(&self, id: &str) -> Vec<String> {
        let filter = format!("label=agentscope.workspace.id={id}");
        self.docker(&["ps", "--all", "--quiet", "--filter", &filter]).lines().map(str::to_owned).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.child.is_some() {
            for container in self.docker(&["ps", "--all", "--quiet"]).lines() {
                self.docker(&["rm", "--force", container]);
            }
        }
        self.live_restore = false;
        self.down(Signal::TERM);
        // What was half started when the engine was killed lives on by itself, with the file systems that were mounted.
        let place = self.place.path().to_str().unwrap();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            let pid = process.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
            if let Some(pid) = pid.filter(|_| command.contains("containerd") && command.contains(place)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|path| std::path::Path::new(path).starts_with(self.place.path()));
        for mount in below.collect::<Vec<_>>().into_iter().rev() {
            let _ = Program::new("umount").args(["--lazy", mount]).status();
        }
    }
}

async fn open(backend: &Gated, id: &str) -> Result<Opened> {
    backend.open(OpenRequest::new(WorkspaceId::new(id).unwrap())).await
}

/// One test, since an engine takes seconds to start.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_comes_and_goes_loses_nothing_and_doubles_nothing() {
    let Some(mut engine) = Engine::start().await else { return };
    restarted_under_a_command(&mut engine).await;
    away(&mut engine).await;
    stopped_with_its_containers(&mut engine).await;
    gone_in_mid_opening(&mut engine).await;
}

/// Containers live on while the engine is restarted, and so do their commands.
async fn restarted_under_a_command(engine: &mut Engine) {
    for (connect, id) in [(Connect::Auto, "by-socket"), (Connect::Engine, "by-engine")] {
        let backend = engine.backend(connect);
        let workspace = open(&backend, id).await.unwrap().workspace;
        workspace.sh("(sleep 1000 &) >/dev/null 2>&1").await.unwrap();
        let running = workspace.sh("sleep 4; echo done | tee f");
        let restart = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            block_in_place(|| engine.down(Signal::TERM));
            engine.up().await;
        };
        let (result, ()) = tokio::join!(running, restart);
        match connect {
            Connect::Engine => {
                let status = result.unwrap().status;
                assert!(matches!(status, ExitStatus::Unknown { .. }), "nobody saw how it ended: {status:?}");
            }
            _ => assert_eq!(result.unwrap().stdout.to_text(), "done\n"),
        }
        assert!(matches!(workspace.health().await.unwrap(), Health::Alive(_)));
        assert_eq!(open(&backend, id).await.unwrap().outcome.kind, OutcomeKind::Reattached);
        let left = workspace.sh("ps -eo args").await.unwrap().stdout.to_text();
        assert!(left.contains("sleep 1000"), "{id}: what ran goes on: {left}");
        assert_eq!(engine.containers(id).len(), 1);
        workspace.suspend().await.unwrap();
    }
}

/// Without an engine nothing can be said, so nothing is.
async fn away(engine: &mut Engine) {
    let backend = engine.backend(Connect::Auto);
    let workspace = open(&backend, "left").await.unwrap().workspace;
    workspace.sh("echo kept > f").await.unwrap();
    open(&backend, "put-away").await.unwrap().workspace.suspend().await.unwrap();
    block_in_place(|| engine.down(Signal::KILL));
    assert_eq!(workspace.read_text("f", 100).await.unwrap(), "kept\n", "the socket needs no engine");
    let connected = workspace.connect(&Endpoint::Init).await;
    assert!(connected.is_ok(), "nor does a new connection: {:?}", connected.err());
    for id in ["left", "put-away", "new"] {
        let error = open(&backend, id).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("is it running?"), "{error}");
    }
    assert_eq!(workspace.health().await.unwrap_err().kind(), ErrorKind::Unavailable, "it is not dead");
    let id = WorkspaceId::new("left").unwrap();
    assert_eq!(backend.find(&id).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(backend.destroy(&id).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(backend.leftovers().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(workspace.suspend().await.unwrap_err().kind(), ErrorKind::Unavailable);
    engine.up().await;
    let opened = open(&backend, "left").await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Reattached, "{:?}", opened.outcome);
    assert_eq!(opened.workspace.read_text("f", 100).await.unwrap(), "kept\n");
    assert_eq!(open(&backend, "put-away").await.unwrap().outcome.kind, OutcomeKind::Resumed);
    opened.workspace.suspend().await.unwrap();
    assert!(engine.containers("left").is_empty());
}

/// Containers end with the engine, and the next opening says why.
async fn stopped_with_its_containers(engine: &mut Engine) {
    engine.live_restore = false;
    block_in_place(|| engine.down(Signal::TERM));
    engine.up().await;
    for (signal, id) in [(Signal::TERM, "stopped"), (Signal::KILL, "killed")] {
        let backend = engine.backend(Connect::Auto);
        let workspace = open(&backend, id).await.unwrap().workspace;
        workspace.sh("echo kept > f; echo installed > /usr/local/kept").await.unwrap();
        let running = workspace.sh("sleep 60");
        let restart = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            block_in_place(|| engine.down(signal));
            engine.up().await;
        };
        let (result, ()) = tokio::join!(running, restart);
        let status = result.unwrap().status;
        assert!(!status.success(), "{id}: {status:?}");
        let dead = workspace.health().await.unwrap();
        assert_eq!(dead, Health::Dead(Cause::EngineRestarted), "{id}");
        let opened = open(&backend, id).await.unwrap();
        let outcome = &opened.outcome;
        assert_eq!((outcome.kind, outcome.cause), (OutcomeKind::Resumed, Some(Cause::EngineRestarted)), "{id}");
        assert!(outcome.lost.contains(&Loss::Processes) && !outcome.lost.contains(&Loss::SystemFiles), "{outcome:?}");
        let kept = opened.workspace.sh("cat f /usr/local/kept").await.unwrap().stdout.to_text();
        assert_eq!(kept, "kept\ninstalled\n", "{id}: the same container was started again");
        assert_eq!(engine.containers(id).len(), 1);
        opened.workspace.suspend().await.unwrap();
    }
}

/// The engine goes away while a workspace is being opened: the opening fails or not, and the next one works.
async fn gone_in_mid_opening(engine: &mut Engine) {
    for (round, pause) in [0, 15, 40, 80, 150, 300].into_iter().enumerate() {
        let backend = engine.backend(Connect::Auto);
        let id = format!("opening-{round}");
        if round == 0 {
            // The image has to be built for this one.
            let image = engine.docker(&["images", "--quiet", "wsm-workspace"]);
            engine.docker(&["rmi", "--force", &image]);
        }
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::TERM };
        let opening = open(&backend, &id);
        let restart = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            block_in_place(|| engine.down(signal));
        };
        let (first, ()) = tokio::join!(opening, restart);
        let first = first.map(|opened| opened.outcome.kind);
        if let Err(error) = &first {
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Gone | ErrorKind::Backend),
                "{pause} ms: {error:?}"
            );
        }
        engine.up().await;
        let opened = open(&backend, &id).await.unwrap();
        assert_eq!(opened.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
        assert_eq!(engine.containers(&id).len(), 1, "{pause} ms: {first:?}");
        backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
        assert!(engine.containers(&id).is_empty());
        assert!(backend.leftovers().await.unwrap().is_empty());
    }
}
