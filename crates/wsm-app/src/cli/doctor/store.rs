//! The store of sessions and workspace records.

use std::path::Path;

use super::{
    super::check_store,
    report::{Check, Status},
};
use crate::{
    config::Settings,
    store::{SqliteStore, StoreLock},
};

const NAME: &str = "store";

pub(super) async fn checks(settings: &Settings) -> Vec<Check> {
    if let Err(error) = check_store(settings) {
        let check = Check::new(Status::Failed, NAME, format!("{error:#}"));
        return vec![check.with_advice("choose another place with `--store`")];
    }
    let store = &*settings.store;
    let shown = store.display();
    if !store.exists() {
        return vec![match can_be_made(store) {
            Ok(()) => Check::ok(NAME, format!("`{shown}` does not exist yet: it is made at the start")),
            Err(error) => Check::new(Status::Failed, NAME, format!("`{shown}` can not be made: {error}"))
                .with_advice("choose another place with `--store`"),
        }];
    }
    vec![
        match SqliteStore::inspect(store).await {
            Ok(found) => {
                let age = if found.version < found.newest { ", which the next start brings up to date" } else { "" };
                let damage = found.damage.map(|damage| {
                    Check::new(Status::Failed, NAME, format!("`{shown}` is damaged: {damage}"))
                        .with_advice("stop the service and bring the file back from a copy")
                });
                let detail = format!(
                    "`{shown}` can be read: version {}{age}, {} sessions, {} workspaces",
                    found.version, found.sessions, found.workspaces
                );
                damage.unwrap_or_else(|| Check::ok(NAME, detail))
            }
            Err(error) => Check::new(Status::Failed, NAME, error.report().to_string()),
        },
        match StoreLock::holder_of(store) {
            Ok(None) => Check::ok(NAME, "no service is using it"),
            Ok(Some(holder)) => {
                let process = holder.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                Check::ok(NAME, format!("a running service{process} is using it: a second one would be refused"))
            }
            Err(error) => Check::new(Status::Failed, NAME, error.report().to_string()),
        },
    ]
}

/// Whether the file could be made, without making it.
fn can_be_made(store: &Path) -> std::io::Result<()> {
    use rustix::fs::Access;
    let store = std::path::absolute(store)?;
    let there = store.ancestors().skip(1).find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(std::io::Error::other(format!("`{}` is a file", there.display())));
    }
    Ok(rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK)?)
}
