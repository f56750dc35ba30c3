//! Lists of sandboxes, page by page.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{ApiError, Caller, error::ApiResult, listed_json, visible_state};
use crate::{
    fault::{Hits, What},
    metadata,
    state::{Fake, Phase, Sandbox},
};

type Parameters = Query<HashMap<String, String>>;

/// What the next page begins after, when that is the first one again.
const FIRST_PAGE: &str = "first";

/// Where in the order a sandbox is: the microseconds of its start, and its id.
type Place = (i64, String);

pub(super) async fn list(
    State(fake): State<Arc<Fake>>,
    Extension(Caller(account)): Extension<Caller>,
    Extension(hits): Extension<Hits>,
    Query(query): Parameters,
) -> ApiResult<Response> {
    let states = match query.get("state").map(String::as_str).unwrap_or_default() {
        "" => vec!["running", "paused"],
        states => states.split(',').collect(),
    };
    if let Some(unknown) = states.iter().find(|state| !["running", "paused"].contains(state)) {
        return Err(ApiError::new(400, format!("Invalid state: {unknown}")));
    }
    let limit = match query.get("limit").map(|limit| limit.parse::<usize>()) {
        None => fake.options.max_page,
        Some(Ok(limit)) if limit > 0 => limit.min(fake.options.max_page),
        Some(_) => return Err(ApiError::new(400, "Invalid limit: must be at least 1")),
    };
    let is_ascending = match query.get("order").map(String::as_str) {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(other) => return Err(ApiError::new(400, format!("Invalid order: {other}"))),
    };
    let started_after = match query.get("startedAfter").map(|time| time.parse::<Timestamp>()) {
        None => None,
        Some(Ok(time)) => Some(time),
        Some(Err(error)) => return Err(ApiError::new(400, format!("Invalid startedAfter: {error}"))),
    };
    let template = query.get("template");
    if template.is_some_and(|template| template.contains(':')) {
        return Err(ApiError::new(400, "Invalid template: a tag is not allowed"));
    }
    let wanted = query.get("metadata").map(|value| metadata::filter(value, fake.options.metadata_decodings));
    let wanted = wanted.unwrap_or_default();
    let is_wanted = |sandbox: &Arc<Sandbox>| {
        let live = sandbox.live.lock();
        sandbox.account == account
            && live.phase != Phase::Snapshotting
            && states.contains(&visible_state(live.phase))
            && started_after.is_none_or(|time| live.started_at.as_microsecond() >= time.as_microsecond())
            && template.is_none_or(|template| *template == sandbox.template)
            && wanted.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value))
    };
    let mut found: Vec<(Place, Arc<Sandbox>)> =
        fake.all().into_iter().filter(is_wanted).map(|sandbox| (place(&sandbox), sandbox)).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    if !is_ascending {
        found.reverse();
    }
    let running = found.iter().filter(|(_, sandbox)| visible_state(sandbox.phase()) == "running").count();
    let token = query.get("nextToken").map(String::as_str).unwrap_or_default();
    if !matches!(token, "" | FIRST_PAGE) {
        let last = read_token(token).ok_or_else(|| ApiError::new(400, "Invalid next token"))?;
        found.retain(|(place, _)| if is_ascending { *place > last } else { *place < last });
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|(place, _)| write_token(place));
    let page = found.iter().map(|(_, sandbox)| listed_json(&fake, sandbox)).collect();
    let (page, next) = spoil(&hits, page, next, token);
    let mut response = Json(page).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", next);
    }
    if states.contains(&"running") {
        response.headers_mut().insert("x-total-running", HeaderValue::from(running));
    }
    Ok(response)
}

fn spoil(hits: &Hits, mut page: Vec<Value>, mut next: Option<String>, token: &str) -> (Vec<Value>, Option<String>) {
    for what in hits.iter() {
        match what {
            What::EmptyList => (page, next) = (Vec::new(), None),
            What::WithoutNextToken => next = None,
            What::RepeatNextToken => next = Some(if token.is_empty() { FIRST_PAGE } else { token }.to_owned()),
            What::ReverseList => page.reverse(),
            What::HideFromList { id } => page.retain(|sandbox| sandbox["sandboxID"] != **id),
            _ => {}
        }
    }
    (page, next)
}

/// The old one: running ones only, without pages.
pub(super) async fn list_v1(
    State(fake): State<Arc<Fake>>,
    Extension(Caller(account)): Extension<Caller>,
    Extension(hits): Extension<Hits>,
    Query(query): Parameters,
) -> Json<Value> {
    let wanted = query.get("metadata").map(|value| metadata::filter(value, fake.options.metadata_decodings));
    let wanted = wanted.unwrap_or_default();
    let is_wanted = |sandbox: &Arc<Sandbox>| {
        sandbox.account == account
            && sandbox.phase() == Phase::Running
            && wanted.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value))
    };
    let found = fake.all().into_iter().filter(is_wanted);
    let page = found.map(|sandbox| listed_json(&fake, &sandbox)).collect();
    Json(json!(spoil(&hits, page, None, "").0))
}

fn place(sandbox: &Sandbox) -> Place {
    (sandbox.live.lock().started_at.as_microsecond(), sandbox.id.clone())
}

fn write_token((started, id): &Place) -> String {
    URL_SAFE_NO_PAD.encode(format!("{started}__{id}"))
}

fn read_token(token: &str) -> Option<Place> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (started, id) = text.split_once("__")?;
    Some((started.parse().ok()?, id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let place = (1_700_000_000_000_001, "iabc".to_owned());
        assert_eq!(read_token(&write_token(&place)), Some(place));
        assert_eq!(read_token("nonsense"), None);
    }
}
