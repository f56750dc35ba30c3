//! What a gateway does with many files at once, because it is there.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;
use wsm_core::{ByteStream, Result};

use crate::{GlobEvent, GlobRequest, GrepEvent, GrepRequest, UnpackRequest, Unpacked};

/// Searches and unpacks where the files are. What a [`Served`](crate::Served) workspace may have besides.
///
/// The cargo feature `program` has the one implementation that is needed, `HostFileTools`.
#[async_trait]
pub trait FileTools: fmt::Debug + Send + Sync + 'static {
    /// Finds files by their paths. The stream ends with one [`GlobEvent::End`].
    ///
    /// # Errors
    ///
    /// As for [`GatewayClient::glob`](crate::GatewayClient::glob).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the search, soon after.
    async fn glob(&self, request: GlobRequest) -> Result<BoxStream<'static, Result<GlobEvent>>>;

    /// Finds lines of text files. The stream ends with one [`GrepEvent::End`].
    ///
    /// # Errors
    ///
    /// As for [`GatewayClient::grep`](crate::GatewayClient::grep).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the search, soon after.
    async fn grep(&self, request: GrepRequest) -> Result<BoxStream<'static, Result<GrepEvent>>>;

    /// Unpacks an archive into a directory.
    ///
    /// # Errors
    ///
    /// As for [`GatewayClient::unpack`](crate::GatewayClient::unpack).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready undoes what was done, soon after.
    async fn unpack(&self, request: UnpackRequest, archive: ByteStream) -> Result<Unpacked>;
}
