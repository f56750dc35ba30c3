//! Decorators that add something on top of every workspace of a backend.

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    backend::{OpenRequest, Outcome},
    capability::Capabilities,
    error::Result,
    id::WorkspaceId,
    workspace::ManagedWorkspace,
};

/// Wraps the workspaces that a manager opens. The manager runs layers inside the flight that opens, innermost first.
///
/// # Contract
///
/// - **L1** What `wrap` returns MUST forward every method that it does not change, `extension` among them.
/// - **L2** A failing `wrap` MUST leave the inner workspace usable: the manager suspends it, and the outcome of the
///   opening is told with the next successful one.
///
/// # Cancel safety
///
/// The flight is a task of the manager's, so `wrap` is dropped only at shutdown.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// What a wrapped workspace can do, given what the inner one can.
    fn capabilities(&self, inner: Capabilities) -> Capabilities;

    /// Changes the request before the backend sees it, for instance to set the init program.
    ///
    /// # Errors
    ///
    /// `invalid_input` or `unsupported` when the layer can not work with this backend.
    fn prepare(&self, inner: Capabilities, request: &mut OpenRequest) -> Result<()>;

    /// Wraps an opened workspace.
    ///
    /// # Errors
    ///
    /// Whatever kept the layer from working. The workspace is suspended then. If the error is worth another try at once
    /// ([`Retry::Now`](crate::Retry::Now)), as one about a program of another version that still runs, the manager opens it
    /// once more before it gives up. So it does after `gone`, which says that the workspace has ended meanwhile: there is
    /// nothing to suspend then.
    async fn wrap(&self, inner: Arc<dyn ManagedWorkspace>, opened: &OpenedInfo) -> Result<Arc<dyn ManagedWorkspace>>;
}

/// What a layer is told of the opening.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenedInfo {
    /// The workspace's id.
    pub id: WorkspaceId,
    /// How the opening ended.
    pub outcome: Outcome,
    /// How often the workspace's files have been lost.
    pub generation: u64,
}

impl OpenedInfo {
    /// Puts the facts together, for whoever wraps a workspace without a manager.
    pub fn new(id: WorkspaceId, outcome: Outcome, generation: u64) -> Self {
        Self { id, outcome, generation }
    }
}
