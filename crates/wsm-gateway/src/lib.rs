#![doc = include_str!("../README.md")]

mod client;
mod frame;
mod layer;
mod link;
mod message;
mod packages;
mod program;
mod server;

pub use client::{GatewayClient, Io};
pub use layer::GatewayLayer;
pub use message::PROTOCOL_VERSION;
pub use program::{find_program, load_program};
pub use server::{Served, serve};
