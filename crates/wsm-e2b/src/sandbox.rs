//! One attached sandbox: whether it lives, how long it has, and what is done when its daemon can not be reached.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wsm_core::{Cause, Error, ErrorKind, Result, Retry, Variables, WorkspaceInfo};

use crate::{
    KIND,
    control::{Control, LONGEST_REFRESH},
    envd::{As, Daemon, Ran},
    error::{Failure, control, daemon, is_quota},
    guest,
};

/// For how long a daemon that does not answer is asked again, while its sandbox is said to run.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between the two answers that make "no such sandbox" definite.
pub(crate) const SECOND_LOOK: Duration = Duration::from_secs(1);
/// What a sandbox has left at least when a command with a time limit has used that up.
const MARGIN: Duration = Duration::from_secs(60);
/// How long a command waits at most for its sandbox's end to be put off.
const EXTENSION_LIMIT: Duration = Duration::from_secs(5);
/// How long our own small commands may take.
pub(crate) const SCRIPT_LIMIT: Duration = Duration::from_secs(30);
/// How many tenths of a second what is ended has to end by itself.
const GRACE_TENTHS: &str = "20";

/// Why an opening of a workspace is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    PutAway,
    LetGo,
    Destroyed,
    Died(Cause),
}

/// Whether an opening is over.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) sandbox: String,
    token: CancellationToken,
    end: Mutex<Option<End>>,
}

impl Life {
    pub(crate) fn new(sandbox: String) -> Self {
        Self { sandbox, token: CancellationToken::new(), end: Mutex::new(None) }
    }

    /// Ends it, unless it is over already.
    pub(crate) fn finish(&self, end: End) {
        self.end.lock().get_or_insert(end);
        self.token.cancel();
    }

    pub(crate) fn end(&self) -> Option<End> {
        *self.end.lock()
    }

    pub(crate) async fn over(&self) {
        self.token.cancelled().await;
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.end() {
            None => Ok(()),
            Some(end) => Err(gone(end)),
        }
    }
}

pub(crate) fn gone(end: End) -> Error {
    let why = match end {
        End::PutAway => "was put away",
        End::LetGo => "was let go",
        End::Destroyed => "was destroyed",
        End::Died(Cause::Suspended) => "was paused, by its own timeout or by somebody else",
        End::Died(_) => "is not there any more",
    };
    Error::new(ErrorKind::Gone, format!("the workspace's sandbox {why}: open it again")).with_backend(KIND)
}

/// Why a call to a daemon did not succeed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The daemon has answered, with a refusal.
    Answered(Failure),
    /// It could not be asked; this is what there is to say.
    Failed(Error),
}

impl Trouble {
    pub(crate) fn or_daemon(self, doing: &str) -> Error {
        match self {
            Self::Answered(failure) => refused(&failure, doing),
            Self::Failed(error) => error,
        }
    }
}

/// What the daemon's refusal is; a user that it does not know is a matter of the configuration.
pub(crate) fn refused(failure: &Failure, doing: &str) -> Error {
    let error = daemon(failure, doing);
    match failure {
        Failure::Answer(answer)
            if answer.message.contains("invalid username") || answer.message.contains("unknown user") =>
        {
            Error::invalid("user", format!("the template does not have the user that `user` names: {}", answer.message))
                .with_backend(KIND)
        }
        _ => error,
    }
}

/// What is known of a request after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The daemon has answered.
    Answered,
    /// It has not got the request.
    NotSent,
    /// It may have got it; the proxy could not tell.
    Doubtful,
    /// It may have got it: the connection broke off.
    Broken,
}

