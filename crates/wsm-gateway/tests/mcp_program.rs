//! The real program with MCP servers: the fixture, and servers of others, as they are installed by `cargo xtask setup mcp`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a failing test panics, and a skipped one says why"
)]

use std::{
    fs,
    net::TcpListener as StdTcpListener,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::{Command as StdCommand, Stdio},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{
    net::{TcpListener, TcpStream, UnixStream},
    process::{Child, Command as Program},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};
use wsm_core::{AgentId, ErrorKind, SessionId};
use wsm_gateway::{GatewayClient, Io, McpClient, McpHeaders, McpServerKey, McpServerSpec, McpState};

/// Much longer than anything takes, and short enough to wait for when a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where `cargo xtask gateway` puts the program.
const BUILT: &str = "target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
/// Where `cargo xtask setup mcp` puts the servers.
const SERVERS: &str = "target/mcp";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The statically linked program, if it was built, or else the one that was built along with the tests.
fn program() -> PathBuf {
    let named = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
    let built = named.or_else(|| Some(root().join(BUILT))).filter(|path| path.is_file());
    built.unwrap_or_else(|| {
        println!("not with the static program: that needs `cargo xtask gateway`, or its path in WSM_GATEWAY");
        env!("CARGO_BIN_EXE_wsm-gateway").into()
    })
}

/// Says that something is not tested, unless it has to be.
fn skip(kind: &str, reason: &str) {
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|required| required.trim() == kind), "required by WSM_REQUIRE: {reason}");
    println!("skipped: {reason}");
}

/// A running program, and its only client.
struct Gateway {
    child: Child,
    client: GatewayClient,
    mcp: McpClient,
    directory: tempfile::TempDir,
}

impl Gateway {
    async fn start() -> Self {
        Self::start_as(Program::new(program())).await
    }

    async fn start_as(mut program: Program) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (near, far) = StdUnixStream::pair().unwrap();
        let far = OwnedFd::from(far);
        program.args(["serve", "--stdio", "--workdir"]).arg(directory.path());
        program.stdin(far.try_clone().unwrap()).stdout(far).kill_on_drop(true);
        let child = program.spawn().unwrap();
        // It holds the other end as well.
        drop(program);
        near.set_nonblocking(true).unwrap();
        let near = Mutex::new(Some(UnixStream::from_std(near).unwrap()));
        let client = GatewayClient::new(move || {
            let near = near.lock().take();
            Box::pin(async { Ok(Box::new(near.expect("the connection broke")) as Box<dyn Io>) })
        });
        let client = client.await.unwrap();
        Self { child, mcp: client.mcp(), client, directory }
    }

    async fn register(&self, name: &str, spec: &McpServerSpec) -> McpServerKey {
        let key = McpServerKey::new(AgentId::new("agent").unwrap(), SessionId::new("session").unwrap(), name);
        let none = McpHeaders::new();
        timeout(PATIENCE, self.mcp.register(&key, spec, &none)).await.unwrap().unwrap();
        key
    }

    async fn call(&self, key: &McpServerKey, tool: &str, arguments: Value) -> wsm_gateway::McpToolResult {
        let call = self.mcp.call(key, tool, object(arguments), None);
        timeout(PATIENCE, call).await.expect("a call hangs").unwrap()
    }

    /// A number of the program's, by its name in `/proc/<pid>/status`.
    fn kib(&self, name: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn count(&self, what: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{what}", self.child.id().unwrap())).unwrap().count()
    }

    /// Closes the channel, with which everything ends.
    async fn close(mut self) {
        self.client.close().await;
        let status = timeout(PATIENCE, self.child.wait()).await.expect("it does not end").unwrap();
        assert!(status.success(), "{status}");
    }
}

fn object(arguments: Value) -> Map<String, Value> {
    match arguments {
        Value::Object(arguments) => arguments,
        other => panic!("{other} are no arguments"),
    }
}

fn fixture() -> String {
    let tests = std::env::current_exe().unwrap();
    let fixture = tests.parent().and_then(Path::parent).unwrap().join("examples/mcp_fixture");
    assert!(fixture.is_file(), "cargo build --package wsm-gateway --example mcp_fixture");
    fixture.to_str().unwrap().to_owned()
}

fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

