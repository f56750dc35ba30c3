//! Directories.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wsm_core::{FileKind, validate_path};

use super::{
    Problem,
    error::ProblemBody,
    extract::{CallerSession, CallerWorkspace, Params, SessionParams, Started},
    files::seconds,
    opening::tell_loss,
};

/// Which directory.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The directory; the workspace's own when there is none.
    #[serde(default)]
    path: Option<String>,
}

/// Which directory to make.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct MakeParams {
    /// The directory's path; relative ones start at the workspace directory. Missing parents are made, too.
    path: String,
}

/// What is in a directory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Directory)]
pub(super) struct DirectoryBody {
    /// The directory, as it was asked for.
    path: String,
    /// What is in it, by name.
    entries: Vec<EntryBody>,
}

/// One entry of a directory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DirectoryEntry)]
pub(super) struct EntryBody {
    /// Its name.
    name: String,
    /// Whether it is a directory. A symbolic link is none, wherever it points.
    is_dir: bool,
    /// Its length, for a regular file.
    size_bytes: Option<u64>,
    /// When it was last changed, in seconds since 1970.
    updated_at: Option<f64>,
    /// Set when the real name is not UTF-8, so that `name` does not open it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    escaped: bool,
}

/// Lists a directory.
#[utoipa::path(
    get, path = "/workspace/directories", operation_id = "list_directory", tag = "workspace",
    params(SessionParams, ListParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 200, body = DirectoryBody),
        (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 422, description = "The path is no directory: `not_a_directory`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    Started(app): Started,
    session: CallerSession,
    Params(ListParams { path }): Params<ListParams>,
) -> Result<Response, Problem> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or_else(|| ".".to_owned());
    validate_path(&path)?;
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;
    let mut entries: Vec<_> = workspace
        .list(&path)
        .await?
        .into_iter()
        .map(|entry| EntryBody {
            name: entry.name,
            is_dir: entry.metadata.is_dir(),
            size_bytes: (entry.metadata.kind == FileKind::File).then_some(entry.metadata.size),
            updated_at: seconds(&entry.metadata),
            escaped: entry.escaped,
        })
        .collect();
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut response = Json(DirectoryBody { path, entries }).into_response();
    tell_loss(response.headers_mut(), workspace.opening(), lost);
    Ok(response)
}

/// Makes a directory. One that is there already is fine.
#[utoipa::path(
    put, path = "/workspace/directories", operation_id = "make_directory", tag = "workspace",
    params(SessionParams, MakeParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 204, description = "It is there."),
        (status = 403, description = "The path leads out of the workspace: `path_outside`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 409, description = "Something else is there.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn make(
    Started(app): Started,
    session: CallerSession,
    Params(MakeParams { path }): Params<MakeParams>,
) -> Result<Response, Problem> {
    validate_path(&path)?;
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;
    workspace.make_dir(&path).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    tell_loss(response.headers_mut(), workspace.opening(), lost);
    Ok(response)
}
