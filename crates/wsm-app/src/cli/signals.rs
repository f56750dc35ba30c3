//! The signals that ask this process to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears `SIGINT`, `SIGTERM` and `SIGHUP`. From its making on they no longer end the process by themselves.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses no signal.
    pub(super) async fn next(&mut self) -> wsm_core::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => wsm_core::Signal::Interrupt,
            _ = self.terminate.recv() => wsm_core::Signal::Terminate,
            _ = self.hangup.recv() => wsm_core::Signal::Hangup,
        }
    }
}

/// What a process that a signal ended exits with.
pub(super) fn exit_code(signal: wsm_core::Signal) -> u8 {
    u8::try_from(128 + signal.number()).unwrap_or(u8::MAX)
}
