//! What a command in a container can not do, tried from its inside.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use common::{Contained, containers, docker_says};
use wsm_core::{WorkspaceExt, WorkspaceId};
use wsm_docker::DockerNetwork;

fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

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
    neighbour.sh("python3 -m http.server 8000 > /dev/null 2>&1 & sleep 1").await.unwrap();
    assert_eq!(neighbour.sh(&connect("127.0.0.1", 8000)).await.unwrap().stdout.to_text(), "True\n", "it listens");
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
