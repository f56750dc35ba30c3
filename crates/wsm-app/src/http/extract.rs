//! Extractors: ours, and those that an embedder's own routes use.
//!
//! Those that are public need the layer that [`App::extractors`](crate::App::extractors) gives.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::{
    body::Body,
    extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request, rejection::PathRejection},
};
use futures::StreamExt;
use http::{StatusCode, header, request::Parts};
use serde::{Deserialize, de::DeserializeOwned};
use utoipa::IntoParams;
use wsm_core::{AgentId, SessionId, UserId, WorkspaceHandle, WorkspaceManager};

use super::error::Problem;
use crate::{
    app::{AppState, Phase, SharedState},
    auth::{Principal, unauthenticated},
    service::{OpenedWorkspace, Session},
    store::SessionRecord,
};

/// A user that an embedder's own middleware has authenticated. Put it into a request's extensions and it is believed
/// without looking at headers.
#[derive(Debug, Clone)]
pub struct Identity(pub UserId);

/// The user who asks.
///
/// Rejects with 401 when nobody is named or nobody who names one is trusted.
#[derive(Debug, Clone)]
pub struct Caller(pub UserId);

/// The manager behind the application.
#[derive(Debug, Clone)]
pub struct Manager(pub Arc<dyn WorkspaceManager>);

/// The workspace of the session that the query names with `agent_id` and `session_id`, opened and held for the request.
///
/// Rejects as [`Caller`] does, and with 404 for a session that the caller does not have.
#[derive(Debug)]
pub struct CallerWorkspace {
    /// Whose workspace it is.
    pub session: SessionRecord,
    /// The workspace.
    pub workspace: WorkspaceHandle,
    /// Whether files were lost since the session last used it. True for one request only.
    pub lost: bool,
}

/// The session that the query names, found but not opened: a handler checks the rest of the request first.
#[derive(Debug)]
pub(super) struct CallerSession(Arc<Session>);

/// Lets operators through: loopback, or the token of a trusted front.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operator;

/// The started application.
#[derive(Debug, Clone)]
pub(super) struct Started(pub(super) Arc<AppState>);

/// A JSON body.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

/// The parameters of the query.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

/// The one id in the path.
#[derive(Debug)]
pub(super) struct PathId<T>(pub(super) T);

/// Which session a request about a workspace is for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionParams {
    /// The agent of the session.
    #[param(value_type = String)]
    pub(super) agent_id: AgentId,
    /// The session.
    #[param(value_type = String)]
    pub(super) session_id: SessionId,
}

/// The state, whether started or not.
pub(super) fn state(parts: &Parts) -> Result<Arc<AppState>, Problem> {
    let missing = || {
        let detail = "the route lacks the layer that `App::extractors` gives";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal", detail)
    };
    parts.extensions.get::<SharedState>().map(|shared| Arc::clone(&shared.0)).ok_or_else(missing)
}

/// Where the request comes from; none when the server does not tell.
fn peer(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

pub(super) fn principal(parts: &Parts, state: &AppState) -> Result<Principal, Problem> {
    if let Some(Identity(user)) = parts.extensions.get() {
        return Ok(Principal { user: Some(user.clone()), operator: false });
    }
    state.auth.authenticate(&parts.headers, peer(parts))
}

impl<S: Send + Sync> FromRequestParts<S> for Started {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let state = state(parts)?;
        let (code, detail) = match state.phase() {
            Phase::Started => return Ok(Self(state)),
            Phase::Created => ("unavailable", "the service has not been started"),
            Phase::Stopped => ("shutting_down", "the service is stopping"),
        };
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, code, detail).with_header(header::RETRY_AFTER, "5"))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let principal = principal(parts, &*state(parts)?)?;
        let missing = || unauthenticated("missing_identity", "the header `X-User-ID` is missing or empty");
        principal.user.map(Self).ok_or_else(missing)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if principal(parts, &*state(parts)?)?.operator {
            return Ok(Self);
        }
        let detail =
            "this route is for operators: call it on this machine without a proxy, or with the service's token";
        Err(Problem::new(StatusCode::FORBIDDEN, "permission_denied", "operators_only", detail))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Manager {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Started(state) = Started::from_request_parts(parts, state).await?;
        Ok(Self(Arc::clone(state.service.manager())))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerWorkspace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Started(app) = Started::from_request_parts(parts, state).await?;
        CallerSession::from_request_parts(parts, state).await?.open(&app).await
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Started(app) = Started::from_request_parts(parts, state).await?;
        let Caller(user) = Caller::from_request_parts(parts, state).await?;
        let Params(params) = Params::<SessionParams>::from_request_parts(parts, state).await?;
        Self::find(&app, &user, &params.agent_id, &params.session_id).await
    }
}

impl CallerSession {
    pub(super) async fn find(
        app: &AppState,
        user: &UserId,
        agent: &AgentId,
        session: &SessionId,
    ) -> Result<Self, Problem> {
        Ok(Self(app.service.session(user, Some(agent), session).await?))
    }

    /// Opens the session's workspace.
    pub(super) async fn open(self, app: &AppState) -> Result<CallerWorkspace, Problem> {
        let OpenedWorkspace { handle, lost } = app.service.open(&self.0).await?;
        Ok(CallerWorkspace { session: self.0.record.clone(), workspace: handle, lost })
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        if let Some(name) = parts.uri.query().and_then(not_utf8) {
            return Err(Problem::invalid(&name, format!("`{name}` is not UTF-8")));
        }
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                Err(refused("query", &plain(text)))
            }
        }
    }
}

