//! A command that runs in a sandbox, and those who listen to it.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::{
    process::{Signal, pidfd_send_signal},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::machine::Spawned;

/// How much comes in one event.
const PIECE: usize = 32 << 10;
const TERMINAL_PIECE: usize = 16 << 10;
/// How many events wait for who reads slowly. Then the command waits.
const WAITING: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Terminal,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Terminal => "pty",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    Output(Source, Bytes),
    End(ExitStatus),
}

/// What a command was started as.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) config: Value,
    pub(crate) tag: String,
}

pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) description: Description,
    handle: OwnedFd,
    listeners: Mutex<Vec<mpsc::Sender<Event>>>,
    stdin: tokio::sync::Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>,
    terminal: Option<std::fs::File>,
    ended: Mutex<Option<ExitStatus>>,
    /// Signalled by a client: then nobody waits for its pipes.
    signalled: AtomicBool,
    /// Says that it was, to who waits for the pipes of one that has ended.
    woken: tokio::sync::Notify,
    /// Its time is over.
    pub(crate) expired: CancellationToken,
}

/// What a command is made of that was started a moment ago.
pub(crate) struct Running {
    child: tokio::process::Child,
    sources: Vec<(Source, Box<dyn AsyncRead + Send + Unpin>)>,
}

impl Process {
    /// Takes a command that was started, and gives also its first listener.
    pub(crate) fn new(
        spawned: Spawned,
        description: Description,
    ) -> io::Result<(Arc<Self>, Running, mpsc::Receiver<Event>)> {
        let Spawned { mut child, pid, handle, terminal } = spawned;
        let mut sources: Vec<(Source, Box<dyn AsyncRead + Send + Unpin>)> = Vec::new();
        let mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>> = None;
        let terminal = terminal.map(std::fs::File::from);
        if let Some(terminal) = &terminal {
            sources.push((Source::Terminal, Box::new(tokio::fs::File::from_std(terminal.try_clone()?))));
            stdin = Some(Box::new(tokio::fs::File::from_std(terminal.try_clone()?)));
        }
        if let Some(pipe) = child.stdin.take() {
            stdin = Some(Box::new(pipe));
        }
        if let Some(pipe) = child.stdout.take() {
            sources.push((Source::Stdout, Box::new(pipe)));
        }
        if let Some(pipe) = child.stderr.take() {
            sources.push((Source::Stderr, Box::new(pipe)));
        }
        let (listener, events) = mpsc::channel(WAITING);
        let process = Self {
            pid,
            description,
            handle,
            listeners: Mutex::new(vec![listener]),
            stdin: stdin.into(),
            terminal,
            ended: Mutex::new(None),
            signalled: AtomicBool::new(false),
            woken: tokio::sync::Notify::new(),
            expired: CancellationToken::new(),
        };
        Ok((Arc::new(process), Running { child, sources }, events))
    }

    /// Another listener, of what comes from now on.
    pub(crate) fn listen(&self) -> mpsc::Receiver<Event> {
        let (listener, events) = mpsc::channel(WAITING);
        // Held while it is added, so that the end is either seen here or told to all.
        let ended = self.ended.lock();
        match *ended {
            Some(status) => drop(listener.try_send(Event::End(status))),
            None => self.listeners.lock().push(listener),
        }
        events
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.lock().is_some()
    }

