//! What a container costs: until it is there, for each call, and until it is gone. Prints a table, side by side with the
//! same container without wsm, and with the `docker` command. `DOCKER_HOST` names the engine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement wants the real clock, and ends when anything fails"
)]

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bollard::{
    Docker,
    models::ContainerCreateBody,
    query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder},
};
use bytes::Bytes;
use futures::future::join_all;
use serde_json::{Value, json};
use wsm_conformance::measure::{Rates, Spread, millis};
use wsm_core::{
    AgentId, Command, GetRequest, Scope, SessionId, WorkspaceExt, WorkspaceHandle, WorkspaceId, WorkspaceManager,
};
use wsm_docker::{DockerConfig, DockerWorkspaceManager};
use wsm_gateway::{GatewayClient, GatewayLayer, McpHeaders, McpServerKey, McpServerSpec, find_program, load_program};

/// Enough for a middle that stays.
const ROUNDS: usize = 200;
const OPENINGS: usize = 30;
const COMMANDS: usize = 30;
const TOGETHER: usize = 50;
const LARGE: usize = 64 << 20;

/// A server of MCP that does nothing but answer.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "bench", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        result = {"content": [{"type": "text", "text": "x"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let built = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(built);
    let program = find_program().or_else(|_| load_program(&built)).unwrap();
    let base = tempfile::tempdir().unwrap();
    let config = DockerConfig::new(base.path());
    let layer = Arc::new(GatewayLayer::new(program));
    let manager = DockerWorkspaceManager::builder(config).layer(layer).build().unwrap();
    manager.start().await.unwrap();

    let engine = Docker::connect_with_host(&std::env::var("DOCKER_HOST").unwrap()).unwrap();
    opening(&manager, &engine).await;
    let workspace = manager.get_workspace(&get("calls")).await.unwrap();
    calls(&workspace).await;
    mcp(&workspace).await;
    drop(workspace);
    manager.close_all(Default::default()).await;
    closing(&manager, &engine).await;
    let report = manager.shutdown(Duration::from_secs(120)).await;
    assert!(report.failed.is_empty(), "{report:?}");
    drop(manager);
    let left = container_of("opened");
    assert!(left.is_empty(), "{left}");
    // The network is the last that is left.
    let owner = std::fs::read_to_string(base.path().join(".wsm/installation")).unwrap();
    docker(&["network", "rm", &format!("wsm-{}", &owner[..12])]);
}

fn get(id: &str) -> GetRequest {
    GetRequest::new(Scope::new("ann", "coder", "s").unwrap()).with_workspace_id(WorkspaceId::new(id).unwrap())
}

fn docker(args: &[&str]) -> String {
    let output = Program::new("docker").args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn container_of(id: &str) -> String {
    docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &format!("label=agentscope.workspace.id={id}")])
}

/// What an opened workspace's container is like in everything but the name.
async fn body_of(engine: &Docker, id: &str) -> ContainerCreateBody {
    let seen = engine.inspect_container(&container_of(id), None).await.unwrap();
    let mut body: Value = serde_json::to_value(seen.config.unwrap()).unwrap();
    body["HostConfig"] = serde_json::to_value(seen.host_config.unwrap()).unwrap();
    serde_json::from_value(body).unwrap()
}

/// Creates and starts such a container.
async fn start_bare(engine: &Docker, body: &ContainerCreateBody, name: &str) {
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    engine.create_container(Some(options), body.clone()).await.unwrap();
    engine.start_container(name, None).await.unwrap();
}

/// Stops and removes it.
async fn end_bare(engine: &Docker, name: String) {
    engine.stop_container(&name, Some(StopContainerOptionsBuilder::default().t(5).build())).await.unwrap();
    engine.remove_container(&name, Some(RemoveContainerOptionsBuilder::default().v(true).build())).await.unwrap();
}

async fn opening(manager: &DockerWorkspaceManager, engine: &Docker) {
    let begun = Instant::now();
    // The image and the directory are there then.
    drop(manager.get_workspace(&get("opened")).await.unwrap());
    println!("the first opening, with the image's build:   {:.1?}", begun.elapsed());
    let body = body_of(engine, "opened").await;
    // The directory of the socket, which goes away with the workspace.
    let directory = body.host_config.as_ref().unwrap().mounts.as_ref().unwrap()[1].source.clone().unwrap();
    let (mut bare_times, mut opened, mut ready, mut runs) =
        (Spread::default(), Spread::default(), Spread::default(), Spread::default());
    let image = body.image.clone().unwrap();
    let id = WorkspaceId::new("opened").unwrap();
    for _ in 0..OPENINGS {
        manager.close(&id, Default::default()).await.unwrap();
        std::fs::create_dir_all(&directory).unwrap();
        let begun = Instant::now();
        start_bare(engine, &body, "wsm-bench-bare").await;
        bare_times.push(begun.elapsed());
        end_bare(engine, "wsm-bench-bare".to_owned()).await;
        std::fs::remove_dir_all(&directory).unwrap();
        let begun = Instant::now();
        docker(&["run", "--rm", "--entrypoint", "true", "--network", "none", &image]);
        runs.push(begun.elapsed());
        let begun = Instant::now();
        let workspace = manager.get_workspace(&get("opened")).await.unwrap();
        opened.push(begun.elapsed());
        assert!(workspace.exec(Command::new("true")).await.unwrap().status.success());
        ready.push(begun.elapsed());
    }
    let allowed = bare_times.middle().mul_f64(1.15) + Duration::from_millis(30);
    println!("`docker run --rm … true`:                    {runs}");
    println!("the same container, created and started:     {bare_times}");
    println!("opening an existing workspace:               {} (at most {:.0})", opened, millis(allowed));
    println!("opening it, and `true` inside:               {ready}");
}

