//! Around every request: its id, a span, its latency, and the last word on errors.

use std::any::Any;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;
use tracing::Instrument;

use super::{Problem, REQUEST_ID_HEADER};
use crate::app::SharedState;

/// The longest request id that is taken over from a client.
const MAX_REQUEST_ID_BYTES: usize = 128;

pub(super) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&request);
    let id_text = id.to_str().unwrap_or_default().to_owned();
    let method = request.method().clone();
    // The route's pattern: the path itself names files, and the query may carry a token.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let metrics = request.extensions().get::<SharedState>().map(|state| state.0.metrics.clone());
    let span = tracing::info_span!("request", %method, route, request_id = %id_text);
    let mut response = next.run(request).instrument(span.clone()).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        // axum adds the methods that a route does have.
        let allow = response.headers_mut().remove(http::header::ALLOW);
        response = problem.answer(&id_text);
        if let Some(allow) = allow {
            response.headers_mut().insert(http::header::ALLOW, allow);
        }
    }
    response.headers_mut().insert(REQUEST_ID_HEADER, id);
    let took = started.elapsed();
    if let Some(metrics) = metrics {
        metrics.request(&method, route, response.status(), took);
    }
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), ?took, "answered"));
    response
}

/// The client's own id where it is fit for a log line, else a fresh one.
fn request_id(request: &Request) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        (1..=MAX_REQUEST_ID_BYTES).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    let fresh = || {
        let mut buffer = [0; uuid::fmt::Simple::LENGTH];
        let text = uuid::Uuid::new_v4().simple().encode_lower(&mut buffer);
        HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    };
    request.headers().get(REQUEST_ID_HEADER).filter(fits).cloned().unwrap_or_else(fresh)
}

/// Answers for a handler that panicked. What it said goes to the log only.
#[expect(clippy::needless_pass_by_value, reason = "the layer asks for this signature")]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = said.unwrap_or("(no text)"), "a request handler panicked");
    let detail = "the service failed: its log says more under the request's id";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal", detail).into_response()
}
