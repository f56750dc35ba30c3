//! Commands: started, listened to, fed, timed, signalled, and ended with all that they have started.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, DuplexStream},
    sync::mpsc,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use wsm_core::{
    Command, Error, ErrorKind, ExecResult, ExitStatus, Output, Process, ProcessControl, ProcessEvent, ProcessOutput,
    ProcessStdin, Result, Signal,
};

use crate::{
    KIND,
    envd::{As, Events, SHORT, Start},
    error::Failure,
    guest,
    process::{Incoming, Source, is_launchers, of_proc_stat, refusal},
    sandbox::{Attached, End, Patience, Reach, Sandbox, Standing, gone, refused, unreachable},
};

/// How many events wait for a reader. Then the command waits.
const WAITING: usize = 4;
/// How much of stdin goes in one request.
const PIECE: usize = 32 << 10;
/// How much of stdin is taken before it is sent.
const TAKEN: usize = 256 << 10;
/// The daemon's own limit lies this much behind ours: for when nobody is left to end the command.
const LATER: Duration = Duration::from_secs(30);
/// When it is first looked whether a command has ended whose output others hold open; then ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(200);
const RAREST_LOOK: Duration = Duration::from_secs(10);
/// What has been written comes within this time after the last that came, and all of it within the other.
const QUIET: Duration = Duration::from_millis(100);
const LONGEST_DRAIN: Duration = Duration::from_secs(1);
/// How long who waits for a command that ran too long waits for the end of its processes; that goes on, if need be.
const LONGEST_END: Duration = Duration::from_secs(10);
/// How long a daemon may take to tell the end of what has ended.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How a command began.
enum Begun {
    Running(u32, Events),
    /// It may have, or not; this is all that will be known.
    Ended(ExitStatus),
}

impl Begun {
    fn unknown(reason: impl Into<String>) -> Self {
        Self::Ended(ExitStatus::Unknown { reason: reason.into() })
    }
}

/// A command as it is given to the daemon.
struct Plan {
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: String,
    stdin: bool,
    timeout: Option<Duration>,
    mark: String,
}

impl Plan {
    fn new(attached: &Attached, command: &Command, stdin: bool) -> Result<Self> {
        let mut argv = command.argv.clone();
        if attached.has_setsid {
            // A session of its own, so that it can be ended as a whole.
            argv.splice(0..0, ["setsid".to_owned(), "--".to_owned()]);
        } else if command.program().starts_with('-') {
            let message = "without `setsid` in the template, no program can be run whose name begins with a hyphen";
            return Err(Error::invalid("command", message).with_backend(KIND));
        }
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let mut env = BTreeMap::clone(&attached.sandbox.env);
        env.extend(command.env.clone());
        env.insert(guest::RUN.to_owned(), mark.clone());
        let workdir = &attached.info.workdir;
        let cwd = match command.cwd.as_deref() {
            None => workdir.clone(),
            Some(cwd) if cwd.starts_with('/') => cwd.to_owned(),
            Some(cwd) => format!("{workdir}/{cwd}"),
        };
        Ok(Self { argv, env, cwd: clean(&cwd), stdin, timeout: command.timeout, mark })
    }

    fn start(&self) -> Start<'_> {
        let Self { argv, env, cwd, stdin, timeout, mark: _ } = self;
        Start { argv, env, cwd: Some(cwd), stdin: *stdin, limit: timeout.map(|it| it + LATER), who: As::Default }
    }
}

/// A path without `.` and empty parts. `..` stays: where it leads is up to links.
fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    format!("/{}", parts.join("/"))
}

/// Ends what a dropped start may have started.
struct Unstarted<'a> {
    sandbox: &'a Arc<Sandbox>,
    mark: &'a str,
    armed: bool,
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if self.armed && tokio::runtime::Handle::try_current().is_ok() {
            let (sandbox, mark) = (Arc::clone(self.sandbox), self.mark.to_owned());
            self.sandbox.tasks.spawn(async move {
                // It may still be on its way.
                for pause in [0, 500] {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    sandbox.end_tree(&mark, None).await;
                }
            });
        }
    }
}

