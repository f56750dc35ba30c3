//! What a daemon says about a command, read; and how an end of it is to be understood. Pure.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use wsm_core::{Error, ExitStatus};

use crate::{KIND, envelope::Envelope, error::Answer};

/// Which stream of a command something came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
}

/// One thing that a stream tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// The command runs, as this process.
    Start(u32),
    Output(Source, Bytes),
    /// The command has ended. The only thing that says so.
    End(ExitStatus),
    /// The stream is over, properly or with an error.
    Finished(Option<Answer>),
    /// A sign of life, or what a later version says.
    Other,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    event: Option<Event<'a>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    start: Option<StartEvent>,
    #[serde(borrow, default)]
    data: Option<DataEvent<'a>>,
    #[serde(borrow, default)]
    end: Option<EndEvent<'a>>,
}

#[derive(Deserialize)]
struct StartEvent {
    #[serde(default)]
    pid: Number,
}

/// Numbers may come as text.
#[derive(Deserialize, Default)]
#[serde(transparent)]
struct Number(Value);

impl Number {
    fn get(&self) -> Option<i64> {
        self.0.as_i64().or_else(|| self.0.as_str()?.parse().ok())
    }
}

#[derive(Deserialize)]
struct DataEvent<'a> {
    #[serde(borrow, default)]
    stdout: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stderr: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndEvent<'a> {
    /// Absent is 0: so the protocol leaves out what is nothing.
    #[serde(default)]
    exit_code: Number,
    #[serde(default)]
    exited: bool,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
}

impl Incoming {
    /// Reads an envelope.
    pub(crate) fn read(envelope: &Envelope) -> Result<Self, String> {
        if envelope.is_end {
            return Ok(Self::Finished(finish(&envelope.payload)));
        }
        let message: Message<'_> = serde_json::from_slice(&envelope.payload)
            .map_err(|error| format!("an event that is none ({:?})", error.classify()))?;
        let Some(Event { start, data, end }) = message.event else { return Ok(Self::Other) };
        if let Some(start) = start {
            let pid = start.pid.get().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 1);
            return pid.map(Self::Start).ok_or_else(|| "a start without a process".to_owned());
        }
        if let Some(DataEvent { stdout, stderr }) = data {
            let (source, text) = match (stdout, stderr) {
                (Some(text), _) => (Source::Stdout, text),
                (None, Some(text)) => (Source::Stderr, text),
                (None, None) => return Ok(Self::Other),
            };
            let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| "output that is not base64".to_owned())?;
            return Ok(Self::Output(source, bytes.into()));
        }
        Ok(end.map_or(Self::Other, |end| Self::End(end.status())))
    }
}

/// The error that a stream ends with, if it does.
fn finish(payload: &[u8]) -> Option<Answer> {
    let value: Value = match serde_json::from_slice(payload) {
        Ok(value) => value,
        // A proper end has nothing to say; whatever this is, it is none.
        Err(_) if !payload.is_empty() => {
            return Some(Answer {
                code: "internal".into(),
                message: "an end that makes no sense".into(),
                ..Answer::default()
            });
        }
        Err(_) => return None,
    };
    let error = value.get("error").filter(|error| !error.is_null())?;
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    let code = Some(text("code")).filter(|code| !code.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    Some(Answer { code, message: text("message"), ..Answer::default() })
}

impl EndEvent<'_> {
    fn status(&self) -> ExitStatus {
        let status = self.status.as_deref().unwrap_or_default();
        if self.exited {
            let code = self.exit_code.get().unwrap_or_default();
            return ExitStatus::Exited { code: i32::try_from(code).unwrap_or(-1) };
        }
        if let Some(name) = status.strip_prefix("signal: ")
            && let Some(signal) = signal_number(name.trim_end_matches(" (core dumped)"))
        {
            return ExitStatus::Signaled { signal };
        }
        ExitStatus::Unknown { reason: format!("the sandbox said {status:?} of the end") }
    }
}

