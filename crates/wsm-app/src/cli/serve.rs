//! `wsm serve`: the service.

mod connections;

use std::{io::Write, process::ExitCode, sync::Arc};

use anyhow::Context;
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use wsm_core::{EventListener, Signal};

use super::{
    SettingsArgs, announce_defaults, check_basedir, check_store, load,
    signals::{Signals, exit_code},
    start_logging,
};
use crate::{App, Metrics, assemble, auth::is_loopback, config::Settings, create_app};

/// What the help says after the flags.
pub(super) const HELP: &str = "\
One line on standard output says where the service listens once it does; the API is described at /docs there. A stop puts
all workspaces away and keeps their files. A second signal stops at once.

Beyond this machine, the service only listens when `auth.token` or `auth.tokens` is configured.";

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct ServeArgs {
    /// The address to listen on; port 0 is any free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// After how long without use a workspace is put away [default: 3600s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    ttl: Option<String>,
    /// How often idle workspaces are looked for [default: 300s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    sweep_interval: Option<String>,
    /// How many workspaces are kept open at most [default: no limit]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_workspaces: Option<String>,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(super) async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let ServeArgs { listen, ttl, sweep_interval, max_workspaces, settings } = args;
    let more = [
        ("--listen", listen),
        ("--ttl", ttl),
        ("--sweep-interval", sweep_interval),
        ("--max-workspaces", max_workspaces),
    ];
    let settings = load(settings, &more)?;
    start_logging(&settings, &settings.log);
    refuse_open_doors(&settings)?;
    allow_many_files();
    // Heard from the very beginning, so that a stop during the start is a stop, too.
    let mut signals = Signals::new()?;
    check_basedir(&settings)?;
    check_store(&settings)?;
    announce_defaults(&settings);

    let metrics = Arc::new(Metrics::new());
    let listener: Arc<dyn EventListener> = Arc::clone(&metrics) as _;
    let manager = assemble::manager(&settings, Some(listener))?;
    let app = create_app(manager, settings.app.clone().with_metrics(metrics));
    app.lifecycle.start().await?;
    let served = listen_and_serve(&app, &settings, &mut signals).await;

    let closing = app.lifecycle.shutdown();
    tokio::pin!(closing);
    let report = tokio::select! {
        report = &mut closing => report,
        signal = signals.next() => leave_at_once(signal),
    };
    for (id, error) in &report.failed {
        tracing::error!(workspace = %id, error = %error.report(), "a workspace could not be put away");
    }
    tracing::info!(closed = report.closed, failed = report.failed.len(), "stopped");
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Some programs look at every file that they might have open, and commands inherit the limit.
const MOST_FILES: u64 = 65_536;

/// Workspaces, clients and streams take open files, many at a time, and the usual limit of 1,024 is one that every process may
/// raise to what the machine allows. Commands of the `local` backend inherit it, and so do sandboxes.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let Some(most) = raised(&limit) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }) {
        Ok(()) => tracing::debug!(from = limit.current, to = most, "more files may be open at once"),
        Err(error) => tracing::warn!(limit = limit.current, %error, "the limit of open files can not be raised"),
    }
}

/// To what a limit is raised; none where it is high enough, or as high as may be.
fn raised(limit: &Rlimit) -> Option<u64> {
    let most = limit.maximum.map_or(MOST_FILES, |most| most.min(MOST_FILES));
    limit.current.is_some_and(|current| current < most).then_some(most)
}

/// Nobody beyond this machine may be let in without being asked who they are.
fn refuse_open_doors(settings: &Settings) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_loopback(settings.listen.ip()) || settings.app.auth.has_tokens(),
        "`listen`: {} can be reached from beyond this machine, and anybody there could claim to be any user: \
         set `auth.token` or `auth.tokens`, or listen on 127.0.0.1",
        settings.listen
    );
    Ok(())
}

/// Serves until the first signal, and then until what goes on has ended or had its time.
async fn listen_and_serve(app: &App, settings: &Settings, signals: &mut Signals) -> anyhow::Result<()> {
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("`listen`: {} can not be listened on", settings.listen))?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let head_timeout = settings.app.limits.head_timeout;
    let mut server = std::pin::pin!(connections::serve(listener, app.router.clone(), head_timeout, stop.clone()));
    writeln!(std::io::stdout(), "wsm is listening on http://{address}")?;
    tracing::info!(%address, backend = settings.backend.name, store = %settings.store.display(), "listening");

    tokio::select! {
        () = &mut server => return Ok(()),
        signal = signals.next() => tracing::info!(?signal, "stopping; another signal stops at once"),
    }
    stop.cancel();
    app.lifecycle.end_streams();
    tokio::select! {
        () = &mut server => {}
        () = tokio::time::sleep(settings.app.shutdown_timeout) => {
            tracing::warn!("requests are still going on: they are broken off");
        }
        signal = signals.next() => leave_at_once(signal),
    }
    Ok(())
}

/// Whoever asks twice does not want to wait.
fn leave_at_once(signal: Signal) -> ! {
    tracing::warn!("stopping at once: workspaces may still be open");
    std::process::exit(exit_code(signal).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_files_is_raised_and_not_beyond_measure() {
        let from_to = |current, maximum| raised(&Rlimit { current, maximum });
        assert_eq!(from_to(Some(1024), Some(4096)), Some(4096));
        assert_eq!(from_to(Some(1024), Some(1 << 30)), Some(MOST_FILES));
        assert_eq!(from_to(Some(1024), None), Some(MOST_FILES));
        for enough in [(Some(4096), Some(4096)), (Some(1 << 20), Some(1 << 30)), (None, None)] {
            assert_eq!(from_to(enough.0, enough.1), None);
        }
    }
}
