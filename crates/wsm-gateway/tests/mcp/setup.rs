//! A gateway that serves MCP, and a client of it.

use std::{fs, fs::File, path::Path, path::PathBuf, sync::Arc, time::Duration};

use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use wsm_core::{AgentId, Result, SessionId, WorkspaceId, WorkspaceInfo};
use wsm_gateway::{
    GatewayClient, Io, McpClient, McpHeaders, McpLimits, McpRegistry, McpServer, McpServerKey, McpServerSpec,
    McpToolResult, Served,
};
use wsm_host::{Environment, HostWorkspace, Launcher, Opening, Reach};

/// Much longer than anything takes, and short enough to wait for when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway in this process.
pub(crate) struct Setup {
    pub(crate) mcp: McpClient,
    pub(crate) client: GatewayClient,
    pub(crate) registry: McpRegistry,
    pub(crate) directory: tempfile::TempDir,
    opening: Arc<Opening>,
    connections: Arc<Mutex<JoinSet<Result<()>>>>,
}

/// How many bytes a server may say at once in tests.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;

pub(crate) async fn setup() -> Setup {
    setup_with(|_| {}).await
}

pub(crate) async fn setup_with(change: impl FnOnce(&mut McpLimits)) -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let environment =
        Environment::new(std::env::vars_os().chain([("OF_THE_WORKSPACE".into(), "yes".into())]).collect());
    let launcher = Arc::new(Launcher::alone(environment, Duration::from_millis(300)));
    let info = WorkspaceInfo::new(WorkspaceId::random(), "gateway", path.to_str().unwrap());
    let place = File::open(&path).unwrap();
    let opening = Arc::new(Opening::new(info, HostWorkspace::CAPABILITIES, Reach::Everything, place, launcher));
    let host = Arc::new(HostWorkspace::new(Arc::clone(&opening)));
    let mut limits = McpLimits::default();
    limits.max_message = MAX_MESSAGE;
    limits.exit_grace = Duration::from_millis(500);
    change(&mut limits);
    let registry = McpRegistry::new(Arc::clone(&host), limits);
    let served = Served::new(host).with_mcp(registry.clone());
    let connections = Arc::new(Mutex::new(JoinSet::new()));
    let serving = Arc::clone(&connections);
    let client = GatewayClient::new(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        serving.lock().spawn(wsm_gateway::serve(served.clone(), far));
        async move { Ok(Box::new(near) as Box<dyn Io>) }.boxed()
    });
    let client = client.await.unwrap();
    Setup { mcp: client.mcp(), client, registry, directory, opening, connections }
}

impl Setup {
    pub(crate) fn record(&self) -> PathBuf {
        self.directory.path().join("record")
    }

    /// The fixture as a server, starting in one of its ways.
    pub(crate) fn fixture(&self, mode: &str) -> McpServerSpec {
        McpServerSpec::stdio(fixture()).arg(mode).with_env("FIXTURE_RECORD", self.record().to_str().unwrap())
    }

    pub(crate) async fn register(&self, name: &str) -> McpServerKey {
        let key = key("session", name);
        self.mcp.register(&key, &self.fixture("well"), &McpHeaders::new()).await.unwrap();
        key
    }

    pub(crate) async fn call(&self, key: &McpServerKey, tool: &str, arguments: Value) -> Result<McpToolResult> {
        timeout(PATIENCE, self.mcp.call(key, tool, object(arguments), None)).await.expect("a call hangs")
    }

    pub(crate) async fn text(&self, key: &McpServerKey, tool: &str, arguments: Value) -> String {
        self.call(key, tool, arguments).await.unwrap().text()
    }

    pub(crate) async fn status(&self, key: &McpServerKey) -> McpServer {
        self.mcp.list().await.unwrap().into_iter().find(|server| server.key == *key).expect("it is registered")
    }

    pub(crate) async fn recorded(&self, what: &str) {
        let path = self.record();
        eventually(what, async || fs::read_to_string(&path).is_ok_and(|record| record.contains(what))).await;
    }

    /// Breaks what there is of connections. The next call makes another one.
    pub(crate) async fn break_connections(&self) {
        let mut connections = std::mem::take(&mut *self.connections.lock());
        connections.shutdown().await;
    }

    /// Ends everything, and expects that it works.
    pub(crate) async fn close(self) {
        timeout(PATIENCE, self.registry.close()).await.expect("a server does not end");
        timeout(PATIENCE, self.opening.end()).await.expect("the workspace does not end").unwrap();
        self.client.close().await;
    }
}

pub(crate) fn object(arguments: Value) -> Map<String, Value> {
    match arguments {
        Value::Object(arguments) => arguments,
        other => panic!("{other} are no arguments"),
    }
}

pub(crate) fn key(session: &str, name: &str) -> McpServerKey {
    McpServerKey::new(AgentId::new("agent").unwrap(), SessionId::new(session).unwrap(), name)
}

/// The fixture is an example, which is built along with the tests.
pub(crate) fn fixture() -> String {
    let tests = std::env::current_exe().unwrap();
    let fixture = tests.parent().and_then(Path::parent).unwrap().join("examples/mcp_fixture");
    assert!(fixture.is_file(), "cargo build --package wsm-gateway --example mcp_fixture");
    fixture.to_str().unwrap().to_owned()
}

pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

/// Whether a process is there and runs.
pub(crate) fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}
