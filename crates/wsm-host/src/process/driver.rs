//! Follows one command from its start to its end, and ends it when it must.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use wsm_core::{ExitStatus, ProcessEvent};

use super::{child::Root, hunt::Hunt, launcher::Launcher, marker::Marked, output::OutputPipe};

/// How long a killed process may take to end before we stop waiting for it.
const REAP_PATIENCE: Duration = Duration::from_secs(5);

/// A running command. Its task is tracked by the workspace, which waits for it before it counts as put away.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) root: Root,
    pub(super) stdout: OutputPipe,
    pub(super) stderr: OutputPipe,
    /// Where the events go. The receiver is the caller's; when it is dropped, nobody wants the command any more.
    pub(super) events: mpsc::Sender<ProcessEvent>,
    pub(super) deadline: Option<Instant>,
    /// For a service, what asks it to end. A service leaves nothing behind.
    pub(super) service: Option<CancellationToken>,
    /// Cancelled when the workspace is put away.
    pub(super) closing: CancellationToken,
    pub(super) launcher: Arc<Launcher>,
    /// The number of the command among those of the launcher.
    pub(super) number: u64,
}

/// Why a command has to end before it wants to.
#[derive(Debug, Clone, Copy)]
enum Interrupt {
    Exited,
    Asked,
    TimedOut,
    Abandoned,
    Closing,
}

impl Driver {
    pub(super) async fn drive(mut self) {
        let status = {
            let wishes = Wishes {
                events: &self.events,
                deadline: self.deadline,
                service: self.service.as_ref(),
                closing: &self.closing,
            };
            let life = live(&mut self.root, wishes, &self.launcher, self.number);
            let pump = pump(&mut self.stdout, &mut self.stderr, &self.events);
            // The end of the command counts, not the end of its output, which a child in the background may hold back.
            tokio::select! {
                biased;
                status = life => status,
                never = pump => match never {},
            }
        };
        let Self { root, mut stdout, mut stderr, events, closing, .. } = self;
        // What follows may take as long as children in the background hold on to the output.
        drop(root);
        let told = async {
            drain(&mut stdout, &events, ProcessEvent::Stdout).await;
            drain(&mut stderr, &events, ProcessEvent::Stderr).await;
            // Fails when nobody listens any more, which is fine.
            let _ = events.send(ProcessEvent::End(status)).await;
        };
        // A reader that has stopped reading must not keep the workspace from being put away. It finds a stream without
        // an end, which means: unknown.
        let _ = closing.run_until_cancelled(told).await;
        drop(events);
        // Children in the background may go on writing: a closed pipe would kill them, a full one would stop them.
        let discarded = async { tokio::join!(stdout.discard(), stderr.discard()) };
        let _ = closing.run_until_cancelled(discarded).await;
    }
}

/// What may end a command before it wants to.
#[derive(Debug, Clone, Copy)]
struct Wishes<'d> {
    events: &'d mpsc::Sender<ProcessEvent>,
    deadline: Option<Instant>,
    service: Option<&'d CancellationToken>,
    closing: &'d CancellationToken,
}

/// Waits until the command ends, by itself or because it must. It is reaped then.
async fn live(root: &mut Root, wishes: Wishes<'_>, launcher: &Launcher, number: u64) -> ExitStatus {
    let Wishes { events, deadline, service, closing } = wishes;
    let out_of_time = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let asked = async {
        match service {
            Some(ending) => ending.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let exited = async {
        match service {
            Some(_) => {
                root.exited().await;
                None
            }
            None => Some(root.ended().await),
        }
    };
    let interrupt = tokio::select! {
        biased;
        status = exited => match status {
            Some(status) => return status,
            None => Interrupt::Exited,
        },
        () = out_of_time => Interrupt::TimedOut,
        () = asked => Interrupt::Asked,
        () = events.closed() => Interrupt::Abandoned,
        () = closing.cancelled() => Interrupt::Closing,
    };
    let marked = Marked::Command(launcher.instance().clone(), number);
    let status = match interrupt {
        // Not reaped yet, so that its group is still its own.
        Interrupt::Exited => end_rest(root, launcher, marked).await,
        Interrupt::Asked | Interrupt::TimedOut | Interrupt::Abandoned | Interrupt::Closing => {
            end_tree(root, launcher, marked).await
        }
    };
    match interrupt {
        Interrupt::Exited | Interrupt::Asked => status,
        Interrupt::TimedOut => ExitStatus::TimedOut,
        Interrupt::Abandoned => ExitStatus::Unknown { reason: "nobody waited for the end".to_owned() },
        Interrupt::Closing => ExitStatus::Unknown { reason: "the workspace was put away meanwhile".to_owned() },
    }
}

/// Ends the command with all that it started, and reaps it.
async fn end_tree(root: &mut Root, launcher: &Launcher, marked: Marked) -> ExitStatus {
    let hunted = match root.id() {
        Ok(id) => Hunt::tree(id, marked).run(launcher.grace()).await.map_err(|error| error.report().to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = hunted {
        tracing::error!(error, "could not end all processes of a command");
        root.signal_group(Signal::KILL);
    }
    reap(root).await
}

/// Ends what a service has left running that has ended by itself, and reaps the service.
async fn end_rest(root: &mut Root, launcher: &Launcher, marked: Marked) -> ExitStatus {
    if let Err(error) = Hunt::marked(marked).run(launcher.grace()).await {
        tracing::debug!(error = %error.report(), "what a service has left running was not looked for");
    }
    root.signal_group(Signal::KILL);
    reap(root).await
}

async fn reap(root: &mut Root) -> ExitStatus {
    timeout(REAP_PATIENCE, root.ended()).await.unwrap_or_else(|_| {
        tracing::error!("a killed command does not end");
        ExitStatus::Unknown { reason: "it does not end, not even by SIGKILL".to_owned() }
    })
}

/// Passes the output on for ever, at the pace of whoever reads it.
async fn pump(stdout: &mut OutputPipe, stderr: &mut OutputPipe, events: &mpsc::Sender<ProcessEvent>) -> Infallible {
    while stdout.is_open() || stderr.is_open() {
        // First the room, then the bytes, so that nothing is lost when this future is dropped.
        let Ok(room) = events.reserve().await else { break };
        tokio::select! {
            Some(bytes) = stdout.next(), if stdout.is_open() => room.send(ProcessEvent::Stdout(bytes)),
            Some(bytes) = stderr.next(), if stderr.is_open() => room.send(ProcessEvent::Stderr(bytes)),
            else => {}
        }
    }
    std::future::pending().await
}

/// Passes on what is in the pipe at this moment, and no more: somebody may write to it for ever.
async fn drain(pipe: &mut OutputPipe, events: &mpsc::Sender<ProcessEvent>, event: fn(Bytes) -> ProcessEvent) {
    let mut rest = pipe.buffered();
    while rest > 0 {
        let Some(bytes) = pipe.take(rest) else { return };
        rest = rest.saturating_sub(bytes.len());
        if events.send(event(bytes)).await.is_err() {
            return;
        }
    }
}
