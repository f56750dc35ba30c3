//! Every option, tried on a real engine.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command as Program,
    sync::Arc,
    time::Duration,
};

use bytesize::ByteSize;
use common::{Contained, ENGINE_HOST, containers, docker, docker_says, engine, gated, import_empty, program, unique};
use tokio::{task::JoinSet, time::timeout};
use wsm_core::{
    Backend, Command, Error, ErrorKind, ExitStatus, Health, OpenRequest, OutcomeKind, WorkspaceExt, WorkspaceId,
};
use wsm_docker::{Connect, DockerConfig, DockerNetwork, ExtraMount};

fn request(id: &str) -> OpenRequest {
    OpenRequest::new(WorkspaceId::new(id).unwrap())
}

async fn refused(contained: &Contained, id: &str) -> Error {
    let error = contained.backend.open(request(id)).await.unwrap_err();
    assert!(containers(id).is_empty(), "nothing is left: {error}");
    error
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Nothing but what the option under test takes.
fn bare(config: DockerConfig) -> DockerConfig {
    config.with_network(DockerNetwork::None).with_node_version("")
}

#[tokio::test(flavor = "multi_thread")]
async fn files_belong_to_the_user_whom_commands_run_as() {
    if !is_root() {
        println!("skipped: only root can give files to others");
        return;
    }
    // A number without a group has the one that the image knows for it, or root's.
    for (user, uid, gid) in
        [(None, 0, 0), (Some("12345:12346"), 12345, 12346), (Some("23456"), 23456, 0), (Some("nobody"), 65534, 65534)]
    {
        let configure = |config: DockerConfig| match user {
            Some(user) => bare(config).with_user(user),
            None => bare(config),
        };
        let Some(contained) = Contained::new(configure).await else { return };
        let id = unique("user");
        let workspace = contained.open(&id).await;
        let who = workspace.sh("id -u; id -g; mkdir d; echo theirs > d/f; echo $HOME; touch $HOME/h").await.unwrap();
        assert_eq!(who.stdout.to_text(), format!("{uid}\n{gid}\n/workspace\n"), "{who:?}");
        workspace.write_bytes("g", "ours".into()).await.unwrap();
        for name in ["d/f", "g", "h"] {
            let found = fs::metadata(contained.directory(&id).join(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), (uid, gid), "{name} as {user:?}");
        }
        assert_eq!(workspace.read_text("d/f", 99).await.unwrap(), "theirs\n");
        workspace.write_bytes("d/f", "changed".into()).await.unwrap();
        workspace.suspend().await.unwrap();
        let again = contained.open(&id).await;
        assert_eq!(again.sh("cat d/f g").await.unwrap().stdout.to_text(), "changedours");
        contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
        assert!(!contained.directory(&id).exists());
    }
    let Some(contained) = Contained::new(|config| bare(config).with_user("nobody-knows")).await else { return };
    let error = refused(&contained, &unique("stranger")).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error}");
}

/// The uid of a user who exists for nobody.
const ORDINARY: u32 = 12345;

/// What [`an_ordinary_user_leaves_nothing_of_roots`] runs as a process of another user.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_an_ordinary_user() {
    let Some(base) = std::env::var_os("WSM_TEST_ORDINARY") else { return };
    let base = Path::new(&base);
    assert_eq!(rustix::process::geteuid().as_raw(), ORDINARY);
    let config = |user: Option<&str>| {
        let config = DockerConfig::new(base).with_host(engine().unwrap()).with_node_version("");
        user.map_or(config.clone(), |user| config.with_user(user))
    };
    let backend = gated(config(None).with_memory(256 << 20), program().unwrap()).unwrap();
    backend.start().await.unwrap();
    let id = WorkspaceId::new(std::env::var("WSM_TEST_ID").unwrap()).unwrap();
    let opened = backend.open(OpenRequest::new(id.clone())).await.unwrap();
    let workspace = opened.workspace;
    workspace.write_bytes("ours", "x".into()).await.unwrap();
    let said = workspace.sh("id -u; mkdir d; echo theirs > d/f; cat ours").await.unwrap();
    assert_eq!(said.stdout.to_text(), format!("{ORDINARY}\nx"), "{said:?}");
    workspace.suspend().await.unwrap();
    let opened = backend.open(OpenRequest::new(id.clone())).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_eq!(opened.workspace.sh("cat d/f").await.unwrap().stdout.to_text(), "theirs\n");
    assert_owned_by(base, ORDINARY);

    // Neither somebody else's files nor root's could ever be removed.
    for user in ["23456", "root"] {
        let other = gated(config(Some(user)), program().unwrap()).unwrap();
        let error = other.open(request(&format!("{}-{user}", id.as_str()))).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error}");
    }
    backend.destroy(&id).await.unwrap();
    assert!(!base.join(id.as_str()).exists());
    println!("\ndone");
}