/// The number of a signal as Go names it.
fn signal_number(name: &str) -> Option<i32> {
    const NAMES: [(&str, i32); 21] = [
        ("hangup", 1),
        ("interrupt", 2),
        ("quit", 3),
        ("illegal instruction", 4),
        ("trace/breakpoint trap", 5),
        ("aborted", 6),
        ("bus error", 7),
        ("floating point exception", 8),
        ("killed", 9),
        ("user defined signal 1", 10),
        ("segmentation fault", 11),
        ("user defined signal 2", 12),
        ("broken pipe", 13),
        ("alarm clock", 14),
        ("terminated", 15),
        ("stack fault", 16),
        ("CPU time limit exceeded", 24),
        ("file size limit exceeded", 25),
        ("virtual timer expired", 26),
        ("profiling timer expired", 27),
        ("bad system call", 31),
    ];
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    named.or_else(|| name.strip_prefix("signal ")?.parse().ok())
}

/// The status that the kernel keeps of a process that has ended and that nobody has asked for yet: the last field of its line
/// in `/proc`. `Err` when it runs; none in `Ok` when its line does not tell.
pub(crate) fn of_proc_stat(line: &str) -> Result<Option<ExitStatus>, ()> {
    // The name in parentheses may hold anything.
    let Some((_, rest)) = line.rsplit_once(')') else { return Err(()) };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if !matches!(fields.first(), Some(&("Z" | "X" | "x"))) {
        return Err(());
    }
    // Of 52 fields, the first two are before.
    let raw = fields.get(49).and_then(|field| field.parse::<i32>().ok());
    Ok(raw.map(|raw| match raw & 0x7f {
        0 => ExitStatus::Exited { code: (raw >> 8) & 0xff },
        signal => ExitStatus::Signaled { signal },
    }))
}

/// What starts a command, and complains on stderr when it can not.
const LAUNCHERS: [&str; 6] = ["setsid: ", "nice: ", "ionice: ", "sh: ", "/bin/sh: ", "env: "];

/// Whether something on stderr is a launcher's, or the beginning of what would be.
pub(crate) fn is_launchers(said: &[u8]) -> bool {
    let begins = |launcher: &str| said.starts_with(launcher.as_bytes()) || launcher.as_bytes().starts_with(said);
    LAUNCHERS.iter().any(|launcher| begins(launcher))
}

