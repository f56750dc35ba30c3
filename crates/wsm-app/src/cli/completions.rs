//! `wsm completions`: what a shell needs to complete the command line.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, talk::print};

/// What the help says after the flags.
pub(super) const HELP: &str = "\
Examples:
  source <(wsm completions bash)                                    in ~/.bashrc
  wsm completions zsh > ~/.zfunc/_wsm                               a directory of $fpath
  wsm completions fish > ~/.config/fish/completions/wsm.fish";

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "wsm", &mut script);
    print(&script)?;
    Ok(ExitCode::SUCCESS)
}
