//! For operators: every workspace, whoever's it is.

use std::time::{Duration, SystemTime};

use axum::Json;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wsm_core::{CachedState, CachedWorkspace, CloseOptions, FoundState, UserId, WorkspaceId};

use super::{
    Problem,
    error::ProblemBody,
    extract::{Operator, Params, PathId, Started},
    opening::OpeningBody,
};
use crate::service::KnownWorkspace;

/// The longest time that a close may wait.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Which workspaces to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Whether to list all that the backend and the records know, not only the cached ones.
    #[serde(default)]
    all: bool,
    /// Only this user's.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    user_id: Option<UserId>,
}

/// How to close a workspace that is in use.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct CloseParams {
    /// How many seconds to wait for its uses to end; 0 unless given.
    #[serde(default)]
    wait_seconds: Option<f64>,
    /// Whether to close it all the same when they do not.
    #[serde(default)]
    force: bool,
}

/// Workspaces.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Workspaces)]
pub(super) struct WorkspacesBody {
    /// The workspaces, by id.
    items: Vec<WorkspaceBody>,
}

/// A workspace as operators see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminWorkspace)]
pub(super) struct WorkspaceBody {
    /// Its id.
    workspace_id: String,
    /// Whose it is, where that is known.
    user_id: Option<String>,
    /// The kind of backend that it lives on.
    backend: &'static str,
    /// `opening`, `live` or `suspending` for a cached one; else `running`, `suspended`, `dead`, or `absent` for one of
    /// which there is only a record.
    state: &'static str,
    /// How many handles, calls and streams use it.
    leases: u64,
    /// How long nobody has used it, for a cached one.
    idle_seconds: Option<f64>,
    /// When it was opened, for a cached one.
    opened_at: Option<String>,
    /// How it was opened, for a cached one.
    opening: Option<OpeningBody>,
    /// How often its files have been lost, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    /// Where it is, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    /// When it was first asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    /// The policy that gave it its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
}

impl WorkspaceBody {
    fn new(id: &WorkspaceId, backend: &'static str, known: KnownWorkspace) -> Self {
        let KnownWorkspace { cached, found, record } = known;
        let state = match (&cached, &found) {
            (Some(cached), _) => match cached.state {
                CachedState::Opening => "opening",
                CachedState::Live => "live",
                // A doubtful one is one that is being put away, again and again until it works.
                _ => "suspending",
            },
            (None, Some(found)) => match found.state {
                FoundState::Running => "running",
                FoundState::Suspended => "suspended",
                FoundState::Dead => "dead",
                _ => "unknown",
            },
            (None, None) => "absent",
        };
        let owner = cached
            .as_ref()
            .and_then(|cached| cached.user_id.clone())
            .or_else(|| found.as_ref().and_then(|found| found.owner.clone()))
            .or_else(|| record.as_ref().map(|record| record.owner().clone()));
        let created_at = record.as_ref().map(|record| record.created_at);
        Self {
            workspace_id: id.to_string(),
            user_id: owner.map(|owner| owner.to_string()),
            backend,
            state,
            leases: cached.as_ref().map_or(0, |cached| cached.leases),
            idle_seconds: cached.as_ref().map(|cached| cached.idle.as_secs_f64()),
            opened_at: cached.as_ref().and_then(|cached| cached.opened_at).map(rfc3339),
            generation: found
                .as_ref()
                .map(|found| found.generation)
                .or_else(|| record.as_ref().map(|record| record.generation)),
            opening: cached.and_then(|cached| cached.opening).as_ref().map(OpeningBody::from),
            created_at: created_at.or_else(|| found.as_ref().and_then(|found| found.created_at)).map(rfc3339),
            location: found.map(|found| found.location),
            policy: record.and_then(|record| record.policy).map(wsm_core::IsolationPolicy::as_str),
        }
    }

    fn cached(backend: &'static str, cached: CachedWorkspace) -> Self {
        let id = cached.workspace_id.clone();
        Self::new(&id, backend, KnownWorkspace { cached: Some(cached), ..KnownWorkspace::default() })
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// Lists workspaces.
#[utoipa::path(
    get, path = "/admin/workspaces", operation_id = "list_workspaces", tag = "admin", params(ListParams),
    responses((status = 200, body = WorkspacesBody), (status = 403, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn list(
    _: Operator,
    Started(app): Started,
    Params(ListParams { all, user_id }): Params<ListParams>,
) -> Result<Json<WorkspacesBody>, Problem> {
    let backend = app.service.manager().backend_kind();
    let mut items: Vec<_> = if all {
        let known = app.service.all_known().await?;
        known.into_iter().map(|(id, known)| WorkspaceBody::new(&id, backend, known)).collect()
    } else {
        app.service.manager().cached().into_iter().map(|cached| WorkspaceBody::cached(backend, cached)).collect()
    };
    if let Some(user) = user_id {
        items.retain(|item| item.user_id.as_deref() == Some(user.as_str()));
    }
    items.sort_unstable_by(|a, b| a.workspace_id.cmp(&b.workspace_id));
    Ok(Json(WorkspacesBody { items }))
}

/// Gets a workspace.
#[utoipa::path(
    get, path = "/admin/workspaces/{workspace_id}", operation_id = "get_workspace", tag = "admin",
    params(("workspace_id" = String, Path, description = "The workspace.")),
    responses((status = 200, body = WorkspaceBody), (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn get(
    _: Operator,
    Started(app): Started,
    PathId(id): PathId<WorkspaceId>,
) -> Result<Json<WorkspaceBody>, Problem> {
    let known = app.service.known(&id).await?;
    let unknown =
        || Problem::new(StatusCode::NOT_FOUND, "not_found", "workspace_not_found", "no workspace of this id is known");
    let known = Some(known).filter(KnownWorkspace::is_known).ok_or_else(unknown)?;
    Ok(Json(WorkspaceBody::new(&id, app.service.manager().backend_kind(), known)))
}

/// Ends a workspace, in use or not, and deletes its data. Its sessions stay: the next use makes it anew.
#[utoipa::path(
    delete, path = "/admin/workspaces/{workspace_id}", operation_id = "destroy_workspace", tag = "admin",
    params(("workspace_id" = String, Path, description = "The workspace.")),
    responses((status = 204, description = "It is gone."), (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn destroy(
    _: Operator,
    Started(app): Started,
    PathId(id): PathId<WorkspaceId>,
) -> Result<StatusCode, Problem> {
    let service = app.clone();
    app.service.detached(async move { service.service.destroy(&id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Puts a workspace away and keeps its data. Does nothing for one that is not cached.
#[utoipa::path(
    post, path = "/admin/workspaces/{workspace_id}/close", operation_id = "close_workspace", tag = "admin",
    params(("workspace_id" = String, Path, description = "The workspace."), CloseParams),
    responses((status = 204, description = "It is put away."), (status = 409, description = "It is in use.", body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn close(
    _: Operator,
    Started(app): Started,
    PathId(id): PathId<WorkspaceId>,
    Params(CloseParams { wait_seconds, force }): Params<CloseParams>,
) -> Result<StatusCode, Problem> {
    let seconds = wait_seconds.unwrap_or(0.0);
    let wait = Duration::try_from_secs_f64(seconds).ok().filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| {
        let detail = format!("`wait_seconds` is {seconds}: allowed is 0 to {}", MAX_WAIT.as_secs());
        Problem::invalid("wait_seconds", detail)
    })?;
    let options = CloseOptions::default().with_wait(wait).with_force(force);
    let service = app.clone();
    app.service.detached(async move { service.service.close(&id, options).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
