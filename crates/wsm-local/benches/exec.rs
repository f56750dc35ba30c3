//! What a command in a workspace costs, against the same program started bare.
#![allow(missing_docs, reason = "the macros of criterion make public items without docs")]
#![allow(clippy::unwrap_used, reason = "a bench fails where it stands")]

use std::process::Stdio;

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use wsm_core::{Backend, BackendConfig, Command, OpenRequest, WorkspaceId};
use wsm_local::LocalConfig;

fn exec(criterion: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let basedir = tempfile::tempdir().unwrap();
    let backend = LocalConfig::new(basedir.path()).build().unwrap();
    let request = OpenRequest::new(WorkspaceId::random());
    let workspace = runtime.block_on(backend.open(request)).unwrap().workspace;

    let mut group = criterion.benchmark_group("true");
    group.bench_function("bare, its output not read", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let status = tokio::process::Command::new("true").stdin(Stdio::null()).status().await.unwrap();
            assert!(status.success());
        });
    });
    group.bench_function("bare, its output read", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let output = tokio::process::Command::new("true").stdin(Stdio::null()).output().await.unwrap();
            assert!(output.status.success());
        });
    });
    group.bench_function("exec", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            assert!(workspace.exec(Command::new("true")).await.unwrap().status.success());
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("16 MiB of output");
    let line = || Command::from_argv(["head", "-c", "16777216", "/dev/zero"]);
    group.sample_size(20);
    group.bench_function("bare", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            let mut command = tokio::process::Command::new("head");
            let output = command.args(["-c", "16777216", "/dev/zero"]).stdin(Stdio::null()).output().await.unwrap();
            assert_eq!(output.stdout.len(), 16 << 20);
        });
    });
    group.bench_function("exec", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            assert_eq!(workspace.exec(line()).await.unwrap().stdout.bytes.len(), 16 << 20);
        });
    });
    group.finish();
}

criterion_group!(benches, exec);
criterion_main!(benches);
