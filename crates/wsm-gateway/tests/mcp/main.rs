//! MCP servers behind a gateway in this process: programs that behave and that do not, and servers behind URLs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test panics")]

mod http;
mod lifecycle;
mod misbehaviour;
mod setup;
mod tools;
