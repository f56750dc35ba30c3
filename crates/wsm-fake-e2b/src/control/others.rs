//! What only looks, and what changes no sandbox' state.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, Query, State},
};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    ApiError, Caller,
    error::{ApiResult, Object},
    find, listed_json,
};
use crate::{
    clock::shown,
    state::{Fake, Sandbox},
};

type Arguments = (State<Arc<Fake>>, Extension<Caller>);

/// How many sandboxes' metrics come at once.
const MOST_METRICS: usize = 100;

pub(super) async fn get((State(fake), caller): Arguments, Path(id): Path<String>) -> ApiResult<Json<Value>> {
    let sandbox = find(&fake, &caller, &id)?;
    let mut json = listed_json(&fake, &sandbox);
    if let Some(token) = &sandbox.token {
        json["envdAccessToken"] = json!(token);
    }
    json["domain"] = json!(fake.options.domain);
    if !sandbox.internet.is_null() {
        json["allowInternetAccess"] = sandbox.internet.clone();
    }
    let network = sandbox.network.lock().clone();
    if !network.is_null() {
        json["network"] = network;
    }
    let on_timeout = if sandbox.auto_pause { "pause" } else { "kill" };
    json["lifecycle"] = json!({ "autoResume": sandbox.auto_resume, "onTimeout": on_timeout });
    if json["state"] == "paused" {
        json["pauseMode"] = json!(if sandbox.live.lock().disk_only { "filesystem" } else { "full" });
    }
    Ok(Json(json))
}

pub(super) async fn network(
    (State(fake), caller): Arguments,
    Path(id): Path<String>,
    body: Object,
) -> ApiResult<StatusCode> {
    *find(&fake, &caller, &id)?.network.lock() = body.0;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn metrics((State(fake), caller): Arguments, Path(id): Path<String>) -> ApiResult<Json<Value>> {
    let sandbox = find(&fake, &caller, &id)?;
    Ok(Json(json!([metrics_json(&fake, &sandbox)])))
}

pub(super) async fn metrics_of_many(
    (State(fake), caller): Arguments,
    Query(query): Query<HashMap<String, String>>,
) -> ApiResult<Json<Value>> {
    let ids: Vec<&str> = query.get("sandbox_ids").into_iter().flat_map(|ids| ids.split(',')).collect();
    if ids.len() > MOST_METRICS {
        return Err(ApiError::new(400, format!("at most {MOST_METRICS} sandboxes")));
    }
    let known = ids.iter().filter_map(|id| find(&fake, &caller, id).ok());
    let metrics: serde_json::Map<_, _> =
        known.map(|sandbox| (sandbox.id.clone(), metrics_json(&fake, &sandbox))).collect();
    Ok(Json(json!({ "sandboxes": metrics })))
}

fn metrics_json(fake: &Fake, _: &Sandbox) -> Value {
    let now = fake.clock.now();
    json!({
        "timestamp": shown(now),
        "timestampUnix": now.as_second(),
        "cpuCount": 2,
        "cpuUsedPct": 1.5,
        "memUsed": 64 << 20,
        "memTotal": 512 << 20,
        "memCache": 16 << 20,
        "diskUsed": 128 << 20,
        "diskTotal": 1 << 30,
    })
}

pub(super) async fn logs((State(fake), caller): Arguments, Path(id): Path<String>) -> ApiResult<Json<Value>> {
    find(&fake, &caller, &id)?;
    Ok(Json(json!({ "logs": [], "logEntries": [] })))
}

pub(super) async fn snapshots(
    (State(fake), Extension(Caller(account))): Arguments,
    Query(query): Query<HashMap<String, String>>,
) -> Json<Value> {
    let snapshots = fake.snapshots.lock();
    let is_wanted = |(_, snapshot): &(&String, &crate::state::Snapshot)| {
        snapshot.account == account
            && query.get("sandboxID").is_none_or(|id| *id == snapshot.sandbox)
            && query.get("name").is_none_or(|name| snapshot.names.contains(name))
    };
    let shown = |(id, snapshot): (&String, &crate::state::Snapshot)| json!({ "snapshotID": format!("{id}:default"), "names": snapshot.names });
    Json(snapshots.iter().filter(is_wanted).map(shown).collect())
}

pub(super) async fn delete_template(
    (State(fake), Extension(Caller(account))): Arguments,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    let mut snapshots = fake.snapshots.lock();
    let name = id.split(':').next().unwrap_or_default();
    let none = || ApiError::new(404, format!("template '{id}' not found"));
    let is_theirs = snapshots.get(name).is_some_and(|snapshot| snapshot.account == account);
    if !is_theirs {
        return Err(none());
    }
    match snapshots.remove(name) {
        Some(snapshot) => {
            let _ = std::fs::remove_dir_all(snapshot.files);
            Ok(StatusCode::NO_CONTENT)
        }
        None => Err(none()),
    }
}
