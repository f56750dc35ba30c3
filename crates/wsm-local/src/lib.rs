#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod environment;
mod workspace;

pub use backend::LocalBackend;
pub use config::LocalConfig;

/// The kind's name, as in `backend = "local"`.
const KIND: &str = "local";

/// A caching manager over [`LocalBackend`].
///
/// ```no_run
/// # async fn example() -> wsm_core::Result<()> {
/// use wsm_core::{GetRequest, Scope, WorkspaceExt, WorkspaceManager};
/// use wsm_local::{LocalConfig, LocalWorkspaceManager};
///
/// let manager = LocalWorkspaceManager::builder(LocalConfig::new("workspaces")).build()?;
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// println!("{}", workspace.sh("pwd").await?.stdout.to_text());
/// # Ok(())
/// # }
/// ```
pub type LocalWorkspaceManager = wsm_core::CachingManager<LocalBackend>;