#[tokio::test]
async fn h02_a_hundred_crashes_leave_no_zombie_no_thread_and_no_open_file() {
    let gateway = Gateway::start().await;
    let key = gateway.register("crashing", &McpServerSpec::stdio(fixture()).arg("well")).await;
    let mut before = None;
    for number in 0..110 {
        let error = gateway.mcp.call(&key, "crash", object(json!({"code": 1})), None).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "mcp_server_ended"), "{number}: {error}");
        if number == 10 {
            before = Some((gateway.count("fd"), gateway.kib("VmRSS")));
        }
    }
    let (files, resident) = before.unwrap();
    // Threads for calls that block end when they have been idle for a while, which is not waited for.
    assert!(gateway.count("task") <= 34, "{}", gateway.count("task"));
    assert!(gateway.count("fd") <= files + 8, "{files} {}", gateway.count("fd"));
    assert!(gateway.kib("VmRSS") < resident + 2048, "{resident} KiB became {} KiB", gateway.kib("VmRSS"));
    let parent = gateway.child.id().unwrap().to_string();
    let zombies = || {
        let stats =
            fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("stat")).ok());
        stats.filter(|stat| stat.rsplit(") ").next().unwrap().starts_with(&format!("Z {parent} "))).count()
    };
    let ended = async {
        while zombies() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, ended).await.is_ok(), "{} zombies", zombies());
    gateway.close().await;
}

#[tokio::test]
async fn it_is_small_for_as_long_as_nobody_asks_for_anything() {
    let gateway = Gateway::start().await;
    gateway.client.ping().await.unwrap();
    let resident = gateway.kib("VmRSS");
    println!("idle: {resident} KiB");
    if program().as_os_str() == env!("CARGO_BIN_EXE_wsm-gateway") {
        return skip("gateway", "only the static program is made to be small: `cargo xtask gateway`");
    }
    assert!(resident <= 4 << 10, "{resident} KiB");
    gateway.close().await;
}

#[tokio::test]
async fn what_a_server_says_takes_bounded_memory() {
    let gateway = Gateway::start().await;
    let key = gateway.register("loud", &McpServerSpec::stdio(fixture()).arg("well")).await;
    for tool in ["giant", "endless", "flood"] {
        gateway.call(&key, tool, json!({"bytes": 300 << 20})).await;
    }
    let too_long = gateway.mcp.call(&key, "big", object(json!({"bytes": 300 << 20})), None).await.unwrap_err();
    assert_eq!(too_long.code(), "too_large");
    // A message may have 16 MiB; while it grows, there are two of it.
    assert!(gateway.kib("VmHWM") < 80 << 10, "{} KiB", gateway.kib("VmHWM"));
    gateway.close().await;
}

#[tokio::test]
async fn servers_end_with_the_channel_and_so_does_all_that_they_have_started() {
    let gateway = Gateway::start().await;
    let line = "setsid sleep 600 > /dev/null 2>&1 & echo $! > pid; \"$0\" stubborn; exit 0";
    let key = gateway.register("wrapped", &McpServerSpec::stdio("sh").arg("-c").arg(line).arg(fixture())).await;
    let server = gateway.call(&key, "pid", json!({})).await.text();
    let child = fs::read_to_string(gateway.directory.path().join("pid")).unwrap().trim().to_owned();
    assert!(is_alive(&server) && is_alive(&child));
    gateway.close().await;
    assert!(!is_alive(&server) && !is_alive(&child));
}

#[tokio::test]
async fn as_the_first_process_it_reaps_what_servers_leave_behind() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let permitted = StdCommand::new("unshare").args(unshare).arg("true").output();
    if !permitted.as_ref().is_ok_and(|output| output.status.success()) {
        return skip("unshare", &format!("`unshare` is not permitted here: {permitted:?}"));
    }
    let mut unshared = Program::new("unshare");
    unshared.args(unshare).arg(program());
    let gateway = Gateway::start_as(unshared).await;
    // Every start leaves orphans: one that ends at once, and one that does not.
    let line = "(sleep 0.01 &); (env -i setsid sleep 0.05 &); exec \"$0\" well";
    let spec = McpServerSpec::stdio("sh").arg("-c").arg(line).arg(fixture());
    let keys = futures::future::join_all((0..8).map(async |number| {
        let key = gateway.register(&number.to_string(), &spec).await;
        for _ in 0..10 {
            assert_eq!(gateway.call(&key, "echo", json!({"text": "1"})).await.text(), "1");
            let error = gateway.mcp.call(&key, "crash", object(json!({"code": 5})), None).await.unwrap_err();
            assert_eq!(error.code(), "mcp_server_ended");
        }
        key
    }));
    let keys = timeout(PATIENCE, keys).await.unwrap();
    let ended = async {
        loop {
            let servers = gateway.mcp.list().await.unwrap();
            let seen = |server: &wsm_gateway::McpServer| matches!(&server.state, McpState::Failed { exit: Some(exit), .. } if exit.code() == Some(5));
            if servers.iter().all(seen) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, ended).await.is_ok(), "an exit status was lost: {:?}", gateway.mcp.list().await);
    // Looked at from outside: the processes of its namespace are this machine's as well, and all below `unshare`.
    let zombies = || -> Vec<String> {
        let below = descendants(gateway.child.id().unwrap());
        let stats = below.iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        stats.filter(|stat| stat.contains(") Z ")).collect()
    };
    let reaped = async {
        while !zombies().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, reaped).await.is_ok(), "zombies are left: {:?}", zombies());
    assert!(gateway.mcp.remove(&keys[0]).await.unwrap());
    gateway.close().await;
}

