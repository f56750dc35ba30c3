#![doc = include_str!("../README.md")]

mod beside;
mod call;
mod client;
#[cfg(feature = "program")]
mod engine;
mod file_tools;
mod frame;
mod layer;
mod link;
#[cfg(feature = "program")]
mod mcp;
mod mcp_types;
#[cfg(any(test, feature = "program", feature = "testing"))]
mod member;
mod message;
mod packages;
mod program;
mod search;
mod server;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
mod unpack;

pub use beside::GatewayBeside;
pub use call::ExecCalls;
#[cfg(feature = "program")]
pub use call::relay_call;
pub use client::{GatewayClient, Io, mcp::McpClient};
#[cfg(feature = "program")]
pub use engine::HostFileTools;
pub use file_tools::FileTools;
pub use layer::GatewayLayer;
#[cfg(feature = "program")]
pub use mcp::{McpLimits, McpRegistry};
pub use mcp_types::{
    McpHeaders, McpServer, McpServerKey, McpServerSpec, McpState, McpTool, McpToolResult, McpTransport,
};
pub use message::PROTOCOL_VERSION;
pub use program::{find_program, load_program};
pub use search::{
    GlobEntry, GlobEvent, GlobKind, GlobRequest, GlobResult, GrepBinary, GrepEvent, GrepFile, GrepLine, GrepMode,
    GrepRequest, GrepResult, Problem, SearchEnd, Truncated, WalkOptions,
};
pub use server::{Served, serve};
pub use unpack::{ArchiveFormat, Overwrite, UnpackRequest, Unpacked};
