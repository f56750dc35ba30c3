//! The hot paths of the manager.

#![allow(clippy::unwrap_used, reason = "a benchmark that can not run panics")]

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use wsm_core::{
    CachingManager, Encoding, GetRequest, IsolationPolicy, Scope, WorkspaceId, WorkspaceManager,
    memory::{MemoryBackend, MemoryConfig},
};

type Manager = Arc<CachingManager<MemoryBackend>>;

fn scope() -> Scope {
    Scope::new("ann@example.org", "coder", "2026-11-30/1").unwrap()
}

fn explicit(number: usize) -> GetRequest {
    GetRequest::new(scope()).with_workspace_id(WorkspaceId::new(format!("workspace-{number}")).unwrap())
}

fn warm_manager(runtime: &tokio::runtime::Runtime) -> Manager {
    let manager = Arc::new(CachingManager::builder(MemoryConfig::default()).build().unwrap());
    runtime.block_on(async {
        for number in 0..1000 {
            drop(manager.get_workspace(&explicit(number)).await.unwrap());
        }
        drop(manager.get_workspace(&GetRequest::new(scope())).await.unwrap());
    });
    manager
}

fn hits(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let manager = warm_manager(&runtime);
    let mut group = criterion.benchmark_group("hit");
    group.measurement_time(Duration::from_secs(4));

    let request = explicit(7);
    group.bench_function("by_id", |bencher| {
        let _guard = runtime.enter();
        bencher.iter(|| drop(black_box(now(manager.get_workspace(&request)))));
    });
    let request = GetRequest::new(scope());
    group.bench_function("by_policy", |bencher| {
        let _guard = runtime.enter();
        bencher.iter(|| drop(black_box(now(manager.get_workspace(&request)))));
    });
    for (name, step) in [("two_threads_two_ids", 1), ("two_threads_one_id", 0)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                on_two_threads(|thread| {
                    let (manager, handle) = (Arc::clone(&manager), runtime.handle().clone());
                    move || {
                        let _guard = handle.enter();
                        let request = explicit(thread * step);
                        timed(rounds, || drop(black_box(now(manager.get_workspace(&request)))))
                    }
                })
            });
        });
    }
    group.finish();
}

/// The time that the slower of two threads takes.
fn on_two_threads<F: FnOnce() -> Duration + Send + 'static>(work: impl Fn(usize) -> F) -> Duration {
    let threads: Vec<_> = (0..2).map(|thread| std::thread::spawn(work(thread))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
}

fn timed(rounds: u64, mut work: impl FnMut()) -> Duration {
    let before = tokio::time::Instant::now();
    for _ in 0..rounds {
        work();
    }
    before.elapsed()
}

/// The result of a future that is ready at once, as a hit's is.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => unreachable!("a hit waits for nothing"),
    }
}

fn ids(criterion: &mut Criterion) {
    let scope = scope();
    for policy in IsolationPolicy::ALL {
        criterion.bench_function(&format!("assign/{policy}"), |bencher| {
            bencher.iter(|| black_box(policy.assign(black_box(&scope))));
        });
    }
    // What the machine makes of two threads that share nothing, to compare the hits of two threads with.
    criterion.bench_function("assign/two_threads", |bencher| {
        bencher.iter_custom(|rounds| {
            on_two_threads(|_| {
                let scope = scope.clone();
                move || timed(rounds, || drop(black_box(IsolationPolicy::PerAgent.assign(black_box(&scope)))))
            })
        });
    });
    criterion.bench_function("encode/path_segment", |bencher| {
        bencher.iter(|| black_box(Encoding::PATH_SEGMENT.encode(black_box("ann@example.org"))));
    });
}

criterion_group!(benches, hits, ids);
criterion_main!(benches);
