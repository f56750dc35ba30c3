//! Looks after what services that ended without a shutdown have left.

use std::sync::Arc;

use futures::StreamExt;
use tokio::time::MissedTickBehavior;

use super::core::Core;
use crate::{
    backend::{FoundState, FoundWorkspace, Leftover},
    error::Result,
};

impl Core {
    /// Looks after the backend's things from time to time, beginning now. Where replicas share an engine, what one of them
    /// finds running may be another one's.
    pub(super) fn start_housekeeping(self: &Arc<Self>) {
        if !self.settings.housekeeping || !self.backend.capabilities().node_bound {
            return;
        }
        let core = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut ticks = tokio::time::interval(core.settings.sweep_interval);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = core.stop.cancelled() => return,
                    _ = ticks.tick() => {}
                }
                tokio::select! {
                    () = core.stop.cancelled() => return,
                    kept = core.keep_house() => if let Err(error) = kept {
                        tracing::warn!(error = %error.report(), "could not look after what earlier services left");
                    }
                }
            }
        });
    }

    async fn keep_house(self: &Arc<Self>) -> Result<()> {
        let abandoned = self.backend.list().filter_map(async |found| match found {
            Ok(found) => (found.state == FoundState::Running && found.is_abandoned).then_some(found),
            Err(error) => {
                tracing::warn!(error = %error.report(), "the list of what earlier services left is not complete");
                None
            }
        });
        abandoned
            .for_each_concurrent(self.settings.max_provisioning, async |FoundWorkspace { id, owner, .. }| {
                // The lease ends at once, and the idle time begins.
                if let Err(error) = self.miss_started(&id, owner, None).await {
                    tracing::warn!(workspace_id = %id, error = %error.report(), "could not take over what runs for nobody");
                }
            })
            .await;
        for leftover in self.backend.leftovers().await? {
            self.remove(&leftover).await;
        }
        Ok(())
    }

    async fn remove(&self, leftover: &Leftover) {
        let Leftover { kind, name, reason, .. } = leftover;
        let removal = self.backend.remove_leftover(leftover);
        match self.within(self.settings.suspend_timeout, "remove_leftover", removal).await {
            Ok(true) => tracing::info!(%kind, name, reason, "removed a leftover"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%kind, name, error = %error.report(), "a leftover could not be removed"),
        }
    }
}