/// Where the servers of others are, if they are installed.
fn servers() -> Option<PathBuf> {
    let servers = root().join(SERVERS);
    if servers.join("installed").is_file() {
        return Some(servers);
    }
    skip("mcp", "needs MCP servers of others: `cargo xtask setup mcp`");
    None
}

#[tokio::test]
async fn the_reference_server_answers_all_that_is_asked() {
    let Some(servers) = servers() else { return };
    let gateway = Gateway::start().await;
    let program = servers.join("node_modules/.bin/mcp-server-everything");
    let key = gateway.register("everything", &McpServerSpec::stdio(program.to_str().unwrap())).await;
    let names: Vec<String> = gateway.mcp.tools(&key).await.unwrap().into_iter().map(|tool| tool.name).collect();
    assert!(names.len() > 5 && names.iter().any(|name| name == "get-sum"), "{names:?}");
    assert_eq!(gateway.call(&key, "echo", json!({"message": "héllo"})).await.text(), "Echo: héllo");
    let sum = gateway.call(&key, "get-sum", json!({"a": 40, "b": 2})).await;
    assert!(sum.text().contains("42"), "{sum:?}");
    let image = gateway.call(&key, "get-tiny-image", json!({})).await;
    assert!(
        image.content.iter().any(|block| block["type"] == "image" && block["mimeType"] == "image/png"),
        "{image:?}"
    );
    let structured = gateway.call(&key, "get-structured-content", json!({"location": "New York"})).await;
    assert!(structured.structured_content.is_some_and(|content| content["temperature"].is_number()));
    let wrong = gateway.mcp.call(&key, "get-sum", object(json!({"a": "many"})), None).await;
    match wrong {
        Ok(result) => assert!(result.is_error, "{result:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}"),
    }
    // Fifty at once.
    let calls = (0..50).map(async |number: u64| {
        let sum = gateway.call(&key, "get-sum", json!({"a": number, "b": 1000})).await;
        assert!(sum.text().contains(&(number + 1000).to_string()), "{sum:?}");
    });
    futures::future::join_all(calls).await;
    // One that takes long, and is given up.
    let arguments = object(json!({"duration": 60, "steps": 60}));
    let late = gateway.mcp.call(&key, "trigger-long-running-operation", arguments, Some(Duration::from_millis(300)));
    assert_eq!(late.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(gateway.call(&key, "echo", json!({"message": "on"})).await.text(), "Echo: on");
    gateway.close().await;
}

#[tokio::test]
async fn h01_removing_a_server_that_npx_has_started_ends_all_of_it() {
    let Some(servers) = servers() else { return };
    let gateway = Gateway::start().await;
    let spec = McpServerSpec::stdio("npx").arg("--no-install").arg("mcp-server-everything");
    let key = gateway.register("npx", &spec.with_cwd(servers.to_str().unwrap())).await;
    assert_eq!(gateway.call(&key, "echo", json!({"message": "1"})).await.text(), "Echo: 1");
    let parent = gateway.child.id().unwrap();
    let below = descendants(parent);
    assert!(below.len() >= 2, "npx and the server: {below:?}");
    assert!(gateway.mcp.remove(&key).await.unwrap());
    assert!(below.iter().all(|pid| !is_alive(&pid.to_string())), "{below:?}");
    assert_eq!(descendants(parent), Vec::<u32>::new());
    gateway.close().await;
}

fn descendants(of: u32) -> Vec<u32> {
    let children = fs::read_dir(format!("/proc/{of}/task"))
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|pids| pids.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect();
    let below = children.iter().flat_map(|&pid| if is_alive(&pid.to_string()) { descendants(pid) } else { Vec::new() });
    children.iter().copied().chain(below.collect::<Vec<_>>()).collect()
}

#[tokio::test]
async fn a_server_of_files_reads_and_writes_the_workspace() {
    let Some(servers) = servers() else { return };
    let gateway = Gateway::start().await;
    let program = servers.join("node_modules/.bin/mcp-server-filesystem");
    let spec = McpServerSpec::stdio(program.to_str().unwrap()).arg(gateway.directory.path().to_str().unwrap());
    let key = gateway.register("files", &spec).await;
    let path = gateway.directory.path().join("note");
    let text = "line\n".repeat(400_000);
    let arguments = json!({"path": path.to_str().unwrap(), "content": text});
    let written = gateway.call(&key, "write_file", arguments).await;
    assert!(!written.is_error, "{written:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "more than one frame of arguments");
    let read = gateway.call(&key, "read_text_file", json!({"path": path.to_str().unwrap()})).await;
    assert_eq!(read.text(), text, "more than one frame of result");
    let outside = gateway.call(&key, "read_text_file", json!({"path": "/etc/passwd"})).await;
    assert!(outside.is_error, "{outside:?}");
    gateway.close().await;
}

#[tokio::test]
async fn a_server_in_python_tells_the_time() {
    let Some(servers) = servers() else { return };
    let gateway = Gateway::start().await;
    let program = servers.join("python/bin/mcp-server-time");
    let spec = McpServerSpec::stdio(program.to_str().unwrap()).arg("--local-timezone").arg("UTC");
    let key = gateway.register("time", &spec).await;
    let arguments = json!({"source_timezone": "Asia/Tokyo", "time": "09:30", "target_timezone": "UTC"});
    let converted = gateway.call(&key, "convert_time", arguments).await;
    assert!(!converted.is_error && converted.text().contains("00:30"), "{converted:?}");
    let nowhere = gateway.call(&key, "get_current_time", json!({"timezone": "Nowhere/At_All"})).await;
    assert!(nowhere.is_error, "{nowhere:?}");
    gateway.close().await;
}

/// The reference server, listening on a port.
async fn listen(servers: &Path, port: u16) -> Child {
    let mut server = Program::new(servers.join("node_modules/.bin/mcp-server-everything"));
    server.arg("streamableHttp").env("PORT", port.to_string()).kill_on_drop(true);
    let server = server.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let listening = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, listening).await.unwrap();
    server
}

fn free_port() -> u16 {
    StdTcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn servers_behind_https_are_reached_when_their_certificate_is_trusted() {
    let Some(servers) = servers() else { return };
    let port = free_port();
    let _server = listen(&servers, port).await;
    // Ends TLS in front of it.
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut proxies = JoinSet::new();
    proxies.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("trusted.pem");
    fs::write(&trusted, certified.cert.pem()).unwrap();
    let mut trusting = Program::new(program());
    trusting.env("SSL_CERT_FILE", &trusted);
    let gateway = Gateway::start_as(trusting).await;
    let spec = McpServerSpec::http(format!("https://localhost:{}/mcp", address.port()));
    let key = McpServerKey::new(AgentId::new("agent").unwrap(), SessionId::new("session").unwrap(), "https");
    match gateway.mcp.register(&key, &spec, &McpHeaders::new()).await {
        Err(error) if error.message().contains("needs TLS") => return skip("tls", "the program is built without TLS"),
        registered => drop(registered.unwrap()),
    }
    assert_eq!(gateway.call(&key, "echo", json!({"message": "1"})).await.text(), "Echo: 1");
    gateway.close().await;

    let gateway = Gateway::start().await;
    let error = gateway.mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap_err();
    assert!(error.message().contains("certificate"), "{error}");
    gateway.close().await;
}

#[tokio::test]
async fn the_reference_server_is_reached_over_http_and_found_again_after_its_restart() {
    let Some(servers) = servers() else { return };
    let port = free_port();
    let mut running = listen(&servers, port).await;
    let gateway = Gateway::start().await;
    let spec = McpServerSpec::http(format!("http://127.0.0.1:{port}/mcp"));
    let key = gateway.register("everything", &spec).await;
    assert_eq!(gateway.call(&key, "echo", json!({"message": "1"})).await.text(), "Echo: 1");
    assert!(gateway.mcp.tools(&key).await.unwrap().len() > 5);
    running.kill().await.unwrap();
    let down = gateway.mcp.call(&key, "echo", object(json!({"message": "2"})), Some(Duration::from_secs(5))).await;
    assert!(down.is_err(), "{down:?}");
    let _again = listen(&servers, port).await;
    let again = gateway.call(&key, "echo", json!({"message": "3"})).await;
    assert_eq!(again.text(), "Echo: 3");
    assert!(again.state_lost.unwrap().contains("forgotten"));
    gateway.close().await;
}
