//! What the backend adds to the bare round trips of a stand-in for the cloud, side by side in one run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement prints, and fails where it stands"
)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{BufMut, BytesMut};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use wsm_core::{
    Backend, BackendConfig, Command, ManagedWorkspace, OpenRequest, ReadOptions, UserId, WorkspaceId, WriteOptions,
};
use wsm_e2b::{E2bBackend, E2bConfig};
use wsm_fake_e2b::{API_KEY, Account, FakeE2b, Options};

const FILE: usize = 64 << 20;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A client without any of ours.
struct Raw {
    http: reqwest::Client,
    api: String,
    sandbox: String,
    token: String,
}

impl Raw {
    async fn attach(fake: &FakeE2b, id: &str) -> Self {
        let http = reqwest::Client::builder().http1_only().build().unwrap();
        let connect = http.post(format!("{}/v2/sandboxes/{id}/connect", fake.api_url())).header("x-api-key", API_KEY);
        let answer: Value = connect.json(&json!({ "timeout": 300 })).send().await.unwrap().json().await.unwrap();
        let token = answer["envdAccessToken"].as_str().unwrap().to_owned();
        Self { http, api: fake.sandbox_url(), sandbox: id.to_owned(), token }
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.api)).header("x-access-token", &self.token);
        request.header("e2b-sandbox-id", &self.sandbox).header("e2b-sandbox-port", "49983")
    }

    async fn call(&self, procedure: &str, message: Value) {
        let request = self.request(reqwest::Method::POST, &format!("/filesystem.Filesystem/{procedure}"));
        let answer = request.header("connect-protocol-version", "1").json(&message).send().await.unwrap();
        assert!(answer.status().is_success(), "{procedure}: {}", answer.status());
        answer.bytes().await.unwrap();
    }

    async fn upload(&self, path: &str, body: reqwest::Body) {
        let upload = self.request(reqwest::Method::POST, &format!("/files?path={path}"));
        let answer = upload.header("content-type", "application/octet-stream").body(body).send().await.unwrap();
        assert!(answer.status().is_success());
    }

    async fn start(&self, program: &str, args: &[&str]) -> usize {
        let message =
            json!({ "process": { "cmd": program, "args": args, "cwd": "/home/user/workspace" }, "stdin": false });
        let payload = message.to_string();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(payload.len() as u32);
        body.put_slice(payload.as_bytes());
        let request = self
            .request(reqwest::Method::POST, "/process.Process/Start")
            .header("content-type", "application/connect+json");
        let response = request.header("connect-protocol-version", "1").body(body.freeze()).send().await.unwrap();
        response.bytes().await.unwrap().len()
    }
}

async fn open(backend: &E2bBackend, name: &str) -> Arc<dyn ManagedWorkspace> {
    let request = OpenRequest::new(WorkspaceId::new(name).unwrap()).with_owner(UserId::new("ann").unwrap());
    backend.open(request).await.unwrap().workspace
}

