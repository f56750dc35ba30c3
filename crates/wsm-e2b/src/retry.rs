//! Which failed requests are tried again, and when. Pure but for the waiting.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Failure, is_quota};

/// How often a request is tried at most.
const MOST_TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What a request may do when it is carried out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Nothing more: GET, DELETE, connect, set timeout, refresh, and a create with its key.
    Harmless,
    /// Something: whoever asks must look first. A create without a key, a pause.
    LookFirst,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing but tell it.
    GiveUp,
    /// Try again after this long, or after the usual pause.
    Again(Option<Duration>),
}

/// Judges a failure by its class.
pub(crate) fn judge(failure: &Failure, repeat: Repeat) -> Verdict {
    let answer = match failure {
        Failure::Unreachable(_) => return Verdict::Again(None),
        // It may have been carried out.
        Failure::NoAnswer(_) | Failure::Garbled(_) => {
            return match repeat {
                Repeat::Harmless => Verdict::Again(None),
                Repeat::LookFirst => Verdict::GiveUp,
            };
        }
        Failure::Answer(answer) => answer,
    };
    // Time alone does not end a quota: somebody must put something away.
    if answer.status == 429 && is_quota(&answer.message) {
        return Verdict::GiveUp;
    }
    match answer.should_retry {
        Some(true) => return Verdict::Again(answer.retry_after),
        Some(false) => return Verdict::GiveUp,
        None => {}
    }
    let is_worth_it = match answer.status {
        429 | 502 | 503 => true,
        // Something behind went on without us: it may have been carried out.
        504 => repeat == Repeat::Harmless,
        500 => {
            answer.code != "sandbox_create_refused"
                && (repeat == Repeat::Harmless
                    || answer.code == "sandbox_create_failed"
                    || answer.message.starts_with("Failed to place sandbox"))
        }
        409 => answer.code == "idempotency_in_progress" || answer.code == "sandbox_start_in_flight",
        _ => false,
    };
    if is_worth_it { Verdict::Again(answer.retry_after) } else { Verdict::GiveUp }
}

/// How long the usual pause is after so many tries, before chance shortens it.
fn pause_after(tries: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE)
}

/// The tries and the time that are left of one call.
#[derive(Debug)]
pub(crate) struct Budget {
    tries: u32,
    deadline: Instant,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { tries: 0, deadline: Instant::now() + limit }
    }

    /// The time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Waits before the next try. False when there is to be none: the tries are used up, or the time would be.
    pub(crate) async fn again(&mut self, after: Option<Duration>) -> bool {
        self.tries += 1;
        if self.tries >= MOST_TRIES {
            return false;
        }
        let usual = pause_after(self.tries - 1).mul_f64(rand::random_range(0.5..1.0));
        let pause = after.unwrap_or(usual);
        if pause >= self.left() {
            return false;
        }
        sleep(pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Answer;

    fn answer(status: u16, code: &str, message: &str) -> Failure {
        Failure::Answer(Answer { status, code: code.into(), message: message.into(), ..Answer::default() })
    }

    #[test]
    fn failures_are_judged_by_their_class() {
        let again = Verdict::Again(None);
        for (failure, harmless, look_first) in [
            (answer(400, "", ""), Verdict::GiveUp, Verdict::GiveUp),
            (answer(401, "", ""), Verdict::GiveUp, Verdict::GiveUp),
            (answer(404, "", ""), Verdict::GiveUp, Verdict::GiveUp),
            (answer(429, "", "slow down"), again, again),
            (
                answer(429, "", "you have reached the maximum number of concurrent E2B sandboxes"),
                Verdict::GiveUp,
                Verdict::GiveUp,
            ),
            (answer(500, "", "boom"), again, Verdict::GiveUp),
            (answer(500, "sandbox_create_failed", ""), again, again),
            (answer(500, "sandbox_create_refused", ""), Verdict::GiveUp, Verdict::GiveUp),
            (answer(500, "", "Failed to place sandbox: no"), again, again),
            (answer(502, "", ""), again, again),
            (answer(504, "", "upstream request timeout"), again, Verdict::GiveUp),
            (answer(409, "idempotency_in_progress", ""), again, again),
            (answer(409, "", "is being killed"), Verdict::GiveUp, Verdict::GiveUp),
        ] {
            assert_eq!(judge(&failure, Repeat::Harmless), harmless, "{failure:?}");
            assert_eq!(judge(&failure, Repeat::LookFirst), look_first, "{failure:?}");
        }
    }

    #[test]
    fn the_server_has_the_last_word() {
        let told = |status, should_retry| {
            let retry_after = Some(Duration::from_secs(3));
            let answer = Answer { status, should_retry: Some(should_retry), retry_after, ..Answer::default() };
            judge(&Failure::Answer(answer), Repeat::LookFirst)
        };
        assert_eq!(told(400, true), Verdict::Again(Some(Duration::from_secs(3))));
        assert_eq!(told(503, false), Verdict::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_and_time_are_bounded() {
        let mut budget = Budget::new(Duration::from_secs(60));
        let mut tries = 1;
        while budget.again(None).await {
            tries += 1;
        }
        assert_eq!(tries, MOST_TRIES);
        assert!(!Budget::new(Duration::from_secs(5)).again(Some(Duration::from_secs(9))).await);
    }
}
