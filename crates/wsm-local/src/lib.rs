#![doc = include_str!("../README.md")]

mod backend;
mod base;
mod blocking;
mod config;
mod error;
mod files;
mod index;
mod live;
mod process;
mod registry;
mod tree;
mod workspace;

pub use backend::LocalBackend;
pub use config::LocalConfig;

/// The kind's name, as in `backend = "local"`.
const KIND: &str = "local";