/// Whether what looks like an end is a program that never began: the launcher says so on stderr, and nothing else was said.
/// `launcher` is what started it: `setsid`, or a part of the daemon.
pub(crate) fn refusal(program: &str, status: &ExitStatus, stdout_is_empty: bool, stderr: &[u8]) -> Option<Error> {
    let ExitStatus::Exited { code: code @ (126 | 127) } = status else { return None };
    let text = std::str::from_utf8(stderr).ok()?;
    let line = text.trim_end_matches('\n');
    // A program that is a launcher itself says so of what it was to start: then it has begun.
    let name = program.rsplit('/').next().unwrap_or_default();
    let is_its_own = |launcher: &str| launcher.trim_end_matches(": ").rsplit('/').next() == Some(name);
    let is_launchers =
        LAUNCHERS.iter().any(|launcher| line.starts_with(launcher) && !is_its_own(launcher)) && line.contains(program);
    if !stdout_is_empty || !is_launchers || line.contains('\n') {
        return None;
    }
    let why = line.rsplit(": ").next().unwrap_or_default().to_ascii_lowercase();
    let (code, said) = match code {
        126 => ("program_not_executable", "can not be run"),
        _ if why.contains("permission denied") => ("program_not_executable", "can not be run"),
        _ => ("program_not_found", "was not found"),
    };
    let message = format!("the program `{program}` {said}: {why}");
    Some(Error::invalid("command", message).with_code(code).with_backend(KIND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Incoming {
        let payload = Bytes::copy_from_slice(json.as_bytes());
        Incoming::read(&Envelope { is_end: false, payload }).unwrap()
    }

    fn end(json: &str) -> ExitStatus {
        match event(json) {
            Incoming::End(status) => status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ends_are_read_as_the_protocol_leaves_out_what_is_zero() {
        let exited = |code| ExitStatus::Exited { code };
        assert_eq!(end(r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#), exited(0));
        assert_eq!(end(r#"{"event":{"end":{"exitCode":7,"exited":true}}}"#), exited(7));
        assert_eq!(end(r#"{"event":{"end":{"exitCode":"137","exited":true}}}"#), exited(137));
        let killed = r#"{"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}}"#;
        assert_eq!(end(killed), ExitStatus::Signaled { signal: 9 });
        let dumped = r#"{"event":{"end":{"exitCode":-1,"status":"signal: segmentation fault (core dumped)"}}}"#;
        assert_eq!(end(dumped), ExitStatus::Signaled { signal: 11 });
        assert!(matches!(end(r#"{"event":{"end":{}}}"#), ExitStatus::Unknown { .. }));
    }

    #[test]
    fn events_of_every_kind_are_read() {
        assert_eq!(event(r#"{"event":{"start":{"pid":34}}}"#), Incoming::Start(34));
        assert_eq!(event(r#"{"event":{"start":{"pid":"34"}}}"#), Incoming::Start(34));
        let output = |source, text: &'static str| Incoming::Output(source, Bytes::from_static(text.as_bytes()));
        assert_eq!(event(r#"{"event":{"data":{"stdout":"b3V0Cg=="}}}"#), output(Source::Stdout, "out\n"));
        assert_eq!(event(r#"{"event":{"data":{"stderr":"ZXJyCg=="}}}"#), output(Source::Stderr, "err\n"));
        for other in
            [r#"{"event":{"keepalive":{}}}"#, r#"{"event":{"new":1}}"#, "{}", r#"{"event":{"data":{"pty":"eA=="}}}"#]
        {
            assert_eq!(event(other), Incoming::Other, "{other}");
        }
        for nonsense in ["", "[", r#"{"event":{"start":{"pid":0}}}"#, r#"{"event":{"data":{"stdout":"*"}}}"#] {
            let payload = Bytes::copy_from_slice(nonsense.as_bytes());
            assert!(Incoming::read(&Envelope { is_end: false, payload }).is_err(), "{nonsense}");
        }
        let finished = |json: &'static str| {
            Incoming::read(&Envelope { is_end: true, payload: Bytes::from_static(json.as_bytes()) }).unwrap()
        };
        assert_eq!(finished("{}"), Incoming::Finished(None));
        let Incoming::Finished(Some(answer)) = finished(r#"{"error":{"code":"canceled","message":"m"}}"#) else {
            panic!()
        };
        assert_eq!((answer.code(), answer.message.as_str()), ("canceled", "m"));
    }

    #[test]
    fn the_kernel_tells_how_what_nobody_waits_for_has_ended() {
        let line = |state: &str, raw: i32| format!("7 (a) b) c) {state} {}{raw}\n", "0 ".repeat(48));
        assert_eq!(of_proc_stat(&line("Z", 7 << 8)), Ok(Some(ExitStatus::Exited { code: 7 })));
        assert_eq!(of_proc_stat(&line("Z", 9)), Ok(Some(ExitStatus::Signaled { signal: 9 })));
        assert_eq!(of_proc_stat(&line("S", 0)), Err(()));
        assert_eq!(of_proc_stat(""), Err(()));
        assert_eq!(of_proc_stat("7 (x) Z 1"), Ok(None));
    }

    #[test]
    fn a_program_that_did_not_begin_is_told_from_one_that_says_so_itself() {
        let told = |code, stderr: &str| {
            refusal("x", &ExitStatus::Exited { code }, true, stderr.as_bytes()).map(|error| error.code())
        };
        assert_eq!(told(127, "setsid: failed to execute x: No such file or directory\n"), Some("program_not_found"));
        assert_eq!(told(126, "setsid: failed to execute x: Permission denied\n"), Some("program_not_executable"));
        assert_eq!(told(127, "nice: 'x': No such file or directory\n"), Some("program_not_found"));
        assert_eq!(told(127, ""), None);
        let shells = |program| refusal(program, &ExitStatus::Exited { code: 127 }, true, b"sh: 1: x: not found\n");
        assert!(shells("sh").is_none() && shells("/bin/sh").is_none() && shells("x").is_some());
        assert!(is_launchers(b"set") && is_launchers(b"setsid: failed") && !is_launchers(b"x: not found"));
        assert_eq!(told(127, "more\nsetsid: failed to execute x: No such file or directory\n"), None);
        assert_eq!(told(1, "setsid: failed to execute x: No such file or directory\n"), None);
    }
}