    /// Signals the process itself, and none that it started.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.signalled.store(true, Ordering::Relaxed);
        self.woken.notify_one();
        Ok(pidfd_send_signal(&self.handle, signal)?)
    }

    /// Waits while the pipe is full. Others who write wait behind.
    pub(crate) async fn write(&self, bytes: &[u8], to_terminal: bool) -> Result<(), String> {
        let mut stdin = self.stdin.lock().await;
        if to_terminal != self.terminal.is_some() {
            return Err(if to_terminal { "tty not assigned to process" } else { "stdin not enabled or closed" }.into());
        }
        let Some(pipe) = stdin.as_mut() else { return Err("stdin not enabled or closed".to_owned()) };
        let written = async {
            pipe.write_all(bytes).await?;
            pipe.flush().await
        };
        written.await.map_err(|error| format!("error writing to stdin: {error}"))
    }

    pub(crate) async fn close_stdin(&self) -> Result<(), &'static str> {
        if self.terminal.is_some() {
            return Err("cannot close stdin for PTY process - send Ctrl+D (0x04) instead");
        }
        drop(self.stdin.lock().await.take());
        Ok(())
    }

    pub(crate) fn resize(&self, size: Winsize) -> Result<(), String> {
        let Some(terminal) = &self.terminal else { return Err("tty not assigned to process".to_owned()) };
        tcsetwinsize(terminal, size).map_err(|error| error.to_string())
    }

    /// Carries it through until it has ended, and all who hold its output have closed that.
    pub(crate) async fn drive(self: Arc<Self>, running: Running, limit: Option<Duration>) {
        let Running { mut child, sources } = running;
        let reading = sources.into_iter().map(|(source, pipe)| self.relay(source, pipe));
        let mut reading = std::pin::pin!(futures::future::join_all(reading));
        let mut read_all = false;
        let mut limit = std::pin::pin!(async move {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        });
        let mut status = None;
        while status.is_none() || !(read_all || self.signalled.load(Ordering::Relaxed)) {
            tokio::select! {
                result = child.wait(), if status.is_none() => {
                    status = Some(result.unwrap_or_else(|_| ExitStatus::from_raw(0)));
                    // What was written before it ended is there by now.
                    if self.signalled.load(Ordering::Relaxed) {
                        break;
                    }
                }
                _ = &mut reading, if !read_all => read_all = true,
                () = self.woken.notified() => {}
                () = &mut limit, if !self.expired.is_cancelled() => {
                    self.expired.cancel();
                    let _ = self.signal(Signal::KILL);
                }
            }
        }
        let status = status.unwrap_or_else(|| ExitStatus::from_raw(0));
        *self.ended.lock() = Some(status);
        // Nobody can write to it any more.
        if let Ok(mut stdin) = self.stdin.try_lock() {
            stdin.take();
        }
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners {
            let _ = listener.send(Event::End(status)).await;
        }
    }

    async fn relay(&self, source: Source, mut pipe: Box<dyn AsyncRead + Send + Unpin>) {
        let piece = if matches!(source, Source::Terminal) { TERMINAL_PIECE } else { PIECE };
        loop {
            let mut buffer = BytesMut::with_capacity(piece);
            // A terminal that nobody has open any more fails to be read.
            if !pipe.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
                return;
            }
            let bytes = buffer.freeze();
            let listeners = self.listeners.lock().clone();
            let mut left = false;
            for listener in listeners {
                left |= listener.send(Event::Output(source, bytes.clone())).await.is_err();
            }
            if left {
                self.listeners.lock().retain(|listener| !listener.is_closed());
            }
        }
    }
}

/// How the `end` event tells of an end.
pub(crate) fn end_json(status: ExitStatus) -> Value {
    let Some(signal) = status.signal() else {
        let code = status.code().unwrap_or_default();
        let shown = format!("exit status {code}");
        return match code {
            0 => json!({ "exited": true, "status": shown }),
            _ => json!({ "exitCode": code, "exited": true, "status": shown, "error": shown }),
        };
    };
    let core = if status.core_dumped() { " (core dumped)" } else { "" };
    let shown = format!("signal: {}{core}", signal_name(signal));
    json!({ "exitCode": -1, "status": shown, "error": shown })
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_the_daemon_does() {
        let end = |raw| end_json(ExitStatus::from_raw(raw));
        assert_eq!(end(0), json!({ "exited": true, "status": "exit status 0" }));
        let seven = json!({ "exitCode": 7, "exited": true, "status": "exit status 7", "error": "exit status 7" });
        assert_eq!(end(7 << 8), seven);
        assert_eq!(end(9), json!({ "exitCode": -1, "status": "signal: killed", "error": "signal: killed" }));
    }
}
