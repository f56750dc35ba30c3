//! Figures of a manager with very many workspaces: memory, sweeps, and the slowest hits beside slow openings.
//!
//! Prints one line a figure. Not a criterion benchmark, since each figure is of one long run.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark panics and prints")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep};
use wsm_core::{
    Backend, BackendConfig, CachingManager, Capabilities, Checkpoint, Command, Error, ExecResult, FoundWorkspace,
    GetRequest, Health, ManagedWorkspace, ManagerSettings, OpenRequest, Opened, Outcome, OutcomeKind, Probe, Result,
    Scope, Workspace, WorkspaceId, WorkspaceInfo, WorkspaceManager,
};

const MANY: usize = 100_000;

/// A backend that costs as little as possible, so that what is measured is the manager.
#[derive(Debug, Clone)]
struct Nothing {
    delay: Duration,
}

#[derive(Debug)]
struct Empty(WorkspaceInfo);

impl BackendConfig for Nothing {
    type Backend = Self;

    fn build(self) -> Result<Self> {
        Ok(self)
    }
}

#[async_trait]
impl Backend for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        if request.id.as_str().starts_with("slow") {
            sleep(self.delay).await;
        }
        let info = WorkspaceInfo::new(request.id, "nothing", "/");
        Ok(Opened::new(Arc::new(Empty(info)), Outcome::new(OutcomeKind::Created)))
    }

    async fn find(&self, _: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        Ok(None)
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        Box::pin(futures::stream::empty())
    }

    async fn destroy(&self, _: &WorkspaceId) -> Result<()> {
        Ok(())
    }

    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new("nothing"))
    }
}

#[async_trait]
impl Workspace for Empty {
    fn info(&self) -> &WorkspaceInfo {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    async fn exec(&self, _: Command) -> Result<ExecResult> {
        Err(Error::unsupported("exec"))
    }
}

#[async_trait]
impl ManagedWorkspace for Empty {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        Ok(None)
    }

    async fn detach(&self) -> Result<()> {
        Ok(())
    }

    async fn health(&self) -> Result<Health> {
        Ok(Health::Alive(None))
    }

    async fn keep_alive(&self, _: Duration) -> Result<Option<Duration>> {
        Ok(None)
    }
}

type Manager = Arc<CachingManager<Nothing>>;

fn manager(ttl: Duration) -> Manager {
    let settings = ManagerSettings::default()
        .with_ttl(ttl)
        .with_sweep_interval(Duration::from_secs(3600))
        .with_max_provisioning(64);
    let config = Nothing { delay: Duration::from_secs(1) };
    Arc::new(CachingManager::builder(config).settings(settings).build().unwrap())
}

fn request(name: &str) -> GetRequest {
    let scope = Scope::new("ann", "coder", "s").unwrap();
    GetRequest::new(scope).with_workspace_id(WorkspaceId::new(name).unwrap())
}

/// Resident memory of this process, in bytes. The second field of `/proc/self/statm` counts pages of 4 KiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

async fn fill(manager: &Manager) {
    for number in 0..MANY {
        drop(manager.get_workspace(&request(&format!("{number:032}"))).await.unwrap());
    }
}

/// Times `count` hits of one id, and gives their 50th and 99th percentile and the slowest.
async fn hit_times(manager: &Manager, count: usize) -> (Duration, Duration, Duration) {
    let hot = request("hot");
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let before = Instant::now();
        drop(manager.get_workspace(&hot).await.unwrap());
        times.push(before.elapsed());
        tokio::task::consume_budget().await;
    }
    times.sort_unstable();
    (times[count / 2], times[count * 99 / 100], times[count - 1])
}

async fn memory_and_sweeps() {
    let quiet = manager(Duration::from_secs(3600));
    drop(quiet.get_workspace(&request("hot")).await.unwrap());
    let before = resident();
    fill(&quiet).await;
    let each = (resident() - before) / MANY as u64;
    println!("memory of one of {MANY} cached idle workspaces: {each} bytes");
    for _ in 0..3 {
        let before = Instant::now();
        quiet.sweep().await;
        println!("sweep of {MANY} of which none expires: {:?}", before.elapsed());
    }
    drop(quiet);

    let busy = manager(Duration::from_millis(1));
    fill(&busy).await;
    sleep(Duration::from_millis(10)).await;
    let hot = busy.get_workspace(&request("hot")).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mut sweeps = tokio::task::JoinSet::new();
    sweeps.spawn({
        let (busy, done) = (Arc::clone(&busy), Arc::clone(&done));
        async move {
            let before = Instant::now();
            busy.sweep().await;
            done.store(true, Ordering::Release);
            before.elapsed()
        }
    });
    let mut during = Vec::new();
    while !done.load(Ordering::Acquire) {
        during.push(hit_times(&busy, 1000).await);
    }
    let took = sweeps.join_next().await.unwrap().unwrap();
    let worst_99 = during.iter().map(|times| times.1).max().unwrap_or_default();
    let worst = during.iter().map(|times| times.2).max().unwrap_or_default();
    let hits = during.len() * 1000;
    println!(
        "sweep of {MANY} of which all expire: {took:?}, with {hits} hits meanwhile (worst p99 {worst_99:?}, slowest {worst:?})"
    );
    drop(hot);
}

async fn hits_beside_slow_openings() {
    let manager = manager(Duration::from_secs(3600));
    drop(manager.get_workspace(&request("hot")).await.unwrap());
    hit_times(&manager, 50_000).await;
    let alone = hit_times(&manager, 200_000).await;
    let mut openings = tokio::task::JoinSet::new();
    for number in 0..50 {
        let manager = Arc::clone(&manager);
        openings.spawn(async move { manager.get_workspace(&request(&format!("slow{number}"))).await.map(drop) });
    }
    sleep(Duration::from_millis(20)).await;
    let beside = hit_times(&manager, 200_000).await;
    assert!(!openings.is_empty(), "the openings still go on");
    while let Some(opened) = openings.join_next().await {
        opened.unwrap().unwrap();
    }
    println!("hit alone: p50 {:?}, p99 {:?}, slowest {:?}", alone.0, alone.1, alone.2);
    println!("hit while 50 ids open for 1 s each: p50 {:?}, p99 {:?}, slowest {:?}", beside.0, beside.1, beside.2);
}

fn main() {
    // `cargo test` runs bench targets too, to see that they build.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        memory_and_sweeps().await;
        hits_beside_slow_openings().await;
    });
}
