//! Streams of events, as [`text/event-stream`](https://html.spec.whatwg.org/multipage/server-sent-events.html).

use std::{convert::Infallible, time::Duration};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt};
use http::{HeaderMap, header};
use serde::Serialize;

/// How often a silent stream gives a sign of life, so that no proxy gives it up.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An event with a JSON body.
pub(super) fn event(name: &str, body: &impl Serialize) -> Event {
    // Our bodies are structs of texts and numbers, which can always be written.
    Event::default().event(name).json_data(body).unwrap_or_default()
}

/// The answer that streams these events.
pub(super) fn stream<S>(events: S) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send>
where
    S: Stream<Item = Event> + Send + 'static,
{
    Sse::new(events.map(Ok)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// Whether a client asks for a stream of events.
pub(super) fn is_asked_for(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts
        .flat_map(|value| value.split(','))
        .any(|part| part.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("text/event-stream")))
}
