//! The `wsm` command.
//!
//! One file for each subcommand; this one holds what they share: their flags, and how a configuration is made of them.

mod completions;
mod config;
mod cp;
mod doctor;
mod exec;
mod exit_codes;
mod gc;
mod login;
mod progress;
mod put_away;
mod remote;
mod run;
mod serve;
mod sessions;
mod signals;
mod table;
mod talk;
mod workspaces;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

use exit_codes::{BROKEN_PIPE, COMMAND_FAILED, FAILED, USAGE};
use talk::complain;

use crate::{
    assemble::BACKENDS,
    config::{Settings, Sources},
    telemetry,
};

/// What the help says after the list of commands.
const EXAMPLES: &str = "\
Begin here:
  wsm run -- sh -c 'echo hello > f; ls'    one command in your workspace, without a service
  wsm serve                                the service, in one terminal
  wsm exec -- ls                           the same workspace, through the service, in another one
  wsm cp report.txt default:               a file into the workspace of the session `default`
  wsm doctor                               what is missing, should something not work

A workspace is a directory, a container or a virtual machine that belongs to whoever asks: by default, every agent of a
user has one of its own. `wsm config keys` lists what can be configured.";

#[derive(Debug, Parser)]
#[command(
    name = "wsm",
    version,
    about = "Gives every agent the workspace it should work in",
    propagate_version = true,
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service, until it is told to stop by Ctrl-C or SIGTERM
    #[command(after_help = serve::HELP)]
    Serve(Box<serve::ServeArgs>),
    /// Runs one command in a workspace, without a service
    #[command(after_help = run::HELP)]
    Run(Box<run::RunArgs>),
    /// Lists the workspaces of a running service
    #[command(name = "ls", visible_alias = "list")]
    List(workspaces::ListArgs),
    /// Shows one workspace of a running service
    Show(workspaces::ShowArgs),
    /// Runs one command through a running service
    #[command(after_help = exec::HELP)]
    Exec(Box<exec::ExecArgs>),
    /// Copies files and directories into a workspace or out of it, through a running service
    #[command(name = "cp", visible_alias = "copy", after_help = cp::HELP)]
    Copy(Box<cp::CopyArgs>),
    /// Puts a workspace away and keeps its files: the next use brings it back
    Close(put_away::CloseArgs),
    /// Ends a workspace and deletes its files, for ever
    Destroy(put_away::DestroyArgs),
    /// Removes what crashes and newer versions have left and nothing needs any more
    #[command(name = "gc", after_help = gc::HELP)]
    CollectGarbage(Box<gc::GcArgs>),
    /// Checks whether wsm can work here, and says what to do where it can not
    #[command(after_help = doctor::HELP)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Looks at the configuration
    Config(config::ConfigArgs),
    /// Prints what a shell needs to complete the command line
    #[command(after_help = completions::HELP)]
    Completions(completions::CompletionsArgs),
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Serve(args) => block_on(serve::serve(*args)),
            Self::Run(args) => block_on(run::run(*args)),
            Self::List(args) => block_on(workspaces::list(args)),
            Self::Show(args) => block_on(workspaces::show(args)),
            Self::Exec(args) => block_on(exec::exec(*args)),
            Self::Copy(args) => block_on(cp::copy(*args)),
            Self::Close(args) => block_on(put_away::close(args)),
            Self::Destroy(args) => block_on(put_away::destroy(args)),
            Self::CollectGarbage(args) => block_on(gc::gc(*args)),
            Self::Doctor(args) => block_on(doctor::doctor(*args)),
            Self::Config(args) => config::config(args),
            Self::Completions(args) => completions::completions(&args),
        }
    }
}

