//! What the workspace of a session is like.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Problem,
    error::ProblemBody,
    extract::{CallerWorkspace, SessionParams},
    opening::{OpeningBody, tell_loss},
};

/// A workspace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkspaceStatus)]
pub(super) struct StatusBody {
    /// Its id.
    workspace_id: String,
    /// The kind of backend that it lives on.
    backend: &'static str,
    /// The directory that commands run in and relative paths start at.
    workdir: String,
    /// `live`: asking opens it.
    state: &'static str,
    /// How often its files have been lost.
    generation: u64,
    /// How it was last opened.
    opening: OpeningBody,
}

/// Tells what the session's workspace is like, and opens it when it is not open.
#[utoipa::path(
    get, path = "/workspace/status", operation_id = "workspace_status", tag = "workspace",
    params(SessionParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses((status = 200, body = StatusBody), (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn status(
    CallerWorkspace { session: _, workspace, lost }: CallerWorkspace,
) -> Result<Response, Problem> {
    let (info, opening) = (workspace.info(), workspace.opening());
    let body = StatusBody {
        workspace_id: info.id.to_string(),
        backend: info.backend,
        workdir: info.workdir.clone(),
        state: "live",
        generation: opening.generation,
        opening: opening.into(),
    };
    let mut response = Json(body).into_response();
    tell_loss(response.headers_mut(), opening, lost);
    Ok(response)
}
