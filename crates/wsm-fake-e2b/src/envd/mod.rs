//! The daemon inside of a sandbox.

mod entry;
mod files;
mod filesystem;
mod process;
mod upload;
mod watch;

pub(crate) use watch::Watcher;

use std::{io, sync::Arc};

use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{
    envelope::Decoder,
    guest::{Cut, Run, machine::Gone, user::User},
    lifecycle,
    operation::Operation,
    rpc::{self, Code, RpcError, RpcResult},
    serve::Connection,
    state::{Fake, Sandbox},
};

/// What a request is about, and what it came on.
pub(crate) struct Call {
    pub(crate) fake: Arc<Fake>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) run: Arc<Run>,
    pub(crate) cut: Arc<Cut>,
    pub(crate) connection: Connection,
}

/// There is no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The sandbox is not there any more.
    Gone,
    /// The daemon died of this request.
    Crashed(io::Error),
}

impl From<Gone> for Failed {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

/// Why a procedure gave nothing: it failed, or there is no answer at all.
#[derive(Debug)]
pub(crate) enum Trouble {
    Rpc(RpcError),
    Failed(Failed),
}

impl From<RpcError> for Trouble {
    fn from(error: RpcError) -> Self {
        Self::Rpc(error)
    }
}

impl From<Gone> for Trouble {
    fn from(gone: Gone) -> Self {
        Self::Failed(gone.into())
    }
}

pub(crate) async fn answer(call: Call, operation: Operation, request: Request<Body>) -> Result<Response, Failed> {
    use Operation as O;
    match operation {
        O::Health => {
            return Ok((StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, "no-store")]).into_response());
        }
        O::Upload | O::Download => return files::answer(call, request).await,
        _ => {}
    }
    if !has_token(&call, request.headers()) {
        let message = "unauthorized access, please provide a valid access token or method signing if supported";
        return Ok(error(StatusCode::UNAUTHORIZED, message));
    }
    match operation {
        O::EnvdMetrics => Ok(Json(metrics(&call)).into_response()),
        O::Envs => Ok(Json(json!(call.sandbox.env_vars)).into_response()),
        O::Compose => upload::compose(call, request).await,
        O::UnknownEnvd => Ok((StatusCode::NOT_FOUND, "404 page not found\n").into_response()),
        operation => procedure(call, operation, request).await,
    }
}

async fn procedure(call: Call, operation: Operation, request: Request<Body>) -> Result<Response, Failed> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return Ok((StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response());
    }
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let wanted = if operation.is_streaming() { rpc::STREAMING } else { rpc::UNARY };
    if kind.split(';').next() != Some(wanted) {
        return Ok((StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", wanted)]).into_response());
    }
    if operation.is_streaming() {
        let encoder = rpc::encoder(&parts.headers);
        let result = match operation {
            Operation::StreamInput => process::stream_input(&call, &parts.headers, body).await,
            _ => match one_message(body).await {
                Ok(message) => match operation {
                    Operation::Start => process::start(&call, &parts.headers, &message).await,
                    Operation::ProcessConnect => process::connect(&call, &parts.headers, &message),
                    _ => watch::watch(&call, &parts.headers, &message).await,
                },
                Err(error) => Err(error.into()),
            },
        };
        return match result {
            Ok(response) => Ok(response),
            Err(Trouble::Rpc(error)) => Ok(rpc::streaming_error(encoder, &error)),
            Err(Trouble::Failed(failed)) => Err(failed),
        };
    }
    let message = match read(body).await {
        Ok(bytes) if bytes.is_empty() => Ok(json!({})),
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| RpcError::invalid(format!("unmarshal message: {error}")))
        }
        Err(error) => Err(error),
    };
    let result = match (message, user(&parts.headers)) {
        (Err(error), _) | (_, Err(error)) => Err(error.into()),
        (Ok(message), Ok(user)) => unary(&call, operation, user, &message).await,
    };
    match result {
        Ok(value) => Ok(rpc::unary(Ok(value))),
        Err(Trouble::Rpc(error)) => Ok(rpc::unary(Err(error))),
        Err(Trouble::Failed(failed)) => Err(failed),
    }
}

async fn unary(call: &Call, operation: Operation, user: User, message: &Value) -> Result<Value, Trouble> {
    use Operation as O;
    match operation {
        O::ProcessList => Ok(process::list(call)),
        O::SendInput => process::send_input(call, message).await,
        O::CloseStdin => process::close_stdin(call, message).await,
        O::SendSignal => process::send_signal(call, message),
        O::Update => process::update(call, message),
        O::CreateWatcher => watch::create_watcher(call, user, message).await,
        O::GetWatcherEvents => watch::watcher_events(call, message),
        O::RemoveWatcher => watch::remove_watcher(call, message),
        operation => filesystem::call(call, operation, user, message).await,
    }
}

/// Stops the daemon, as the real one does with a header that it does not check.
fn crash(call: &Call, why: &str) -> Failed {
    lifecycle::crash(&call.sandbox);
    Failed::Crashed(io::Error::other(why.to_owned()))
}

async fn read(body: Body) -> RpcResult<bytes::Bytes> {
    let collected = body.collect().await.map_err(|error| RpcError::invalid(format!("protocol error: {error}")))?;
    Ok(collected.to_bytes())
}

/// The only message of a request.
async fn one_message(body: Body) -> RpcResult<Value> {
    let mut decoder = Decoder::default();
    decoder.push(&read(body).await?);
    match decoder.next()? {
        Some((false, message)) if decoder.is_empty() => Ok(message),
        Some((false, _)) => Err(RpcError::new(Code::Unimplemented, "unary request has multiple messages")),
        _ => Err(RpcError::new(Code::Unimplemented, "unary request has zero messages")),
    }
}

fn has_token(call: &Call, headers: &HeaderMap) -> bool {
    let token = headers.get("x-access-token").and_then(|token| token.to_str().ok());
    call.sandbox.token.as_deref().is_none_or(|wanted| token == Some(wanted))
}

/// Who a procedure is carried out as.
fn user(headers: &HeaderMap) -> RpcResult<User> {
    let Some(header) = headers.get(header::AUTHORIZATION) else { return Ok(crate::guest::user::DEFAULT_USER) };
    let encoded = header.to_str().ok().and_then(|header| header.strip_prefix("Basic ")).unwrap_or_default();
    let decoded = STANDARD.decode(encoded).unwrap_or_default();
    let text = String::from_utf8_lossy(&decoded);
    let name = text.split(':').next().unwrap_or_default();
    User::named(name).ok_or_else(|| RpcError::new(Code::Unauthenticated, format!("invalid username: '{name}'")))
}

/// An error of what is no procedure: its code is a number.
fn error(status: StatusCode, message: impl Into<String>) -> Response {
    (status, Json(json!({ "code": status.as_u16(), "message": message.into() }))).into_response()
}

fn metrics(call: &Call) -> Value {
    json!({
        "ts": call.fake.clock.now().as_second(),
        "cpu_count": 2,
        "cpu_used_pct": 1.5,
        "mem_total": 512 << 20,
        "mem_used": 64 << 20,
        "mem_cache": 16 << 20,
        "mem_total_mib": 512,
        "mem_used_mib": 64,
        "disk_used": 128 << 20,
        "disk_total": 1 << 30,
    })
}
