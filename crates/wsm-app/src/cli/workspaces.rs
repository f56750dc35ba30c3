//! `wsm ls` and `wsm show`: the workspaces of a running service.

use std::process::ExitCode;

use clap::Args;
use http::Method;
use serde::Deserialize;
use wsm_core::UserId;

use super::{
    remote::{Client, RemoteArgs},
    table,
    talk::{complain, print, printable},
};

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Also the workspaces that are put away, and those of which there is only a record
    #[arg(long)]
    all: bool,
    /// Only the workspaces of this user
    #[arg(long, value_name = "U")]
    user: Option<String>,
    /// Prints the service's own answer, for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: RemoteArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The workspace's id, as `wsm ls` prints it
    #[arg(value_name = "ID")]
    id: String,
    /// Prints the service's own answer, for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: RemoteArgs,
}

#[derive(Debug, Deserialize)]
struct Workspaces {
    items: Vec<Workspace>,
}

/// A workspace as the service describes it, as far as it is shown.
#[derive(Debug, Deserialize)]
struct Workspace {
    workspace_id: String,
    user_id: Option<String>,
    backend: String,
    state: String,
    leases: u64,
    idle_seconds: Option<f64>,
    opened_at: Option<String>,
    opening: Option<Opening>,
    generation: Option<u64>,
    location: Option<String>,
    created_at: Option<String>,
    policy: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Opening {
    kind: String,
    lost: Vec<String>,
    cause: Option<String>,
}

/// What stands for a value that is not known.
const NONE: &str = "-";

pub(super) async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let ListArgs { all, user, json, service } = args;
    let client = Client::of_operator(service)?;
    let mut request = client.request(Method::GET, &["admin", "workspaces"])?;
    if all {
        request = request.query(&[("all", "true")]);
    }
    if let Some(user) = user {
        request = request.query(&[("user_id", UserId::new(user)?.as_str())]);
    }
    let answer = client.json(request).await?;
    if json {
        print(&[&answer, &b"\n"[..]].concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Workspaces { items } = serde_json::from_slice(&answer)?;
    if items.is_empty() {
        complain(if all { "there is no workspace" } else { "no workspace is open: `--all` also lists those put away" });
        return Ok(ExitCode::SUCCESS);
    }
    print(list_of(items, all).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn list_of(items: Vec<Workspace>, all: bool) -> String {
    let mut header = vec!["WORKSPACE", "USER", "STATE", "USES", "IDLE", "OPENING"];
    if all {
        header.extend(["CREATED", "LOCATION"]);
    }
    let mut table = table::table(&header);
    for item in items {
        let known = |text: Option<String>| text.map_or(NONE.to_owned(), |text| printable(&text));
        let mut row = vec![
            printable(&item.workspace_id),
            known(item.user_id),
            item.state,
            item.leases.to_string(),
            item.idle_seconds.map_or(NONE.to_owned(), table::duration),
            known(item.opening.map(|opening| opening.kind)),
        ];
        if all {
            row.extend([known(item.created_at), known(item.location)]);
        }
        table.add_row(row);
    }
    table::text(&table)
}

pub(super) async fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let ShowArgs { id, json, service } = args;
    let client = Client::of_operator(service)?;
    let answer = client.json(client.request(Method::GET, &["admin", "workspaces", &id])?).await?;
    if json {
        print(&[&answer, &b"\n"[..]].concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    print(one(serde_json::from_slice(&answer)?).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn one(workspace: Workspace) -> String {
    let Workspace {
        workspace_id,
        user_id,
        backend,
        state,
        leases,
        idle_seconds,
        opened_at,
        opening,
        generation,
        location,
        created_at,
        policy,
    } = workspace;
    let (kind, lost, cause) = opening.map_or((None, None, None), |it| {
        (Some(it.kind), Some(it.lost.join(", ")).filter(|lost| !lost.is_empty()), it.cause)
    });
    let mut table = table::bare();
    for (name, value) in [
        ("workspace", Some(workspace_id)),
        ("user", user_id),
        ("backend", Some(backend)),
        ("state", Some(state)),
        ("uses", Some(leases.to_string())),
        ("idle", idle_seconds.map(table::duration)),
        ("policy", policy),
        ("location", location),
        ("created", created_at),
        ("opened", opened_at),
        ("opening", kind),
        ("lost", lost),
        ("cause", cause),
        ("generation", generation.map(|generation| generation.to_string())),
    ] {
        if let Some(value) = value {
            table.add_row([name, &printable(&value)]);
        }
    }
    table::text(&table)
}