impl Reach {
    pub(crate) fn of(failure: &Failure) -> Self {
        let answer = match failure {
            Failure::Unreachable(_) => return Self::NotSent,
            Failure::NoAnswer(_) | Failure::Garbled(_) => return Self::Broken,
            Failure::Answer(answer) => answer,
        };
        let said = answer.message.to_ascii_lowercase();
        match answer.status {
            409 if said.contains("transition") => Self::NotSent,
            429 if said.contains("concurrent incoming connections") => Self::NotSent,
            502 if said.contains("was not found") || said.contains("failed to route") => Self::NotSent,
            // Something before the sandbox could not reach it, most likely.
            502 => Self::Doubtful,
            // Something behind goes on without us.
            503 | 504 => Self::Broken,
            // In a stream that has begun: it was cut off, by a pause or a kill.
            0 if matches!(answer.code(), "canceled" | "unavailable") => Self::Broken,
            _ => Self::Answered,
        }
    }
}

/// What the service says of a sandbox whose daemon does not answer.
pub(crate) enum Standing {
    Runs,
    Gone(End),
    Unknown(Error),
}

/// What an attached sandbox is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) id: String,
    pub(crate) control: Control,
    pub(crate) daemon: Daemon,
    pub(crate) env: Arc<Variables>,
    pub(crate) timeout: Duration,
}

/// An attached sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) control: Control,
    pub(crate) daemon: Daemon,
    pub(crate) env: Arc<Variables>,
    pub(crate) timeout: Duration,
    pub(crate) life: Arc<Life>,
    /// Commands that run, and what ends them.
    pub(crate) tasks: TaskTracker,
    ends: Mutex<Instant>,
    has_no_root: AtomicBool,
}

