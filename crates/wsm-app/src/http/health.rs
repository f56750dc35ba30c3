//! Whether the service lives and can work, and what it has counted.

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use wsm_core::{Error, ErrorKind, Probe};

use super::{
    Problem,
    error::ProblemBody,
    extract::{Operator, Started},
};

/// How long the engine and the store have to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The service lives.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Health)]
pub(super) struct HealthBody {
    /// `ok`.
    status: &'static str,
}

/// The service can work.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Readiness)]
pub(super) struct ReadyBody {
    /// `ready`.
    status: &'static str,
    /// The kind of backend.
    backend: &'static str,
    /// The engine behind it and its version.
    engine: String,
    /// What does not work, and what to do about it.
    warnings: Vec<String>,
}

/// Whether the service lives: it answers.
#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200, body = HealthBody)))]
pub(super) async fn healthz() -> Json<HealthBody> {
    Json(HealthBody { status: "ok" })
}

/// Whether the service can work: it was started, the store answers, and the backend's engine can be reached.
#[utoipa::path(
    get, path = "/readyz", tag = "service",
    responses((status = 200, body = ReadyBody), (status = 503, body = ProblemBody<'_>, content_type = "application/problem+json"))
)]
pub(super) async fn readyz(Started(app): Started) -> Result<Json<ReadyBody>, Problem> {
    let manager = app.service.manager();
    let probe = async {
        app.service.store()?.ping().await?;
        manager.probe().await
    };
    let late = |_| Error::new(ErrorKind::Unavailable, "the store or the engine does not answer");
    let Probe { engine, warnings, .. } = tokio::time::timeout(PROBE_TIMEOUT, probe).await.map_err(late)??;
    Ok(Json(ReadyBody { status: "ready", backend: manager.backend_kind(), engine, warnings }))
}

/// What was counted and measured, in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "service", responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(_: Operator, Started(app): Started) -> Response {
    let text = app.metrics.render(&**app.service.manager());
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
