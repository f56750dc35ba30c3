//! The caching manager through its public API, over the in-memory backend, under paused time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test panics")]

mod cache;
mod capacity;
mod closing;
mod coordination;
mod eviction;
mod exec_files;
mod health;
mod housekeeping;
mod layers;
mod listeners;
mod prewarm;
mod simulation;
mod stress;
mod support;
