//! Commands, how they end, and what they print.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::{
    capture::Capture,
    error::{Error, Result},
    variables,
};

/// How many bytes [`exec`](crate::Workspace::exec) keeps of each stream unless the command says otherwise.
pub const DEFAULT_OUTPUT_LIMIT: usize = 16 << 20;

/// A command to run: argv, never a shell string.
///
/// ```
/// use std::time::Duration;
/// use wsm_core::Command;
///
/// let command = Command::new("sort").arg("-r").with_stdin("b\na\n").with_timeout(Duration::from_secs(5));
/// assert_eq!(command.argv, ["sort", "-r"]);
/// let shell = Command::shell("echo $HOME | wc -c");
/// assert_eq!(shell.argv[..2], ["sh", "-c"]);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Command {
    /// The program and its arguments. The program is looked up in the workspace's `PATH`.
    pub argv: Vec<String>,
    /// The directory to run in; relative to the workspace directory, which is also the default.
    pub cwd: Option<String>,
    /// Variables added to, or replacing those of, the workspace's environment.
    pub env: BTreeMap<String, String>,
    /// What [`exec`](crate::Workspace::exec) writes to stdin before it closes it. `spawn` ignores nothing: it refuses
    /// a command that carries stdin, since its caller holds the pipe.
    pub stdin: Bytes,
    /// After this long the whole process tree is killed. None means no limit of the command's own.
    pub timeout: Option<Duration>,
    /// How many bytes `exec` keeps of each stream: the first and the last half of it.
    pub output_limit: usize,
}

impl Command {
    /// A command without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self::from_argv([program.into()])
    }

    /// A command from its whole argv.
    pub fn from_argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: BTreeMap::new(),
            stdin: Bytes::new(),
            timeout: None,
            output_limit: DEFAULT_OUTPUT_LIMIT,
        }
    }

    /// A line for `sh -c`. The workspace needs [`shell`](crate::Capabilities::shell).
    pub fn shell(line: impl Into<String>) -> Self {
        Self::from_argv(["sh".to_owned(), "-c".to_owned(), line.into()])
    }

    /// Appends one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// Sets the directory to run in.
    #[must_use]
    pub fn with_cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets one variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets what is written to stdin.
    #[must_use]
    pub fn with_stdin(mut self, stdin: impl Into<Bytes>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of each stream are kept.
    #[must_use]
    pub fn with_output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// The program, or the empty string when argv is empty.
    pub fn program(&self) -> &str {
        self.argv.first().map_or("", String::as_str)
    }

    /// Checks what no backend can run.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) naming the field: an empty argv or program, a NUL
    /// byte anywhere, an impossible variable name, a timeout of zero.
    pub fn validate(&self) -> Result<()> {
        let Self { argv, cwd, env, stdin: _, timeout, output_limit: _ } = self;
        if self.program().is_empty() {
            return Err(Error::invalid("command", "`command` is empty: give the program and its arguments"));
        }
        if argv.iter().any(|arg| arg.contains('\0')) {
            return Err(Error::invalid("command", "`command` holds a NUL byte, which no program can be given"));
        }
        if cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.contains('\0')) {
            return Err(Error::invalid("cwd", "`cwd` is empty or holds a NUL byte"));
        }
        variables::validate(env)?;
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::invalid("timeout", "the timeout is zero: give a time, or none for no limit"));
        }
        Ok(())
    }
}

/// Arguments, variables and stdin may hold secrets, so only their number is shown.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program())
            .field("args", &self.argv.len().saturating_sub(1))
            .field("cwd", &self.cwd)
            .field("env", &self.env.len())
            .field("stdin", &self.stdin.len())
            .field("timeout", &self.timeout)
            .field("output_limit", &self.output_limit)
            .finish()
    }
}

/// How a command ended. A non-zero exit code is a result, not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExitStatus {
    /// It exited by itself.
    Exited {
        /// Its exit code, 0 to 255.
        code: i32,
    },
    /// A signal that wsm did not send on its own account ended it.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// It ran longer than its timeout and was killed with all its children.
    TimedOut,
    /// Nobody saw the end: the connection broke, or the workspace died. It may have run, or may still run.
    Unknown {
        /// What was seen instead of an end.
        reason: String,
    },
}

