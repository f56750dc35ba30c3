//! What a command in a container can not do, tried from its inside.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{net::TcpListener, process::Command as Program, time::Duration};

use common::{Contained, containers, docker, docker_says, engine, gated, program, unique};
use wsm_core::{Backend, Health, OpenRequest, OutcomeKind, WorkspaceExt, WorkspaceId};
use wsm_docker::{DockerConfig, DockerNetwork};

/// Whether a command can connect to an address, as Python tells.
fn connect(address: &str, port: u16) -> String {
    format!(
        "python3 -c 'import socket; s = socket.socket(); s.settimeout(2); print(s.connect_ex((\"{address}\", {port})) == 0)'"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_do_not_reach_each_other() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let (mine, other) = (unique("mine"), unique("other"));
    let (workspace, neighbour) = (contained.open(&mine).await, contained.open(&other).await);
    neighbour.write_bytes("secret", "s3cret".into()).await.unwrap();
    neighbour.sh("python3 -m http.server 8000 > /dev/null 2>&1 &").await.unwrap();
    let listens = async || neighbour.sh(&connect("127.0.0.1", 8000)).await.unwrap().stdout.to_text() == "True\n";
    let listening = async {
        while !listens().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listening).await.expect("it listens");
    let address = docker_says(&[
        "inspect",
        "--format",
        "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
        &containers(&other)[0],
    ]);
    assert!(!address.is_empty());
    assert_eq!(workspace.sh(&connect(&address, 8000)).await.unwrap().stdout.to_text(), "False\n");
    let found = workspace.sh("find / -xdev -name secret 2>/dev/null; ls /run/wsm").await.unwrap().stdout.to_text();
    assert_eq!(found, "gateway.sock\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_engine_nor_the_host_nor_the_channel_can_be_taken() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let workspace = contained.open(&unique("inside")).await;
    let run = async |line: &str| workspace.sh(line).await.unwrap();
    assert!(!run("ls /var/run/docker.sock /run/docker.sock").await.status.success());
    for line in [
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "mount -t tmpfs none /mnt",
        "mknod /tmp/disk b 8 0",
        "unshare --mount true",
        "chroot / true",
        "cat /proc/1/environ",
        "readlink /proc/1/fd/0",
        "cat /proc/1/maps",
        "dmesg",
    ] {
        assert!(!run(line).await.status.success(), "{line}");
    }
    let environment = run("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").await.stdout.to_text();
    assert!(!environment.contains("WSM_GATEWAY_TOKEN"), "{environment}");
    let status = run("grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status").await.stdout.to_text();
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    // Without the token the socket answers with no more than a challenge.
    let stranger = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"/run/wsm/gateway.sock\"); \
                    s.send(b\"x\" * 64); print(sum(len(x) for x in iter(lambda: s.recv(999), b\"\")))";
    assert_eq!(run(&format!("python3 -c '{stranger}'")).await.stdout.to_text(), "64\n");
    run("kill -STOP 1; kill -KILL 1").await;
    assert_eq!(run("echo lives").await.stdout.to_text(), "lives\n");
}

/// Takes the gateway's place, and passes on what both sides say.
const BETWEEN: &str = r#"
import os, socket, threading
os.rename("/run/wsm/gateway.sock", "/run/wsm/real.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/run/wsm/gateway.sock")
listener.listen()
def copy(a, b):
    while data := a.recv(65536):
        open("/workspace/heard", "ab").write(data)
        b.sendall(data)
while True:
    outer, inner = listener.accept()[0], socket.socket(socket.AF_UNIX)
    inner.connect("/run/wsm/real.sock")
    threading.Thread(target=copy, args=(outer, inner)).start()
    threading.Thread(target=copy, args=(inner, outer)).start()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_between_the_service_and_the_gateway() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("between");
    let workspace = contained.open(&id).await;
    workspace.write_bytes("between.py", BETWEEN.into()).await.unwrap();
    let begin = "python3 between.py > /dev/null 2>&1 & until [ -S /run/wsm/real.sock ]; do sleep 0.1; done; sleep 1";
    workspace.sh(begin).await.unwrap();
    let other = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let other = gated(other, program().unwrap()).unwrap();
    let error = other.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap_err();
    assert!(error.report().to_string().contains("somebody else listens"), "{}", error.report());
    assert!(workspace.read_text("heard", 1000).await.is_err(), "not a word was said");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_network_there_is_none() {
    let Some(contained) = Contained::new(|config| config.with_network(DockerNetwork::None)).await else { return };
    let workspace = contained.open(&unique("alone")).await;
    let devices = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
    assert_eq!(workspace.sh(devices).await.unwrap().stdout.to_text(), "lo\n");
    for address in ["169.254.169.254", "192.0.2.1"] {
        assert_eq!(workspace.sh(&connect(address, 80)).await.unwrap().stdout.to_text(), "False\n", "{address}");
    }
}

/// Addresses of this machine for as long as this lives, at which something listens on port 80.
struct Metadata {
    added: Vec<String>,
    _listeners: Vec<TcpListener>,
}

impl Metadata {
    /// None when this is not root's machine, or has such a service already.
    async fn serve(addresses: &[&str]) -> Option<Self> {
        let mut served = Self { added: Vec::new(), _listeners: Vec::new() };
        for address in addresses {
            let length = if address.contains(':') { 128 } else { 32 };
            let added = format!("{address}/{length}");
            let run = Program::new("ip").args(["addr", "add", &added, "dev", "lo"]).output().ok()?;
            if !run.status.success() {
                return None;
            }
            served.added.push(added);
            // A new address of the sixth version is not usable before it is known to be unique.
            let mut listener = None;
            for _ in 0..50 {
                listener = TcpListener::bind((*address, 80)).ok();
                if listener.is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            served._listeners.push(listener?);
        }
        Some(served)
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        for address in &self.added {
            let _ = Program::new("ip").args(["addr", "del", address, "dev", "lo"]).status();
        }
    }
}

const METADATA: [&str; 3] = ["169.254.169.254", "100.100.100.200", "fd00:ec2::254"];

#[tokio::test(flavor = "multi_thread")]
async fn metadata_services_are_not_reached_from_the_private_network() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let served = Metadata::serve(&METADATA).await;
    if served.is_none() {
        println!("skipped in part: only root can have a metadata service here, so that none is there to be blocked");
    }
    let id = unique("private");
    // Plainly, and past the routes to a device.
    let past = |address: &str| {
        format!(
            "python3 -c 'import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, 25, b\"eth0\"); \
             s.settimeout(2); print(s.connect_ex((\"{address}\", 80)) == 0)'"
        )
    };
    let ways = |address: &str| match address.contains(':') {
        true => vec![connect(address, 80).replace("socket.socket()", "socket.socket(socket.AF_INET6)")],
        false => vec![connect(address, 80), past(address)],
    };
    let assert_blocked = async |workspace: &dyn wsm_core::Workspace| {
        for address in METADATA {
            for way in ways(address) {
                assert_eq!(workspace.sh(&way).await.unwrap().stdout.to_text(), "False\n", "{address}: {way}");
            }
        }
        let undone = workspace.sh("python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'").await;
        assert!(!undone.unwrap().status.success(), "nothing can be sent past the routes");
    };
    assert_blocked(&*contained.open(&id).await).await;
    if served.is_some() {
        // That is no accident: the same address is reached without.
        let open = DockerConfig::new(contained.base.path()).with_host(engine().unwrap()).with_block_metadata(false);
        let open = gated(open, program().unwrap()).unwrap();
        let opened = open.open(OpenRequest::new(WorkspaceId::new(unique("open")).unwrap())).await.unwrap();
        for way in ways(METADATA[0]) {
            assert_eq!(opened.workspace.sh(&way).await.unwrap().stdout.to_text(), "True\n", "{way}");
        }
        let warned = |probe: &wsm_core::Probe| format!("{probe:?}").contains("metadata service answers");
        assert!(warned(&open.probe().await.unwrap()));
        assert!(!warned(&contained.backend.probe().await.unwrap()));
    }
    // Also in a container that was started again, whose network is a new one,
    assert!(docker(&["kill", &containers(&id)[0]]).status.success());
    let opened = contained.opened(&id).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_blocked(&*opened.workspace).await;
    // in one that somebody else has started again, which nobody is let into before,
    let restart = || assert!(docker(&["restart", "--time", "0", &containers(&id)[0]]).status.success());
    restart();
    assert!(matches!(opened.workspace.health().await.unwrap(), Health::Dead(_)));
    let error = opened.workspace.sh("true").await.map(|ran| ran.status);
    assert!(!matches!(&error, Ok(status) if status.success()), "{error:?}");
    let opened = contained.opened(&id).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Reattached);
    assert_blocked(&*opened.workspace).await;
    // and in one whose service ended before it had come so far.
    restart();
    let after = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let after = gated(after, program().unwrap()).unwrap();
    let opened = after.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Reattached);
    assert_blocked(&*opened.workspace).await;
    // The rest of the outside is as it was, and so are the helpers gone.
    let owner = std::fs::read_to_string(contained.base.path().join(".wsm/installation")).unwrap();
    let filter = format!("label=wsm.blocker={owner}");
    for look in 0.. {
        let left = docker_says(&["ps", "--all", "--quiet", "--filter", &filter]);
        if left.is_empty() {
            break;
        }
        assert!(look < 50, "{left}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
