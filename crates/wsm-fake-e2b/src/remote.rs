//! The controls of the fake over HTTP, for tests in other processes.
//!
//! - `POST /__fake/faults` with a fault or a list of them, `GET` for those left, `DELETE`
//! - `GET /__fake/requests`, `DELETE`
//! - `GET /__fake/sandboxes`
//! - `POST /__fake/sandboxes/{id}/{expire|vanish|pause|kill-envd|checkpoint|roll-back}`
//! - `POST /__fake/clock` with `{"advance_seconds": N}`

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{Fault, Sandboxes, lifecycle, state::Fake};

pub(crate) const PREFIX: &str = "/__fake/";

pub(crate) async fn answer(fake: &Arc<Fake>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let words: Vec<&str> = path.split('/').collect();
    let done = match (parts.method.as_str(), &words[..]) {
        ("POST", ["faults"]) => push(fake, &body),
        ("GET", ["faults"]) => Ok(json!(fake.faults.left())),
        ("DELETE", ["faults"]) => {
            fake.faults.clear();
            Ok(Value::Null)
        }
        ("GET", ["requests"]) => Ok(json!(fake.requests.all())),
        ("DELETE", ["requests"]) => {
            fake.requests.clear();
            Ok(Value::Null)
        }
        ("GET", ["sandboxes"]) => Ok(json!(Sandboxes::new(Arc::clone(fake)).all())),
        ("POST", ["sandboxes", id, what]) => control(fake, id, what).await,
        ("POST", ["clock"]) => advance(fake, &body).await,
        _ => Err(anyhow::anyhow!("there is no such control")),
    };
    match done {
        Ok(Value::Null) => StatusCode::NO_CONTENT.into_response(),
        Ok(value) => Json(value).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}

fn push(fake: &Fake, body: &[u8]) -> anyhow::Result<Value> {
    let faults = match serde_json::from_slice(body)? {
        Value::Array(faults) => faults,
        fault => vec![fault],
    };
    // All of them or none.
    let faults = faults.into_iter().map(serde_json::from_value).collect::<Result<Vec<Fault>, _>>()?;
    faults.into_iter().for_each(|fault| fake.faults.push(fault));
    Ok(Value::Null)
}

async fn control(fake: &Arc<Fake>, id: &str, what: &str) -> anyhow::Result<Value> {
    let sandboxes = Sandboxes::new(Arc::clone(fake));
    match what {
        "expire" => sandboxes.expire(id).await?,
        "vanish" => sandboxes.vanish(id).await?,
        "pause" => sandboxes.pause(id).await?,
        "kill-envd" => sandboxes.kill_envd(id)?,
        "checkpoint" => sandboxes.checkpoint(id)?,
        "roll-back" => sandboxes.roll_back(id)?,
        _ => anyhow::bail!("`{what}` can not be done to a sandbox"),
    }
    Ok(Value::Null)
}

async fn advance(fake: &Arc<Fake>, body: &[u8]) -> anyhow::Result<Value> {
    let body: Value = serde_json::from_slice(body)?;
    let seconds = body["advance_seconds"].as_f64().unwrap_or_default();
    fake.clock.advance(Duration::try_from_secs_f64(seconds)?);
    lifecycle::expire_due(fake).await;
    Ok(Value::Null)
}
