//! What all remote procedures of the daemon share: errors, requests, and answers.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::envelope::Encoder;

pub(crate) const UNARY: &str = "application/json";
pub(crate) const STREAMING: &str = "application/connect+json";

/// Why a procedure failed, in the protocol's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    AlreadyExists,
    Canceled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unimplemented,
}

impl Code {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AlreadyExists => "already_exists",
            Self::Canceled => "canceled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::FailedPrecondition => "failed_precondition",
            Self::Internal => "internal",
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Unauthenticated => "unauthenticated",
            Self::Unimplemented => "unimplemented",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::AlreadyExists => 409,
            Self::Canceled => 499,
            Self::DeadlineExceeded => 504,
            Self::FailedPrecondition | Self::InvalidArgument => 400,
            Self::Internal => 500,
            Self::NotFound => 404,
            Self::ResourceExhausted => 429,
            Self::Unauthenticated => 401,
            Self::Unimplemented => 501,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RpcError {
    pub(crate) code: Code,
    message: String,
}

pub(crate) type RpcResult<T> = Result<T, RpcError>;

impl RpcError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    pub(crate) fn deadline() -> Self {
        Self::new(Code::DeadlineExceeded, "context deadline exceeded")
    }

    pub(crate) fn canceled() -> Self {
        Self::new(Code::Canceled, "context canceled")
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "code": self.code.name(), "message": self.message })
    }
}

/// The answer to a procedure with one message each way.
pub(crate) fn unary(result: RpcResult<Value>) -> Response {
    let (status, body) = match result {
        Ok(body) => (200, body),
        Err(error) => (error.code.status(), error.json()),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, UNARY)], body.to_string()).into_response()
}

/// The answer to a procedure with a stream of messages.
pub(crate) fn streaming<S>(frames: S) -> Response
where
    S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
{
    let mut response = Body::from_stream(frames).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAMING));
    response.headers_mut().insert("connect-accept-encoding", HeaderValue::from_static("gzip"));
    response
}

/// A stream that is nothing but its end: also errors come with status 200.
pub(crate) fn streaming_error(encoder: Encoder, error: &RpcError) -> Response {
    let mut response = Body::from(encoder.end(Some(error))).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(STREAMING));
    response
}

/// Compressed frames for those who ask, as the daemon does.
pub(crate) fn encoder(headers: &HeaderMap) -> Encoder {
    let accepted = headers.get("connect-accept-encoding").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let gzip = accepted.split(',').any(|encoding| encoding.trim() == "gzip");
    Encoder { gzip }
}

/// A field of a request, in either spelling.
pub(crate) fn field<'a>(message: &'a Value, name: &str) -> &'a Value {
    match message.get(name) {
        Some(value) => value,
        None => &message[snake(name)],
    }
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// A text, empty where there is none: the protocol does not tell these apart.
pub(crate) fn text<'a>(message: &'a Value, name: &str) -> &'a str {
    field(message, name).as_str().unwrap_or_default()
}

/// A number, which may have come as a text.
pub(crate) fn number(message: &Value, name: &str) -> Option<u64> {
    let value = field(message, name);
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// An object without what the protocol leaves out: zeros, empty texts and lists, and nothing.
pub(crate) fn without_zeros(value: Value) -> Value {
    let Value::Object(fields) = value else { return value };
    let is_zero = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty() || value == "0",
        Value::Array(values) => values.is_empty(),
        Value::Object(_) => false,
    };
    Value::Object(fields.into_iter().filter(|(_, value)| !is_zero(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out() {
        let value = without_zeros(json!({ "exitCode": 0, "exited": true, "error": "", "size": "0", "entries": [] }));
        assert_eq!(value, json!({ "exited": true }));
    }

    #[test]
    fn both_spellings_and_numbers_as_texts_are_understood() {
        let message = json!({ "watcher_id": "w", "pid": "34" });
        assert_eq!((text(&message, "watcherId"), number(&message, "pid")), ("w", Some(34)));
    }
}