async fn begin(sandbox: &Arc<Sandbox>, plan: &Plan, deadline: Option<Instant>) -> Result<Begun> {
    let mut patience = Patience::new();
    loop {
        let mut unstarted = Unstarted { sandbox, mark: &plan.mark, armed: true };
        let start = plan.start();
        let starting = sandbox.while_alive(sandbox.daemon.start(&start));
        let started = match deadline {
            None => starting.await,
            Some(deadline) => match timeout_at(deadline, starting).await {
                Ok(started) => started,
                // What may have begun by now is ended by the guard.
                Err(_) => return Ok(Begun::Ended(ExitStatus::TimedOut)),
            },
        };
        let failure = match started {
            Ok(Ok((pid, events))) => {
                unstarted.armed = false;
                return Ok(Begun::Running(pid, events));
            }
            Ok(Err(failure)) => failure,
            // It is ended with all others, and the guard looks after it too.
            Err(gone) => return Err(gone),
        };
        let reach = Reach::of(&failure);
        unstarted.armed = matches!(reach, Reach::Broken | Reach::Doubtful);
        if reach == Reach::Answered {
            return Err(not_started(&failure));
        }
        let standing = sandbox.standing().await;
        match (reach, standing) {
            (_, Standing::Unknown(error)) if reach == Reach::NotSent => return Err(error),
            (Reach::NotSent, Standing::Gone(end)) => return Err(gone(end)),
            (_, Standing::Gone(end)) => return Ok(Begun::unknown(gone(end).message())),
            (Reach::Broken, _) => {
                let reason = format!("the connection broke off while the command was started: {}", failure.shown());
                return Ok(Begun::unknown(reason));
            }
            (Reach::Doubtful, Standing::Runs) => match runs(sandbox, &plan.mark).await {
                Ok(false) => unstarted.armed = false,
                Ok(true) => {
                    return Ok(Begun::unknown("the sandbox was cut off while the command was started"));
                }
                Err(error) => {
                    return Ok(Begun::unknown(format!("it can not be told whether it has begun: {}", error.message())));
                }
            },
            (_, Standing::Runs) => {}
            (_, Standing::Unknown(error)) => {
                return Ok(Begun::unknown(format!("it can not be told whether it has begun: {}", error.message())));
            }
        }
        if !patience.again().await {
            return Err(unreachable(&failure));
        }
    }
}

/// Whether a command runs that was started with this mark.
async fn runs(sandbox: &Sandbox, mark: &str) -> Result<bool> {
    let message = json!({});
    let list = || sandbox.daemon.call("/process.Process/List", &message, Some(SHORT));
    let listed = sandbox.repeat(list).await.map_err(|trouble| trouble.or_daemon("list its processes"))?;
    let processes = listed["processes"].as_array().into_iter().flatten();
    Ok(processes.into_iter().any(|process| process["config"]["envs"][guest::RUN].as_str() == Some(mark)))
}

fn not_started(failure: &Failure) -> Error {
    let Failure::Answer(answer) = failure else { return refused(failure, "start the command") };
    if answer.message.contains("cwd") || answer.message.contains("chdir") {
        let message = format!("the command can not run there: {}", answer.message);
        return Error::invalid("cwd", message).with_backend(KIND);
    }
    let said = answer.message.to_ascii_lowercase();
    if answer.code() == "invalid_argument" && said.contains("error starting process") {
        let code = if said.contains("permission denied") { "program_not_executable" } else { "program_not_found" };
        return Error::invalid("command", answer.message.clone()).with_code(code).with_backend(KIND);
    }
    refused(failure, "start the command")
}

