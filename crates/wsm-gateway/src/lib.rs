#![doc = include_str!("../README.md")]

mod client;
mod frame;
mod layer;
mod link;
#[cfg(feature = "program")]
mod mcp;
mod mcp_types;
mod message;
mod server;

pub use client::{GatewayClient, Io, mcp::McpClient};
pub use layer::GatewayLayer;
#[cfg(feature = "program")]
pub use mcp::{McpLimits, McpRegistry};
pub use mcp_types::{
    McpHeaders, McpServer, McpServerKey, McpServerSpec, McpState, McpTool, McpToolResult, McpTransport,
};
pub use message::PROTOCOL_VERSION;
pub use server::{Served, serve};
