//! `wsm config`: the configuration as wsm understands it.

use std::{io::Write, process::ExitCode};

use clap::{Args, Subcommand};

use super::{SettingsArgs, load};

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints the effective configuration and where each value came from, secrets hidden.
    Show(SettingsArgs),
}

pub(super) fn config(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let ConfigArgs { command: ConfigCommand::Show(args) } = args;
    let settings = load(args, &[])?;
    std::io::stdout().write_all(settings.show().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
