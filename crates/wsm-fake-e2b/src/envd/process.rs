//! Procedures about commands.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use async_stream::stream;
use axum::{body::Body, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::HeaderMap;
use rustix::{process::Signal, termios::Winsize};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::Receiver,
    time::{Sleep, sleep},
};

use super::{Call, Trouble, crash, user};
use crate::{
    envelope::{Decoder, Encoder},
    fault::Ending,
    guest::{
        Cut,
        machine::{Plan, SpawnError},
        process::{Description, Event, Process, end_json},
    },
    rpc::{self, Code, RpcError, RpcResult, field, number, text, without_zeros},
    serve::Connection,
    shape,
};

/// The daemon's own search path, which commands get.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const KEEPALIVE: Duration = Duration::from_secs(90);

pub(super) async fn start(call: &Call, headers: &HeaderMap, message: &Value) -> Result<Response, Trouble> {
    let user = user(headers)?;
    let limit = limit(headers)?;
    if limit == Some(Duration::ZERO) {
        return Err(RpcError::deadline().into());
    }
    let keepalive = keepalive(call, headers)?;
    let process = field(message, "process");
    let cmd = text(process, "cmd");
    if cmd.is_empty() {
        return Err(RpcError::invalid("exec: no command").into());
    }
    let args: Vec<String> = serde_json::from_value(field(process, "args").clone()).unwrap_or_default();
    let envs: BTreeMap<String, String> = serde_json::from_value(field(process, "envs").clone()).unwrap_or_default();
    let cwd = text(process, "cwd");
    let directory = user.resolve(cwd);
    let mut environment: BTreeMap<String, String> =
        [("PATH", PATH), ("HOME", user.home), ("USER", user.name), ("LOGNAME", user.name)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    environment.extend(call.sandbox.env_vars.clone());
    environment.extend(envs.clone());
    let mut config = without_zeros(json!({ "cmd": cmd, "args": args, "cwd": cwd }));
    if !envs.is_empty() {
        config["envs"] = json!(envs);
    }
    let plan = Plan {
        argv: std::iter::once(cmd.to_owned()).chain(args).collect(),
        environment,
        directory: directory.clone(),
        user,
        // Who does not say so has a pipe that stays open.
        stdin: field(message, "stdin").as_bool().unwrap_or(true),
        terminal: size(field(message, "pty")),
    };
    let spawned = call.run.machine.spawn(plan).await.map_err(|error| match error {
        SpawnError::Gone => Trouble::from(crate::guest::machine::Gone),
        SpawnError::NoDirectory => RpcError::invalid(format!("cwd '{}' does not exist", directory.display())).into(),
        SpawnError::Failed(error) => RpcError::invalid(format!("error starting process: {error}")).into(),
    })?;
    let description = Description { config, tag: text(message, "tag").to_owned() };
    let (process, running, events) =
        Process::new(spawned, description).map_err(|error| RpcError::internal(error.to_string()))?;
    call.run.add(Arc::clone(&process), running, limit);
    let listener = Listener::new(call, headers, keepalive, process, true);
    Ok(rpc::streaming(listener.messages(events)))
}

pub(super) fn connect(call: &Call, headers: &HeaderMap, message: &Value) -> Result<Response, Trouble> {
    user(headers)?;
    let keepalive = keepalive(call, headers)?;
    let process = find(call, message, true)?;
    let events = process.listen();
    let listener = Listener::new(call, headers, keepalive, process, false);
    let limit = limit(headers)?;
    Ok(match limit {
        None => rpc::streaming(listener.messages(events)),
        Some(limit) => rpc::streaming(until(limit, listener.encoder, listener.messages(events))),
    })
}

/// A stream that ends at its deadline whatever comes.
pub(super) fn until(
    limit: Duration,
    encoder: Encoder,
    messages: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream! {
        let mut messages = std::pin::pin!(messages);
        let mut over = std::pin::pin!(sleep(limit));
        loop {
            tokio::select! {
                () = &mut over => {
                    yield Ok(encoder.end(Some(&RpcError::deadline())));
                    return;
                }
                message = messages.next() => match message {
                    Some(message) => yield message,
                    None => return,
                }
            }
        }
    }
}

struct Listener {
    process: Arc<Process>,
    encoder: Encoder,
    keepalive: Duration,
    cut: Arc<Cut>,
    connection: Connection,
    /// Whether the deadline of the command is the one of this stream.
    is_starter: bool,
}

impl Listener {
    fn new(call: &Call, headers: &HeaderMap, keepalive: Duration, process: Arc<Process>, is_starter: bool) -> Self {
        Self {
            process,
            encoder: rpc::encoder(headers),
            keepalive,
            cut: Arc::clone(&call.cut),
            connection: call.connection.clone(),
            is_starter,
        }
    }

    fn messages(self, mut events: Receiver<Event>) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let encoder = self.encoder;
        stream! {
            yield Ok(encoder.message(&json!({ "event": { "start": { "pid": self.process.pid } } })));
            loop {
                let event = tokio::select! {
                    biased;
                    () = self.cut.token.cancelled() => {
                        let ending = *self.cut.ending.lock();
                        for piece in shape::end(ending, &self.connection, true).await {
                            yield piece;
                        }
                        return;
                    }
                    () = self.process.expired.cancelled(), if self.is_starter => {
                        // What came before is told before.
                        while let Ok(Event::Output(source, bytes)) = events.try_recv() {
                            yield Ok(output(encoder, source.name(), &bytes));
                        }
                        yield Ok(encoder.end(Some(&RpcError::deadline())));
                        return;
                    }
                    event = events.recv() => event,
                    () = silence(self.keepalive) => {
                        yield Ok(encoder.message(&json!({ "event": { "keepalive": {} } })));
                        continue;
                    }
                };
                match event {
                    Some(Event::Output(source, bytes)) => yield Ok(output(encoder, source.name(), &bytes)),
                    Some(Event::End(status)) => {
                        yield Ok(encoder.message(&json!({ "event": { "end": end_json(status) } })));
                        yield Ok(encoder.end(None));
                        return;
                    }
                    None => {
                        // Nobody carries it through any more: the sandbox is gone.
                        for piece in shape::end(Ending::Close, &self.connection, true).await {
                            yield piece;
                        }
                        return;
                    }
                }
            }
        }
    }
}

