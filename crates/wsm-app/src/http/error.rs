//! Every error as `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).
//!
//! | kind | status | what a client does |
//! | --- | --- | --- |
//! | `invalid_input` | 422; 400 for what can not be parsed; 413 for too much; 415 for another media type; 416 for a range past the end | change the request: `field` names what is wrong |
//! | `unauthenticated` | 401 | say who is asking |
//! | `permission_denied` | 403 | nothing |
//! | `not_found` | 404; 405 for a method that the route does not have | look for another |
//! | `conflict` | 409 | look at the state, then decide |
//! | `gone` | 410 | ask again: the workspace is opened anew |
//! | `unsupported` | 501 | use another backend |
//! | `capacity`, `unavailable`, `shutting_down` | 503 with `Retry-After` | ask again later |
//! | `timeout` | 504 | ask again |
//! | `backend`, `internal` | 500 | report it with the `request_id` |

use std::{borrow::Cow, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use wsm_core::{Error, ErrorKind, Retry};

/// After how many seconds to ask again, when nobody knows better.
const RETRY_AFTER_SECONDS: u64 = 5;

/// An error as clients see it.
#[derive(Debug, Clone)]
pub struct Problem(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    status: StatusCode,
    kind: &'static str,
    code: Cow<'static, str>,
    detail: String,
    field: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody<'a> {
    /// Names the code: `urn:wsm:problem:` and the code.
    r#type: String,
    /// What the status means.
    title: &'a str,
    /// The status of the answer.
    status: u16,
    /// What went wrong, for people.
    detail: &'a str,
    /// What went wrong, for programs: at least as exact as the kind.
    code: &'a str,
    /// What can be done about it.
    kind: &'a str,
    /// The part of the request that is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// Names the request in the service's log.
    request_id: &'a str,
}

impl Problem {
    /// Makes a problem.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        code: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
    ) -> Self {
        Self(Box::new(Inner {
            status,
            kind,
            code: code.into(),
            detail: detail.into(),
            field: None,
            headers: Vec::new(),
        }))
    }

    /// Shorthand for a field that holds what it may not.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", "invalid_input", detail).with_field(field)
    }

    /// A body or a file that is longer than allowed.
    pub(super) fn too_large(limit: u64) -> Self {
        let detail = format!("the body is longer than the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_input", "too_large", detail).with_field("body")
    }

    /// Names the part of the request that is at fault.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Adds a header to the answer. What is not a header's value is left out.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: impl AsRef<str>) -> Self {
        if let Ok(value) = HeaderValue::from_str(value.as_ref()) {
            self.0.headers.push((name, value));
        }
        self
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The answer to the request of this id.
    pub(super) fn answer(&self, request_id: &str) -> Response {
        let Inner { status, kind, code, detail, field, headers } = &*self.0;
        let body = ProblemBody {
            r#type: format!("urn:wsm:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail,
            code,
            kind,
            field: field.as_deref(),
            request_id,
        };
        // A struct of texts and a number can always be written.
        let json = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = *status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        for (name, value) in headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response
    }
}

/// Written without a request id; inside our own router the answer is written once more, with it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.answer("");
        response.extensions_mut().insert(self);
        response
    }
}

/// The message is for the client, the sources are for the log.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let status = match kind {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Gone => StatusCode::GONE,
            ErrorKind::InvalidInput if error.code() == "too_large" => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::InvalidInput => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
            ErrorKind::Capacity | ErrorKind::Unavailable | ErrorKind::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::error!(code = error.code(), error = %error.report(), "the request failed");
        } else {
            tracing::debug!(code = error.code(), error = %error.report(), "the request was refused");
        }
        let mut problem = Self::new(status, kind.as_str(), error.code(), error.message());
        if let Some(field) = error.field() {
            problem = problem.with_field(field);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = match error.retry() {
                Retry::Now => 0,
                Retry::After(time) => whole_seconds(time),
                _ => RETRY_AFTER_SECONDS,
            };
            problem = problem.with_header(header::RETRY_AFTER, seconds.to_string());
        }
        problem
    }
}

/// Rounded up, so that nobody comes back too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_stay_inside_and_the_time_to_wait_is_told() {
        let error = Error::new(ErrorKind::Unavailable, "the engine does not answer")
            .with_retry(Retry::After(Duration::from_millis(1500)))
            .with_source(std::io::Error::other("CANARY"));
        let problem = Problem::from(error);
        assert!(!format!("{problem:?}").contains("CANARY"));
        let response = problem.answer("r1");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    }
}