/// A started command that nobody listens to yet.
struct Started {
    events: mpsc::Receiver<ProcessEvent>,
    stdin: ProcessStdin,
    control: Arc<Control>,
}

async fn start(attached: &Attached, command: &Command, with_stdin: bool) -> Result<Started> {
    command.validate()?;
    let sandbox = &attached.sandbox;
    sandbox.life.check()?;
    sandbox.make_time_for(command.timeout).await;
    let plan = Plan::new(attached, command, with_stdin)?;
    let deadline = command.timeout.map(|limit| Instant::now() + limit);
    let (sender, events) = mpsc::channel(WAITING);
    let (pid, incoming) = match begin(sandbox, &plan, deadline).await? {
        Begun::Running(pid, incoming) => (pid, incoming),
        Begun::Ended(status) => {
            let _ = sender.try_send(ProcessEvent::End(status));
            let control = Arc::new(Control { attached: attached.clone(), pid: None, ended: CancellationToken::new() });
            control.ended.cancel();
            return Ok(Started { events, stdin: Box::pin(tokio::io::sink()), control });
        }
    };
    let ended = CancellationToken::new();
    let (broken, stdin): (_, ProcessStdin) = if with_stdin {
        let (ours, theirs) = tokio::io::duplex(TAKEN);
        let broken = CancellationToken::new();
        let feeder = Feeder { sandbox: Arc::clone(sandbox), pid, ended: ended.clone(), broken: broken.clone() };
        sandbox.tasks.spawn(feeder.run(theirs));
        (broken, Box::pin(ours))
    } else {
        (CancellationToken::new(), Box::pin(tokio::io::sink()))
    };
    let group = attached.has_setsid.then_some(pid);
    let pump = Pump {
        sandbox: Arc::clone(sandbox),
        pid,
        group,
        mark: plan.mark,
        incoming,
        sender,
        deadline,
        broken,
        // However it ends, the feeder ends too.
        ended: ended.clone(),
    };
    sandbox.tasks.spawn(pump.run());
    let control = Arc::new(Control { attached: attached.clone(), pid: Some(pid), ended });
    Ok(Started { events, stdin, control })
}

/// Runs a command to its end.
///
/// # Errors
///
/// As [`wsm_core::Workspace::exec`] says.
///
/// # Cancel safety
///
/// Dropped, it ends the command and all that it has started.
pub(crate) async fn exec(attached: &Attached, mut command: Command) -> Result<ExecResult> {
    let began = Instant::now();
    let stdin = std::mem::take(&mut command.stdin);
    let Started { events, stdin: pipe, control } = start(attached, &command, !stdin.is_empty()).await?;
    let process = Process::new(pipe, output(Vec::new(), events), control);
    let result = process.collect(stdin, command.output_limit).await;
    let ExecResult { status, stdout, stderr, .. } = result;
    let nothing_said = stdout == Output::default();
    if let Some(refused) = refusal(command.program(), &status, nothing_said, &stderr.bytes) {
        return Err(refused);
    }
    // A command that was cut short by the end of the workspace may have run.
    Ok(ExecResult::new(status, stdout, stderr, began.elapsed()))
}

/// Starts a command and streams it.
///
/// # Errors
///
/// As [`wsm_core::Workspace::spawn`] says.
///
/// # Cancel safety
///
/// Dropped, it ends the command and all that it has started.
pub(crate) async fn spawn(attached: &Attached, command: Command) -> Result<Process> {
    if !command.stdin.is_empty() {
        return Err(Error::invalid("stdin", "a spawned command gets its stdin through the process").with_backend(KIND));
    }
    let Started { mut events, stdin, control } = start(attached, &command, true).await?;
    // A program that can not start says so soon; one that can may be silent. So another command looks for it meanwhile.
    let mut first = Vec::new();
    let mut is_missing = false;
    let resolved = resolve(attached, &command);
    tokio::select! {
        event = events.recv() => first.extend(event),
        found = resolved => is_missing = found == Some(false),
    }
    let until = Instant::now() + LAST_WORD * 2;
    // It may say so in pieces.
    while is_missing && first.is_empty() || may_be_refusal(&first) {
        match timeout_at(until, events.recv()).await {
            Ok(Some(event)) => first.push(event),
            Ok(None) | Err(_) => break,
        }
    }
    if let Some((ProcessEvent::End(status), said)) = first.split_last()
        && let Some(said) = only_stderr(said)
        && let Some(refused) = refusal(command.program(), status, true, &said)
    {
        return Err(refused);
    }
    Ok(Process::new(stdin, output(first, events), control))
}

