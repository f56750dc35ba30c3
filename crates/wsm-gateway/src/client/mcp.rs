//! The client's way to the MCP servers that the gateway runs.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use wsm_core::{Error, ErrorKind, Result};

use super::{GatewayClient, Stream, expect_done};
use crate::{
    frame::{Channel, Frame, Kind},
    mcp_types::{McpHeaders, McpRequest, McpServer, McpServerKey, McpServerSpec, McpTool, McpToolResult},
    message::Request,
};

/// The MCP servers of one workspace, which run inside of it.
///
/// All calls are `unsupported` with a gateway that serves no MCP.
///
/// ```
/// # use wsm_gateway::{GatewayClient, McpServerSpec, McpServerKey, McpHeaders};
/// # async fn example(workspace: &dyn wsm_core::Workspace, scope: wsm_core::Scope) -> wsm_core::Result<()> {
/// use wsm_core::WorkspaceExt;
///
/// let Some(gateway) = workspace.extension_of::<GatewayClient>() else { return Ok(()) };
/// let mcp = gateway.mcp();
/// let key = McpServerKey::new(scope.agent_id, scope.session_id, "everything");
/// let spec = McpServerSpec::stdio("npx").arg("-y").arg("@modelcontextprotocol/server-everything");
/// mcp.register(&key, &spec, &McpHeaders::new()).await?;
/// let arguments = serde_json::json!({ "message": "hello" });
/// let result = mcp.call(&key, "echo", arguments.as_object().cloned().unwrap_or_default(), None).await?;
/// println!("{}", result.text());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct McpClient(GatewayClient);

impl GatewayClient {
    /// The MCP servers of the workspace.
    pub fn mcp(&self) -> McpClient {
        McpClient(self.clone())
    }
}

impl McpClient {
    /// Starts a server and returns when it has answered `initialize`.
    ///
    /// Registering it again with an equal spec changes nothing but the headers, and waits for the same start; one that has
    /// failed is started once more. Another spec ends the server and starts the other one in its place.
    ///
    /// # Errors
    ///
    /// `invalid_input` when the key, the spec or the headers can not be used, or the program is not there (code
    /// `program_not_found`); code `mcp_start_failed` when the server can not be started or does not speak MCP, with the end
    /// of its stderr; `permission_denied` with code `mcp_unauthorized` when it wants other headers; `capacity` when as many
    /// servers live as may, and none of another session's is idle. A server that failed stays registered, so that
    /// [`list`](Self::list) tells of it.
    ///
    /// # Cancel safety
    ///
    /// Once the gateway has heard of it, the server is started all the same.
    pub async fn register(&self, key: &McpServerKey, spec: &McpServerSpec, headers: &McpHeaders) -> Result<McpServer> {
        let (key, spec, headers) = (key.clone(), spec.clone(), headers.clone());
        self.ask(McpRequest::Register { key, spec, headers }).await
    }

    /// All registered servers of all sessions, and how they are.
    ///
    /// # Errors
    ///
    /// `unavailable` when the gateway can not be reached.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn list(&self) -> Result<Vec<McpServer>> {
        self.ask(McpRequest::List).await
    }

    /// Forgets a server, and returns when it has ended with everything that it has started. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// `unavailable` when the gateway can not be reached.
    ///
    /// # Cancel safety
    ///
    /// Once the gateway has heard of it, the server ends all the same.
    pub async fn remove(&self, key: &McpServerKey) -> Result<bool> {
        self.ask(McpRequest::Remove { key: key.clone() }).await
    }

    /// The tools of a server, of all pages. Kept until the server says that they have changed.
    ///
    /// # Errors
    ///
    /// As for [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// Dropping the call cancels the request at the server.
    pub async fn tools(&self, key: &McpServerKey) -> Result<Vec<McpTool>> {
        self.ask(McpRequest::Tools { key: key.clone() }).await
    }

    /// Calls a tool. Any number of calls may run at once.
    ///
    /// A server that has ended since is started anew once; the result then says what that means for its state. No call is
    /// ever sent twice, unless the server has certainly not taken it.
    ///
    /// `timeout` is 60 seconds when none is given, and at most an hour. The server is told of a call that was given up.
    ///
    /// # Errors
    ///
    /// `not_found` with code `mcp_server_unknown` when no such server is registered; `invalid_input` when the server refuses
    /// the tool or its arguments; `timeout`; `unavailable` with code `mcp_server_ended` when the server ended before it had
    /// answered, so that nobody knows what the tool has done; with code `mcp_request_failed` for any other answer that is no
    /// result; `invalid_input` with code `too_large` when the arguments or the result are longer than 16 MiB. A tool that
    /// has run and failed is a result with `is_error`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the call cancels the request at the server; what the tool has done by then stays done.
    pub async fn call(
        &self,
        key: &McpServerKey,
        tool: &str,
        arguments: Map<String, Value>,
        timeout: Option<Duration>,
    ) -> Result<McpToolResult> {
        let body = serde_json::to_vec(&arguments)
            .map_err(|error| Error::new(ErrorKind::Backend, "the arguments can not be written").with_source(error))?;
        let request = McpRequest::Call { key: key.clone(), tool: tool.to_owned(), timeout };
        let mut stream = self.0.open(&Request::Mcp(request)).await?;
        let (window, frames, id) = (stream.window.clone(), stream.session.frames.clone(), stream.id);
        let send = async {
            // When nobody takes them any more, the reply says why.
            if window.send(&frames, id, Channel::Body, &body).await.is_ok() {
                frames.send(Frame::new(Kind::Finish, id, Bytes::new()));
            }
            std::future::pending().await
        };
        let reply = tokio::select! {
            biased;
            reply = stream.reply() => reply?,
            never = send => never,
        };
        expect_done(reply)?;
        read(stream).await
    }

    /// Replaces all headers of a server behind a URL, from its next request on. Its session goes on.
    ///
    /// # Errors
    ///
    /// `not_found` with code `mcp_server_unknown`; `invalid_input` when a header can not be sent, or the server is a program.
    ///
    /// # Cancel safety
    ///
    /// Either all are replaced or none.
    pub async fn set_headers(&self, key: &McpServerKey, headers: &McpHeaders) -> Result<()> {
        self.ask(McpRequest::SetHeaders { key: key.clone(), headers: headers.clone() }).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: McpRequest) -> Result<T> {
        let mut stream = self.0.open(&Request::Mcp(request)).await?;
        expect_done(stream.reply().await?)?;
        read(stream).await
    }
}

/// The answer, which may be longer than a frame.
async fn read<T: DeserializeOwned>(stream: Stream) -> Result<T> {
    let whole = stream.into_body().try_fold(Vec::new(), async |mut whole, piece| {
        whole.extend_from_slice(&piece);
        Ok(whole)
    });
    serde_json::from_slice(&whole.await?)
        .map_err(|error| Error::new(ErrorKind::Backend, "the gateway's answer can not be read").with_source(error))
}