/// The name of the first parameter that holds something else than UTF-8, which decoding would replace without a word.
fn not_utf8(query: &str) -> Option<String> {
    let bytes = |text: &str| {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((first, more)) = rest.split_first() {
            let escaped = more.get(..2).filter(|_| *first == b'%').and_then(hex);
            bytes.push(escaped.unwrap_or(*first));
            rest = if escaped.is_some() { &more[2..] } else { more };
        }
        bytes
    };
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find_map(|(name, value)| {
        let name = String::from_utf8(bytes(name));
        let wrong = name.is_err() || std::str::from_utf8(&bytes(value)).is_err();
        wrong.then(|| name.unwrap_or_else(|_| "query".to_owned()))
    })
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(digits[0])? << 4 | digit(digits[1])?)
}

/// Finds the field that serde's message is about, for messages of the forms "field: what", "missing field `field`"
/// and "`field` what".
fn refused(whole: &str, text: &str) -> Problem {
    let before_colon = text.split_once(": ").filter(|(name, _)| !name.is_empty() && !name.contains([' ', '`']));
    if let Some((name, detail)) = before_colon {
        return Problem::invalid(
            name,
            if detail.contains('`') { detail.to_owned() } else { format!("`{name}`: {detail}") },
        );
    }
    let quoted = text.split('`').nth(1).filter(|_| text.contains("field `") || text.starts_with('`'));
    Problem::invalid(quoted.unwrap_or(whole), text)
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathId<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                let text = error.body_text();
                let text = text.strip_prefix("Invalid URL: ").unwrap_or(&text);
                // "Invalid UTF-8 in `name`"
                if let Some(name) = text.strip_prefix("Invalid UTF-8 in `").and_then(|rest| rest.strip_suffix('`')) {
                    return Err(Problem::invalid(name, format!("`{name}` is not UTF-8")));
                }
                Err(refused("path", text.find('`').map_or(text, |start| &text[start..])))
            }
            Err(error) => {
                Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal", error.body_text()))
            }
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let limit = state(&parts)?.limits.max_request_bytes;
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !content_type.is_some_and(is_json) {
            let detail = "the body must be JSON with `Content-Type: application/json`";
            let problem =
                Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_input", "unsupported_media_type", detail);
            return Err(problem.with_field("content-type"));
        }
        let bytes = read_body(&parts, body, limit).await?;
        // Serde would take a list for the fields in their order.
        if bytes.trim_ascii_start().starts_with(b"[") {
            return Err(Problem::invalid("body", NO_OBJECT));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            let error = error.into_inner();
            if !error.is_data() {
                return malformed(&error);
            }
            // The place in the text helps nobody who knows the field.
            let text = error.to_string();
            let text = &*plain(text.rsplit_once(" at line ").map_or(&*text, |(text, _)| text));
            if path == "." && text.starts_with("invalid type") {
                return Problem::invalid("body", NO_OBJECT);
            }
            // An unknown field is its own path.
            if path == "." || text.starts_with("unknown field") {
                refused("body", text)
            } else {
                let detail = if text.contains('`') && !text.starts_with("invalid") {
                    text.to_owned()
                } else {
                    format!("`{path}`: {text}")
                };
                Problem::invalid(path, detail)
            }
        })?;
        deserializer.end().map_err(|error| malformed(&error))?;
        Ok(Self(value))
    }
}

/// What is allowed, in words that do not need Rust to be known.
fn plain(text: &str) -> String {
    [
        ("expected f64", "expected a number"),
        ("expected u64", "expected a whole number that is not negative"),
        ("expected a sequence", "expected a list"),
        ("invalid type: sequence", "invalid type: list"),
        ("expected a map", "expected an object"),
        ("invalid type: map", "invalid type: object"),
        ("invalid digit found in string", "expected a whole number that is not negative"),
        ("number too large to fit in target type", "expected a smaller number"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

const NO_OBJECT: &str = "the body must be a JSON object, such as `{ \"name\": \"value\" }`";

fn malformed(error: &serde_json::Error) -> Problem {
    let detail = format!("the body is not JSON: {error}");
    Problem::new(StatusCode::BAD_REQUEST, "invalid_input", "malformed_json", detail).with_field("body")
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// How long the client says its body is.
pub(super) fn announced_length(parts: &Parts) -> Option<u64> {
    parts.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

async fn read_body(parts: &Parts, body: Body, limit: usize) -> Result<Vec<u8>, Problem> {
    if announced_length(parts).is_some_and(|length| length > limit as u64) {
        return Err(Problem::too_large(limit as u64));
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            let detail = format!("the body broke off: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "invalid_input", "incomplete_body", detail).with_field("body")
        })?;
        if bytes.len() + chunk.len() > limit {
            return Err(Problem::too_large(limit as u64));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_field() {
        for (text, field) in [
            ("agent_id: `agent_id` is empty: allowed are 1 to 256 bytes", "\"agent_id\""),
            ("missing field `session_id`", "\"session_id\""),
            ("`workspace_id` is empty: allowed are 1 to 256 bytes", "\"workspace_id\""),
            ("limit: invalid digit found in string", "\"limit\""),
            ("something else", "\"query\""),
        ] {
            let shown = format!("{:?}", refused("query", text));
            assert!(shown.contains(&format!("field: Some({field})")), "{shown}");
        }
    }
}