fn silence(keepalive: Duration) -> Sleep {
    sleep(keepalive)
}

fn output(encoder: Encoder, name: &str, bytes: &[u8]) -> Bytes {
    encoder.message(&json!({ "event": { "data": { name: STANDARD.encode(bytes) } } }))
}

/// The deadline that a request sets, if it does.
pub(super) fn limit(headers: &HeaderMap) -> RpcResult<Option<Duration>> {
    let Some(header) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let millis = header.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    let millis = millis.ok_or_else(|| {
        let shown = String::from_utf8_lossy(header.as_bytes()).into_owned();
        RpcError::invalid(format!("parse timeout: {shown:?} is no number of milliseconds"))
    })?;
    Ok(Some(Duration::from_millis(millis)))
}

/// How much silence there may be. The daemon does not survive an interval that is none.
pub(super) fn keepalive(call: &Call, headers: &HeaderMap) -> Result<Duration, Trouble> {
    let header = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    match header.and_then(|text| text.parse::<i64>().ok()) {
        None => Ok(KEEPALIVE),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
            _ => Err(Trouble::Failed(crash(call, "non-positive interval for NewTicker"))),
        },
    }
}

fn size(pty: &Value) -> Option<Winsize> {
    let size = field(pty, "size");
    let side = |name| number(size, name).and_then(|side| u16::try_from(side).ok()).unwrap_or_default();
    pty.is_object().then(|| Winsize { ws_row: side("rows"), ws_col: side("cols"), ws_xpixel: 0, ws_ypixel: 0 })
}

pub(super) fn list(call: &Call) -> Value {
    let processes = call.run.processes.lock();
    let shown = |process: &Arc<Process>| {
        let Description { config, tag } = &process.description;
        let mut shown = without_zeros(json!({ "pid": process.pid, "tag": tag }));
        shown["config"] = config.clone();
        shown
    };
    let running = processes.values().filter(|process| !process.has_ended()).map(shown).collect::<Vec<_>>();
    without_zeros(json!({ "processes": running }))
}

