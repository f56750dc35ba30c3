//! What changes the state of a sandbox: connect, pause, kill, and how long it has.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    ApiError, Caller,
    create::{check_quota, timeout_of},
    error::{ApiResult, MaybeObject, Object},
    find, opened_json,
};
use crate::{
    clock::after,
    fault::{Ending, Hits, What},
    lifecycle,
    state::{Fake, Phase, Sandbox, random_id},
};

/// What connect takes for a timeout when it gets none.
const DEFAULT_TIMEOUT: i64 = 300;
const SHORTEST_REFRESH: i64 = 15;
const LONGEST_REFRESH: i64 = 3600;

type Arguments = (State<Arc<Fake>>, Extension<Caller>, Extension<Hits>, Path<String>);

pub(super) async fn connect(arguments: Arguments, body: Object) -> ApiResult<Response> {
    let seconds = body.number("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    open(arguments, seconds, body.boolean("memory")?.unwrap_or(true)).await
}

pub(super) async fn connect_v1(arguments: Arguments, body: Object) -> ApiResult<Response> {
    let seconds = body.number("timeout")?;
    let seconds = seconds.ok_or_else(|| {
        ApiError::new(400, "request body has an error: doesn't match schema: property \"timeout\" is missing")
    })?;
    open(arguments, seconds, body.boolean("memory")?.unwrap_or(true)).await
}

async fn open(
    (State(fake), caller, Extension(hits), Path(id)): Arguments,
    seconds: i64,
    memory: bool,
) -> ApiResult<Response> {
    let timeout = timeout_of(&fake, seconds)?;
    let sandbox = find(&fake, &caller, &id)?;
    let _turn = sandbox.turn.lock().await;
    // It may have been killed while it was waited for.
    find(&fake, &caller, &id)?;
    let status = match sandbox.phase() {
        Phase::Paused => {
            check_quota(&fake, &sandbox.account)?;
            lifecycle::resume(&fake, &sandbox, timeout, memory, &hits).await.map_err(failed_to_place)?;
            StatusCode::CREATED
        }
        Phase::Running | Phase::Pausing | Phase::Resuming | Phase::Snapshotting => {
            // A running one keeps its time if that is longer, and has its files and its processes.
            let wanted = after(fake.clock.now(), timeout);
            let mut live = sandbox.live.lock();
            live.end_at = live.end_at.max(wanted);
            StatusCode::OK
        }
    };
    Ok((status, Json(spoil(opened_json(&fake, &sandbox), &hits))).into_response())
}

/// The answer about a sandbox that was opened, with what shall be wrong with it.
pub(super) fn spoil(mut opened: Value, hits: &Hits) -> Value {
    for what in hits.iter() {
        match what {
            What::OtherId => opened["sandboxID"] = json!(random_id()),
            What::WithoutAccessToken => {
                if let Some(fields) = opened.as_object_mut() {
                    fields.remove("envdAccessToken");
                }
            }
            _ => {}
        }
    }
    opened
}

#[expect(clippy::needless_pass_by_value, reason = "it is for `map_err`")]
pub(super) fn failed_to_place(error: std::io::Error) -> ApiError {
    ApiError::new(500, format!("Failed to place sandbox: {error}")).with_code("sandbox_create_failed")
}

pub(super) async fn resume(
    (State(fake), caller, Extension(hits), Path(id)): Arguments,
    body: Object,
) -> ApiResult<Response> {
    let timeout = timeout_of(&fake, body.number("timeout")?.unwrap_or(15))?;
    let sandbox = find(&fake, &caller, &id)?;
    let _turn = sandbox.turn.lock().await;
    find(&fake, &caller, &id)?;
    if sandbox.phase() != Phase::Paused {
        return Err(ApiError::new(409, format!("Sandbox {id} is already running")));
    }
    check_quota(&fake, &sandbox.account)?;
    lifecycle::resume(&fake, &sandbox, timeout, true, &hits).await.map_err(failed_to_place)?;
    Ok((StatusCode::CREATED, Json(spoil(opened_json(&fake, &sandbox), &hits))).into_response())
}

pub(super) async fn pause(
    (State(fake), caller, Extension(hits), Path(id)): Arguments,
    MaybeObject(body): MaybeObject,
) -> ApiResult<StatusCode> {
    let memory = body.boolean("memory")?.unwrap_or(true);
    let sandbox = find(&fake, &caller, &id)?;
    if sandbox.phase() == Phase::Snapshotting {
        return Err(ApiError::new(409, format!("Sandbox \"{id}\" cannot be paused while in 'snapshotting' state")));
    }
    let _turn = sandbox.turn.lock().await;
    find(&fake, &caller, &id)?;
    if sandbox.phase() == Phase::Paused {
        return Err(ApiError::new(409, format!("Sandbox \"{id}\" is already paused")));
    }
    lifecycle::pause(&fake, &sandbox, memory, &hits).await;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn kill((State(fake), caller, Extension(hits), Path(id)): Arguments) -> ApiResult<StatusCode> {
    let sandbox = find(&fake, &caller, &id)?;
    let sandbox = fake.remove(&sandbox.id).ok_or_else(|| ApiError::no_sandbox(&id))?;
    for what in hits.iter() {
        if let What::Resurrect { ms } = what {
            let (back, fake, ms) = (Arc::clone(&sandbox), Arc::downgrade(&fake), *ms);
            sandbox.guest.cut_streams(hits.open_streams().unwrap_or(Ending::Reset));
            let Some(now) = fake.upgrade() else { continue };
            now.tasks.spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                if let Some(fake) = fake.upgrade() {
                    come_back(&fake, back).await;
                }
            });
            return Ok(StatusCode::NO_CONTENT);
        }
    }
    let _turn = sandbox.turn.lock().await;
    lifecycle::destroy(&sandbox, hits.open_streams().unwrap_or(Ending::Reset)).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs again, as if a resume had been under way.
async fn come_back(fake: &Fake, sandbox: Arc<Sandbox>) {
    let _turn = sandbox.turn.lock().await;
    let timeout = sandbox.timeout;
    if sandbox.phase() == Phase::Paused {
        let _ = lifecycle::resume(fake, &sandbox, timeout, true, &Hits::default()).await;
    }
    fake.insert(Arc::clone(&sandbox));
}

pub(super) async fn set_timeout((State(fake), caller, _, Path(id)): Arguments, body: Object) -> ApiResult<StatusCode> {
    let seconds = body.number("timeout")?.unwrap_or_default();
    let seconds = u64::try_from(seconds).map_err(|_| ApiError::new(400, "timeout must not be negative"))?;
    let sandbox = find(&fake, &caller, &id)?;
    must_run(&sandbox, &id)?;
    set_end(&fake, &sandbox, Duration::from_secs(seconds), false)?;
    lifecycle::expire_due(&fake).await;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    (State(fake), caller, _, Path(id)): Arguments,
    MaybeObject(body): MaybeObject,
) -> ApiResult<StatusCode> {
    let duration = body.number("duration")?.unwrap_or(SHORTEST_REFRESH);
    if !(0..=LONGEST_REFRESH).contains(&duration) {
        return Err(ApiError::new(400, "duration must be between 0 and 3600"));
    }
    let seconds = u64::try_from(duration.max(SHORTEST_REFRESH)).unwrap_or_default();
    let sandbox = find(&fake, &caller, &id)?;
    must_run(&sandbox, &id)?;
    set_end(&fake, &sandbox, Duration::from_secs(seconds), true)?;
    Ok(StatusCode::NO_CONTENT)
}

fn must_run(sandbox: &Sandbox, id: &str) -> ApiResult<()> {
    match sandbox.phase() {
        Phase::Running => Ok(()),
        Phase::Paused | Phase::Resuming => Err(ApiError::no_sandbox(id)),
        Phase::Pausing | Phase::Snapshotting => {
            Err(ApiError::new(409, format!("Sandbox \"{id}\" is still transitioning")))
        }
    }
}

/// Sets when it ends, or only ever later. Never after the longest run that is allowed.
fn set_end(fake: &Fake, sandbox: &Sandbox, timeout: Duration, only_later: bool) -> ApiResult<()> {
    let now = fake.clock.now();
    let mut live = sandbox.live.lock();
    let last = after(live.started_at, fake.options.max_timeout);
    if last <= now {
        return Err(ApiError::new(400, "Max instance length exceeded"));
    }
    let end = after(now, timeout).min(last);
    live.end_at = if only_later { live.end_at.max(end) } else { end };
    Ok(())
}
