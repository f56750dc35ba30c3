//! Writing and reading frames.

#![allow(missing_docs, reason = "made by a macro")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use wsm_gateway::testing;

fn frames(criterion: &mut Criterion) {
    for payload in [16, 1024, 64 << 10] {
        let count = (1 << 20) / payload;
        let wire = testing::encode(payload, count);
        let mut group = criterion.benchmark_group(format!("1 MiB in frames of {payload} bytes"));
        group.throughput(Throughput::Bytes((payload * count) as u64));
        group.bench_function("write", |bencher| bencher.iter(|| testing::encode(black_box(payload), count)));
        group.bench_function("read", |bencher| {
            bencher.iter(|| assert_eq!(testing::decode(black_box(&wire)), payload * count));
        });
        group.finish();
    }
}

criterion_group!(benches, frames);
criterion_main!(benches);