/// The process that a request is about. One that has ended a moment ago is known only to who wants to know how.
fn find(call: &Call, message: &Value, also_ended: bool) -> RpcResult<Arc<Process>> {
    let selector = field(message, "process");
    let processes = call.run.processes.lock();
    let is_there = |process: &&Arc<Process>| also_ended || !process.has_ended();
    if let Some(pid) = number(selector, "pid") {
        let process = u32::try_from(pid).ok().and_then(|pid| processes.get(&pid)).filter(is_there);
        return process.cloned().ok_or_else(|| RpcError::not_found(format!("process with pid {pid} not found")));
    }
    let tag = text(selector, "tag");
    if tag.is_empty() {
        return Err(RpcError::new(Code::Unimplemented, "invalid input type"));
    }
    // The real one stops at the first process with a tag, whether it is this one or not.
    let tagged = processes.values().filter(is_there).find(|process| !process.description.tag.is_empty());
    let process = tagged.filter(|process| process.description.tag == tag);
    process.cloned().ok_or_else(|| RpcError::not_found(format!("process with tag {tag} not found")))
}

pub(super) async fn send_input(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let process = find(call, message, false)?;
    write(&process, field(message, "input")).await?;
    Ok(json!({}))
}

async fn write(process: &Process, input: &Value) -> RpcResult<()> {
    let terminal = field(input, "pty").as_str();
    let Some(encoded) = terminal.or(field(input, "stdin").as_str()) else {
        return Err(RpcError::new(Code::Unimplemented, "invalid input type"));
    };
    let bytes = STANDARD.decode(encoded).map_err(|error| RpcError::invalid(format!("invalid input: {error}")))?;
    process.write(&bytes, terminal.is_some()).await.map_err(RpcError::internal)
}

pub(super) async fn close_stdin(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let process = find(call, message, false)?;
    process.close_stdin().await.map_err(|error| RpcError::new(Code::FailedPrecondition, error))?;
    Ok(json!({}))
}

pub(super) fn send_signal(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let process = find(call, message, false)?;
    let signal = match field(message, "signal") {
        Value::String(name) if name == "SIGNAL_SIGTERM" => Signal::TERM,
        Value::String(name) if name == "SIGNAL_SIGKILL" => Signal::KILL,
        Value::Number(number) if number.as_u64() == Some(15) => Signal::TERM,
        Value::Number(number) if number.as_u64() == Some(9) => Signal::KILL,
        other => return Err(RpcError::new(Code::Unimplemented, format!("invalid signal: {other}")).into()),
    };
    process.signal(signal).map_err(|error| RpcError::internal(format!("error sending signal: {error}")))?;
    Ok(json!({}))
}

pub(super) fn update(call: &Call, message: &Value) -> Result<Value, Trouble> {
    let process = find(call, message, false)?;
    if let Some(size) = size(field(message, "pty")) {
        process.resize(size).map_err(RpcError::internal)?;
    }
    Ok(json!({}))
}

pub(super) async fn stream_input(call: &Call, headers: &HeaderMap, body: Body) -> Result<Response, Trouble> {
    user(headers)?;
    let encoder = rpc::encoder(headers);
    let mut pieces = body.into_data_stream();
    let mut decoder = Decoder::default();
    let mut process = None;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| RpcError::invalid(format!("protocol error: {error}")))?;
        decoder.push(&piece);
        while let Some((_, message)) = decoder.next()? {
            let (start, data) = (field(&message, "start"), field(&message, "data"));
            if start.is_object() {
                process = Some(find(call, start, false)?);
            } else if data.is_object() {
                let process = process.as_ref();
                let process = process.ok_or_else(|| RpcError::invalid("process not initialized"))?;
                write(process, field(data, "input")).await?;
            }
        }
    }
    let frames = [encoder.message(&json!({})), encoder.end(None)];
    Ok(rpc::streaming(futures::stream::iter(frames.map(Ok))))
}