impl Sandbox {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { id, control, daemon, env, timeout } = parts;
        let life = Arc::new(Life::new(id.clone()));
        let ends = Mutex::new(Instant::now() + timeout);
        let (tasks, has_no_root) = (TaskTracker::new(), AtomicBool::new(false));
        Self { id, control, daemon, env, timeout, life, tasks, ends, has_no_root }
    }

    /// Asks the service. What it finds to be over is over for everybody who holds this opening.
    pub(crate) async fn standing(&self) -> Standing {
        if let Some(end) = self.life.end() {
            return Standing::Gone(end);
        }
        let end = match self.control.get_surely(&self.id, SECOND_LOOK).await {
            Ok(Some(found)) if found.is_running => return Standing::Runs,
            Ok(Some(_)) => End::Died(Cause::Suspended),
            Ok(None) => End::Died(Cause::Deleted),
            Err(error) => return Standing::Unknown(error),
        };
        self.life.finish(end);
        Standing::Gone(self.life.end().unwrap_or(end))
    }

    /// Waits for something, unless the workspace is over before.
    pub(crate) async fn while_alive<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.life.check()?;
        tokio::select! {
            biased;
            () = self.life.over() => Err(self.life.end().map_or_else(|| gone(End::PutAway), gone)),
            done = work => Ok(done),
        }
    }

    /// Makes a call that may be made again, until the daemon answers, the sandbox is gone, or patience is.
    ///
    /// # Cancel safety
    ///
    /// That of the call.
    pub(crate) async fn repeat<T, F>(&self, call: impl Fn() -> F) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut patience = Patience::new();
        loop {
            let failure = match self.while_alive(call()).await.map_err(Trouble::Failed)? {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if let Failure::Answer(answer) = &failure
                && answer.status == 429
                && is_quota(&answer.message)
            {
                return Err(Trouble::Failed(control(&failure, "wake the sandbox")));
            }
            if Reach::of(&failure) == Reach::Answered {
                return Err(Trouble::Answered(failure));
            }
            match self.standing().await {
                Standing::Runs if patience.again().await => {}
                Standing::Runs => return Err(Trouble::Failed(unreachable(&failure))),
                Standing::Gone(end) => return Err(Trouble::Failed(gone(end))),
                Standing::Unknown(error) => return Err(Trouble::Failed(error)),
            }
        }
    }

    /// Runs one of our scripts that may run again.
    pub(crate) async fn script(&self, script: &str, args: &[&str]) -> Result<Ran, Trouble> {
        self.script_told(script, args).await.0
    }

    /// As [`script`](Self::script); tells too whether it may have run more than once, since an answer was lost.
    pub(crate) async fn script_told(&self, script: &str, args: &[&str]) -> (Result<Ran, Trouble>, bool) {
        let argv: Vec<&str> = ["/bin/sh", "-c", script, "wsm"].into_iter().chain(args.iter().copied()).collect();
        let was_lost = AtomicBool::new(false);
        let ran = self.repeat(|| async {
            let ran = self.daemon.run(&argv, SCRIPT_LIMIT, As::Default).await;
            if let Err(failure) = &ran
                && matches!(Reach::of(failure), Reach::Doubtful | Reach::Broken)
            {
                was_lost.store(true, Ordering::Relaxed);
            }
            ran
        });
        (ran.await, was_lost.into_inner())
    }

    /// Runs one of our scripts once as root, where the template allows it, even when the workspace is over already.
    pub(crate) async fn script_as_root(&self, script: &str, args: &[&str]) -> Result<Ran, Failure> {
        let argv: Vec<&str> = ["/bin/sh", "-c", script, "wsm"].into_iter().chain(args.iter().copied()).collect();
        if !self.has_no_root.load(Ordering::Relaxed) {
            match self.daemon.run(&argv, SCRIPT_LIMIT, As::Root).await {
                Err(Failure::Answer(answer)) if matches!(answer.code(), "unauthenticated" | "permission_denied") => {
                    self.has_no_root.store(true, Ordering::Relaxed);
                }
                ran => return ran,
            }
        }
        self.daemon.run(&argv, SCRIPT_LIMIT, As::Default).await
    }

    /// Ends all that carries a mark, and a group, if there is one.
    pub(crate) async fn end_tree(&self, mark: &str, group: Option<u32>) {
        let group = group.map(|group| group.to_string()).unwrap_or_default();
        let mut tries = 0;
        while let Err(failure) = self.script_as_root(guest::KILL, &[mark, &group, GRACE_TENTHS]).await {
            tries += 1;
            if tries > 3 || Reach::of(&failure) == Reach::Answered || !matches!(self.standing().await, Standing::Runs) {
                tracing::debug!(sandbox = self.id, failure = %failure.shown(), "a command's processes could not be ended");
                return;
            }
            sleep(Duration::from_millis(200 * tries)).await;
        }
    }

    /// How long the sandbox runs on by itself, as far as is known here.
    pub(crate) fn left(&self) -> Duration {
        self.ends.lock().saturating_duration_since(Instant::now())
    }

    pub(crate) fn runs_at_least_until(&self, end: Instant) {
        let mut ends = self.ends.lock();
        *ends = (*ends).max(end);
    }

    /// Sees to it that a command that takes so long does not run into the sandbox's own end. That it can not be put off is
    /// no reason not to begin.
    pub(crate) async fn make_time_for(&self, limit: Option<Duration>) {
        let wanted = limit.map_or(self.timeout / 2, |limit| limit + MARGIN);
        if self.left() >= wanted {
            return;
        }
        // Somewhat more, so that the next command like it need not ask again.
        let asked = (wanted + self.timeout / 2).max(self.timeout).min(LONGEST_REFRESH.max(wanted));
        match tokio::time::timeout(EXTENSION_LIMIT, self.extend(asked)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(sandbox = self.id, error = %error.report(), "the sandbox's end could not be put off");
            }
            Err(_) => {
                tracing::debug!(sandbox = self.id, "the sandbox's end was not put off within {EXTENSION_LIMIT:?}");
            }
        }
    }

    /// Whether it is time to put off the end again: a third of the timeout is gone.
    pub(crate) fn is_due(&self) -> bool {
        self.left() < self.timeout * 2 / 3
    }

    /// Puts the sandbox's end off, and never forward. Gives how long it has now.
    ///
    /// # Errors
    ///
    /// `gone`, `unavailable`.
    pub(crate) async fn extend(&self, wanted: Duration) -> Result<Duration> {
        self.life.check()?;
        let asked = Instant::now();
        let extended = if wanted <= LONGEST_REFRESH {
            self.control.refresh(&self.id, round_up(wanted)).await.map(|()| wanted)
        } else {
            self.extend_far(wanted).await?
        };
        match extended {
            Ok(given) => {
                self.runs_at_least_until(asked + given);
                // From when it was asked on, as the manager counts.
                Ok(self.left().max(given))
            }
            Err(failure) if failure.status() == Some(404) => match self.standing().await {
                Standing::Gone(end) => Err(gone(end)),
                Standing::Runs => Err(control(&failure, "extend the sandbox's time")),
                Standing::Unknown(error) => Err(error),
            },
            Err(failure) => Err(control(&failure, "extend the sandbox's time")),
        }
    }

    /// Beyond an hour there is only the call that may shorten, so it is looked at first how long there is. Gives how long there
    /// is then, at most as long as wanted: the service gives what the plan allows, and says so only when it is asked.
    async fn extend_far(&self, wanted: Duration) -> Result<Result<Duration, Failure>> {
        let refresh = async || self.control.refresh(&self.id, LONGEST_REFRESH).await.map(|()| LONGEST_REFRESH);
        let Some(left) = self.told_left().await? else { return Ok(refresh().await) };
        if left >= wanted {
            return Ok(Ok(wanted));
        }
        match self.control.set_timeout(&self.id, round_up(wanted)).await {
            Ok(()) => match self.told_left().await? {
                // What has passed since it was asked is no cap.
                Some(left) if left + MARGIN < wanted => Ok(Ok(left)),
                Some(_) => Ok(Ok(wanted)),
                None => Ok(refresh().await),
            },
            // More than the plan allows: what it does allow.
            Err(failure) if failure.status() == Some(400) => Ok(refresh().await),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// How long the service says that the sandbox runs on; none when it knows no such sandbox.
    async fn told_left(&self) -> Result<Option<Duration>> {
        let found = self.control.get(&self.id).await?;
        let left = |end: SystemTime| end.duration_since(SystemTime::now()).ok();
        Ok(found.map(|found| found.end_at.and_then(left).unwrap_or_default()))
    }
}

/// Whole seconds, never fewer than asked for.
fn round_up(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

pub(crate) fn unreachable(failure: &Failure) -> Error {
    let message = format!("the sandbox runs, and its daemon does not answer: {}", failure.shown());
    Error::new(ErrorKind::Unavailable, message).with_backend(KIND).with_retry(Retry::Exhausted)
}

/// The pauses between tries to reach a daemon.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { until: Instant::now() + PATIENCE, pause: Duration::from_millis(100) }
    }

    pub(crate) async fn again(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 3 / 2).min(Duration::from_secs(1));
        true
    }
}