/// The flags that say which workspaces to use. They win over variables, and those over the file.
#[derive(Debug, Args)]
struct SettingsArgs {
    /// The kind of place that workspaces live in [default: local]
    #[arg(long, value_name = "B")]
    backend: Option<String>,
    /// Where the workspaces of backends with directories are
    #[arg(long, value_name = "DIR")]
    basedir: Option<PathBuf>,
    /// The file that sessions and workspace records are in
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Which users, agents and sessions share a workspace: per_agent, per_session or per_user
    #[arg(long, value_name = "P")]
    isolation: Option<String>,
    /// The configuration file [default: wsm.toml, where there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets any key of the configuration, such as `local.kill_grace=2s`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What is logged, such as `info` or `wsm_core=debug`
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How log lines are written: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl SettingsArgs {
    /// The layers of the configuration; `more` are flags of the subcommand's own, as flag and value.
    fn sources(self, more: &[(&str, Option<String>)]) -> anyhow::Result<Sources> {
        let Self { backend, basedir, store, isolation, config, set, log, log_format } = self;
        let mut sources = Sources::of_this_process();
        if let Some(file) = config {
            sources = sources.with_file(file);
        }
        for assignment in &set {
            sources = sources.with_set(assignment)?;
        }
        let own = [
            ("--backend", backend),
            ("--basedir", basedir.map(|path| utf8("--basedir", &path)).transpose()?),
            ("--store", store.map(|path| utf8("--store", &path)).transpose()?),
            ("--isolation", isolation),
            ("--log", log),
            ("--log-format", log_format),
        ];
        for (flag, value) in own.iter().chain(more) {
            if let Some(value) = value {
                sources = sources.with_flag(flag, &flag.trim_start_matches('-').replace('-', "_"), value);
            }
        }
        Ok(sources)
    }
}

fn utf8(flag: &str, path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| anyhow::anyhow!("`{flag}`: `{}` is not UTF-8", path.display()))
}

fn load(args: SettingsArgs, more: &[(&str, Option<String>)]) -> anyhow::Result<Settings> {
    Ok(Settings::load(&args.sources(more)?, BACKENDS)?)
}

/// Logs as configured. A command that runs in the foreground of a terminal says less unless it is asked to say more.
fn start_logging(settings: &Settings, otherwise: &str) {
    let filter = if settings.log_is_default { otherwise } else { &settings.log };
    telemetry::init(filter, settings.log_format);
}

/// Refuses a `basedir` that can not become one before anything is made, the store among it.
fn check_basedir(settings: &Settings) -> anyhow::Result<()> {
    let Some(basedir) = &settings.basedir else { return Ok(()) };
    let basedir = std::path::absolute(basedir)?;
    let Some(nearest) = basedir.ancestors().find(|path| path.exists()) else { return Ok(()) };
    anyhow::ensure!(
        nearest.is_dir(),
        "`basedir`: `{}` can not be a directory: `{}` is a file",
        basedir.display(),
        nearest.display()
    );
    if let Err(error) = rustix::fs::access(nearest, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        anyhow::bail!("`basedir`: `{}` can not be written to: {error}", nearest.display());
    }
    Ok(())
}

/// Refuses a `store` that can not be a file before anything is made, the file that locks it among it.
fn check_store(settings: &Settings) -> anyhow::Result<()> {
    let store = &settings.store;
    let named = store.file_name().is_some() && !store.as_os_str().as_encoded_bytes().ends_with(b"/");
    anyhow::ensure!(named, "`store`: `{}` names a directory: give a file", store.display());
    if let Ok(found) = store.metadata() {
        anyhow::ensure!(found.is_file(), "`store`: `{}` is not a file", store.display());
    }
    Ok(())
}

/// Says where data are kept, once: when the directories that nobody chose do not exist yet.
#[expect(clippy::print_stderr, reason = "a message for the person at the terminal")]
fn announce_defaults(settings: &Settings) {
    if settings.basedir_is_default
        && let Some(basedir) = settings.basedir.as_ref().filter(|path| !path.exists())
    {
        eprintln!("wsm: workspaces are kept in {} (--basedir chooses another place)", basedir.display());
    }
    if settings.store_is_default && !settings.store.exists() {
        eprintln!("wsm: their records are kept in {} (--store chooses another place)", settings.store.display());
    }
}

/// Runs the command line and gives what to exit with.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let runs_a_command = args.get(1).is_some_and(|arg| arg == "run" || arg == "exec");
    let (usage, failed) = if runs_a_command { (COMMAND_FAILED, COMMAND_FAILED) } else { (USAGE, FAILED) };
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help is no error. A message that can not be written has nowhere else to go.
            let _ = error.print();
            return if error.use_stderr() { usage.into() } else { ExitCode::SUCCESS };
        }
    };
    cli.command.run().unwrap_or_else(|error| {
        // Nobody reads any more, so nobody has to be told.
        if error.downcast_ref::<std::io::Error>().is_some_and(|it| it.kind() == std::io::ErrorKind::BrokenPipe) {
            return BROKEN_PIPE.into();
        }
        complain(&format!("{error:#}"));
        failed.into()
    })
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    // A thread that reads a terminal can not be interrupted, and all else has been waited for.
    runtime.shutdown_background();
    outcome
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
