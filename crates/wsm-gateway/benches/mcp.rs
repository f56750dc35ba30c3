//! What a tool call through the gateway costs, beside the same call made directly to a server of the same kind.
//!
//! Both are made in turn, so that whatever else the machine does hits both. Prints one line a figure.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark panics and prints")]

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use parking_lot::Mutex;
use rmcp::{
    RoleClient, ServiceExt,
    model::{CallToolRequestParams, ClientConfig},
    service::RunningService,
};
use serde_json::{Map, Value, json};
use tokio::{
    net::UnixStream,
    process::{Child, Command},
    time::Instant,
};
use wsm_core::{AgentId, SessionId};
use wsm_gateway::{GatewayClient, Io, McpClient, McpHeaders, McpServerKey, McpServerSpec};

const WARM_UP: usize = 50;
const CALLS: usize = 1000;
/// How much a small call may cost more.
const ALLOWED: Duration = Duration::from_millis(1);

/// A server that this process talks to itself.
struct Direct {
    service: RunningService<RoleClient, ClientConfig>,
    _child: Child,
}

impl Direct {
    async fn start(command: &[&str]) -> Self {
        let mut start = Command::new(command[0]);
        start.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = start.kill_on_drop(true).spawn().unwrap();
        let pipes = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
        Self { service: ClientConfig::default().serve(pipes).await.unwrap(), _child: child }
    }

    async fn call(&self, tool: &str, arguments: &Map<String, Value>) -> usize {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
        let result = self.service.peer().call_tool(params).await.unwrap();
        result.content.len()
    }
}

/// A server that the gateway's program talks to.
struct Through {
    mcp: McpClient,
    key: McpServerKey,
    _gateway: Child,
}

impl Through {
    async fn start(command: &[&str]) -> Self {
        let (near, far) = StdUnixStream::pair().unwrap();
        let far = OwnedFd::from(far);
        let mut start = Command::new(program());
        start.args(["serve", "--stdio"]).stdin(far.try_clone().unwrap()).stdout(far).kill_on_drop(true);
        let gateway = start.spawn().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Mutex::new(Some(UnixStream::from_std(near).unwrap()));
        let client = GatewayClient::new(move || {
            let near = near.lock().take();
            Box::pin(async { Ok(Box::new(near.unwrap()) as Box<dyn Io>) })
        });
        let mcp = client.await.unwrap().mcp();
        let key = McpServerKey::new(AgentId::new("a").unwrap(), SessionId::new("s").unwrap(), "server");
        let spec = command[1..].iter().fold(McpServerSpec::stdio(command[0]), |spec, arg| spec.arg(*arg));
        mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap();
        Self { mcp, key, _gateway: gateway }
    }

    async fn call(&self, tool: &str, arguments: &Map<String, Value>) -> usize {
        self.mcp.call(&self.key, tool, arguments.clone(), None).await.unwrap().content.len()
    }
}

/// The static program, or else the one that was built along.
fn program() -> PathBuf {
    let built = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(built);
    let named = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
    let program = named.unwrap_or(built);
    if program.is_file() { program } else { env!("CARGO_BIN_EXE_wsm-gateway").into() }
}

async fn compare(what: &str, command: &[&str], tool: &str, arguments: Value, calls: usize) {
    let arguments = arguments.as_object().cloned().unwrap();
    let (direct, through) = (Direct::start(command).await, Through::start(command).await);
    for _ in 0..WARM_UP.min(calls) {
        assert_eq!(direct.call(tool, &arguments).await, through.call(tool, &arguments).await);
    }
    let (mut directly, mut by_gateway) = (Vec::new(), Vec::new());
    for _ in 0..calls {
        let before = Instant::now();
        direct.call(tool, &arguments).await;
        directly.push(before.elapsed());
        let before = Instant::now();
        through.call(tool, &arguments).await;
        by_gateway.push(before.elapsed());
    }
    let (directly, by_gateway) = (middle(directly), middle(by_gateway));
    let more = by_gateway.saturating_sub(directly);
    println!("{what:<44} directly {directly:>9.1?}, by the gateway {by_gateway:>9.1?}: {more:.1?} more (median)");
    if what.contains("a few bytes") && more > ALLOWED {
        println!("{what:<44} that is more than the {ALLOWED:?} that is allowed");
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let this = std::env::current_exe().unwrap();
    let fixture = this.parent().and_then(Path::parent).unwrap().join("examples/mcp_fixture");
    assert!(fixture.is_file(), "cargo build --release --package wsm-gateway --features program --example mcp_fixture");
    let fixture = [fixture.to_str().unwrap(), "well"];
    compare("fixture, a few bytes", &fixture, "echo", json!({"text": "hello"}), CALLS).await;
    compare("fixture, answers of 64 KiB", &fixture, "big", json!({"bytes": 64 << 10}), CALLS).await;
    compare("fixture, answers of 1 MiB", &fixture, "big", json!({"bytes": 1 << 20}), CALLS / 10).await;
    let everything =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mcp/node_modules/.bin/mcp-server-everything");
    match everything.is_file() {
        true => {
            let everything = [everything.to_str().unwrap()];
            compare("server-everything, a few bytes", &everything, "echo", json!({"message": "hello"}), CALLS).await;
        }
        false => println!("server-everything is not installed: `cargo xtask setup mcp`"),
    }
}
