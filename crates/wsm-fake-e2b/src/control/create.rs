//! What makes sandboxes: create, fork, and snapshots to create from.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    ApiError, Caller,
    error::{ApiResult, Object},
    find,
    moves::{failed_to_place, spoil},
    opened_json,
};
use crate::{
    clock::after,
    fault::Hits,
    guest::Guest,
    lifecycle,
    state::{Fake, Idempotent, Live, Phase, Sandbox, Snapshot, random_id, token_of},
};

/// How long a sandbox has that nobody said anything of.
const DEFAULT_TIMEOUT: i64 = 300;
const DEFAULT_TIMEOUT_V1: i64 = 15;

type Arguments = (State<Arc<Fake>>, Extension<Caller>, Extension<Hits>);

pub(super) async fn create(arguments: Arguments, headers: HeaderMap, body: Object) -> ApiResult<Response> {
    let (State(fake), Extension(Caller(account)), Extension(hits)) = arguments;
    let key = headers.get("idempotency-key");
    let Some(key) = key else { return made(make(&fake, &account, &body, true, &hits).await?) };
    let is_valid = |key: &&str| {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=255).contains(&key.len()) && key.bytes().all(is_letter)
    };
    let key = key.to_str().ok().filter(is_valid).ok_or_else(|| ApiError::new(400, "Invalid Idempotency-Key"))?;
    let entry = (account.clone(), key.to_owned());
    let known = {
        let mut all = fake.idempotency.lock();
        let known = all.get(&entry).cloned();
        if known.is_none() {
            all.insert(entry.clone(), Idempotent { request: body.0.clone(), answer: None });
        }
        known
    };
    match known {
        Some(known) if known.request != body.0 => {
            let message = "the Idempotency-Key was used with another request";
            Err(ApiError::new(422, message).with_code("idempotency_request_mismatch"))
        }
        Some(Idempotent { answer: None, .. }) => {
            let message = "a request with this Idempotency-Key is in progress";
            Err(ApiError::new(409, message).with_code("idempotency_in_progress"))
        }
        Some(Idempotent { answer: Some(answer), .. }) => made(spoil(answer, &hits)),
        None => {
            let result = make(&fake, &account, &body, true, &Hits::default()).await;
            let mut all = fake.idempotency.lock();
            match &result {
                Ok(answer) => {
                    if let Some(known) = all.get_mut(&entry) {
                        known.answer = Some(answer.clone());
                    }
                }
                // What made nothing may be tried again.
                Err(_) => drop(all.remove(&entry)),
            }
            drop(all);
            let answer = result?;
            if let Some(sandbox) = answer["sandboxID"].as_str().and_then(|id| fake.sandbox(id)) {
                lifecycle::take_down(&sandbox, &hits);
            }
            made(spoil(answer, &hits))
        }
    }
}

pub(super) async fn create_v1(arguments: Arguments, body: Object) -> ApiResult<Response> {
    let (State(fake), Extension(Caller(account)), Extension(hits)) = arguments;
    made(make(&fake, &account, &body, false, &hits).await?)
}

