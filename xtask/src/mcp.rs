//! Installs the MCP servers of others that the gateway is tested with.

use anyhow::Result;

use crate::packages::Packages;

pub(crate) fn setup() -> Result<()> {
    let servers = Packages {
        what: "the MCP servers of others",
        directory: "target/mcp",
        npm: &[
            "@modelcontextprotocol/server-everything@2026.8.31",
            "@modelcontextprotocol/server-filesystem@2026.8.31",
        ],
        python: &["mcp-server-time==2026.10.19"],
    };
    servers.install()
}
