//! Points in time that fit an atomic.

use std::time::Duration;

use tokio::time::Instant;

/// Counts nanoseconds of tokio's clock from its own creation. Follows a paused clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    base: Instant,
}

/// About a century.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Later than any time.
pub(super) const NEVER: u64 = u64::MAX;

impl Clock {
    pub(super) fn new() -> Self {
        Self { base: Instant::now() }
    }

    pub(super) fn now(&self) -> u64 {
        nanos(self.base.elapsed())
    }
}

/// The point in time this long after `since`, or never.
pub(super) fn until(since: u64, duration: Option<Duration>) -> u64 {
    duration.map_or(NEVER, |duration| since.saturating_add(nanos(duration)))
}

/// The point in time this long from now, or one that nobody lives to see.
pub(super) fn deadline(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR)
}

/// A duration as nanoseconds, 584 years at most.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}
