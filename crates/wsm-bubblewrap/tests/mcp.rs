//! MCP servers of others, run by the gateway in a sandbox without a network.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command as Program,
};

use common::Sandboxed;
use serde_json::{Map, Value, json};
use wsm_bubblewrap::Network;
use wsm_core::{AgentId, ErrorKind, SessionId, WorkspaceExt, byte_stream};
use wsm_gateway::{ArchiveFormat, GatewayClient, McpHeaders, McpServerKey, McpServerSpec, UnpackRequest};

/// Where `cargo xtask setup mcp` puts the servers.
const SERVERS: &str = "../../target/mcp";

/// The servers' files, or none, said aloud. `WSM_REQUIRE=mcp` makes that a failure.
fn servers() -> Option<PathBuf> {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join(SERVERS);
    if std::fs::read_dir(servers.join("node_modules")).is_ok() {
        return Some(servers);
    }
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.contains("mcp"), "`cargo xtask setup mcp` installs the servers");
    println!("skipped: needs MCP servers of others: `cargo xtask setup mcp`");
    None
}

/// Puts a directory of the host into the workspace, as an archive.
async fn put(client: &GatewayClient, from: &Path, what: &str, to: &str) {
    let archive = Program::new("tar").arg("--directory").arg(from).args(["--gzip", "--create", what]).output().unwrap();
    assert!(archive.status.success(), "{archive:?}");
    let request = UnpackRequest::new(to).with_format(ArchiveFormat::TarGz).with_max_entries(100_000);
    client.unpack(&request, byte_stream(archive.stdout)).await.unwrap();
}

fn key(name: &str) -> McpServerKey {
    McpServerKey::new(AgentId::new("agent").unwrap(), SessionId::new("session").unwrap(), name)
}

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else { panic!("{value} is no object") };
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_others_run_inside_and_end_with_the_sandbox() {
    let (Some(servers), Some(sandboxed)) =
        (servers(), Sandboxed::new(|config| config.with_network(Network::None)).await)
    else {
        return;
    };
    let workspace = sandboxed.open("mcp").await;
    let client = (*workspace).extension_of::<GatewayClient>().unwrap();
    put(&client, &servers, "node_modules", "node").await;
    put(&client, &servers.join("python/lib/python3.11"), "site-packages", "python").await;
    workspace.write_bytes("allowed/f", "from inside".into()).await.unwrap();
    let mcp = client.mcp();
    let node = |server: &str| {
        McpServerSpec::stdio("node").arg(format!("node/node_modules/@modelcontextprotocol/{server}/dist/index.js"))
    };
    let specs = [
        ("everything", node("server-everything").arg("stdio")),
        ("filesystem", node("server-filesystem").arg("/workspace/allowed")),
        (
            "time",
            McpServerSpec::stdio("python3")
                .arg("-m")
                .arg("mcp_server_time")
                .with_env("PYTHONPATH", "/workspace/python/site-packages"),
        ),
        ("broken", McpServerSpec::stdio("no-such-server")),
    ];
    for (name, spec) in &specs {
        match mcp.register(&key(name), spec, &McpHeaders::new()).await {
            Ok(_) => assert_ne!(*name, "broken"),
            Err(error) if *name == "broken" => assert_eq!(error.code(), "program_not_found", "{error}"),
            Err(error) if *name == "time" && error.to_string().contains("No module named") => {
                println!("skipped: the host's `python3` is not the one that the server was installed for");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    let call = async |name: &str, tool: &str, arguments: Value| {
        mcp.call(&key(name), tool, object(arguments), None).await.unwrap().text()
    };
    assert_eq!(call("everything", "echo", json!({"message": "hello"})).await, "Echo: hello");
    assert_eq!(call("filesystem", "read_text_file", json!({"path": "/workspace/allowed/f"})).await, "from inside");
    let outside = mcp.call(&key("filesystem"), "read_text_file", object(json!({"path": "/etc/passwd"})), None).await;
    assert!(!outside.is_ok_and(|result| result.text().contains("agent:")), "it allows no more than it is told");
    if mcp.tools(&key("time")).await.is_ok() {
        let time = call("time", "get_current_time", json!({"timezone": "UTC"})).await;
        assert!(time.contains("UTC"), "{time}");
    }
    assert_eq!(mcp.list().await.unwrap().len(), specs.len());

    // They are processes of the sandbox, of its user, and go where it goes.
    let seen = workspace.sh("ps -eo user,args | grep -c '^agent.*[s]erver-'").await.unwrap().stdout.to_text();
    assert!(seen.trim().parse::<u32>().unwrap() >= 2, "{seen}");
    workspace.suspend().await.unwrap();
    let left = common::processes_with("node/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    assert!(left.is_empty(), "{left:?}");
    let error = mcp.list().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}
