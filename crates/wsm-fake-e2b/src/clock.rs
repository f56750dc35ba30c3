//! The time of the fake: the machine's, moved forward by whoever tests.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    ahead: Mutex<Duration>,
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        after(Timestamp::now(), *self.ahead.lock())
    }

    pub(crate) fn advance(&self, by: Duration) {
        let mut ahead = self.ahead.lock();
        *ahead = ahead.saturating_add(by);
    }
}

/// A moment some time after another; the last one there is when there is none so late.
pub(crate) fn after(start: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    start.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// As the control plane writes times: with milliseconds, in UTC.
pub(crate) fn shown(time: Timestamp) -> String {
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        let time: Timestamp = "2026-01-02T03:04:05.678901Z".parse().unwrap();
        assert_eq!(shown(time), "2026-01-02T03:04:05.678Z");
    }

    #[test]
    fn a_clock_goes_forward() {
        let clock = Clock::default();
        let before = clock.now();
        clock.advance(Duration::from_secs(3600));
        assert!(clock.now() > after(before, Duration::from_secs(3599)));
    }
}