impl ExitStatus {
    /// Whether the command exited with code 0.
    pub fn success(&self) -> bool {
        *self == Self::Exited { code: 0 }
    }

    /// The exit code, when it exited.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Exited { code } => Some(*code),
            Self::Signaled { .. } | Self::TimedOut | Self::Unknown { .. } => None,
        }
    }
}

/// How a child process of this program ended.
#[cfg(unix)]
impl From<std::process::ExitStatus> for ExitStatus {
    fn from(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;

        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited { code },
            (None, Some(signal)) => Self::Signaled { signal },
            (None, None) => Self::Unknown { reason: format!("the process neither exited nor was ended: {status}") },
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exit code {code}"),
            Self::Signaled { signal } => write!(f, "signal {signal}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unknown { reason } => write!(f, "outcome unknown: {reason}"),
        }
    }
}

/// What was kept of one stream of output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Output {
    /// The kept bytes, exactly as the command wrote them.
    pub bytes: Bytes,
    /// How many bytes were dropped.
    pub dropped: u64,
    /// Where in `bytes` they are missing.
    pub dropped_at: Option<usize>,
}

impl Output {
    /// Output of which nothing was dropped.
    pub fn complete(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), dropped: 0, dropped_at: None }
    }

    /// Output with `dropped` bytes missing at `dropped_at`.
    pub fn with_gap(bytes: impl Into<Bytes>, dropped: u64, dropped_at: usize) -> Self {
        Self { bytes: bytes.into(), dropped, dropped_at: Some(dropped_at) }
    }

    /// The output as text, with U+FFFD for what is not UTF-8.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// The result of a command that was run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecResult {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to stdout, also when it timed out.
    pub stdout: Output,
    /// What it wrote to stderr, also when it timed out.
    pub stderr: Output,
    /// From the request until the end was seen.
    pub duration: Duration,
}

impl ExecResult {
    /// Puts a result together.
    pub fn new(status: ExitStatus, stdout: Output, stderr: Output, duration: Duration) -> Self {
        Self { status, stdout, stderr, duration }
    }
}

/// A signal for a running command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Signal {
    /// SIGHUP.
    Hangup,
    /// SIGINT, as Ctrl-C sends it.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

impl Signal {
    /// The number on Linux.
    pub const fn number(self) -> i32 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Kill => 9,
            Self::User1 => 10,
            Self::User2 => 12,
            Self::Terminate => 15,
        }
    }
}

/// A running command, as three parts that can be moved apart.
pub struct Process {
    /// Writes to the command's stdin. Shutting it down, or dropping it, is the end of input.
    pub stdin: ProcessStdin,
    /// The command's output and its end. Dropping it before the end kills the whole process tree.
    pub output: ProcessOutput,
    /// Signals the command. Dropping it does nothing.
    pub control: Arc<dyn ProcessControl>,
}

impl Process {
    /// Puts a process together.
    pub fn new(stdin: ProcessStdin, output: ProcessOutput, control: Arc<dyn ProcessControl>) -> Self {
        Self { stdin, output, control }
    }

    /// Runs the process to its end the way [`exec`](crate::Workspace::exec) does: writes `stdin`, keeps at most
    /// `output_limit` bytes of each stream, drains what it drops. Writing never waits for output to be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the output, which kills the process tree.
    pub async fn collect(self, stdin: Bytes, output_limit: usize) -> ExecResult {
        let started = tokio::time::Instant::now();
        let Self { stdin: mut pipe, mut output, control: _control } = self;
        let (mut stdout, mut stderr) = (Capture::new(output_limit), Capture::new(output_limit));
        let feed = async move {
            // A command that does not read its input to the end is no error: its end tells what happened.
            let _ = pipe.write_all(&stdin).await;
            let _ = pipe.shutdown().await;
        };
        let drain = async {
            while let Some(event) = output.next().await {
                match event {
                    ProcessEvent::Stdout(bytes) => stdout.push(&bytes),
                    ProcessEvent::Stderr(bytes) => stderr.push(&bytes),
                    ProcessEvent::End(status) => return status,
                }
            }
            ExitStatus::Unknown { reason: "the output ended without a status".to_owned() }
        };
        tokio::pin!(feed, drain);
        let mut fed = false;
        let status = loop {
            tokio::select! {
                status = &mut drain => break status,
                () = &mut feed, if !fed => fed = true,
            }
        };
        ExecResult::new(status, stdout.finish(), stderr.finish(), started.elapsed())
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("control", &self.control).finish_non_exhaustive()
    }
}