/// What was said, if it was all on stderr, and short.
fn only_stderr(events: &[ProcessEvent]) -> Option<Vec<u8>> {
    let mut said = Vec::new();
    for event in events {
        match event {
            ProcessEvent::Stderr(bytes) if said.len() + bytes.len() <= 8 << 10 => said.extend_from_slice(bytes),
            _ => return None,
        }
    }
    Some(said)
}

/// Whether a program that can not start may be about to say so, or has begun to.
fn may_be_refusal(first: &[ProcessEvent]) -> bool {
    !first.is_empty() && only_stderr(first).is_some_and(|said| is_launchers(&said))
}

/// Whether the program is there, where that can be told.
async fn resolve(attached: &Attached, command: &Command) -> Option<bool> {
    let mut probe = Command::from_argv(["/bin/sh", "-c", guest::RESOLVE, "wsm", command.program()]).with_timeout(SHORT);
    (probe.cwd, probe.env) = (command.cwd.clone(), command.env.clone());
    match Box::pin(exec(attached, probe)).await.ok()?.status {
        ExitStatus::Exited { code: 0 } => Some(true),
        ExitStatus::Exited { code: 126 | 127 } => Some(false),
        _ => None,
    }
}

fn output(first: Vec<ProcessEvent>, mut events: mpsc::Receiver<ProcessEvent>) -> ProcessOutput {
    let mut first = first.into_iter();
    ProcessOutput::new(futures::stream::poll_fn(move |context| match first.next() {
        Some(event) => std::task::Poll::Ready(Some(event)),
        None => events.poll_recv(context),
    }))
}

/// Whether input was refused for another reason than that the command does not want it.
fn is_held_back(failure: &Failure) -> bool {
    match failure {
        Failure::Answer(answer) => {
            answer.code() == "unimplemented" || matches!(answer.status, 400 | 401 | 403 | 408 | 413 | 415 | 429)
        }
        Failure::Unreachable(_) | Failure::NoAnswer(_) | Failure::Garbled(_) => true,
    }
}

/// Brings stdin to a command.
struct Feeder {
    sandbox: Arc<Sandbox>,
    pid: u32,
    ended: CancellationToken,
    /// Cancelled when input was lost, so that the command's end would be that of other input.
    broken: CancellationToken,
}

