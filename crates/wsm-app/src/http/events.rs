//! What happens to workspaces, as it happens.

use axum::response::{IntoResponse, Response};
use futures::StreamExt;

use super::{
    Problem,
    extract::{Operator, Started},
    sse,
};
use crate::metrics::name_of;

/// Streams the manager's events from now on.
///
/// Each event's name is what happened (`opened`, `suspended`, `detached`, `died`, `destroyed`, `failed`), and its data
/// are `at` (seconds since 1970), `workspace_id` and what belongs to it. A client that reads too slowly misses some.
#[utoipa::path(
    get, path = "/events", tag = "admin",
    responses((status = 200, description = "Events until the client goes away or the service stops.", body = String, content_type = "text/event-stream"))
)]
pub(super) async fn events(_: Operator, Started(app): Started) -> Result<Response, Problem> {
    let events = app.service.manager().subscribe().map(|event| {
        let body = serde_json::to_value(&event).unwrap_or_default();
        let name = body.get("event").map(name_of).unwrap_or_default();
        sse::event(&name, &body)
    });
    // A manager without events leaves the stream open, like one in which nothing happens.
    let events = events.chain(futures::stream::pending());
    let stopping = app.stopping.clone();
    Ok(sse::stream(events.take_until(stopping.cancelled_owned())).into_response())
}
