//! Sessions.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use wsm_core::{AgentId, SessionId, WorkspaceId};

use super::{
    Problem,
    error::ProblemBody,
    extract::{Caller, JsonBody, Params, PathId, Started},
};
use crate::{
    service::NewSession,
    store::{SessionPage, SessionRecord},
};

/// The longest name, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// How many sessions a page holds unless the request says otherwise, and at most.
const DEFAULT_PAGE: u32 = 100;
const MAX_PAGE: u32 = 1000;

/// A session to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSession {
    /// The agent that it is for.
    #[schema(value_type = String)]
    agent_id: AgentId,
    /// Its id; a fresh one when there is none, or `""`.
    #[serde(default, deserialize_with = "optional_session")]
    #[schema(value_type = Option<String>)]
    session_id: Option<SessionId>,
    /// The workspace that it is to work in; the isolation policy's when there is none, or `""`.
    #[serde(default, deserialize_with = "optional_workspace")]
    #[schema(value_type = Option<String>)]
    workspace_id: Option<WorkspaceId>,
    /// What people call it.
    #[serde(default)]
    name: Option<String>,
}

fn optional_agent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AgentId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    AgentId::optional(text.as_deref()).map_err(serde::de::Error::custom)
}

fn optional_session<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SessionId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    SessionId::optional(text.as_deref()).map_err(serde::de::Error::custom)
}

fn optional_workspace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WorkspaceId>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    WorkspaceId::optional(text.as_deref()).map_err(serde::de::Error::custom)
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionBody {
    /// Its id, unique for its user.
    session_id: String,
    /// The workspace that it works in, for ever.
    workspace_id: String,
    /// Its agent.
    agent_id: String,
    /// Whose it is.
    user_id: String,
    /// What people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// When it was made.
    created_at: String,
}

impl From<SessionRecord> for SessionBody {
    fn from(record: SessionRecord) -> Self {
        Self {
            session_id: record.scope.session_id.to_string(),
            workspace_id: record.workspace_id.to_string(),
            agent_id: record.scope.agent_id.to_string(),
            user_id: record.scope.user_id.to_string(),
            name: record.name,
            created_at: humantime::format_rfc3339_millis(record.created_at).to_string(),
        }
    }
}

/// A page of sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(super) struct SessionsBody {
    /// The sessions, oldest first.
    items: Vec<SessionBody>,
    /// What to give as `after` to get the next page; missing on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which sessions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only this agent's.
    #[serde(default, deserialize_with = "optional_agent")]
    #[param(value_type = Option<String>)]
    agent_id: Option<AgentId>,
    /// The `next` of the page before.
    #[serde(default, alias = "next")]
    #[param(value_type = Option<String>)]
    after: Option<String>,
    /// How many at most; 100 unless given, 1 to 1000.
    #[serde(default)]
    limit: Option<u32>,
}

/// Makes a session.
///
/// Asking again with the same id and equal fields gives the session that exists. While the workspace of a deleted
/// session of the same id still exists, the id is refused.
#[utoipa::path(
    post, path = "/sessions", operation_id = "create_session", tag = "sessions", request_body = CreateSession,
    params(("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 201, description = "It was made.", body = SessionBody),
        (status = 200, description = "It existed already, with equal fields.", body = SessionBody),
        (status = 403, description = "The workspace belongs to another user.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 409, description = "It exists with other fields, or was deleted and its workspace still exists.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A field holds what it may not.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn create(
    Started(app): Started,
    Caller(user): Caller,
    JsonBody(body): JsonBody<CreateSession>,
) -> Result<Response, Problem> {
    let CreateSession { agent_id, session_id, workspace_id, name } = body;
    if name.as_ref().is_some_and(|name| name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)) {
        let detail = format!("`name` is at most {MAX_NAME_BYTES} bytes without control characters");
        return Err(Problem::invalid("name", detail));
    }
    let new = NewSession { user, agent: agent_id, session: session_id, workspace: workspace_id, name };
    let service = app.clone();
    let (record, made) = app.service.detached(async move { service.service.create_session(new).await }).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(SessionBody::from(record))).into_response())
}

/// Lists the caller's sessions.
#[utoipa::path(
    get, path = "/sessions", operation_id = "list_sessions", tag = "sessions", params(ListParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses((status = 200, body = SessionsBody))
)]
pub(super) async fn list(
    Started(app): Started,
    Caller(user): Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<SessionsBody>, Problem> {
    let limit = params.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::invalid("limit", format!("`limit` is {limit}: allowed is 1 to {MAX_PAGE}")));
    }
    let after = match params.after.as_deref() {
        None | Some("") => 0,
        Some(text) => {
            let refuse = || Problem::invalid("after", "`after` is not the `next` of an earlier page");
            text.parse::<i64>().ok().filter(|seq| *seq >= 0).ok_or_else(refuse)?
        }
    };
    // One more than asked for tells whether there is a next page.
    let page = SessionPage { user, agent: params.agent_id, after, limit: limit + 1 };
    let mut records = app.service.sessions(&page).await?;
    let more = records.len() > limit as usize;
    records.truncate(limit as usize);
    let next = records.last().filter(|_| more).map(|record| record.seq.to_string());
    Ok(Json(SessionsBody { items: records.into_iter().map(SessionBody::from).collect(), next }))
}

/// Gets a session of the caller's.
#[utoipa::path(
    get, path = "/sessions/{session_id}", operation_id = "get_session", tag = "sessions",
    params(("session_id" = String, Path, description = "The session."), ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses((status = 200, body = SessionBody), (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn get(
    Started(app): Started,
    Caller(user): Caller,
    PathId(id): PathId<SessionId>,
) -> Result<Json<SessionBody>, Problem> {
    let session = app.service.session(&user, None, &id).await?;
    Ok(Json(session.record.clone().into()))
}

/// Deletes a session.
///
/// A workspace that the policy `per_session` gave it is destroyed with the last session that names it; any other stays.
#[utoipa::path(
    delete, path = "/sessions/{session_id}", operation_id = "delete_session", tag = "sessions",
    params(("session_id" = String, Path, description = "The session."), ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 503, description = "It is gone, its workspace is not: try again.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn delete(
    Started(app): Started,
    Caller(user): Caller,
    PathId(id): PathId<SessionId>,
) -> Result<StatusCode, Problem> {
    let service = app.clone();
    app.service.detached(async move { service.service.delete_session(&user, &id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
