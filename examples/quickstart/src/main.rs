//! A workspace in twenty lines: asked for by who asks, used, and put away. `cargo run -p example-quickstart`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use wsm_core::{GetRequest, ManagerSettings, Scope, WorkspaceExt, WorkspaceManager};
use wsm_local::{LocalConfig, LocalWorkspaceManager};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let basedir = tempfile::tempdir()?;
    let settings = ManagerSettings::default().with_ttl(Duration::from_secs(600));
    let manager = LocalWorkspaceManager::builder(LocalConfig::new(basedir.path())).settings(settings).build()?;

    let ann = GetRequest::new(Scope::new("ann@example.org", "coder", "monday")?);
    let workspace = manager.get_workspace(&ann).await?;
    println!("{:?} at {}", workspace.opening().outcome.kind, workspace.info().workdir);

    workspace.write_bytes("notes/today.txt", "buy milk\n".into()).await?;
    let result = workspace.sh("wc -l notes/*; echo oops >&2; exit 3").await?;
    println!("{}: {:?}, {:?}", result.status, result.stdout.to_text(), result.stderr.to_text());

    // Another session of the same agent works in the same place.
    let tuesday = GetRequest::new(Scope::new("ann@example.org", "coder", "tuesday")?);
    println!("on Tuesday: {:?}", manager.get_workspace(&tuesday).await?.read_text("notes/today.txt", 1024).await?);

    drop(workspace);
    println!("put away: {}", manager.shutdown(Duration::from_secs(10)).await.closed);
    Ok(())
}