fn assert_owned_by(directory: &Path, uid: u32) {
    for entry in fs::read_dir(directory).unwrap() {
        let (path, found) = {
            let entry = entry.unwrap();
            (entry.path(), entry.metadata().unwrap())
        };
        assert_eq!(found.uid(), uid, "{}", path.display());
        if found.is_dir() {
            assert_owned_by(&path, uid);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_leaves_nothing_of_roots() {
    if !is_root() {
        println!("skipped: only root can become another user; this run is the one of an ordinary user itself");
        return;
    }
    let Some(contained) = Contained::new(|config| config).await else { return };
    // The checkout may lie where another user can not get to, and the engine's socket is root's.
    let stage = tempfile::tempdir().unwrap();
    let at = |name: &str| stage.path().join(name);
    fs::set_permissions(stage.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), at("test")).unwrap();
    fs::copy(program().unwrap().path, at("gateway")).unwrap();
    fs::create_dir(at("base")).unwrap();
    std::os::unix::fs::chown(at("base"), Some(ORDINARY), Some(ORDINARY)).unwrap();
    let host = engine().unwrap();
    let socket = host.strip_prefix("unix://").unwrap().to_owned();
    let listener = tokio::net::UnixListener::bind(at("engine.sock")).unwrap();
    fs::set_permissions(at("engine.sock"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut forwarding = tokio::task::JoinSet::new();
    forwarding.spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = tokio::net::UnixStream::connect(&socket).await.unwrap();
            connections.spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    let mut service = Program::new("setpriv");
    let user = ORDINARY.to_string();
    service.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]).arg(at("test"));
    service.args(["--exact", "a_service_of_an_ordinary_user", "--nocapture"]).current_dir(stage.path());
    service
        .env("WSM_TEST_ORDINARY", at("base"))
        .env("WSM_TEST_ID", unique("ordinary"))
        .env("WSM_GATEWAY", at("gateway"));
    service.env(ENGINE_HOST, format!("unix://{}", at("engine.sock").display())).env("HOME", at("base"));
    let ran = tokio::task::spawn_blocking(move || service.output().unwrap()).await.unwrap();
    forwarding.shutdown().await;
    common::tidy_up(&at("base"));
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success() && said.contains("\ndone"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert_owned_by(&at("base"), ORDINARY);
    drop(contained);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_and_tell_what_was_exceeded() {
    let limited = |mut config: DockerConfig| {
        config.cpus = Some(0.5);
        config.pids = Some(40);
        bare(config).with_memory(96 << 20)
    };
    let Some(contained) = Contained::new(limited).await else { return };
    let id = unique("limited");
    let workspace = contained.open(&id).await;
    let seen = ["{{.HostConfig.Memory}}", "{{.HostConfig.NanoCpus}}", "{{.HostConfig.PidsLimit}}"]
        .map(|what| docker_says(&["inspect", "--format", what, &containers(&id)[0]]));
    assert_eq!(seen, [(96 << 20).to_string(), "500000000".to_owned(), "40".to_owned()]);

    let eaten = workspace.sh("exec python3 -c 'x = b\"x\" * (300 << 20); print(len(x))'").await.unwrap();
    assert_eq!(eaten.status, ExitStatus::Signaled { signal: 9 }, "{eaten:?}");
    assert_eq!(workspace.sh("echo lives").await.unwrap().stdout.to_text(), "lives\n", "only the culprit ends");

    // As much work as one processor does in the time.
    let busy = "import time; a = time.monotonic(); c = time.process_time()\n\
                while time.monotonic() - a < 2: pass\nprint((time.process_time() - c) / (time.monotonic() - a))";
    let share: f64 =
        workspace.sh(&format!("python3 -c '{busy}'")).await.unwrap().stdout.to_text().trim().parse().unwrap();
    assert!(share < 0.65, "half of one processor: {share}");

    let forks = workspace.sh("for i in $(seq 60); do sleep 5 & done; wait").await.unwrap();
    let said = forks.stderr.to_text();
    assert!(
        said.to_lowercase().contains("resource temporarily unavailable") || said.contains("Cannot fork"),
        "{forks:?}"
    );
    // The shell's children have outlived it, so there may be room for one command or for none.
    let mut sleepers = JoinSet::new();
    for _ in 0..60 {
        let workspace = Arc::clone(&workspace);
        sleepers.spawn(async move { workspace.sh("exec sleep 8").await });
    }
    let ends = sleepers.join_all().await;
    let turned_away: Vec<&Error> = ends.iter().filter_map(|end| end.as_ref().err()).collect();
    assert!(turned_away.len() >= 20, "40 processes and no more: {ends:?}");
    for error in turned_away {
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    }
    assert_eq!(workspace.health().await.unwrap(), Health::Alive(None));
    // What ends makes room for more, which the shell's children do last if they left none for others.
    let room = async {
        while workspace.sh("true").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), room).await.unwrap();

    let many = |mut config: DockerConfig| {
        config.cpus = Some(4096.0);
        bare(config)
    };
    let Some(contained) = Contained::new(many).await else { return };
    let error = refused(&contained, &unique("greedy")).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("cpus")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_disk_is_limited_or_refused_by_name() {
    let limited = |mut config: DockerConfig| {
        config.disk = Some(ByteSize::mib(64));
        bare(config)
    };
    let Some(contained) = Contained::new(limited).await else { return };
    let id = unique("disk");
    match contained.backend.open(request(&id)).await {
        Ok(opened) => {
            println!("this engine's storage driver limits disks");
            let filled = opened.workspace.sh("head -c 128M /dev/zero > /var/tmp/f").await.unwrap();
            assert!(
                filled.stderr.to_text().contains("space") || filled.stderr.to_text().contains("quota"),
                "{filled:?}"
            );
        }
        Err(error) => {
            println!("this engine's storage driver limits no disks: {error}");
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("disk")), "{error}");
            assert!(containers(&id).is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounts_show_what_they_say() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "from the host").unwrap();
    let mount = |target: &str, writable| ExtraMount { source: outside.path().into(), target: target.into(), writable };
    let shown = |config| bare(config).with_mount(mount("/read", false)).with_mount(mount("/write", true));
    let Some(contained) = Contained::new(shown).await else { return };
    let workspace = contained.open(&unique("mounts")).await;
    let ran = workspace.sh("cat /read/f && echo changed > /write/g && ! echo x > /read/h").await.unwrap();
    assert!(ran.status.success() && ran.stdout.to_text() == "from the host", "{ran:?}");
    assert!(ran.stderr.to_text().contains("Read-only"), "{ran:?}");
    assert_eq!(fs::read_to_string(outside.path().join("g")).unwrap(), "changed\n");
    assert!(!outside.path().join("h").exists());
    let error = workspace.write_bytes("/read/h", "x".into()).await.unwrap_err();
    println!("through the gateway: {error}");
    assert!(!outside.path().join("h").exists());

    let gone = ExtraMount { source: outside.path().join("gone"), target: "/x".into(), writable: false };
    let Some(contained) = Contained::new(|config| bare(config).with_mount(gone)).await else { return };
    let error = refused(&contained, &unique("gone")).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("mounts")), "{error}");
    assert!(error.to_string().contains("/gone"), "{error}");
    assert!(!outside.path().join("gone").exists(), "the engine makes none either");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_variables_and_networks_are_as_they_are_told() {
    let told = |config| {
        bare(config).with_label("team", "blue").with_env("GREETING", "hallo = \"welt\"").with_env("HOME", "/tmp")
    };
    let Some(contained) = Contained::new(told).await else { return };
    let id = unique("told");
    let workspace = contained.open(&id).await;
    let labels = docker_says(&["inspect", "--format", "{{json .Config.Labels}}", &containers(&id)[0]]);
    let labels: serde_json::Value = serde_json::from_str(&labels).unwrap();
    for (name, value) in [("team", "blue"), ("agentscope.workspace", "true"), ("wsm.reach", "socket")] {
        assert_eq!(labels[name], value, "{labels}");
    }
    assert_eq!(labels["agentscope.workspace.id"], id.as_str());
    assert_eq!(workspace.sh("echo $GREETING; echo $HOME").await.unwrap().stdout.to_text(), "hallo = \"welt\"\n/tmp\n");

    let missing = |config: DockerConfig| bare(config).with_network(DockerNetwork::Named("no-such-network".into()));
    let Some(contained) = Contained::new(missing).await else { return };
    let error = refused(&contained, &unique("lost")).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("network")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_nothing_in_it_will_do() {
    let image = format!("{}:none", unique("wsm-test-empty").to_lowercase());
    let configure = |config: DockerConfig| config.with_base_image(&image).with_node_version("");
    let Some(contained) = Contained::new(configure).await else { return };
    import_empty(&engine().unwrap(), &image);
    let id = unique("empty");
    let workspace = contained.open(&id).await;
    workspace.write_bytes("a/b", "kept".into()).await.unwrap();
    assert_eq!(workspace.read_text("a/b", 99).await.unwrap(), "kept");
    assert_eq!(workspace.list("a").await.unwrap().len(), 1);
    for command in [Command::new("python3"), Command::new("/bin/sh"), Command::shell("true")] {
        let error = workspace.exec(command).await.unwrap_err();
        assert!(
            error.code() == "program_not_found" || error.kind() == ErrorKind::Unsupported,
            "{error} {}",
            error.code()
        );
    }
    let built = docker_says(&["inspect", "--format", "{{.Config.Image}}", &containers(&id)[0]]);
    contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
    docker(&["rmi", &built]);
    docker(&["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_there_unless_it_is_left_out() {
    let Some(contained) = Contained::new(|config| config.with_network(DockerNetwork::None)).await else { return };
    let workspace = contained.open(&unique("node")).await;
    let versions = workspace.sh("node --version && npm --version && npx --version").await.unwrap();
    assert!(versions.status.success() && versions.stdout.to_text().starts_with('v'), "{versions:?}");
    assert_eq!(versions.stdout.to_text().lines().count(), 3, "{versions:?}");
    let Some(contained) = Contained::new(bare).await else { return };
    let workspace = contained.open(&unique("nodeless")).await;
    let error = workspace.exec(Command::new("node").arg("--version")).await.unwrap_err();
    assert_eq!(error.code(), "program_not_found", "{error}");
    assert_eq!(workspace.sh("python3 -c 'print(1)'").await.unwrap().stdout.to_text(), "1\n");
}

/// A port that nobody has at this moment, from below those that the system gives to whoever asks for any, as each connection to
/// the outside does.
fn free_port() -> u16 {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    (first..32_768).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_port_only_whoever_knows_the_token_comes_in() {
    let port = free_port();
    let ported = |config: DockerConfig| bare(config).with_network(DockerNetwork::Host).with_gateway_port(port);
    let Some(contained) = Contained::new(ported).await else { return };
    let id = unique("ported");
    let workspace = contained.open(&id).await;
    assert_eq!(workspace.sh("echo works; ls /run/wsm").await.unwrap().stdout.to_text(), "works\n");
    workspace.write_bytes("f", vec![7; 3 << 20].into()).await.unwrap();
    assert_eq!(workspace.read_bytes("f", 4 << 20).await.unwrap().len(), 3 << 20);
    let stranger = format!(
        "import socket; s = socket.create_connection((\"127.0.0.1\", {port})); s.send(b\"x\" * 64); \
         print(sum(len(x) for x in iter(lambda: s.recv(999), b\"\")))"
    );
    let said = workspace.sh(&format!("python3 -c '{stranger}'")).await.unwrap().stdout.to_text();
    assert_eq!(said, "64\n", "a proof and a challenge, and no hello");

    let second = unique("second");
    let error = refused(&contained, &second).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::Conflict, Some("gateway_port")), "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");

    // Adopted by a service that would use a socket, and made anew by it with one; and the other way round.
    let host = engine().unwrap();
    let config = DockerConfig::new(contained.base.path()).with_host(&host);
    let sockets = gated(bare(config.clone()).with_network(DockerNetwork::Host), program().unwrap()).unwrap();
    let adopted = sockets.open(request(&id)).await.unwrap();
    assert_eq!(adopted.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(adopted.workspace.sh("echo adopted").await.unwrap().stdout.to_text(), "adopted\n");
    workspace.suspend().await.unwrap();
    adopted.workspace.suspend().await.unwrap();
    let made = sockets.open(request(&id)).await.unwrap();
    assert_eq!(made.outcome.kind, OutcomeKind::Resumed);
    let ports = gated(ported(config.clone()), program().unwrap()).unwrap();
    let adopted = ports.open(request(&id)).await.unwrap();
    assert_eq!(adopted.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(adopted.workspace.sh("ls /run/wsm").await.unwrap().stdout.to_text(), "gateway.sock\n");
    let relayed =
        gated(bare(config).with_network(DockerNetwork::Host).with_connect(Connect::Engine), program().unwrap());
    let adopted = relayed.unwrap().open(request(&id)).await.unwrap();
    assert_eq!(adopted.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");

    // The port is free again, and was never the first one's for good.
    let opened = contained.opened(&second).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Created, "nobody was told before");
    opened.workspace.suspend().await.unwrap();
    // Somebody who listens there and never says anything is not waited for.
    let _silent = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let begun = tokio::time::Instant::now();
    let error = refused(&contained, &second).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::Conflict, Some("gateway_port")), "{error}");
    assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
}

/// A file system of a few megabytes, for as long as this lives.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Self {
        let place = tempfile::tempdir().unwrap();
        let mounted =
            Program::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "wsm-test"]).arg(place.path()).status();
        assert!(mounted.unwrap().success());
        Self(place)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_loses_nothing() {
    if !is_root() {
        println!("skipped: only root can mount a small file system");
        return;
    }
    let tiny = Tiny::mount();
    let small = |mut config: DockerConfig| {
        config.basedir = tiny.0.path().join("base");
        bare(config)
    };
    let Some(contained) = Contained::new(small).await else { return };
    let id = unique("full");
    let workspace = contained.open(&id).await;
    workspace.write_bytes("kept", "before".into()).await.unwrap();
    workspace.write_bytes("big", vec![1; 3 << 20].into()).await.unwrap();
    for name in ["kept", "new"] {
        let error = workspace.write_bytes(name, vec![2; 8 << 20].into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    }
    let ran = workspace.sh("head -c 8M /dev/zero > other; cat kept").await.unwrap();
    assert!(ran.stderr.to_text().contains("No space left"), "{ran:?}");
    assert_eq!(ran.stdout.to_text(), "before", "all or nothing");
    assert!(workspace.stat("new").await.is_err());
    // With not a single byte left, what needs none goes on, and an opening says what is the matter.
    let error = contained.backend.open(request(&unique("no-room"))).await.map(|opened| opened.outcome);
    println!("another one on the full disk: {error:?}");
    if let Err(error) = error {
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    }
    workspace.sh("rm other big").await.unwrap();
    workspace.write_bytes("new", vec![3; 1 << 20].into()).await.unwrap();
    assert_eq!(workspace.read_text("kept", 99).await.unwrap(), "before");
    workspace.suspend().await.unwrap();
    assert_eq!(contained.open(&id).await.read_bytes("new", 2 << 20).await.unwrap().len(), 1 << 20);
}
