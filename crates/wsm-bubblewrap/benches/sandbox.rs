//! What a sandbox costs: until it is there, for each call, and while it idles. Prints a table, side by side with a bare
//! `bwrap`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement wants the real clock, and ends when anything fails"
)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command as Program, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use wsm_bubblewrap::{BubblewrapConfig, BubblewrapWorkspaceManager, Network};
use wsm_conformance::measure::{Rates, Spread, millis};
use wsm_core::{Command, GetRequest, Scope, WorkspaceExt, WorkspaceHandle, WorkspaceId, WorkspaceManager};
use wsm_gateway::{GatewayLayer, find_program, load_program};

/// Enough for a middle that stays.
const ROUNDS: usize = 200;
const OPENINGS: usize = 40;
const IDLE: usize = 500;
const CONCURRENT: usize = 1000;
const LARGE: usize = 64 << 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let built = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(built);
    let program = find_program().or_else(|_| load_program(&built)).unwrap();
    let base = tempfile::tempdir().unwrap();
    let config = BubblewrapConfig::new(base.path()).with_network(Network::None);
    let manager =
        BubblewrapWorkspaceManager::builder(config).layer(Arc::new(GatewayLayer::new(program))).build().unwrap();
    manager.start().await.unwrap();

    opening(&manager).await;
    let workspace = manager.get_workspace(&get("calls")).await.unwrap();
    calls(&workspace).await;
    drop(workspace);
    manager.close_all(Default::default()).await;
    idle(&manager).await;
    let begun = Instant::now();
    let report = manager.shutdown(Duration::from_secs(120)).await;
    assert!(report.failed.is_empty(), "{report:?}");
    println!("putting {} workspaces away at once: {:.1?}", report.closed, begun.elapsed());
}

fn get(id: &str) -> GetRequest {
    GetRequest::new(Scope::new("ann", "coder", "s").unwrap()).with_workspace_id(WorkspaceId::new(id).unwrap())
}

/// A bare `bwrap … true` with what it needs at least, as a shell would start it.
fn bare() -> Duration {
    let begun = Instant::now();
    let mut bwrap = Program::new("bwrap");
    bwrap.args(["--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"]);
    bwrap.args([
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--symlink",
        "usr/bin",
        "/bin",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]);
    assert!(bwrap.arg("true").stdin(Stdio::null()).status().unwrap().success());
    begun.elapsed()
}

async fn opening(manager: &BubblewrapWorkspaceManager) {
    let (mut bare_times, mut opened, mut ready) = (Spread::default(), Spread::default(), Spread::default());
    // The directory exists then.
    drop(manager.get_workspace(&get("opened")).await.unwrap());
    for _ in 0..OPENINGS {
        manager.close(&WorkspaceId::new("opened").unwrap(), Default::default()).await.unwrap();
        bare_times.push(bare());
        let begun = Instant::now();
        let workspace = manager.get_workspace(&get("opened")).await.unwrap();
        opened.push(begun.elapsed());
        assert!(workspace.exec(Command::new("true")).await.unwrap().status.success());
        ready.push(begun.elapsed());
    }
    println!("a bare `bwrap … true`:                      {bare_times}");
    println!("opening an existing workspace:               {opened}");
    println!("opening it, and `true` inside:               {ready}");
    let more = ready.middle().saturating_sub(bare_times.middle());
    println!("  more than the bare one:                    {:.2} ms (at most 60)", millis(more));
}

async fn calls(workspace: &WorkspaceHandle) {
    let (mut bare_times, mut exec, mut write, mut read) =
        (Spread::default(), Spread::default(), Spread::default(), Spread::default());
    let kibibyte = Bytes::from(vec![7; 1024]);
    for _ in 0..ROUNDS {
        bare_times.push(bare());
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
    println!("a new `bwrap … true` for each command:      {bare_times}");
    println!("exec `true` in the open workspace:           {exec} (at most 2)");
    println!("writing 1 KiB:                               {write} (at most 0.5)");
    println!("reading 1 KiB:                               {read} (at most 0.5)");

    let rates = Rates::of(&**workspace, "/dev/shm/large", LARGE, 5).await.unwrap();
    println!("writing 64 MiB, best and worst of 5:         {} (at least 500)", rates.writes());
    println!("reading 64 MiB, best and worst of 5:         {} (at least 500)", rates.reads());

    let begun = Instant::now();
    let commands = (0..CONCURRENT).map(|number| workspace.exec(Command::shell(format!("echo {number}"))));
    // As many at once as the limit on processes allows with room to spare.
    let results: Vec<_> = stream::iter(commands).buffered(200).try_collect().await.unwrap();
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.stdout.to_text(), format!("{number}\n"));
    }
    println!("{CONCURRENT} commands, 200 at a time, none lost:     {:.1?}", begun.elapsed());
}

async fn idle(manager: &BubblewrapWorkspaceManager) {
    let before = processes();
    let begun = Instant::now();
    let ids: Vec<String> = (0..IDLE).map(|number| format!("idle-{number}")).collect();
    let requests: Vec<GetRequest> = ids.iter().map(|id| get(id)).collect();
    let opened = join_all(requests.iter().map(|request| manager.get_workspace(request))).await;
    let handles: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
    println!("opening {IDLE} workspaces at once:              {:.1?}", begun.elapsed());
    // Threads for calls that block end when they have been idle for a while.
    tokio::time::sleep(Duration::from_secs(15)).await;
    println!("{IDLE} idle workspaces, never used:");
    tell_memory(&before);
    join_all(handles.iter().map(|handle| handle.exec(Command::new("true")))).await.into_iter().for_each(|result| {
        assert!(result.unwrap().status.success());
    });
    tokio::time::sleep(Duration::from_secs(15)).await;
    println!("the same after one command in each:");
    tell_memory(&before);
}

/// What the processes weigh that were not there before.
fn tell_memory(before: &BTreeMap<u32, String>) {
    let now = processes();
    let mut sums: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for (pid, name) in now.iter().filter(|(pid, _)| !before.contains_key(*pid)) {
        let is_outer = name.split('\0').next().is_some_and(|program| program.ends_with("bwrap"));
        let kind = if is_outer { "bwrap" } else { "gateway" };
        let (resident, proportional) = memory(*pid);
        let sum = sums.entry(kind).or_default();
        *sum = (sum.0 + 1, sum.1 + resident, sum.2 + proportional);
    }
    for (kind, (count, resident, proportional)) in sums {
        let each = |sum: u64| sum as f64 / 1024.0 / count.max(1) as f64;
        println!(
            "  {count} processes `{kind}`: each {:.2} MiB resident, {:.2} MiB without what they share",
            each(resident),
            each(proportional)
        );
    }
}

/// The processes of sandboxes, with their command lines.
fn processes() -> BTreeMap<u32, String> {
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let lines = numbers.filter_map(|pid: u32| {
        let line = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).ok()?).into_owned();
        (line.contains("--door") && line.contains("/run/wsm/init")).then_some((pid, line))
    });
    lines.collect()
}

/// Resident and proportional kibibytes of a process.
fn memory(pid: u32) -> (u64, u64) {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    (field("status", "VmRSS:"), field("smaps_rollup", "Pss:"))
}
