//! `wsm close` and `wsm destroy`: the end of a workspace's use, and of the workspace.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use http::Method;

use super::{
    exit_codes::FAILED,
    remote::{Client, RemoteArgs},
    talk::{complain, printable},
};

#[derive(Debug, Args)]
pub(super) struct CloseArgs {
    /// The workspace's id, as `wsm ls` prints it
    #[arg(value_name = "ID")]
    id: String,
    /// How long to wait for what still uses it, such as a running command
    #[arg(long, value_name = "TIME", default_value = "0s", allow_hyphen_values = true)]
    wait: String,
    /// Ends what still uses it after that time, rather than leaving the workspace open
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    service: RemoteArgs,
}

#[derive(Debug, Args)]
pub(super) struct DestroyArgs {
    /// The workspace's id, as `wsm ls` prints it
    #[arg(value_name = "ID")]
    id: String,
    /// Does not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    service: RemoteArgs,
}

pub(super) async fn close(args: CloseArgs) -> anyhow::Result<ExitCode> {
    let CloseArgs { id, wait, force, service } = args;
    let wait = humantime::parse_duration(&wait).ok();
    let wait = wait.context("`--wait`: allowed is a time with its unit, such as `30s`")?;
    let client = Client::of_operator(service)?;
    let request = client.request(Method::POST, &["admin", "workspaces", &id, "close"])?;
    let options = [("wait_seconds", wait.as_secs_f64().to_string()), ("force", force.to_string())];
    client.send(request.query(&options)).await?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn destroy(args: DestroyArgs) -> anyhow::Result<ExitCode> {
    let DestroyArgs { id, yes, service } = args;
    let client = Client::of_operator(service)?;
    // Before anybody is asked, since there may be nothing to ask about.
    let path = ["admin", "workspaces", &id];
    client.json(client.request(Method::GET, &path)?).await?;
    if !yes && !agreed(&id)? {
        complain("nothing was destroyed");
        return Ok(FAILED.into());
    }
    client.send(client.request(Method::DELETE, &path)?).await?;
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "a question for the person at the terminal")]
fn agreed(id: &str) -> anyhow::Result<bool> {
    anyhow::ensure!(
        std::io::stdin().is_terminal(),
        "this deletes the workspace and all its files, and there is nobody here to ask: say so with `--yes`"
    );
    eprint!("This deletes the workspace {} and all its files, for ever. Go on? [y/N] ", printable(id));
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