async fn execs(workspace: &Arc<dyn ManagedWorkspace>, raw: &Raw) {
    let (mut ours, mut same, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..320 {
        let before = Instant::now();
        workspace.exec(Command::new("true")).await.unwrap();
        let exec = before.elapsed();
        let before = Instant::now();
        raw.start("setsid", &["--", "true"]).await;
        let start = before.elapsed();
        let before = Instant::now();
        raw.start("true", &[]).await;
        if round >= 20 {
            ours.push(exec);
            same.push(start);
            bare.push(before.elapsed());
        }
    }
    let (ours, same, bare) = (median(ours), median(same), median(bare));
    println!("exec of `true`:            {:>8.3} ms, median of 300", ms(ours));
    println!("  bare, the same command:  {:>8.3} ms: {:+.3} ms", ms(same), ms(ours) - ms(same));
    println!("  bare, without `setsid`:  {:>8.3} ms: {:+.3} ms", ms(bare), ms(ours) - ms(bare));
}

async fn transfers(workspace: &Arc<dyn ManagedWorkspace>, raw: &Raw) {
    let piece = bytes::Bytes::from(vec![7u8; 256 << 10]);
    let pieces = move || futures::stream::iter(vec![piece.clone(); FILE / (256 << 10)]);
    let body = || reqwest::Body::wrap_stream(pieces().map(Ok::<_, std::io::Error>));
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..15 {
        let mut note = |what, before: Instant| times.entry(what).or_default().push(before.elapsed());
        let before = Instant::now();
        workspace.write("f", pieces().map(Ok).boxed(), WriteOptions::default()).await.unwrap();
        note("write", before);
        let before = Instant::now();
        raw.upload("/home/user/workspace/g", body()).await;
        note("write, bare", before);
        // All or nothing: beside the file, and then in its place.
        let before = Instant::now();
        raw.call("Stat", json!({ "path": "/home/user/workspace/g" })).await;
        raw.upload("/home/user/workspace/h", body()).await;
        let place = json!({ "source": "/home/user/workspace/h", "destination": "/home/user/workspace/g" });
        raw.call("Move", place).await;
        note("write, same", before);
        let before = Instant::now();
        let mut read = workspace.read("f", ReadOptions::default()).await.unwrap().body;
        let mut length = 0;
        while let Some(piece) = read.next().await {
            length += piece.unwrap().len();
        }
        assert_eq!(length, FILE);
        note("read", before);
        let before = Instant::now();
        let mut answer = raw.request(reqwest::Method::GET, "/files?path=/home/user/workspace/f").send().await.unwrap();
        while answer.chunk().await.unwrap().is_some() {}
        note("read, bare", before);
    }
    for (what, bare, how) in [
        ("write", "write, same", "the same requests"),
        ("write", "write, bare", "into its place at once"),
        ("read", "read, bare", "the same request"),
    ] {
        let [ours, bare] = [what, bare].map(|what| median(times[what].clone()));
        let more = (ours.as_secs_f64() / bare.as_secs_f64() - 1.0) * 100.0;
        println!("{what} of 64 MiB:  {:>8.1} ms, bare, {how}: {:.1} ms: {more:+.1} %", ms(ours), ms(bare));
    }
    // Output of commands, in base64.
    let before = Instant::now();
    let command = Command::from_argv(["head", "-c", &FILE.to_string(), "/dev/zero"]).with_output_limit(1 << 10);
    workspace.exec(command).await.unwrap();
    let ours = before.elapsed();
    let before = Instant::now();
    raw.start("head", &["-c", &FILE.to_string(), "/dev/zero"]).await;
    println!("output of 64 MiB: {:>8.1} ms, bare {:.1} ms", ms(ours), ms(before.elapsed()));
}

async fn many(backend: &E2bBackend, fake: &FakeE2b) {
    let before = Instant::now();
    let opening = (0..50).map(|number| async move { open(backend, &format!("many-{number}")).await });
    let workspaces: Vec<_> = futures::stream::iter(opening).buffered(8).collect().await;
    println!("50 sandboxes made in {:.1} ms", ms(before.elapsed()));
    let mut bare = Vec::new();
    for sandbox in fake.sandboxes().all() {
        if sandbox.metadata["agentscope.workspace.id"].starts_with("many-") {
            bare.push(Raw::attach(fake, &sandbox.id).await);
        }
    }
    let bare = &bare;
    for round in ["cold", "warm"] {
        let before = Instant::now();
        let execs = (0..500).map(|number: usize| {
            let workspace = &workspaces[number % 50];
            async move {
                let result = workspace.exec(Command::from_argv(["echo".to_owned(), number.to_string()])).await.unwrap();
                assert_eq!(result.stdout.to_text(), format!("{number}\n"));
            }
        });
        futures::future::join_all(execs).await;
        let took = before.elapsed();
        let before = Instant::now();
        let execs =
            (0..500).map(|number: usize| async move { bare[number % 50].start("setsid", &["--", "echo", "x"]).await });
        futures::future::join_all(execs).await;
        println!(
            "500 commands at once on 50 sandboxes, {round}: {:.0} ms, bare {:.0} ms",
            ms(took),
            ms(before.elapsed())
        );
    }
    for number in 0..50 {
        backend.destroy(&WorkspaceId::new(format!("many-{number}")).unwrap()).await.unwrap();
    }
}

async fn opens(backend: &E2bBackend) {
    let (mut fresh, mut again, mut resumed) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..20 {
        let name = format!("open-{number}");
        let before = Instant::now();
        open(backend, &name).await;
        fresh.push(before.elapsed());
        let before = Instant::now();
        let workspace = open(backend, &name).await;
        again.push(before.elapsed());
        workspace.suspend().await.unwrap();
        let before = Instant::now();
        open(backend, &name).await;
        resumed.push(before.elapsed());
        backend.destroy(&WorkspaceId::new(name).unwrap()).await.unwrap();
    }
    println!(
        "open: fresh {:.1} ms, running {:.1} ms, paused {:.1} ms",
        ms(median(fresh)),
        ms(median(again)),
        ms(median(resumed))
    );
}

fn main() {
    // `cargo test` runs benches too, to see that they can be built.
    if std::env::args().any(|arg| arg == "--test") || !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    if let Err(why) = FakeE2b::check() {
        println!("skipped: the stand-in for E2B can not run here: {why}");
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut options = Options::default();
        options.accounts = vec![Account::new(API_KEY).max_running(1000)];
        let fake = FakeE2b::start(options).await.unwrap();
        let config = E2bConfig::default()
            .with_api_key(API_KEY)
            .with_api_url(fake.api_url())
            .with_sandbox_url(fake.sandbox_url());
        let backend = config.build().unwrap();
        let workspace = open(&backend, "bench").await;
        let raw = Raw::attach(&fake, &fake.sandboxes().all()[0].id).await;
        execs(&workspace, &raw).await;
        transfers(&workspace, &raw).await;
        opens(&backend).await;
        many(&backend, &fake).await;
        fake.shutdown().await;
    });
}
