//! The control plane.

mod create;
mod error;
mod list;
mod moves;
mod others;

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post, put},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    clock::shown,
    lifecycle,
    state::{Fake, Phase, Sandbox, token_of},
};
pub(crate) use error::ApiError;
use error::ApiResult;

/// The key of who asks.
#[derive(Debug, Clone)]
struct Caller(String);

pub(crate) fn router(fake: &Arc<Fake>) -> Router {
    let v2 = Router::new()
        .route("/v2/sandboxes", get(list::list).post(create::create))
        .route("/v2/sandboxes/{id}/connect", post(moves::connect))
        .route("/v2/sandboxes/{id}/logs", get(others::logs));
    let v1 = Router::new()
        .route("/sandboxes", get(list::list_v1).post(create::create_v1))
        .route("/sandboxes/metrics", get(others::metrics_of_many))
        .route("/sandboxes/{id}", get(others::get).delete(moves::kill))
        .route("/sandboxes/{id}/pause", post(moves::pause))
        .route("/sandboxes/{id}/connect", post(moves::connect_v1))
        .route("/sandboxes/{id}/resume", post(moves::resume))
        .route("/sandboxes/{id}/timeout", post(moves::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(moves::refresh))
        .route("/sandboxes/{id}/network", put(others::network))
        .route("/sandboxes/{id}/metrics", get(others::metrics))
        .route("/sandboxes/{id}/logs", get(others::logs))
        .route("/sandboxes/{id}/snapshots", post(create::snapshot))
        .route("/sandboxes/{id}/fork", post(create::fork))
        .route("/snapshots", get(others::snapshots))
        .route("/templates/{id}", delete(others::delete_template));
    // Without these there is still the list: it is older than the others.
    let v2 = if fake.options.v2 { v2 } else { Router::new().route("/v2/sandboxes", get(list::list)) };
    v1.merge(v2)
        .layer(middleware::from_fn_with_state(Arc::clone(fake), authenticate))
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
        .fallback(|| async { ApiError::new(404, "no matching operation was found") })
        .with_state(Arc::clone(fake))
}

async fn authenticate(State(fake): State<Arc<Fake>>, mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let Some(key) = key.filter(|key| !key.is_empty()) else {
        return ApiError::new(401, "no credentials found").into_response();
    };
    let account = match fake.account(key) {
        None => {
            return ApiError::new(401, "Cannot get the team for the given API key: invalid API key").into_response();
        }
        Some(account) if account.refused => {
            return ApiError::new(403, "team is blocked: contact support").into_response();
        }
        Some(account) => account,
    };
    let caller = Caller(account.key.clone());
    request.extensions_mut().insert(caller);
    lifecycle::expire_due(&fake).await;
    next.run(request).await
}

/// A sandbox of an account. One of another looks like none.
fn find(fake: &Fake, Extension(Caller(account)): &Extension<Caller>, id: &str) -> ApiResult<Arc<Sandbox>> {
    fake.sandbox(id).filter(|sandbox| sandbox.account == *account).ok_or_else(|| ApiError::no_sandbox(id))
}

/// What create, connect, and resume answer with.
fn opened_json(fake: &Fake, sandbox: &Sandbox) -> Value {
    let is_public = sandbox.network.lock()["allowPublicTraffic"].as_bool().unwrap_or(true);
    let traffic_token = (!is_public).then(|| token_of(&format!("{}'s traffic", sandbox.id)));
    let mut json = json!({
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "fake",
        "envdVersion": fake.options.envd_version,
        "trafficAccessToken": traffic_token,
        "domain": fake.options.domain,
    });
    if let Some(token) = &sandbox.token {
        json["envdAccessToken"] = json!(token);
    }
    json
}

/// What lists have of a sandbox.
fn listed_json(fake: &Fake, sandbox: &Sandbox) -> Value {
    let live = sandbox.live.lock();
    json!({
        "templateID": sandbox.template,
        "alias": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": "fake",
        "startedAt": shown(live.started_at),
        "endAt": shown(live.end_at),
        "cpuCount": 2,
        "memoryMB": 512,
        "diskSizeMB": 1024,
        "metadata": sandbox.metadata,
        "state": visible_state(live.phase),
        "envdVersion": fake.options.envd_version,
        "volumeMounts": sandbox.volumes,
    })
}

/// What is on its way counts as where it goes, or comes from.
fn visible_state(phase: Phase) -> &'static str {
    match phase {
        Phase::Running | Phase::Snapshotting => "running",
        Phase::Pausing | Phase::Paused | Phase::Resuming => "paused",
    }
}
