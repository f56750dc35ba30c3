#![doc = include_str!("../README.md")]

mod app;
pub mod assemble;
pub mod auth;
pub mod cli;
pub mod config;
pub mod http;
mod lifecycle;
mod metrics;
mod service;
pub mod store;
pub mod telemetry;
pub mod tls;

pub use app::{App, AppConfig, Limits, SharedState, create_app};
pub use lifecycle::Lifecycle;
pub use metrics::Metrics;
