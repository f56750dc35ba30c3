//! Bodies of clients that stop half way, or that are refused while they still send.
//!
//! A client that sends nothing more holds what its request holds, so after a while its body counts as broken off.
//!
//! A connection that is closed while the client still sends is reset, and the answer that tells why is lost with it. So
//! what a handler left of a body is read on for a while, and thrown away.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
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
use http::header;
use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep},
};

use crate::app::{AppState, SharedState};

/// For how long a refused client may go on sending.
const LINGER: Duration = Duration::from_secs(10);

pub(super) async fn watch(request: Request, next: Next) -> Response {
    let state = request.extensions().get::<SharedState>().map(|state| Arc::clone(&state.0));
    let request = match state {
        Some(state) if !request.body().is_end_stream() => {
            let unasked = request.headers().contains_key(header::EXPECT);
            request.map(|body| Body::from_stream(Watched::new(body, state, unasked)))
        }
        _ => request,
    };
    next.run(request).await
}

/// A body that breaks off when it pauses for too long, and is read on when it is dropped.
struct Watched {
    rest: Option<BodyDataStream>,
    state: Arc<AppState>,
    /// The end of the pause; counts while somebody waits for the client, and not while nobody reads.
    pause: Pin<Box<Sleep>>,
    waiting: bool,
    /// Whether the client waits to be asked for the body. Reading it is asking for it.
    unasked: bool,
}

impl Watched {
    fn new(body: Body, state: Arc<AppState>, unasked: bool) -> Self {
        let pause = Box::pin(sleep(state.limits.max_body_pause));
        Self { rest: Some(body.into_data_stream()), state, pause, waiting: false, unasked }
    }
}

impl Stream for Watched {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.unasked = false;
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        if let Poll::Ready(next) = rest.poll_next_unpin(context) {
            self.waiting = false;
            if !matches!(next, Some(Ok(_))) {
                self.rest = None;
            }
            return Poll::Ready(next);
        }
        let pause = self.state.limits.max_body_pause;
        if !self.waiting {
            self.waiting = true;
            self.pause.as_mut().reset(Instant::now() + pause);
        }
        ready!(self.pause.as_mut().poll(context));
        self.rest = None;
        let message = format!("nothing came for {}", humantime::format_duration(pause));
        Poll::Ready(Some(Err(axum::Error::new(std::io::Error::new(std::io::ErrorKind::TimedOut, message)))))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.unasked {
            return;
        }
        let (Some(mut rest), Ok(runtime)) = (self.rest.take(), Handle::try_current()) else { return };
        let stopping = self.state.stopping.clone();
        let reading = async move { while let Some(Ok(_)) = rest.next().await {} };
        let work = async move {
            // Whether the client came to its end or not, nothing depends on it.
            let _ = tokio::time::timeout(LINGER, stopping.run_until_cancelled(reading)).await;
        };
        self.state.service.in_background(work, &runtime);
    }
}
