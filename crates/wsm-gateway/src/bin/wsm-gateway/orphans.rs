//! What the first process of a sandbox owes to the others: taking away those whose parents have gone.

use std::{sync::Arc, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use wsm_core::{Error, ErrorKind, Result};
use wsm_host::{Launcher, blocking};

/// How soon to look again when a command was in the way whose end its own task is about to see.
const PAUSE: Duration = Duration::from_millis(20);

/// Reaps orphans for as long as it runs.
#[derive(Debug)]
pub(crate) struct Reaper {
    launcher: Arc<Launcher>,
    /// Says that some child has ended. Signals are merged and anybody may send one, so it only means: look.
    ended: Signal,
}

impl Reaper {
    /// Hears of every end from now on.
    ///
    /// # Errors
    ///
    /// When the signal can not be caught.
    pub(crate) fn new(launcher: Arc<Launcher>) -> Result<Self> {
        let ended = signal(SignalKind::child())
            .map_err(|cause| Error::new(ErrorKind::Backend, "can not hear of ended children").with_source(cause))?;
        Ok(Self { launcher, ended })
    }

    /// Never ends by itself.
    ///
    /// # Cancel safety
    ///
    /// What was reaped is reaped; nothing else happens.
    pub(crate) async fn run(&mut self) {
        loop {
            let launcher = Arc::clone(&self.launcher);
            // It waits for commands that are being started, so it must not hold up the runtime.
            match blocking(move || Ok(launcher.reap_orphans())).await {
                Ok(true) => {
                    self.ended.recv().await;
                }
                Ok(false) | Err(_) => sleep(PAUSE).await,
            }
        }
    }
}
