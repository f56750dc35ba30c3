//! How the control plane says that something is wrong.

use axum::{
    Json,
    extract::FromRequest,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct ApiError {
    status: u16,
    message: String,
    code: Option<&'static str>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), code: None }
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn no_sandbox(id: &str) -> Self {
        Self::new(404, format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, message, code } = self;
        let mut body = json!({ "code": status, "message": message });
        if let Some(code) = code {
            body["error_code"] = json!(code);
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(body)).into_response()
    }
}

/// A body that must be a JSON object.
pub(crate) struct Object(pub(crate) Value);

impl<S: Send + Sync> FromRequest<S> for Object {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|error| ApiError::new(400, format!("Error reading request body: {error}")))?;
        let value: Value = serde_json::from_slice(&body)
            .map_err(|error| ApiError::new(400, format!("Error parsing request body: {error}")))?;
        match value.is_object() {
            true => Ok(Self(value)),
            false => Err(ApiError::new(400, "Error parsing request body: value must be an object")),
        }
    }
}

/// A body that may be missing altogether.
pub(crate) struct MaybeObject(pub(crate) Object);

impl<S: Send + Sync> FromRequest<S> for MaybeObject {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        if hyper::body::Body::is_end_stream(request.body()) {
            return Ok(Self(Object(json!({}))));
        }
        Ok(Self(Object::from_request(request, state).await?))
    }
}

impl Object {
    /// A whole number, none when there is none.
    pub(crate) fn number(&self, field: &str) -> ApiResult<Option<i64>> {
        self.field(field, "an integer", Value::as_i64)
    }

    pub(crate) fn boolean(&self, field: &str) -> ApiResult<Option<bool>> {
        self.field(field, "a boolean", Value::as_bool)
    }

    pub(crate) fn text(&self, field: &str) -> ApiResult<Option<String>> {
        self.field(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// An object of texts, empty when there is none.
    pub(crate) fn texts(&self, field: &str) -> ApiResult<std::collections::BTreeMap<String, String>> {
        let texts = self.field(field, "an object of strings", |value| serde_json::from_value(value.clone()).ok())?;
        Ok(texts.unwrap_or_default())
    }

    fn field<T>(&self, field: &str, kind: &str, read: impl FnOnce(&Value) -> Option<T>) -> ApiResult<Option<T>> {
        match &self.0[field] {
            Value::Null => Ok(None),
            value => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(ApiError::new(
                    400,
                    format!("request body has an error: doesn't match schema: \"/{field}\": value must be {kind}"),
                )),
            },
        }
    }
}
