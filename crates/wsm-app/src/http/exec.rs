//! Commands.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncWriteExt, time::Instant};
use utoipa::ToSchema;
use wsm_core::{Command, ExecResult, ExitStatus, Output, Process, ProcessEvent, WorkspaceHandle};

use super::{
    Problem,
    error::ProblemBody,
    extract::{CallerSession, CallerWorkspace, JsonBody, SessionParams, Started},
    opening::tell_loss,
    sse,
};
use crate::app::Limits;

/// A command to run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecRequest {
    /// The program and its arguments. No shell is involved unless the program is one.
    #[schema(example = json!(["sh", "-c", "echo $HOME"]))]
    command: Vec<String>,
    /// Where to run it; the workspace directory when there is none.
    #[serde(default)]
    cwd: Option<String>,
    /// Variables added to the workspace's.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    /// What it reads; nothing when there is none.
    #[serde(default)]
    stdin: Option<String>,
    /// How `stdin` is written: `utf8` unless given.
    #[serde(default)]
    stdin_encoding: Option<Encoding>,
    /// After how many seconds it is ended; the service has a default and a ceiling.
    #[serde(default)]
    timeout_seconds: Option<f64>,
    /// How many bytes of each stream are kept; the service has a default and a ceiling.
    #[serde(default)]
    max_output_bytes: Option<u64>,
}

/// How bytes are written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    /// As they are.
    Utf8,
    /// In Base64 with padding.
    Base64,
}

/// How a command ended, and what it printed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecResult)]
pub(super) struct ExecBody {
    #[serde(flatten)]
    end: EndBody,
    /// What was kept of its standard output.
    stdout: String,
    /// What was kept of its standard error.
    stderr: String,
    /// How `stdout` is written.
    stdout_encoding: Encoding,
    /// How `stderr` is written.
    stderr_encoding: Encoding,
}

/// How a command ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecEnd)]
pub(super) struct EndBody {
    /// `exited`, `signaled`, `timed_out` or `unknown`.
    outcome: &'static str,
    /// The exit code of a command that exited.
    exit_code: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    /// What was seen instead of an end, when the outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How many bytes of each stream were dropped.
    truncated: Dropped,
    /// Where in the kept output they are missing, for streams of which some were.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated_at: Option<DroppedAt>,
    /// How long it ran.
    duration_ms: u64,
}

/// How many bytes are missing.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub(super) struct Dropped {
    stdout: u64,
    stderr: u64,
}

/// Where bytes are missing.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub(super) struct DroppedAt {
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<usize>,
}

/// A piece of output, as the events `stdout` and `stderr` carry it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExecChunk)]
pub(super) struct ChunkBody {
    /// The bytes.
    data: String,
    /// How they are written.
    encoding: Encoding,
}

