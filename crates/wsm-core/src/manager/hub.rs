//! Passes events on to whoever wants to hear them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use futures::{StreamExt, stream};
use tokio::sync::broadcast;

use crate::{
    error::Error,
    event::{Event, EventKind, EventListener, EventStream},
    id::WorkspaceId,
};

/// How many events a slow subscriber may lag behind before it misses the oldest.
const BACKLOG: usize = 1024;

#[derive(Debug)]
pub(super) struct Hub {
    listeners: Vec<Arc<dyn EventListener>>,
    subscribers: broadcast::Sender<Event>,
}

impl Hub {
    pub(super) fn new(listeners: Vec<Arc<dyn EventListener>>) -> Self {
        Self { listeners, subscribers: broadcast::Sender::new(BACKLOG) }
    }

    pub(super) fn hit(&self, id: &WorkspaceId) {
        self.tell(|listener| listener.hit(id));
    }

    /// A listener is somebody else's code, called in the middle of what must come to its end: its panic stays here.
    fn tell(&self, news: impl Fn(&dyn EventListener)) {
        for listener in &self.listeners {
            if catch_unwind(AssertUnwindSafe(|| news(&**listener))).is_err() {
                tracing::error!(?listener, "a listener of workspace events panicked");
            }
        }
    }

    pub(super) fn send(&self, id: &WorkspaceId, kind: EventKind) {
        match &kind {
            EventKind::Failed { operation, error } => {
                tracing::warn!(workspace_id = %id, operation, error, "operation failed");
            }
            EventKind::Progress { step } => tracing::debug!(workspace_id = %id, ?step, "an opening goes on"),
            kind => tracing::info!(workspace_id = %id, ?kind, "workspace event"),
        }
        let event = Event::now(id.clone(), kind);
        self.tell(|listener| listener.event(&event));
        // No subscriber is no error.
        let _ = self.subscribers.send(event);
    }

    pub(super) fn failed(&self, id: &WorkspaceId, operation: &'static str, error: &Error) {
        self.send(id, EventKind::Failed { operation, error: error.report().to_string() });
    }

    pub(super) fn subscribe(&self) -> EventStream {
        stream::unfold(self.subscribers.subscribe(), async |mut events| {
            loop {
                match events.recv().await {
                    Ok(event) => return Some((event, events)),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "a subscriber of workspace events is too slow");
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        })
        .boxed()
    }
}
