//! `wsm run`: one command in a workspace, without a service.

use std::{ffi::OsString, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use futures::StreamExt;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
    time::Instant,
};
use wsm_core::{
    AgentId, Command, Error, ExitStatus, OutcomeKind, Process, ProcessControl, ProcessEvent, Scope, SessionId, Signal,
    UserId, WorkspaceHandle, WorkspaceId, WorkspaceManager,
};

use super::{
    SettingsArgs, announce_defaults, check_basedir, check_store,
    exit_codes::{self, BROKEN_PIPE},
    load,
    login::login_name,
    progress::show_while,
    sessions,
    signals::{self, Signals},
    start_logging,
    talk::complain,
};
use crate::{
    assemble,
    config::Settings,
    service::Service,
    store::{SqliteStore, Store},
};

/// How much of stdin is read at once.
const CHUNK: usize = 64 << 10;
/// How long output may wait for who reads it once a signal has come.
const STUCK: Duration = Duration::from_secs(2);
/// How long after a signal that is so. A command that still writes then has taken the signal for something else than its end.
const ENDING: Duration = Duration::from_secs(10);

/// What the help says after the flags.
pub(super) const HELP: &str = "\
Exits with the command's own code; 128 and the signal's number when a signal ended it; 124 when the time limit did; 125
when wsm failed or nobody saw how the command ended; 126 when the program can not be executed, 127 when there is none.";

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct RunArgs {
    #[command(flatten)]
    settings: SettingsArgs,
    /// Who asks [default: the login name]
    #[arg(long, value_name = "U")]
    user: Option<String>,
    /// Which agent asks
    #[arg(long, value_name = "A", default_value = "default")]
    agent: String,
    /// Which session asks
    #[arg(long, value_name = "S", default_value = "default")]
    session: String,
    /// The workspace to use, whatever the isolation policy says
    #[arg(long, value_name = "W")]
    workspace_id: Option<String>,
    /// After how long the command is ended
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let RunArgs { settings, user, agent, session, workspace_id, timeout, command } = args;
    let mut settings = load(settings, &[])?;
    // It looks after its own workspace only.
    settings.manager.insert("housekeeping".to_owned(), false.into());
    // What is on stderr is the command's own.
    start_logging(&settings, "error");
    let scope = Scope {
        user_id: UserId::new(user.unwrap_or_else(login_name))?,
        agent_id: AgentId::new(agent)?,
        session_id: SessionId::new(session)?,
    };
    let workspace_id = WorkspaceId::optional(workspace_id.as_deref())?;
    let command = command_of(command, timeout.as_deref())?;
    let mut signals = Signals::new()?;
    check_basedir(&settings)?;
    check_store(&settings)?;
    announce_defaults(&settings);

    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&settings.store).await?);
    let manager = assemble::manager(&settings, None)?;
    let code = run_in(&settings, &store, &manager, &scope, workspace_id, command, &mut signals).await;
    let report = manager.shutdown(settings.app.shutdown_timeout).await;
    for (id, error) in &report.failed {
        tracing::warn!(workspace = %id, error = %error.report(), "the workspace could not be put away");
    }
    store.close().await;
    Ok(code?.into())
}

fn command_of(argv: Vec<OsString>, timeout: Option<&str>) -> anyhow::Result<Command> {
    let mut command = Command::from_argv(sessions::texts(argv)?);
    if let Some(text) = timeout {
        let timeout: Option<Duration> = crate::config::parse_duration(text);
        let message = || format!("`--timeout`: `{text}` is not allowed: allowed is a time above zero, such as `30s`");
        command = command.with_timeout(timeout.with_context(message)?);
    }
    command.validate()?;
    Ok(command)
}

