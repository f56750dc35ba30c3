//! The gateway beside the daemon's own commands and files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails where it stands")]

mod common;

use std::{path::Path, sync::Arc};

use common::*;
use wsm_conformance::Layered;
use wsm_core::{AgentId, Backend, BackendConfig, Command, InitProgram, OpenRequest, SessionId, WorkspaceExt};
use wsm_fake_e2b::Operation;
use wsm_gateway::{
    GatewayBeside, GatewayClient, GlobRequest, McpHeaders, McpServerKey, McpServerSpec, find_program, load_program,
};

/// The static program, as `cargo xtask gateway` leaves it.
const BUILT: &str = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";

/// A server of MCP that does nothing but answer.
const SERVER: &str = r#"
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "test", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "where", "inputSchema": {"type": "object"}}]}
    else:
        result = {"content": [{"type": "text", "text": os.getcwd()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

fn program() -> Option<InitProgram> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(BUILT);
    match find_program().or_else(|_| load_program(&built)) {
        Ok(program) => Some(program),
        Err(error) => {
            assert!(!std::env::var("WSM_REQUIRE").unwrap_or_default().contains("gateway"), "{error}");
            println!("skipped: {error}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_searches_run_in_the_sandbox_and_cost_nothing_until_they_are_wanted() {
    let Some(program) = program() else { return };
    let Some(fixture) = Fixture::new().await else { return };
    let layer = Arc::new(GatewayBeside::new(program));
    let backend = Layered { backend: config(&fixture.fake).build().unwrap(), layer };
    let open = async || backend.open(OpenRequest::new(id("w"))).await.unwrap().workspace;
    let workspace = open().await;
    let requests = fixture.fake.requests().all().len();
    workspace.exec(Command::new("true")).await.unwrap();
    assert_eq!(fixture.fake.requests().all().len(), requests + 1, "a command goes to the daemon");
    assert_eq!(fixture.fake.requests().count(Operation::Upload), 0, "nothing was brought in");

    let client = workspace.extension_of::<GatewayClient>().unwrap();
    workspace.write_bytes("src/server.py", SERVER.into()).await.unwrap();
    let uploads = fixture.fake.requests().count(Operation::Upload);
    let found = client.glob(&GlobRequest::new("**/*.py")).await.unwrap();
    assert_eq!(found.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["src/server.py"]);
    assert_eq!(fixture.fake.requests().count(Operation::Upload), uploads + 1);
    let mcp = client.mcp();
    let key = McpServerKey::new(AgentId::new("a").unwrap(), SessionId::new("s").unwrap(), "server");
    let spec = McpServerSpec::stdio("python3").arg("src/server.py");
    mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap();
    let told = mcp.call(&key, "where", serde_json::Map::new(), None).await.unwrap().text();
    assert_eq!(told, workspace.info().workdir);

    // It is started again when it was ended, and brought in once only.
    workspace.sh("kill -9 $(pgrep -f '[s]erve --stdio')").await.unwrap();
    let mut tries = 0;
    while client.glob(&GlobRequest::new("*")).await.is_err() {
        tries += 1;
        assert!(tries < 50, "it comes back");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    workspace.suspend().await.unwrap();
    assert!(client.glob(&GlobRequest::new("*")).await.is_err(), "it ended with the workspace");
    let workspace = open().await;
    let client = workspace.extension_of::<GatewayClient>().unwrap();
    assert!(!client.glob(&GlobRequest::new("src/*")).await.unwrap().entries.is_empty());
    assert_eq!(fixture.fake.requests().count(Operation::Upload), uploads + 1, "it was there");
    let left = workspace.sh("pgrep -fc '[s]erve --stdio'").await.unwrap().stdout.to_text();
    assert_eq!(left.trim(), "1", "none is left of before");
}
