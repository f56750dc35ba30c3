//! The static program over a socket pair, side by side with what it stands for. `cargo xtask bench gateway` runs it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement prints, panics when it can not measure, and wants the real clock"
)]

use std::{
    fs,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::{Child, Command as StdCommand, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use wsm_core::{ByteStream, Command, ExitStatus, ReadOptions, WriteOptions, byte_stream};
use wsm_gateway::{GatewayClient, GlobRequest, GrepMode, GrepRequest, Io};

const LARGE: usize = 64 << 20;
const FILES: usize = 10_000;

/// A running program and its client.
struct Gateway {
    child: Child,
    client: GatewayClient,
}

impl Gateway {
    async fn start(program: &Path, workdir: &Path) -> Self {
        let (near, far) = StdUnixStream::pair().unwrap();
        let far = OwnedFd::from(far);
        let mut command = StdCommand::new(program);
        command.args(["serve", "--stdio", "--workdir"]).arg(workdir);
        let child = command.stdin(far.try_clone().unwrap()).stdout(far).spawn().unwrap();
        // The ends that the command keeps would hold the connection open.
        drop(command);
        near.set_nonblocking(true).unwrap();
        let near = Arc::new(Mutex::new(Some(near)));
        let connect = move || {
            let near = Arc::clone(&near);
            async move { Ok(Box::new(UnixStream::from_std(near.lock().take().unwrap()).unwrap()) as Box<dyn Io>) }
                .boxed()
        };
        Self { child, client: GatewayClient::new(connect).await.unwrap() }
    }

    fn resident(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("unknown");
        line.trim().to_owned()
    }

    async fn end(mut self) {
        self.client.close().await;
        assert!(self.child.wait().unwrap().success());
    }
}

fn main() {
    let program = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
    let Some(program) = program.filter(|path| path.is_file()) else {
        println!("skipped: needs the static program: cargo xtask bench gateway");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure(&program));
}

async fn measure(program: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(program, scratch.path()).await;
    println!("program                       {:>12} bytes", fs::metadata(program).unwrap().len());
    println!("resident, idle                {:>12}", gateway.resident());
    let client = &gateway.client;
    commands(client).await;
    files(client, scratch.path()).await;
    searches(client, scratch.path()).await;
    many(client).await;
    println!("resident, after all that      {:>12}", gateway.resident());
    gateway.end().await;
}

/// The middle one and the one that 5 in 100 are slower than.
fn shown(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |hundredth: usize| times[(times.len() - 1) * hundredth / 100];
    format!("{:>10.1?} p50 {:>10.1?} p95", at(50), at(95))
}

async fn commands(client: &GatewayClient) {
    let (mut bare, mut through) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        let before = Instant::now();
        assert!(StdCommand::new("true").status().unwrap().success());
        bare.push(before.elapsed());
        let before = Instant::now();
        assert!(client.exec(Command::new("true")).await.unwrap().status.success());
        through.push(before.elapsed());
    }
    println!("`true`, bare fork+exec+wait   {}", shown(bare));
    println!("`true`, through the gateway   {}   (target 2 ms)", shown(through));
}

async fn read_all(client: &GatewayClient, path: &str) -> usize {
    let body = client.read(path, ReadOptions::default()).await.unwrap().body;
    body.try_fold(0, async |sum, piece| Ok(sum + piece.len())).await.unwrap()
}

fn large_body() -> ByteStream {
    let piece = Bytes::from(vec![b'x'; 256 << 10]);
    stream::iter((0..LARGE / piece.len()).map(move |_| Ok(piece.clone()))).boxed()
}

async fn files(client: &GatewayClient, directory: &Path) {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    let options = WriteOptions::default();
    for _ in 0..2000 {
        let before = Instant::now();
        client.write("small", byte_stream(vec![b'x'; 1024]), &options).await.unwrap();
        writes.push(before.elapsed());
        let before = Instant::now();
        assert_eq!(read_all(client, "small").await, 1024);
        reads.push(before.elapsed());
    }
    println!("write of 1 KiB                {}   (target 0.5 ms)", shown(writes));
    println!("read of 1 KiB                 {}   (target 0.5 ms)", shown(reads));
    let rate = |time: Duration| format!("{:>8.0} MB/s", LARGE as f64 / 1e6 / time.as_secs_f64());
    let (mut writes, mut reads, mut bare_writes, mut bare_reads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let content = vec![b'x'; LARGE];
    for _ in 0..5 {
        let before = Instant::now();
        client.write("large", large_body(), &options).await.unwrap();
        writes.push(before.elapsed());
        let before = Instant::now();
        assert_eq!(read_all(client, "large").await, LARGE);
        reads.push(before.elapsed());
        let before = Instant::now();
        fs::write(directory.join("bare"), &content).unwrap();
        bare_writes.push(before.elapsed());
        let before = Instant::now();
        assert_eq!(fs::read(directory.join("bare")).unwrap().len(), LARGE);
        bare_reads.push(before.elapsed());
    }
    for (what, mut times) in [
        ("write of 64 MiB               ", writes),
        ("the same, without a gateway   ", bare_writes),
        ("read of 64 MiB                ", reads),
        ("the same, without a gateway   ", bare_reads),
    ] {
        times.sort_unstable();
        let target = if what.starts_with("the") { "" } else { "   (target 500 MB/s)" };
        println!("{what}{} (median of 5){target}", rate(times[2]));
    }
    fs::remove_file(directory.join("large")).unwrap();
    fs::remove_file(directory.join("bare")).unwrap();
}

async fn searches(client: &GatewayClient, directory: &Path) {
    for number in 0..FILES {
        let parent = directory.join(format!("tree/{:02}/{:02}", number % 10, number / 10 % 100));
        fs::create_dir_all(&parent).unwrap();
        let hit = if number % 100 == 0 { "needle" } else { "hay" };
        let content = format!("{}\nlet {hit} = {number};\n", "some line of code that is not looked for\n".repeat(40));
        fs::write(parent.join(format!("file{number}.{}", if number % 2 == 0 { "rs" } else { "txt" })), content)
            .unwrap();
    }
    let glob = GlobRequest::new("tree/**/*.rs").with_limit(FILES);
    let grep = GrepRequest::new(r"let needle = \d+").with_mode(GrepMode::Content);
    let tools: [(&str, &[&str]); 4] = [
        ("find", &["tree", "-name", "*.rs"]),
        ("rg", &["--files", "-g", "*.rs", "tree"]),
        ("grep", &["-rE", "let needle = [0-9]+", "tree"]),
        ("rg", &["let needle = [0-9]+", "tree"]),
    ];
    let (mut globs, mut greps) = (Vec::new(), Vec::new());
    for _ in 0..7 {
        let before = Instant::now();
        assert_eq!(client.glob(&glob).await.unwrap().entries.len(), FILES / 2);
        globs.push(before.elapsed());
        let before = Instant::now();
        assert_eq!(client.grep(&grep).await.unwrap().lines.len(), FILES / 100);
        greps.push(before.elapsed());
    }
    println!("glob of {FILES} files, 5000 hits {}", shown(globs));
    println!("grep of {FILES} files, 100 hits  {}", shown(greps));
    for (tool, args) in tools {
        let run = || StdCommand::new(tool).args(args).current_dir(directory).stdout(Stdio::null()).status();
        if run().is_err() {
            println!("    {tool}: not installed");
            continue;
        }
        let times = (0..7).map(|_| {
            let before = Instant::now();
            assert!(run().unwrap().success());
            before.elapsed()
        });
        println!("    {:<26}{}", format!("{tool} {}", args[0]), shown(times.collect()));
    }
}

async fn many(client: &GatewayClient) {
    let before = Instant::now();
    let runs = (0..1000).map(|number| {
        let client = client.clone();
        async move {
            let result = client.exec(Command::from_argv(["echo", &number.to_string()])).await.unwrap();
            assert_eq!(result.status, ExitStatus::Exited { code: 0 });
            assert_eq!(result.stdout.to_text(), format!("{number}\n"));
        }
    });
    futures::future::join_all(runs).await;
    println!("1000 commands at once         {:>10.1?}, none lost", before.elapsed());
}
