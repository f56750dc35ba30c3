//! `wsm cp`: files and directories into the workspace of a running service's session, or out of it.

mod download;
mod new_file;
mod remote_files;
mod side;
mod upload;

use std::process::ExitCode;

use clap::Args;

use super::{
    exit_codes::FAILED,
    remote::{Client, RemoteArgs, UserArgs},
    sessions::{self, Missing},
    signals::{self, Signals},
    talk::complain,
};
use remote_files::RemoteFiles;
use side::Side;

/// What the help says after the flags.
pub(super) const HELP: &str = "\
A side with a colon before its first slash is in the workspace of that session: write `./a:b` for a local file `a:b`.
Directories are copied with all that is in them, but for links and special files, which are named and left out: the exit
code is 1 then. A file appears at its place when it is complete.

Examples:
  wsm cp report.txt default:             into the workspace directory
  wsm cp default:out ./results           a directory
  tar c src | wsm cp - default:src.tar
  wsm cp default:log.txt - | less";

#[derive(Debug, Args)]
pub(super) struct CopyArgs {
    /// What to copy: SESSION:PATH in a workspace, a local path, or `-` for standard input
    #[arg(value_name = "SRC")]
    source: Side,
    /// Where to: SESSION:PATH, a local path, or `-` for standard output; into it, if it is a directory
    #[arg(value_name = "DST")]
    destination: Side,
    /// The session's agent [default: the one it has]
    #[arg(long, value_name = "A")]
    agent: Option<String>,
    #[command(flatten)]
    user: UserArgs,
    #[command(flatten)]
    service: RemoteArgs,
}

/// What was left out of a copy.
#[derive(Debug, Default)]
struct Skipped(usize);

impl Skipped {
    fn add(&mut self, what: &dyn std::fmt::Debug, why: &str) {
        complain(&format!("{what:?} is not copied: {why}"));
        self.0 += 1;
    }
}

pub(super) async fn copy(args: CopyArgs) -> anyhow::Result<ExitCode> {
    // Heard, so that a half-written file is removed before the end.
    let mut signals = Signals::new()?;
    tokio::select! {
        copied = copy_all(args) => copied,
        signal = signals.next() => Ok(signals::exit_code(signal).into()),
    }
}

async fn copy_all(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let CopyArgs { source, destination, agent, user, service } = args;
    let session = match (&source, &destination) {
        (Side::Remote { session, .. }, Side::Local(_) | Side::Stream)
        | (Side::Local(_) | Side::Stream, Side::Remote { session, .. }) => session.clone(),
        (Side::Remote { .. }, Side::Remote { .. }) => anyhow::bail!("one side must be local: copy in two steps"),
        (Side::Local(_) | Side::Stream, Side::Local(_) | Side::Stream) => {
            anyhow::bail!("one side must be in a workspace: SESSION:PATH, such as `default:notes.txt`")
        }
    };
    let client = Client::of_user(service, user)?;
    let agent = sessions::agent_of(&client, &session, agent.as_deref(), Missing::Refuse).await?;
    let files = RemoteFiles::new(client, session, agent);
    let mut skipped = Skipped::default();
    match (source, destination) {
        (Side::Remote { path, .. }, Side::Local(target)) => {
            download::to_path(&files, &path, &target, &mut skipped).await?;
        }
        (Side::Remote { path, .. }, _) => download::to_stdout(&files, &path).await?,
        (Side::Local(source), Side::Remote { path, .. }) => {
            upload::from_path(&files, &source, &path, &mut skipped).await?;
        }
        (_, Side::Remote { path, .. }) => upload::from_stdin(&files, &path).await?,
        (_, Side::Local(_) | Side::Stream) => {}
    }
    Ok(if skipped.0 == 0 { ExitCode::SUCCESS } else { FAILED.into() })
}