/// What a workspace is known as, with its sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) info: WorkspaceInfo,
    pub(crate) has_setsid: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Answer;

    #[test]
    fn what_a_failure_says_of_its_request() {
        let answer = |status, message: &str| {
            Failure::Answer(Answer { status, message: message.to_owned(), ..Answer::default() })
        };
        for (failure, reach) in [
            (answer(502, "The sandbox was not found"), Reach::NotSent),
            (answer(502, "Failed to route request to sandbox"), Reach::NotSent),
            (answer(502, "The sandbox is running but port is not open"), Reach::Doubtful),
            (answer(502, "<!DOCTYPE html>"), Reach::Doubtful),
            (answer(409, "The sandbox is still transitioning. Try again in a moment."), Reach::NotSent),
            (answer(409, "directory already exists: /a"), Reach::Answered),
            (answer(404, "no such"), Reach::Answered),
            (Failure::Answer(Answer { code: "canceled".to_owned(), ..Answer::default() }), Reach::Broken),
            (Failure::Unreachable(String::new()), Reach::NotSent),
            (Failure::NoAnswer(String::new()), Reach::Broken),
        ] {
            assert_eq!(Reach::of(&failure), reach, "{failure:?}");
        }
    }

    #[test]
    fn seconds_are_never_fewer_than_asked_for() {
        assert_eq!(round_up(Duration::from_millis(1500)), Duration::from_secs(2));
        assert_eq!(round_up(Duration::from_secs(2)), Duration::from_secs(2));
    }
}
