//! How a workspace was opened, in answers.

use http::{HeaderMap, HeaderValue};
use serde::Serialize;
use utoipa::ToSchema;
use wsm_core::{Loss, Opening};

use super::LOST_HEADER;
use crate::metrics::name_of;

/// How the workspace was last opened.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Opening)]
pub(super) struct OpeningBody {
    /// `created`, `reattached`, `resumed` or `recreated`.
    kind: String,
    /// What did not survive: `processes`, `memory`, `system_files`, `workspace_files`.
    lost: Vec<String>,
    /// Why, where it is known.
    cause: Option<String>,
}

impl From<&Opening> for OpeningBody {
    fn from(opening: &Opening) -> Self {
        let outcome = &opening.outcome;
        Self {
            kind: name_of(&outcome.kind),
            lost: outcome.lost.iter().map(name_of).collect(),
            cause: outcome.cause.as_ref().map(name_of),
        }
    }
}

/// Tells the session of its loss, if it has one to be told of.
pub(super) fn tell_loss(headers: &mut HeaderMap, opening: &Opening, lost: bool) {
    if !lost {
        return;
    }
    // The generation rose, so files were lost, be it in this opening or in an earlier one.
    let mut parts = vec![name_of(&Loss::WorkspaceFiles)];
    parts.extend(opening.outcome.lost.iter().filter(|loss| **loss != Loss::WorkspaceFiles).map(name_of));
    let cause = opening.outcome.cause.as_ref().map(|cause| format!("; cause={}", name_of(cause))).unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(&(parts.join(", ") + &cause)) {
        headers.insert(LOST_HEADER, value);
    }
}