async fn run_in(
    settings: &Settings,
    store: &Arc<dyn Store>,
    manager: &Arc<dyn WorkspaceManager>,
    scope: &Scope,
    workspace_id: Option<WorkspaceId>,
    command: Command,
    signals: &mut Signals,
) -> anyhow::Result<u8> {
    manager.start().await?;
    let app = &settings.app;
    let service = Service::new(Arc::clone(manager), app.node.clone(), app.allow_foreign_owner, false);
    service.use_store(Arc::clone(store));
    let workspace = tokio::select! {
        opened = show_while(manager.subscribe(), service.open_by_hand(scope, workspace_id)) => opened?,
        // Nothing to pass the signal on to yet: what was begun is put away, and that is it.
        signal = signals.next() => return Ok(signals::exit_code(signal)),
    };
    warn_of_loss(&workspace);
    // Arguments may hold secrets; the program does not.
    tracing::debug!(program = command.program(), workspace = %workspace.id(), "running a command");
    let ended = if workspace.capabilities().spawn {
        stream(&workspace, command, signals).await
    } else {
        collect(&workspace, command).await
    };
    match ended {
        Ok(code) => Ok(code),
        Err(RunError::Workspace(error)) => match exit_codes::of_refusal(error.code()) {
            Some(code) => {
                complain(error.message());
                Ok(code)
            }
            None => Err(error.into()),
        },
        // Nobody reads what the command prints: it is ended as it would have been without wsm in between.
        Err(RunError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(BROKEN_PIPE),
        Err(RunError::Output(error)) => Err(anyhow::Error::new(error).context("the output can not be passed on")),
    }
}

enum RunError {
    Workspace(Error),
    Output(std::io::Error),
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Workspace(error)
    }
}

impl From<std::io::Error> for RunError {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

/// Passes everything through while the command runs.
async fn stream(workspace: &WorkspaceHandle, command: Command, signals: &mut Signals) -> Result<u8, RunError> {
    let Process { mut stdin, mut output, control } = workspace.spawn(command).await?;
    let mut helpers = JoinSet::new();
    helpers.spawn(async move {
        // The command may end before its input does, which is no error.
        let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut stdin).await;
        let _ = stdin.shutdown().await;
    });
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let mut status = ExitStatus::Unknown { reason: "the output ended without a status".to_owned() };
    let mut relay = Relay { control, signals, last: None };
    loop {
        let event = tokio::select! {
            event = output.next() => event,
            signal = relay.signals.next() => {
                relay.pass_on(signal).await;
                continue;
            }
        };
        let given_up = match event {
            Some(ProcessEvent::Stdout(bytes)) => relay.write(&mut stdout, &bytes).await?,
            Some(ProcessEvent::Stderr(bytes)) => relay.write(&mut stderr, &bytes).await?,
            Some(ProcessEvent::End(end)) => {
                status = end;
                None
            }
            None => break,
        };
        if let Some(signal) = given_up {
            helpers.abort_all();
            return Ok(signals::exit_code(signal));
        }
    }
    helpers.abort_all();
    Ok(exit_codes::of_status(&status))
}

/// What stands between a command and who runs it.
struct Relay<'a> {
    control: Arc<dyn ProcessControl>,
    signals: &'a mut Signals,
    /// The last signal that was passed on, and when.
    last: Option<(Signal, Instant)>,
}

impl Relay<'_> {
    /// Tells the command. Not to be dropped: the signal would be lost.
    async fn pass_on(&mut self, signal: Signal) {
        self.last = Some((signal, Instant::now()));
        if let Err(error) = self.control.signal(signal).await {
            tracing::warn!(error = %error.report(), "the signal did not reach the command");
        }
    }

    /// Writes output. Gives the signal that came a moment before, or meanwhile, where nobody takes the output: without wsm in
    /// between, the command would be gone.
    async fn write(&mut self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<Option<Signal>> {
        let mut writing = pin!(async {
            to.write_all(bytes).await?;
            to.flush().await
        });
        loop {
            let ending = self.last.filter(|(_, at)| at.elapsed() < ENDING).map(|(signal, _)| signal);
            tokio::select! {
                written = &mut writing => return written.map(|()| None),
                signal = self.signals.next() => self.pass_on(signal).await,
                () = tokio::time::sleep(STUCK), if ending.is_some() => return Ok(ending),
            }
        }
    }
}

/// For backends that can not stream: reads all input, runs the command, prints all output.
async fn collect(workspace: &WorkspaceHandle, command: Command) -> Result<u8, RunError> {
    let mut input = Vec::with_capacity(CHUNK);
    tokio::io::stdin().read_to_end(&mut input).await?;
    let result = workspace.exec(command.with_stdin(input)).await?;
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    stdout.write_all(&result.stdout.bytes).await?;
    stdout.flush().await?;
    stderr.write_all(&result.stderr.bytes).await?;
    stderr.flush().await?;
    Ok(exit_codes::of_status(&result.status))
}

fn warn_of_loss(workspace: &WorkspaceHandle) {
    let outcome = &workspace.opening().outcome;
    if outcome.kind == OutcomeKind::Recreated {
        let cause = outcome.cause.map(|cause| format!(" ({})", crate::metrics::name_of(&cause))).unwrap_or_default();
        complain(&format!("files of this workspace were lost{cause}: look at what is there"));
    }
}