impl Feeder {
    async fn run(self, mut from: DuplexStream) {
        let Self { sandbox, pid, ended, broken } = self;
        let mut buffer = vec![0; PIECE];
        let feed = async {
            loop {
                let read = from.read(&mut buffer).await.unwrap_or(0);
                let selector = json!({ "pid": pid });
                let sent = if read == 0 {
                    sandbox
                        .daemon
                        .call("/process.Process/CloseStdin", &json!({ "process": selector }), Some(SHORT))
                        .await
                } else {
                    let input = json!({ "stdin": STANDARD.encode(&buffer[..read]) });
                    let message = json!({ "process": selector, "input": input });
                    // It waits while the command does not read.
                    sandbox.daemon.call("/process.Process/SendInput", &message, None).await
                };
                match sent {
                    Ok(_) if read == 0 => return,
                    Ok(_) => {}
                    // The command is gone, or does not want it.
                    Err(failure) if Reach::of(&failure) == Reach::Answered && !is_held_back(&failure) => return,
                    Err(failure) => {
                        tracing::debug!(sandbox = sandbox.id, failure = %failure.shown(), "input did not arrive");
                        broken.cancel();
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = ended.cancelled() => {}
            () = feed => {}
        }
    }
}

/// Whether the process that was started is still there.
enum Leader {
    Runs,
    /// It has ended, so, if that is known.
    Ended(Option<ExitStatus>),
}

async fn look(sandbox: Arc<Sandbox>, pid: u32) -> Leader {
    const LOOK: &str = "cat \"/proc/$1/stat\" 2>/dev/null && exit 0; kill -0 \"$1\" 2>/dev/null && exit 3; exit 1";
    match sandbox.script_as_root(LOOK, &[&pid.to_string()]).await {
        Ok(ran) => match ran.status {
            ExitStatus::Exited { code: 0 } => match of_proc_stat(&String::from_utf8_lossy(&ran.stdout)) {
                Ok(status) => Leader::Ended(status),
                Err(()) => Leader::Runs,
            },
            ExitStatus::Exited { code: 1 } => Leader::Ended(None),
            _ => Leader::Runs,
        },
        Err(_) => Leader::Runs,
    }
}

/// What a pump waits for.
enum Phase {
    Running,
    /// The command itself has ended, and others hold its output open: what it has written is still to come.
    Draining {
        quiet: Instant,
        latest: Instant,
        status: Option<ExitStatus>,
    },
    /// The daemon was told to wait for nobody else.
    Ending {
        until: Instant,
        status: Option<ExitStatus>,
    },
    /// It ran too long, and is being ended.
    TimedOut {
        until: Option<Instant>,
    },
}

/// Brings what happens to a command to who listens.
struct Pump {
    sandbox: Arc<Sandbox>,
    pid: u32,
    group: Option<u32>,
    mark: String,
    incoming: Events,
    sender: mpsc::Sender<ProcessEvent>,
    deadline: Option<Instant>,
    broken: CancellationToken,
    ended: CancellationToken,
}

/// How a pump's work ends.
enum Finish {
    /// With this, for the listener. The stream may still have its proper end to give.
    Ended(ExitStatus),
    /// As before, and what the command has started must be ended.
    Cut(ExitStatus),
    /// The listener has gone.
    Unheard,
}

impl Pump {
    async fn run(mut self) {
        let finish = self.relay().await;
        self.ended.cancel();
        let (status, must_end) = match finish {
            Finish::Ended(status) => (Some(status), false),
            Finish::Cut(status) => (Some(status), true),
            Finish::Unheard => (None, true),
        };
        if let Some(status) = status {
            let sender = self.sender.clone();
            let telling = async move { drop(sender.send(ProcessEvent::End(status)).await) };
            if must_end {
                // Ended even if nobody takes the last word.
                tokio::join!(telling, self.sandbox.end_tree(&self.mark, self.group));
            } else {
                telling.await;
                // Read to its end, so that the connection can be used again.
                let rest = async { while let Ok(Incoming::Other) = self.incoming.next().await {} };
                let _ = timeout(QUIET, rest).await;
            }
        } else if must_end {
            self.sandbox.end_tree(&self.mark, self.group).await;
        }
    }

    async fn relay(&mut self) -> Finish {
        let Self { sandbox, pid, group, mark, incoming, sender, deadline, broken, ended: _ } = self;
        let (pid, group) = (*pid, *group);
        let mut phase = Phase::Running;
        let mut pending: Option<ProcessEvent> = None;
        let mut looking: Option<BoxFuture<'static, Leader>> = None;
        let mut killing: Option<BoxFuture<'static, ()>> = None;
        let mut pause = FIRST_LOOK;
        let mut next_look = Instant::now() + pause;
        let mut beat = Instant::now() + sandbox.timeout / 6;
        loop {
            let until = match &phase {
                Phase::Running => None,
                Phase::Draining { quiet, latest, .. } => Some((*quiet).min(*latest)),
                Phase::Ending { until, .. } => Some(*until),
                Phase::TimedOut { until } => *until,
            };
            let is_running = matches!(phase, Phase::Running);
            let has_time = !matches!(phase, Phase::TimedOut { .. });
            tokio::select! {
                biased;
                () = sender.closed() => return Finish::Unheard,
                () = sandbox.life.over() => {
                    let end = sandbox.life.end().unwrap_or(End::PutAway);
                    let status = ExitStatus::Unknown { reason: gone(end).message().to_owned() };
                    // Who puts it away ends all commands itself.
                    return if end == End::LetGo { Finish::Cut(status) } else { Finish::Ended(status) };
                }
                () = broken.cancelled(), if has_time => {
                    return Finish::Cut(ExitStatus::Unknown { reason: "a part of its input may not have arrived".to_owned() });
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if has_time && deadline.is_some() => {
                    phase = Phase::TimedOut { until: None };
                    let (sandbox, mark) = (Arc::clone(sandbox), mark.clone());
                    let tasks = sandbox.tasks.clone();
                    let ending = tasks.spawn(async move { sandbox.end_tree(&mark, group).await });
                    killing = Some(Box::pin(async move { drop(timeout(LONGEST_END, ending).await) }));
                }
                () = wait(&mut killing), if killing.is_some() => {
                    killing = None;
                    phase = Phase::TimedOut { until: Some(Instant::now() + QUIET) };
                }
                permit = sender.reserve(), if pending.is_some() => {
                    if let (Ok(permit), Some(event)) = (permit, pending.take()) {
                        permit.send(event);
                    }
                }
                leader = wait(&mut looking), if looking.is_some() => {
                    looking = None;
                    if let (Leader::Ended(status), true) = (leader, is_running) {
                        let now = Instant::now();
                        phase = Phase::Draining { quiet: now + QUIET, latest: now + LONGEST_DRAIN, status };
                    }
                }
                () = sleep_until(next_look), if is_running && looking.is_none() => {
                    pause = (pause * 2).min(RAREST_LOOK);
                    next_look = Instant::now() + pause;
                    looking = Some(Box::pin(look(Arc::clone(sandbox), pid)));
                }
                () = sleep_until(beat), if has_time => {
                    beat = Instant::now() + sandbox.timeout / 6;
                    if sandbox.is_due() {
                        let beating = Arc::clone(sandbox);
                        sandbox.tasks.spawn(async move { beating.make_time_for(Some(beating.timeout)).await });
                    }
                }
                next = incoming.next(), if pending.is_none() => match next {
                    Ok(Incoming::Output(source, bytes)) => {
                        if let Phase::Draining { quiet, .. } = &mut phase {
                            *quiet = Instant::now() + QUIET;
                        }
                        pending = Some(event(source, bytes));
                    }
                    Ok(Incoming::End(status)) => match (&phase, killing.take()) {
                        (Phase::TimedOut { .. }, killing) => {
                            // What it has started may outlive it for a moment.
                            if let Some(killing) = killing {
                                killing.await;
                            }
                            return Finish::Ended(ExitStatus::TimedOut);
                        }
                        _ => return Finish::Ended(status),
                    },
                    Ok(Incoming::Start(_) | Incoming::Other) => {}
                    Ok(Incoming::Finished(answer)) => {
                        let failure = answer.map(Failure::Answer);
                        return Self::stopped(sandbox, &phase, killing, failure).await;
                    }
                    Err(failure) => return Self::stopped(sandbox, &phase, killing, Some(failure)).await,
                },
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() && pending.is_none() => match phase {
                    Phase::Draining { status, .. } => {
                        // After a signal the daemon waits for nobody who holds the output, and tells how it ended.
                        let message = json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGTERM" });
                        let (told, daemon) = (status.clone(), sandbox.daemon.clone());
                        let _ = timeout(LAST_WORD, daemon.call("/process.Process/SendSignal", &message, Some(SHORT))).await;
                        phase = Phase::Ending { until: Instant::now() + LAST_WORD, status: told };
                    }
                    Phase::Ending { status, .. } => {
                        let reason = "it has ended, and nobody could tell how".to_owned();
                        return Finish::Ended(status.unwrap_or(ExitStatus::Unknown { reason }));
                    }
                    Phase::TimedOut { .. } => return Finish::Ended(ExitStatus::TimedOut),
                    Phase::Running => phase = Phase::Running,
                },
            }
        }
    }

    /// The stream is over, and no end was told.
    async fn stopped(
        sandbox: &Sandbox,
        phase: &Phase,
        killing: Option<BoxFuture<'static, ()>>,
        failure: Option<Failure>,
    ) -> Finish {
        match phase {
            Phase::TimedOut { .. } => {
                if let Some(killing) = killing {
                    killing.await;
                }
                return Finish::Ended(ExitStatus::TimedOut);
            }
            Phase::Draining { status: Some(status), .. } | Phase::Ending { status: Some(status), .. } => {
                return Finish::Ended(status.clone());
            }
            Phase::Running | Phase::Draining { .. } | Phase::Ending { .. } => {}
        }
        if let Some(Failure::Answer(answer)) = &failure
            && answer.code() == "deadline_exceeded"
        {
            return Finish::Cut(ExitStatus::TimedOut);
        }
        let reason = match sandbox.standing().await {
            Standing::Gone(end) => {
                let reason = gone(end).message().to_owned();
                return Finish::Ended(ExitStatus::Unknown { reason });
            }
            Standing::Runs | Standing::Unknown(_) => match failure {
                Some(failure) => format!("the stream of its output ended early: {}", failure.shown()),
                None => "the stream of its output ended without an end of the command".to_owned(),
            },
        };
        Finish::Cut(ExitStatus::Unknown { reason })
    }
}

fn event(source: Source, bytes: Bytes) -> ProcessEvent {
    match source {
        Source::Stdout => ProcessEvent::Stdout(bytes),
        Source::Stderr => ProcessEvent::Stderr(bytes),
    }
}

/// Waits for work that is there; for ever when there is none.
async fn wait<T>(work: &mut Option<BoxFuture<'static, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Signals a command.
#[derive(Debug)]
struct Control {
    attached: Attached,
    pid: Option<u32>,
    ended: CancellationToken,
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = self.pid.filter(|_| !self.ended.is_cancelled()) else { return Ok(()) };
        let Attached { sandbox, has_setsid, .. } = &self.attached;
        sandbox.life.check()?;
        let name = match signal {
            Signal::Hangup => "HUP",
            Signal::Interrupt => "INT",
            Signal::Terminate => "TERM",
            Signal::Kill => "KILL",
            Signal::User1 => "USR1",
            Signal::User2 => "USR2",
            _ => return Err(Error::unsupported("signal").with_backend(KIND)),
        };
        let group = pid.to_string();
        // Without a session of its own its group is the daemon's: only the command itself is signalled.
        let target = if *has_setsid { guest::SIGNAL } else { r#"kill -s "$1" -- "$2" 2>/dev/null; exit 0"# };
        match sandbox.while_alive(sandbox.script_as_root(target, &[name, &group])).await? {
            Ok(_) => Ok(()),
            Err(_) if self.ended.is_cancelled() => Ok(()),
            Err(failure) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the signal {name} could not be sent: {}", failure.shown()),
            )
            .with_backend(KIND)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_what_says_nothing() {
        assert_eq!(clean("/a//b/./c/."), "/a/b/c");
        assert_eq!(clean("/a/../b"), "/a/../b");
        assert_eq!(clean("/"), "/");
    }
}
