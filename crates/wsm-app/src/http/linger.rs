//! Lets a client that is refused in the middle of an upload hear why.
//!
//! A connection that is closed while the client still sends is reset, and the answer is lost with it. So what a handler
//! left of a body is read on for a while, and thrown away.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, HttpBody},
    extract::Request,
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::runtime::Handle;

use crate::app::{AppState, SharedState};

/// For how long a client may go on sending.
const TIME: Duration = Duration::from_secs(10);

pub(super) async fn linger(request: Request, next: Next) -> Response {
    let state = request.extensions().get::<SharedState>().map(|state| Arc::clone(&state.0));
    let request = match state {
        Some(state) if !request.body().is_end_stream() => {
            request.map(|body| Body::from_stream(Lingering { rest: Some(body.into_data_stream()), state }))
        }
        _ => request,
    };
    next.run(request).await
}

/// A body that is read on after it is dropped.
struct Lingering {
    rest: Option<BodyDataStream>,
    state: Arc<AppState>,
}

impl Stream for Lingering {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let next = std::task::ready!(rest.poll_next_unpin(context));
        if !matches!(next, Some(Ok(_))) {
            self.rest = None;
        }
        Poll::Ready(next)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let (Some(mut rest), Ok(runtime)) = (self.rest.take(), Handle::try_current()) else { return };
        let stopping = self.state.stopping.clone();
        let reading = async move { while let Some(Ok(_)) = rest.next().await {} };
        let work = async move {
            // Whether the client came to its end or not, nothing depends on it.
            let _ = tokio::time::timeout(TIME, stopping.run_until_cancelled(reading)).await;
        };
        self.state.service.in_background(work, &runtime);
    }
}
