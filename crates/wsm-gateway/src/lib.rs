#![doc = include_str!("../README.md")]

mod client;
mod frame;
mod layer;
mod link;
mod message;
mod server;

pub use client::{GatewayClient, Io};
pub use layer::GatewayLayer;
pub use message::PROTOCOL_VERSION;
pub use server::{Served, serve};
