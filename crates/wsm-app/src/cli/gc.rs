//! `wsm gc`: removes what nothing needs any more.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use wsm_core::Leftover;

use super::{
    SettingsArgs, check_basedir,
    exit_codes::FAILED,
    load, start_logging, table,
    talk::{complain, print, printable},
};
use crate::assemble;

/// What the help says after the flags.
pub(super) const HELP: &str = "\
Looks at what the configured backend has made beside the files of workspaces: containers, images, volumes and networks that
no record names, or that newer ones have replaced, and second sandboxes of one workspace. What a workspace is opened with is
never touched, nor is anything that another installation has made. Where something may hold files, the reason says so: look
at it with `--dry-run` first. On this machine, a running service does the same from time to time.";

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub(super) struct GcArgs {
    /// Only lists what would be removed, and why
    #[arg(long)]
    dry_run: bool,
    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// A leftover, and what became of it.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    leftover: Leftover,
    /// `found`, `removed`, `needed` by something since, or `failed`.
    fate: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) async fn gc(args: GcArgs) -> anyhow::Result<ExitCode> {
    let GcArgs { dry_run, json, settings } = args;
    let settings = load(settings, &[])?;
    start_logging(&settings, "error");
    check_basedir(&settings)?;
    let manager = assemble::manager(&settings, None)?;
    let mut lines = Vec::new();
    for leftover in manager.leftovers().await? {
        let (fate, error) = if dry_run {
            ("found", None)
        } else {
            match manager.remove_leftover(&leftover).await {
                Ok(true) => ("removed", None),
                Ok(false) => ("needed", None),
                Err(error) => ("failed", Some(error.report().to_string())),
            }
        };
        lines.push(Line { leftover, fate, error });
    }
    let failed = lines.iter().any(|line| line.error.is_some());
    if json {
        print((serde_json::to_string_pretty(&lines)? + "\n").as_bytes())?;
    } else if lines.is_empty() {
        complain("nothing is left over");
    } else {
        print(text_of(&lines).as_bytes())?;
        for Line { leftover, error, .. } in &lines {
            if let Some(error) = error {
                complain(&format!("{} {}: {error}", leftover.kind, leftover.name));
            }
        }
    }
    Ok(if failed { FAILED.into() } else { ExitCode::SUCCESS })
}

fn text_of(lines: &[Line]) -> String {
    let mut table = table::table(&["KIND", "NAME", "FATE", "WORKSPACE", "REASON"]);
    for Line { leftover, fate, .. } in lines {
        let workspace = leftover.workspace_id.as_ref().map_or("-", |id| id.as_str());
        table.add_row([
            leftover.kind.to_string(),
            printable(&leftover.name),
            (*fate).to_owned(),
            printable(workspace),
            leftover.reason.clone(),
        ]);
    }
    table::text(&table)
}

#[cfg(test)]
mod tests {
    use wsm_core::{LeftoverKind, WorkspaceId};

    use super::*;

    #[test]
    fn a_leftover_is_shown_with_its_fate_and_the_reason() {
        let leftover = Leftover::new(LeftoverKind::Sandbox, "wsm_a", "its workspace has no record");
        let leftover = leftover.with_workspace(WorkspaceId::new("a").ok());
        let image = Leftover::new(LeftoverKind::Image, "wsm-workspace:0123", "another one has taken its place");
        let lines = [
            Line { leftover, fate: "removed", error: None },
            Line { leftover: image, fate: "found", error: Some("no".to_owned()) },
        ];
        let shown = text_of(&lines);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(
            shown.lines().map(words).collect::<Vec<_>>(),
            [
                "KIND NAME FATE WORKSPACE REASON",
                "sandbox wsm_a removed a its workspace has no record",
                "image wsm-workspace:0123 found - another one has taken its place",
            ]
        );
        let json = serde_json::to_value(&lines[0]).unwrap();
        assert_eq!(
            (&json["kind"], &json["workspace_id"], &json["fate"]),
            (&"sandbox".into(), &"a".into(), &"removed".into())
        );
    }
}
