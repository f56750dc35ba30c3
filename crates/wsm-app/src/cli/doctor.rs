//! `wsm doctor`: whether wsm can work here.

mod backend;
mod host;
mod place;
mod report;
mod service;
mod store;

use std::process::ExitCode;

use clap::Args;

use self::report::{Check, Report, Status};
use super::{SettingsArgs, exit_codes::FAILED, remote::RemoteArgs, talk::print};
use crate::{
    assemble::BACKENDS,
    config::{Settings, Sources},
};

/// What the help says after the flags.
pub(super) const HELP: &str = "\
Nothing is made or changed. Every line is `ok`, `warning` or `failed`, and says what to do where there is something to do.
The exit code is 1 when a line is `failed`, else 0.";

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct DoctorArgs {
    /// Looks at every backend of this build, not only at the configured one
    #[arg(long)]
    all: bool,
    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    service: RemoteArgs,
}

pub(super) async fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let DoctorArgs { all, json, settings, service } = args;
    let report = Report { checks: checks(settings.sources(&[])?, service, all).await };
    let text = if json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text() };
    print(text.as_bytes())?;
    Ok(if report.failed() { FAILED.into() } else { ExitCode::SUCCESS })
}

async fn checks(sources: Sources, service: RemoteArgs, all: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    match Settings::load(&sources, BACKENDS) {
        Ok(settings) => {
            checks.push(Check::ok("configuration", "it can be read: `wsm config show` prints it"));
            checks.extend(backend::checks(&settings).await);
            checks.extend(place::checks(&settings));
            checks.extend(store::checks(&settings).await);
            if all {
                let others = BACKENDS.iter().filter(|backend| backend.name != settings.backend.name);
                for other in others {
                    checks.extend(other_backend(&sources, other.name).await);
                }
            }
        }
        Err(error) => {
            let check = Check::new(Status::Failed, "configuration", error.to_string());
            checks.push(check.with_advice("put it right; nothing else that depends on it was looked at"));
        }
    }
    checks.extend(host::checks());
    checks.push(service::check(service).await);
    checks
}

async fn other_backend(sources: &Sources, name: &str) -> Vec<Check> {
    match Settings::load(&sources.clone().with_flag("--backend", "backend", name), BACKENDS) {
        // Nobody has asked to work with it, so that what it lacks is no failure.
        Ok(settings) => backend::checks(&settings).await.into_iter().map(Check::at_most_a_warning).collect(),
        Err(error) => vec![Check::new(Status::Warning, format!("backend {name}"), error.to_string())],
    }
}