/// Runs a command in the session's workspace.
///
/// With `Accept: text/event-stream`, output comes while the command runs: events `stdout` and `stderr` carry `data` and
/// its `encoding`, and one last event `end` carries the other fields of the result. There is no default for
/// `max_output_bytes` then. A client that goes away ends the command.
#[utoipa::path(
    post, path = "/workspace/exec", tag = "workspace", request_body = ExecRequest,
    params(SessionParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 200, description = "It ran; how it ended is in `outcome`.", content((ExecBody = "application/json"), (ChunkBody = "text/event-stream"))),
        (status = 404, description = "The caller has no such session.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 422, description = "A field holds what it may not, or the program can not start: `program_not_found`, `program_not_executable`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn exec(
    Started(app): Started,
    headers: HeaderMap,
    session: CallerSession,
    JsonBody(body): JsonBody<ExecRequest>,
) -> Result<Response, Problem> {
    let streamed = sse::is_asked_for(&headers);
    let mut command = body.into_command(&app.limits, streamed)?;
    // Only now: a refused request opens nothing.
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;
    let opening = workspace.opening().clone();
    // Arguments may hold secrets; the program does not.
    tracing::debug!(program = command.program(), workspace = %workspace.id(), streamed, "running a command");
    let mut response = if streamed && workspace.capabilities().spawn {
        stream(workspace, command).await?
    } else {
        command.output_limit = command.output_limit.min(app.limits.max_exec_output_limit);
        let result = workspace.exec(command).await?;
        if streamed { replay(&result) } else { Json(ExecBody::from(result)).into_response() }
    };
    tell_loss(response.headers_mut(), &opening, lost);
    Ok(response)
}

impl ExecRequest {
    fn into_command(self, limits: &Limits, streamed: bool) -> Result<Command, Problem> {
        let Self { command, cwd, env, stdin, stdin_encoding, timeout_seconds, max_output_bytes } = self;
        let timeout = match timeout_seconds {
            None => limits.exec_timeout,
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|timeout| !timeout.is_zero() && *timeout <= limits.max_exec_timeout)
                .ok_or_else(|| {
                    let most = limits.max_exec_timeout.as_secs_f64();
                    let detail = format!("`timeout_seconds` is {seconds}: allowed is above 0 and at most {most}");
                    Problem::invalid("timeout_seconds", detail)
                })?,
        };
        let output_limit = match max_output_bytes {
            None if streamed => usize::MAX,
            None => limits.exec_output_limit,
            Some(bytes) => {
                usize::try_from(bytes).ok().filter(|bytes| *bytes <= limits.max_exec_output_limit).ok_or_else(|| {
                    let most = limits.max_exec_output_limit;
                    Problem::invalid(
                        "max_output_bytes",
                        format!("`max_output_bytes` is {bytes}: allowed is at most {most}"),
                    )
                })?
            }
        };
        let stdin = match (stdin, stdin_encoding) {
            (None, _) => Bytes::new(),
            (Some(text), None | Some(Encoding::Utf8)) => text.into(),
            (Some(text), Some(Encoding::Base64)) => BASE64_STANDARD
                .decode(text)
                .map_err(|error| Problem::invalid("stdin", format!("`stdin` is not Base64: {error}")))?
                .into(),
        };
        let mut command =
            Command::from_argv(command).with_stdin(stdin).with_timeout(timeout).with_output_limit(output_limit);
        command.cwd = cwd;
        command.env = env.unwrap_or_default();
        command.validate()?;
        Ok(command)
    }
}

impl From<ExecResult> for ExecBody {
    fn from(result: ExecResult) -> Self {
        let (stdout, stdout_encoding) = encode(&result.stdout.bytes);
        let (stderr, stderr_encoding) = encode(&result.stderr.bytes);
        Self { end: EndBody::of(&result), stdout, stderr, stdout_encoding, stderr_encoding }
    }
}

impl EndBody {
    fn of(result: &ExecResult) -> Self {
        let at = |output: &Output| output.dropped_at.filter(|_| output.dropped > 0);
        let dropped = Dropped { stdout: result.stdout.dropped, stderr: result.stderr.dropped };
        let at = DroppedAt { stdout: at(&result.stdout), stderr: at(&result.stderr) };
        Self::new(&result.status, dropped, at, result.duration)
    }

    fn new(status: &ExitStatus, truncated: Dropped, at: DroppedAt, duration: Duration) -> Self {
        let (outcome, exit_code, signal, reason) = match status {
            ExitStatus::Exited { code } => ("exited", Some(*code), None, None),
            ExitStatus::Signaled { signal } => ("signaled", None, Some(*signal), None),
            ExitStatus::TimedOut => ("timed_out", None, None, None),
            ExitStatus::Unknown { reason } => ("unknown", None, None, Some(reason.clone())),
            _ => ("unknown", None, None, None),
        };
        let truncated_at = (at.stdout.is_some() || at.stderr.is_some()).then_some(at);
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self { outcome, exit_code, signal, reason, truncated, truncated_at, duration_ms }
    }
}

fn encode(bytes: &[u8]) -> (String, Encoding) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Utf8),
        Err(_) => (BASE64_STANDARD.encode(bytes), Encoding::Base64),
    }
}

fn chunk(bytes: &[u8]) -> ChunkBody {
    let (data, encoding) = encode(bytes);
    ChunkBody { data, encoding }
}