fn made(answer: Value) -> ApiResult<Response> {
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

async fn make(fake: &Arc<Fake>, account: &str, body: &Object, is_v2: bool, hits: &Hits) -> ApiResult<Value> {
    let template = body.text("templateID")?.filter(|template| !template.is_empty());
    let template = template.ok_or_else(|| {
        ApiError::new(400, "request body has an error: doesn't match schema: property \"templateID\" is missing")
    })?;
    let default = if is_v2 { DEFAULT_TIMEOUT } else { DEFAULT_TIMEOUT_V1 };
    let timeout = timeout_of(fake, body.number("timeout")?.unwrap_or(default))?;
    let auto_pause = body.boolean("autoPause")?.unwrap_or(false);
    let auto_pause_memory = body.boolean("autoPauseMemory")?;
    let auto_resume = body.0["autoResume"]["enabled"].as_bool().unwrap_or(false);
    if auto_pause_memory.is_some() && !auto_pause {
        return Err(ApiError::new(400, "autoPauseMemory needs autoPause"));
    }
    if auto_resume && (!auto_pause || auto_pause_memory == Some(false)) {
        return Err(ApiError::new(400, "autoResume needs autoPause, and the memory"));
    }
    let is_secure = is_v2 || body.boolean("secure")?.unwrap_or(false);
    let (metadata, env_vars) = (body.texts("metadata")?, body.texts("envVars")?);
    let files = {
        let snapshots = fake.snapshots.lock();
        let name = template.split(':').next().unwrap_or_default();
        match snapshots.get(name).filter(|snapshot| snapshot.account == account) {
            Some(snapshot) => Some(snapshot.files.clone()),
            None if fake.options.templates.iter().any(|known| known == name) => None,
            None => return Err(ApiError::new(404, format!("template '{template}' not found"))),
        }
    };
    check_quota(fake, account)?;
    let id = random_id();
    let guest = Guest::new(fake.directory_of(&id), files.as_deref()).map_err(failed_to_place)?;
    guest.boot().await.map_err(failed_to_place)?;
    sleep(fake.options.latency).await;
    let now = fake.clock.now();
    let sandbox = Sandbox {
        token: is_secure.then(|| token_of(&id)),
        id,
        account: account.to_owned(),
        template,
        metadata,
        env_vars,
        auto_pause,
        auto_pause_memory: auto_pause_memory.unwrap_or(true),
        auto_resume,
        timeout,
        network: Mutex::new(body.0["network"].clone()),
        internet: body.0["allow_internet_access"].clone(),
        volumes: body.0["volumeMounts"].clone(),
        guest,
        turn: tokio::sync::Mutex::default(),
        live: Mutex::new(new_life(now, timeout)),
    };
    lifecycle::take_down(&sandbox, hits);
    let sandbox = Arc::new(sandbox);
    fake.insert(Arc::clone(&sandbox));
    Ok(spoil(opened_json(fake, &sandbox), hits))
}

fn new_life(now: jiff::Timestamp, timeout: Duration) -> Live {
    Live {
        phase: Phase::Running,
        started_at: now,
        end_at: after(now, timeout),
        down: None,
        crashed: false,
        disk_only: false,
    }
}

/// A timeout that a sandbox may start with.
pub(super) fn timeout_of(fake: &Fake, seconds: i64) -> ApiResult<Duration> {
    let timeout = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let timeout = timeout.ok_or_else(|| ApiError::new(400, "timeout must be at least 1 second"))?;
    if timeout > fake.options.max_timeout {
        let hours = fake.options.max_timeout.as_secs() / 3600;
        return Err(ApiError::new(400, format!("Timeout cannot be greater than {hours} hours")));
    }
    Ok(timeout)
}

pub(super) fn check_quota(fake: &Fake, account: &str) -> ApiResult<()> {
    let most = fake.account(account).map_or(0, |account| account.max_running);
    if fake.running(account) < most {
        return Ok(());
    }
    let message = format!(
        "you have reached the maximum number of concurrent E2B sandboxes ({most}). If you need more, please contact us"
    );
    Err(ApiError::new(429, message))
}

pub(super) async fn snapshot(
    (State(fake), caller, _): Arguments,
    Path(id): Path<String>,
    body: Object,
) -> ApiResult<Response> {
    let sandbox = find(&fake, &caller, &id)?;
    let _turn = sandbox.turn.lock().await;
    let before = sandbox.phase();
    sandbox.set_phase(Phase::Snapshotting);
    let snapshot = random_id();
    let files = fake.directory_of(&format!("snapshot-{snapshot}"));
    let copied = sandbox.guest.copy_to(&files);
    sandbox.set_phase(before);
    copied.map_err(|error| ApiError::new(500, format!("Error creating snapshot: {error}")))?;
    let names: Vec<String> = body.text("name")?.into_iter().collect();
    let answer = json!({ "snapshotID": format!("{snapshot}:default"), "names": names });
    let entry = Snapshot { account: sandbox.account.clone(), names, sandbox: sandbox.id.clone(), files };
    fake.snapshots.lock().insert(snapshot, entry);
    made(answer)
}

pub(super) async fn fork(
    (State(fake), caller, Extension(hits)): Arguments,
    Path(id): Path<String>,
    body: Object,
) -> ApiResult<Response> {
    let timeout = timeout_of(&fake, body.number("timeout")?.unwrap_or(DEFAULT_TIMEOUT))?;
    let count = body.number("count")?.unwrap_or(1).max(1);
    let origin = find(&fake, &caller, &id)?;
    let _turn = origin.turn.lock().await;
    let files = fake.directory_of(&format!("fork-{}", random_id()));
    let copied = origin.guest.copy_to(&files);
    copied.map_err(|error| ApiError::new(500, format!("Error forking sandbox: {error}")))?;
    let mut forks = Vec::new();
    for _ in 0..count {
        check_quota(&fake, &origin.account)?;
        let id = random_id();
        let guest = Guest::new(fake.directory_of(&id), Some(&files)).map_err(failed_to_place)?;
        guest.boot().await.map_err(failed_to_place)?;
        let fork = Arc::new(Sandbox {
            token: origin.token.as_ref().map(|_| token_of(&id)),
            id,
            account: origin.account.clone(),
            template: origin.template.clone(),
            metadata: origin.metadata.clone(),
            env_vars: origin.env_vars.clone(),
            auto_pause: origin.auto_pause,
            auto_pause_memory: origin.auto_pause_memory,
            auto_resume: origin.auto_resume,
            timeout,
            network: Mutex::new(origin.network.lock().clone()),
            internet: origin.internet.clone(),
            volumes: origin.volumes.clone(),
            guest,
            turn: tokio::sync::Mutex::default(),
            live: Mutex::new(new_life(fake.clock.now(), timeout)),
        });
        lifecycle::take_down(&fork, &hits);
        forks.push(json!({ "sandbox": opened_json(&fake, &fork) }));
        fake.insert(fork);
    }
    let _ = std::fs::remove_dir_all(files);
    made(json!(forks))
}
