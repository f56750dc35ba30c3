//! The programs that a workspace in memory knows.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
};

use super::{
    engine::MemoryEngine,
    shell,
    tree::{WORKDIR, resolve},
};
use crate::{
    exec::{ExitStatus, ProcessEvent},
    id::WorkspaceId,
};

/// The largest piece of output that is sent at once.
const PIECE: usize = 32 << 10;

/// What a running program sees of the world.
pub(super) struct Machine {
    pub(super) engine: MemoryEngine,
    pub(super) id: WorkspaceId,
    /// Below the workspace directory.
    pub(super) cwd: String,
    pub(super) env: BTreeMap<String, String>,
    /// The shell's `$0`, `$1` and so on.
    pub(super) args: Vec<String>,
    pub(super) stdin: Box<dyn AsyncRead + Send + Sync + Unpin>,
    pub(super) events: mpsc::Sender<ProcessEvent>,
    /// Whether stderr comes out of stdout.
    pub(super) merged: bool,
}

/// Where a program's output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sink {
    Stdout,
    Stderr,
    /// Appends to a file below the workspace directory.
    File(String),
}

impl Machine {
    pub(super) async fn print(&self, sink: &Sink, bytes: impl Into<Bytes>) {
        let mut bytes = bytes.into();
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            let event = match sink {
                Sink::Stderr if !self.merged => ProcessEvent::Stderr(piece),
                Sink::Stdout | Sink::Stderr => ProcessEvent::Stdout(piece),
                Sink::File(path) => {
                    let _ = self.engine.with_one(&self.id, |sandbox| sandbox.tree.append(path, &piece));
                    continue;
                }
            };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }

    async fn complain(&self, text: String) -> ExitStatus {
        self.print(&Sink::Stderr, text).await;
        code(1)
    }

    async fn stdin_to(&mut self, sink: &Sink, limit: u64) -> ExitStatus {
        let mut left = limit;
        let mut buffer = vec![0; PIECE];
        while left > 0 {
            let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.stdin.read(&mut buffer[..room]).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.print(sink, Bytes::copy_from_slice(&buffer[..count])).await;
                    left -= count as u64;
                }
            }
        }
        code(0)
    }

    fn file(&self, path: &str) -> Option<Bytes> {
        let path = resolve(&self.cwd, path).ok()?;
        self.engine.with_one(&self.id, |sandbox| sandbox.tree.read(&path).ok()).flatten().map(|(_, bytes)| bytes)
    }
}

pub(super) fn code(code: i32) -> ExitStatus {
    ExitStatus::Exited { code }
}

const PROGRAMS: [&str; 12] =
    ["true", "false", "echo", "printf", "cat", "head", "seq", "sleep", "env", "pwd", "sh", "test"];

pub(super) fn is_program(name: &str) -> bool {
    PROGRAMS.contains(&name)
}

/// Runs one command to its end.
pub(super) async fn run(argv: Vec<String>, mut machine: Machine) -> ExitStatus {
    run_program(&argv, &mut machine, &Sink::Stdout).await
}

pub(super) async fn run_program(argv: &[String], machine: &mut Machine, sink: &Sink) -> ExitStatus {
    let args: Vec<&str> = argv.iter().map(String::as_str).collect();
    match args[..] {
        ["true", ..] => code(0),
        ["false", ..] => code(1),
        ["echo", ref words @ ..] => {
            machine.print(sink, format!("{}\n", words.join(" "))).await;
            code(0)
        }
        ["printf", format] => {
            machine.print(sink, unescape(format)).await;
            code(0)
        }
        ["cat"] => machine.stdin_to(sink, u64::MAX).await,
        ["cat", ref paths @ ..] => {
            for path in paths {
                match machine.file(path) {
                    Some(bytes) => machine.print(sink, bytes).await,
                    None => return machine.complain(format!("cat: {path}: No such file or directory\n")).await,
                }
            }
            code(0)
        }
        ["head", "-c", count, "/dev/zero"] => {
            let mut left: usize = count.parse().unwrap_or(0);
            while left > 0 {
                let piece = left.min(PIECE);
                machine.print(sink, vec![0; piece]).await;
                left -= piece;
            }
            code(0)
        }
        ["head", "-c", count] => machine.stdin_to(sink, count.parse().unwrap_or(0)).await,
        ["seq", last] => {
            let last: u64 = last.parse().unwrap_or(0);
            let mut lines = String::new();
            for number in 1..=last {
                lines.push_str(&format!("{number}\n"));
                if lines.len() >= PIECE {
                    machine.print(sink, std::mem::take(&mut lines)).await;
                }
            }
            machine.print(sink, lines).await;
            code(0)
        }
        ["sleep", seconds] => {
            tokio::time::sleep(Duration::try_from_secs_f64(seconds.parse().unwrap_or(0.0)).unwrap_or_default()).await;
            code(0)
        }
        ["env"] => {
            let lines: String = machine.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
            machine.print(sink, lines).await;
            code(0)
        }
        ["pwd"] => {
            let slash = if machine.cwd.is_empty() { "" } else { "/" };
            machine.print(sink, format!("{WORKDIR}{slash}{}\n", machine.cwd)).await;
            code(0)
        }
        ["test", "-e", path] => code(i32::from(!resolve(&machine.cwd, path).is_ok_and(|path| {
            machine.engine.with_one(&machine.id, |sandbox| sandbox.tree.stat(&path).is_ok()).unwrap_or(false)
        }))),
        ["sh", "-c", line, ref args @ ..] => {
            machine.args = args.iter().map(|&arg| arg.to_owned()).collect();
            Box::pin(shell::run_line(line, machine, sink)).await
        }
        [program, ..] => {
            machine.print(&Sink::Stderr, format!("sh: {program}: not found\n")).await;
            code(127)
        }
        [] => code(127),
    }
}

/// `printf`'s escapes: three octal digits, newline, tab, and the backslash itself.
fn unescape(format: &str) -> Vec<u8> {
    let bytes = format.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = |from: usize| {
            let digits = bytes.get(from..from + 3)?;
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
        };
        let (byte, length) = match (bytes[at], bytes.get(at + 1)) {
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'\\')) => (b'\\', 2),
            (b'\\', Some(_)) => octal(at + 1).map_or((b'\\', 1), |byte| (byte, 4)),
            (byte, _) => (byte, 1),
        };
        out.push(byte);
        at += length;
    }
    out
}
