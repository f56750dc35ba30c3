//! Options that change how a workspace is made.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use common::{Sandboxed, program};
use wsm_bubblewrap::BubblewrapConfig;
use wsm_conformance::Layered;
use wsm_core::{Backend, BackendConfig, ErrorKind, ManagedWorkspace, OpenRequest, Result, WorkspaceExt, WorkspaceId};
use wsm_gateway::GatewayLayer;

fn request(id: &str) -> OpenRequest {
    OpenRequest::new(WorkspaceId::new(id).unwrap())
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
    let Some(sandboxed) = Sandboxed::new(|config| config.with_gateway_port(port)).await else { return };
    let workspace = sandboxed.open("ported").await;
    assert_eq!(workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
    workspace.write_bytes("f", vec![7; 3 << 20].into()).await.unwrap();
    assert_eq!(workspace.read_bytes("f", 4 << 20).await.unwrap().len(), 3 << 20);

    // From the host, and from the inside, where commands share the network.
    let stranger = move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&[1; 64]).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        said
    };
    let said = tokio::task::spawn_blocking(stranger).await.unwrap();
    assert_eq!(said.len(), 64, "a proof and a challenge, and no hello");
    let inside = format!(
        "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => \"127.0.0.1:{port}\"); print $s \"x\" x 64; \
         $s->flush; local $/; print length <$s>'"
    );
    assert_eq!(workspace.sh(&inside).await.unwrap().stdout.to_text(), "64");
    // Nothing that a command can see holds the token.
    let seen = workspace.sh("cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' ' '").await.unwrap();
    assert!(seen.stdout.to_text().contains(&format!("--port {port} ")), "{seen:?}");

    let error = sandboxed.backend.open(request("second")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Conflict, Some("gateway_port")), "{error}");
    workspace.suspend().await.unwrap();
    let opened = sandboxed.opened("second").await;
    assert_eq!(opened.outcome.kind, wsm_core::OutcomeKind::Created, "nobody was told before");
    assert_eq!(opened.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
}

/// A wheel with one module, made where it is needed, so that no package index is.
const WHEEL: &str = "
import zipfile
name = 'wheels/wsmdemo-1.0-py3-none-any.whl'
with zipfile.ZipFile(name, 'w') as wheel:
    wheel.writestr('wsmdemo.py', 'VALUE = 42')
    wheel.writestr('wsmdemo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: wsmdemo\\nVersion: 1.0\\n')
    wheel.writestr('wsmdemo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('wsmdemo-1.0.dist-info/RECORD', '')
";

#[tokio::test(flavor = "multi_thread")]
async fn python_packages_are_installed_once_and_found_first() {
    let offline =
        |config: BubblewrapConfig| config.with_env("PIP_NO_INDEX", "1").with_env("PIP_FIND_LINKS", "/workspace/wheels");
    let Some(sandboxed) = Sandboxed::new(offline).await else { return };
    let workspace = sandboxed.open("python").await;
    let made =
        workspace.sh(&format!("mkdir wheels && python3 -c \"{WHEEL}\" && python3 -m venv --help")).await.unwrap();
    if !made.status.success() {
        println!("skipped: the host has no `python3` with `venv`: {made:?}");
        return;
    }
    workspace.suspend().await.unwrap();

    let open = async |packages: &[&str]| -> Result<Arc<dyn ManagedWorkspace>> {
        let backend = offline(BubblewrapConfig::new(sandboxed.base.path())).build()?;
        let layer = Arc::new(GatewayLayer::new(program().unwrap()).with_packages(packages.iter().copied()));
        Ok(Layered { backend, layer }.open(request("python")).await?.workspace)
    };
    let workspace = open(&["wsmdemo"]).await.unwrap();
    let value = "python3 -c 'import wsmdemo; print(wsmdemo.VALUE)'; command -v python3; stat -c %Y .wsm/venv/bin";
    let first = workspace.sh(value).await.unwrap().stdout.to_text();
    assert!(first.starts_with("42\n/workspace/.wsm/venv/bin/python3\n"), "{first}");
    workspace.suspend().await.unwrap();
    let workspace = open(&["wsmdemo"]).await.unwrap();
    assert_eq!(workspace.sh(value).await.unwrap().stdout.to_text(), first, "it was kept");
    workspace.suspend().await.unwrap();
    let error = open(&["wsmdemo", "no-such-package"]).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "packages_failed"), "{error}");
    assert!(error.to_string().contains("no-such-package"), "{error}");
    // The list has changed and could not be had: nothing pretends that it was.
    let workspace = open(&["wsmdemo==1.0"]).await.unwrap();
    assert!(workspace.sh(value).await.unwrap().stdout.to_text().starts_with("42\n"));
}
