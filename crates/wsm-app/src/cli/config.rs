//! `wsm config`: the configuration as wsm understands it.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{SettingsArgs, load, talk::print};
use crate::config::describe_keys;

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints the effective configuration and where each value came from, secrets hidden
    Show(SettingsArgs),
    /// Lists the keys and what they are for
    Keys,
}

pub(super) fn config(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let text = match args.command {
        ConfigCommand::Show(args) => load(args, &[])?.show(),
        ConfigCommand::Keys => describe_keys().iter().map(|(key, about)| format!("{key:24} {about}\n")).collect(),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
