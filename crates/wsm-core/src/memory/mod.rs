//! A backend without an engine: workspaces in memory, with faults on demand.
//!
//! It is the oracle of all tests. It follows paused time, it can be restarted (make another backend over the same
//! [`MemoryEngine`]), it can be told to fail, hang or panic ([`Fault`]), it can be built with a [`Defect`] to show that
//! a test notices, and it counts what no test should ever see ([`MemoryEngine::violations`]).
//!
//! Its workspaces have no operating system. They know the programs `true`, `false`, `echo`, `printf`, `cat`, `head`,
//! `seq`, `sleep`, `env`, `pwd` and `sh -c`, whose lines are such commands between `;` or `&&` with quotes, variables,
//! redirections, `cd`, `exit` and `kill -SIGNAL $$`.

mod backend;
mod engine;
mod fault;
mod programs;
mod shell;
mod tree;
mod workspace;

pub use backend::{MemoryBackend, MemoryConfig};
pub use engine::MemoryEngine;
pub use fault::{Defect, Effect, Fault, Operation};
