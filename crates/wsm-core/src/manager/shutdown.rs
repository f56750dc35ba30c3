//! Closing everything, and the end.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{CloseOptions, CloseReport, clock::deadline, core::Core, slot::State};
use crate::{
    error::{Error, ErrorKind},
    event::EvictReason,
};

impl Core {
    /// Closes every cached workspace, many at once.
    ///
    /// Waiting for uses to end costs nothing, so all wait side by side; only the putting away is bounded.
    pub(super) async fn close_all(self: &Arc<Self>, options: CloseOptions, reason: EvictReason) -> CloseReport {
        let deadline = deadline(options.wait);
        let (unused, used): (Vec<_>, Vec<_>) = self
            .roster
            .all()
            .into_iter()
            .partition(|slot| slot.live.load().as_ref().is_none_or(|epoch| epoch.leases() == 0));
        let close = |slot: Arc<super::slot::Slot>| {
            let core = Arc::clone(self);
            async move {
                let wait = deadline.saturating_duration_since(Instant::now());
                let result = core.close(&slot.id, options.with_wait(wait), reason).await;
                (slot.id.clone(), result)
            }
        };
        // Those in use wait for their deadline together; a bound here would let the first keep the last from waiting.
        let (first, second) = tokio::join!(
            stream::iter(unused).map(close).buffer_unordered(self.settings.max_suspending).collect::<Vec<_>>(),
            stream::iter(used).map(close).buffer_unordered(usize::MAX).collect::<Vec<_>>(),
        );
        let mut report = CloseReport::default();
        for (id, result) in first.into_iter().chain(second) {
            match result {
                Ok(closed) => report.closed += usize::from(closed),
                Err(error) => report.failed.push((id, error)),
            }
        }
        report
    }

    /// Refuses new requests, waits for uses to end until the deadline, puts everything away, and ends every task.
    pub(super) async fn shutdown(self: &Arc<Self>, deadline: Duration) -> CloseReport {
        self.begin_closing();
        self.stop.cancel();
        self.buffer.clear();
        let options = CloseOptions::default().with_force(true);
        let mut report = self.close_all_within(options.with_wait(deadline)).await;
        self.abort.cancel();
        self.tasks.close();
        if tokio::time::timeout(self.settings.suspend_timeout, self.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.tasks.len(), "tasks of the workspace manager did not end in time");
        }
        // What an opening that was broken off has left, and what could not be put away at the first attempt.
        let second = self.close_all_within(options).await;
        report.closed += second.closed;
        report.failed = second.failed;
        for slot in self.roster.all() {
            if matches!(&*slot.lock(), State::Doubtful(doubt) if doubt.is_news_only()) {
                continue;
            }
            if !report.failed.iter().any(|(id, _)| *id == slot.id) {
                let error = Error::new(ErrorKind::Timeout, "not put away before the deadline of the shutdown");
                report.failed.push((slot.id.clone(), error));
            }
        }
        report
    }

    /// Like [`close_all`](Self::close_all), but ends whatever the engine does: the uses have their deadline, and so has
    /// the putting away. One attempt of that may have been under way already; the second is its own.
    async fn close_all_within(self: &Arc<Self>, options: CloseOptions) -> CloseReport {
        let limit = options.wait.saturating_add(self.settings.suspend_timeout.saturating_mul(2));
        tokio::time::timeout(limit, self.close_all(options, EvictReason::Shutdown)).await.unwrap_or_default()
    }
}
