//! `wsm exec`: one command in the workspace of a running service's session.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{IsTerminal, Read},
    process::ExitCode,
};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use http::{Method, header};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use wsm_core::ExitStatus;

use super::{
    exit_codes::{self, BROKEN_PIPE},
    remote::{Client, Event, Events, Refusal, RemoteArgs, UserArgs},
    sessions::{self, Missing},
    talk::complain,
};
use crate::http::LOST_HEADER;

/// How much input is taken: it is read to its end before the command starts.
const MAX_INPUT_BYTES: u64 = 64 << 20;

/// What the help says after the flags.
pub(super) const HELP: &str = "\
Standard input is read to its end first, unless it is a terminal: give `</dev/null` where it never ends.

Exits with the command's own code; 128 and the signal's number when a signal ended it; 124 when the time limit did; 125
when wsm failed or nobody saw how the command ended; 126 when the program can not be executed, 127 when there is none.

Examples:
  wsm exec -- python3 train.py
  wsm exec --session review --timeout 5m -- sh -c 'make test 2>&1 | tail'
  git diff | wsm exec -- wc -l";

const TOO_LONG: &str = "standard input is too long: copy it into the workspace with `wsm cp - SESSION:PATH` first";

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct ExecArgs {
    /// The session whose workspace to use; it is made when there is none
    #[arg(long, value_name = "S", default_value = "default")]
    session: String,
    /// The session's agent [default: the one it has, or `default` for a new session]
    #[arg(long, value_name = "A")]
    agent: Option<String>,
    /// The directory to run in [default: the workspace's]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Adds a variable to the command's environment; may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// After how long the command is ended [default: the service's limit]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    user: UserArgs,
    #[command(flatten)]
    service: RemoteArgs,
}

pub(super) async fn exec(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let ExecArgs { session, agent, cwd, env, timeout, command, user, service } = args;
    let mut body = json!({ "command": sessions::texts(command)? });
    if let Some(cwd) = cwd {
        body["cwd"] = cwd.into();
    }
    if !env.is_empty() {
        body["env"] = json!(variables(&env)?);
    }
    if let Some(text) = timeout {
        let message = || format!("`--timeout`: `{text}` is not allowed: allowed is a time above zero, such as `30s`");
        body["timeout_seconds"] = crate::config::parse_duration(&text).with_context(message)?.as_secs_f64().into();
    }
    let client = Client::of_user(service, user)?;
    // First, so that input that is refused makes no session.
    if let Some(input) = input()? {
        body["stdin"] = BASE64_STANDARD.encode(input).into();
        body["stdin_encoding"] = "base64".into();
    }
    let agent = sessions::agent_of(&client, &session, agent.as_deref(), Missing::Make).await?;
    let request = client
        .request(Method::POST, &["workspace", "exec"])?
        .query(&[("agent_id", &*agent), ("session_id", &*session)])
        .header(header::ACCEPT, "text/event-stream")
        .json(&body);
    let response = match client.send(request).await {
        Ok(response) => response,
        Err(error) => {
            if sessions::is(&error, "too_large") {
                return Err(error.context(TOO_LONG));
            }
            let refusal = error.downcast_ref::<Refusal>();
            let Some(code) = refusal.and_then(|refusal| exit_codes::of_refusal(refusal.code())) else {
                return Err(error);
            };
            complain(refusal.and_then(Refusal::detail).unwrap_or_default());
            return Ok(code.into());
        }
    };
    if let Some(lost) = response.headers().get(LOST_HEADER) {
        complain(&format!("the workspace was lost since the session last used it: {}", lost.to_str().unwrap_or("?")));
    }
    Ok(pass_on(Events::new(response)).await?.into())
}

/// Passes the output on until the command has ended.
async fn pass_on(mut events: Events) -> anyhow::Result<u8> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        let Event { name, data } = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => anyhow::bail!("nobody saw how the command ended: the service ended the connection before it"),
            Err(error) => return Err(error.context("nobody saw how the command ended")),
        };
        let written = match &*name {
            "stdout" => write(&mut stdout, &data).await,
            "stderr" => write(&mut stderr, &data).await,
            "end" => return Ok(exit_codes::of_status(&serde_json::from_slice::<End>(&data)?.status())),
            // A later service may have more to tell.
            _ => Ok(()),
        };
        if let Err(error) = written {
            // Leaving ends the command, as it would have ended without wsm in between.
            let broken = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            if broken == Some(std::io::ErrorKind::BrokenPipe) {
                return Ok(BROKEN_PIPE);
            }
            return Err(error.context("the output can not be passed on"));
        }
    }
}

async fn write(stream: &mut (impl AsyncWriteExt + Unpin), data: &[u8]) -> anyhow::Result<()> {
    let Chunk { data, encoding } = serde_json::from_slice(data)?;
    let bytes = if encoding == "base64" { BASE64_STANDARD.decode(data)? } else { data.into_bytes() };
    stream.write_all(&bytes).await?;
    Ok(stream.flush().await?)
}

#[derive(Debug, Deserialize)]
struct Chunk {
    data: String,
    encoding: String,
}

#[derive(Debug, Deserialize)]
struct End {
    outcome: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    #[serde(default)]
    reason: Option<String>,
}

impl End {
    fn status(self) -> ExitStatus {
        let Self { outcome, exit_code, signal, reason } = self;
        match (&*outcome, exit_code, signal) {
            ("exited", Some(code), _) => ExitStatus::Exited { code },
            ("signaled", _, Some(signal)) => ExitStatus::Signaled { signal },
            ("timed_out", ..) => ExitStatus::TimedOut,
            _ => ExitStatus::Unknown { reason: reason.unwrap_or(outcome) },
        }
    }
}

fn variables(assignments: &[String]) -> anyhow::Result<BTreeMap<&str, &str>> {
    let refuse = |text| format!("`--env`: `{text}` is not of the form NAME=VALUE");
    assignments.iter().map(|text| text.split_once('=').with_context(|| refuse(text))).collect()
}

/// What the command is to read: nothing from a terminal, since it could not be read as it is typed.
fn input() -> anyhow::Result<Option<Vec<u8>>> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    match stdin.lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes) {
        Ok(_) => {}
        // A closed descriptor has nothing to read.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BADF.raw_os_error()) => return Ok(None),
        Err(error) => return Err(anyhow::Error::new(error).context("standard input can not be read")),
    }
    anyhow::ensure!(
        bytes.len() as u64 <= MAX_INPUT_BYTES,
        "{TOO_LONG}: it is longer than {} MiB",
        MAX_INPUT_BYTES >> 20
    );
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}