/// Streams a running command. The stream owns the command: dropping it ends the command.
async fn stream(workspace: WorkspaceHandle, mut command: Command) -> Result<Response, Problem> {
    let limit = command.output_limit;
    let input = std::mem::take(&mut command.stdin);
    let started = Instant::now();
    let Process { mut stdin, mut output, control } = workspace.spawn(command).await?;
    let events = async_stream::stream! {
        // Both live as long as the stream.
        let _held = (workspace, control);
        let mut feed = std::pin::pin!(async move {
            // A command that does not read its input to the end is no error: its end tells what happened.
            let _ = stdin.write_all(&input).await;
            let _ = stdin.shutdown().await;
        });
        let mut fed = false;
        let mut streams = [OneStream::new("stdout", limit), OneStream::new("stderr", limit)];
        loop {
            let event = tokio::select! {
                event = output.next() => event,
                () = &mut feed, if !fed => {
                    fed = true;
                    continue;
                }
            };
            let (stream, bytes) = match event {
                Some(ProcessEvent::Stdout(bytes)) => (&mut streams[0], bytes),
                Some(ProcessEvent::Stderr(bytes)) => (&mut streams[1], bytes),
                Some(ProcessEvent::End(status)) => {
                    for stream in &mut streams {
                        if let Some(rest) = stream.rest() {
                            yield sse::event(stream.name, &chunk(&rest));
                        }
                    }
                    let [stdout, stderr] = &streams;
                    let dropped = Dropped { stdout: stdout.dropped, stderr: stderr.dropped };
                    let at = DroppedAt { stdout: stdout.dropped_at(), stderr: stderr.dropped_at() };
                    yield sse::event("end", &EndBody::new(&status, dropped, at, started.elapsed()));
                    break;
                }
                None => break,
            };
            if let Some(bytes) = stream.take(&bytes) {
                yield sse::event(stream.name, &chunk(&bytes));
            }
        }
    };
    Ok(sse::stream(events).into_response())
}

/// What a finished command did, as the events that a running one would have given.
fn replay(result: &ExecResult) -> Response {
    let pieces = [("stdout", &result.stdout.bytes), ("stderr", &result.stderr.bytes)];
    let pieces = pieces.into_iter().filter(|(_, bytes)| !bytes.is_empty());
    let mut events: Vec<_> = pieces.map(|(name, bytes)| sse::event(name, &chunk(bytes))).collect();
    events.push(sse::event("end", &EndBody::of(result)));
    sse::stream(futures::stream::iter(events)).into_response()
}

/// One stream of output on its way into events: cut at a limit, and never in the middle of a character.
struct OneStream {
    name: &'static str,
    room: usize,
    limit: usize,
    dropped: u64,
    /// The beginning of a character whose end has not come yet: at most three bytes.
    begun: Vec<u8>,
}

impl OneStream {
    fn new(name: &'static str, limit: usize) -> Self {
        Self { name, room: limit, limit, dropped: 0, begun: Vec::new() }
    }

    /// What can be sent of the next bytes.
    fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (kept, dropped) = bytes.split_at(bytes.len().min(self.room));
        self.room -= kept.len();
        self.dropped += dropped.len() as u64;
        let mut kept = [&self.begun[..], kept].concat();
        self.begun = match std::str::from_utf8(&kept) {
            // Incomplete, rather than wrong: wait for the rest.
            Err(error) if error.error_len().is_none() && self.room > 0 => kept.split_off(error.valid_up_to()),
            _ => Vec::new(),
        };
        (!kept.is_empty()).then_some(kept)
    }

    /// What was waiting for a rest that never came.
    fn rest(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.begun)).filter(|rest| !rest.is_empty())
    }

    fn dropped_at(&self) -> Option<usize> {
        (self.dropped > 0).then_some(self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_never_cut_in_two_and_the_limit_holds() {
        let mut stream = OneStream::new("stdout", usize::MAX);
        let crab = "🦀".as_bytes();
        assert_eq!(stream.take(&[b"ab", &crab[..3]].concat()).unwrap(), b"ab");
        assert_eq!(stream.take(&crab[3..]).unwrap(), crab);
        assert_eq!(stream.take(&crab[..2]), None);
        assert_eq!(stream.rest().unwrap(), &crab[..2]);
        let mut stream = OneStream::new("stdout", 3);
        assert_eq!(stream.take(b"abcd").unwrap(), b"abc");
        assert_eq!(stream.take(b"ef"), None);
        assert_eq!((stream.dropped, stream.dropped_at()), (3, Some(3)));
    }

    #[test]
    fn bytes_that_are_not_text_are_base64() {
        assert_eq!(encode(b"a\0b"), ("a\0b".to_owned(), Encoding::Utf8));
        assert_eq!(encode(b"\xd5\xff"), ("1f8=".to_owned(), Encoding::Base64));
    }
}
