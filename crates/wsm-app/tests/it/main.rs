//! The application from the outside.

#![expect(clippy::unwrap_used, reason = "what is missing fails the test, in helpers too")]

mod support;

mod admin;
#[cfg(feature = "local")]
mod cli;
mod custom_manager;
mod embedding;
mod exec;
mod files;
mod hostile;
mod lifecycle;
mod openapi;
mod problems;
mod sessions;
