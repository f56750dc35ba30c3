//! The server's part of MCP: requests in, answers of any length out.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use tokio::sync::mpsc;
use wsm_core::{ByteStream, Error, ErrorKind, Result};

use super::{Task, body_of};
use crate::{
    frame::{Channel, Frame, Kind},
    mcp_types::McpRequest,
    message::Reply,
};

/// The longest arguments of a call, and the longest message of a server, in bytes.
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// Who knows the MCP servers.
#[async_trait]
pub(crate) trait McpService: fmt::Debug + Send + Sync + 'static {
    /// Answers with JSON. `body` is what follows a request that has more to say.
    ///
    /// # Cancel safety
    ///
    /// A dropped call was given up by who asked.
    async fn answer(&self, request: McpRequest, body: Body) -> Result<Vec<u8>>;
}

/// What follows a request on its stream.
pub(crate) struct Body(ByteStream);

impl Body {
    /// All of it.
    ///
    /// # Errors
    ///
    /// `invalid_input` with code `too_large`; `unavailable` when the connection broke.
    #[cfg_attr(not(feature = "program"), expect(dead_code, reason = "only a gateway that serves MCP reads one"))]
    pub(crate) async fn read(self) -> Result<Vec<u8>> {
        self.0
            .try_fold(Vec::new(), async |mut whole, piece| {
                if whole.len() + piece.len() > MAX_MESSAGE {
                    let message = format!("the arguments are longer than {MAX_MESSAGE} bytes");
                    return Err(Error::new(ErrorKind::InvalidInput, message).with_code("too_large"));
                }
                whole.extend_from_slice(&piece);
                Ok(whole)
            })
            .await
    }
}

impl Task {
    pub(super) async fn mcp(mut self, service: Option<Arc<dyn McpService>>, request: McpRequest) {
        let (_, nothing) = mpsc::unbounded_channel();
        let events = std::mem::replace(&mut self.events, nothing);
        let body = Body(body_of(events, self.frames.clone(), self.stream, Arc::clone(&self.allowance)));
        let answer = match service {
            Some(service) => service.answer(request, body).await,
            None => Err(Error::new(ErrorKind::Unsupported, "this gateway serves no MCP").with_operation("mcp")),
        };
        match answer {
            Ok(answer) => {
                self.reply(&Reply::Done);
                if self.window.send(&self.frames, self.stream, Channel::Body, &answer).await.is_ok() {
                    self.frames.send(Frame::new(Kind::Finish, self.stream, Bytes::new()));
                }
            }
            Err(error) => self.reply(&Reply::Failed((&error).into())),
        }
    }
}