async fn calls(workspace: &WorkspaceHandle) {
    let container = container_of("calls");
    let (mut by_docker, mut exec, mut write, mut read) =
        (Spread::default(), Spread::default(), Spread::default(), Spread::default());
    let kibibyte = Bytes::from(vec![7; 1024]);
    for round in 0..ROUNDS {
        if round < COMMANDS {
            let begun = Instant::now();
            docker(&["exec", &container, "true"]);
            by_docker.push(begun.elapsed());
        }
        let begun = Instant::now();
        assert!(workspace.exec(Command::new("true")).await.unwrap().status.success());
        exec.push(begun.elapsed());
        let begun = Instant::now();
        workspace.write_bytes("kibibyte", kibibyte.clone()).await.unwrap();
        write.push(begun.elapsed());
        let begun = Instant::now();
        assert_eq!(workspace.read_bytes("kibibyte", 2048).await.unwrap().len(), 1024);
        read.push(begun.elapsed());
    }
    println!("`docker exec … true`:                        {by_docker}");
    println!("exec `true` in the open workspace:           {exec} (at most 3)");
    println!("writing 1 KiB:                               {write} (at most 1)");
    println!("reading 1 KiB:                               {read} (at most 1)");

    let rates = Rates::of(&**workspace, "large", LARGE, 5).await.unwrap();
    println!("writing 64 MiB, best and worst of 5:         {} (at least 300)", rates.writes());
    println!("reading 64 MiB, best and worst of 5:         {} (at least 300)", rates.reads());
}

/// A server that this process talks to itself.
struct Direct {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Direct {
    fn start(script: &Path) -> Self {
        let mut start = Program::new("python3");
        let mut child = start.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { requests: child.stdin.take().unwrap(), answers, child }
    }

    fn call(&mut self) {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}});
        writeln!(self.requests, "{request}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(answer.contains("result"));
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn mcp(workspace: &WorkspaceHandle) {
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), SERVER).unwrap();
    workspace.write_bytes("server.py", SERVER.into()).await.unwrap();
    let mcp = workspace.extension_of::<GatewayClient>().unwrap().mcp();
    let key = McpServerKey::new(AgentId::new("a").unwrap(), SessionId::new("s").unwrap(), "server");
    let spec = McpServerSpec::stdio("python3").arg("/workspace/server.py");
    mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap();
    let mut direct = Direct::start(script.path());
    let (mut own, mut through) = (Spread::default(), Spread::default());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        direct.call();
        own.push(begun.elapsed());
        let begun = Instant::now();
        mcp.call(&key, "echo", serde_json::Map::new(), None).await.unwrap();
        through.push(begun.elapsed());
    }
    let more = through.middle().saturating_sub(own.middle());
    println!("a tool of MCP, called directly:              {own}");
    println!("the same through the gateway:                {through}");
    println!("  more than directly:                        {:.2} ms (at most 1)", millis(more));
}

async fn closing(manager: &DockerWorkspaceManager, engine: &Docker) {
    let ids: Vec<String> = (0..TOGETHER).map(|number| format!("together-{number}")).collect();
    let requests: Vec<GetRequest> = ids.iter().map(|id| get(id)).collect();
    let mut alone = Spread::default();
    for request in &requests[..10] {
        drop(manager.get_workspace(request).await.unwrap());
        let begun = Instant::now();
        manager.close_all(Default::default()).await;
        alone.push(begun.elapsed());
    }
    let begun = Instant::now();
    join_all(requests.iter().map(|request| manager.get_workspace(request))).await.into_iter().for_each(|opened| {
        drop(opened.unwrap());
    });
    println!("opening {TOGETHER} workspaces at once:               {:.2?}", begun.elapsed());
    let mut body = body_of(engine, "together-0").await;
    let begun = Instant::now();
    let report = manager.close_all(Default::default()).await;
    let took = begun.elapsed();
    assert_eq!(report.closed, TOGETHER);
    let allowed = alone.middle() * 3;
    println!("closing one:                                 {alone}");
    println!("closing {TOGETHER} at once:                          {took:.2?} (at most {allowed:.2?})");
    // What the engine needs for the same by itself, whoever asks for it.
    let sockets = tempfile::tempdir().unwrap();
    for number in 0..TOGETHER {
        let directory = sockets.path().join(number.to_string());
        std::fs::create_dir(&directory).unwrap();
        let source = directory.to_str().unwrap().to_owned();
        body.host_config.as_mut().unwrap().mounts.as_mut().unwrap()[1].source = Some(source);
        start_bare(engine, &body, &format!("wsm-bench-{number}")).await;
    }
    let begun = Instant::now();
    let end = (0..TOGETHER).map(|number| end_bare(engine, format!("wsm-bench-{number}")));
    join_all(end).await;
    println!("the engine, stopping and removing as many:   {:.2?}", begun.elapsed());
}