/// A command's stdin.
pub type ProcessStdin = Pin<Box<dyn AsyncWrite + Send>>;

/// One thing that a running command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It wrote to stdout.
    Stdout(Bytes),
    /// It wrote to stderr.
    Stderr(Bytes),
    /// It ended. Always the last event, and always there.
    End(ExitStatus),
}

/// The stream of a command's output, which ends with exactly one [`ProcessEvent::End`].
///
/// There is no limit but backpressure: a reader that stops stops the command. A source that stops without an end
/// yields [`ExitStatus::Unknown`], never silence.
pub struct ProcessOutput {
    events: BoxStream<'static, ProcessEvent>,
    ended: bool,
}

impl ProcessOutput {
    /// Wraps a backend's events. Dropping `events` before its end must kill the process tree.
    pub fn new(events: impl Stream<Item = ProcessEvent> + Send + 'static) -> Self {
        Self { events: events.boxed(), ended: false }
    }
}

impl Stream for ProcessOutput {
    type Item = ProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ProcessEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.events.poll_next_unpin(context)).unwrap_or_else(|| {
            ProcessEvent::End(ExitStatus::Unknown { reason: "the stream broke before the end was seen".to_owned() })
        });
        self.ended = matches!(event, ProcessEvent::End(_));
        Poll::Ready(Some(event))
    }
}

impl fmt::Debug for ProcessOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessOutput").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Signals a running command.
#[async_trait]
pub trait ProcessControl: fmt::Debug + Send + Sync + 'static {
    /// Sends `signal` to the command's process group. A command that has ended is left alone, which is no error.
    ///
    /// # Errors
    ///
    /// `unavailable` when the signal could not be delivered, `unsupported` when the backend has no such signal.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may or may not have sent the signal.
    async fn signal(&self, signal: Signal) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoControl;

    #[async_trait]
    impl ProcessControl for NoControl {
        async fn signal(&self, _: Signal) -> Result<()> {
            Ok(())
        }
    }

    fn process(events: Vec<ProcessEvent>) -> Process {
        let stdin: ProcessStdin = Box::pin(tokio::io::sink());
        Process::new(stdin, ProcessOutput::new(futures::stream::iter(events)), Arc::new(NoControl))
    }

    #[tokio::test]
    async fn a_stream_without_an_end_is_unknown_and_keeps_what_it_had() {
        let result = process(vec![ProcessEvent::Stdout(Bytes::from_static(b"half"))]).collect(Bytes::new(), 100).await;
        assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
        assert_eq!(&result.stdout.bytes[..], b"half");
    }

    #[tokio::test]
    async fn nothing_follows_the_end() {
        let end = || ProcessEvent::End(ExitStatus::Exited { code: 0 });
        let late = ProcessEvent::Stdout(Bytes::from_static(b"late"));
        let events: Vec<_> = process(vec![end(), late]).output.collect().await;
        assert_eq!(events, [end()]);
    }

    #[test]
    fn debug_shows_no_argument_variable_or_input() {
        let command = Command::new("curl").arg("CANARY").with_env("TOKEN", "CANARY").with_stdin("CANARY");
        let shown = format!("{command:?}");
        assert!(shown.contains("curl") && !shown.contains("CANARY"), "{shown}");
    }

    #[test]
    fn impossible_commands_are_refused_by_field() {
        for (command, field) in [
            (Command::from_argv::<String>([]), "command"),
            (Command::new(""), "command"),
            (Command::new("a\0"), "command"),
            (Command::new("a").arg("b\0"), "command"),
            (Command::new("a").with_cwd(""), "cwd"),
            (Command::new("a").with_cwd("\0"), "cwd"),
            (Command::new("a").with_env("", "x"), "env"),
            (Command::new("a").with_env("A=B", "x"), "env"),
            (Command::new("a").with_env("A", "\0"), "env"),
            (Command::new("a").with_timeout(Duration::ZERO), "timeout"),
        ] {
            assert_eq!(command.validate().unwrap_err().field(), Some(field), "{command:?}");
        }
        assert!(Command::new("a").arg("").with_env("A", "").validate().is_ok());
    }
}
