#![doc = include_str!("../README.md")]

mod attach;
mod backend;
mod config;
mod control;
mod envd;
mod envelope;
mod error;
mod files;
mod guest;
mod locks;
mod metadata;
mod open;
mod process;
mod pump;
mod retry;
mod sandbox;
#[cfg(feature = "testing")]
pub mod testing;
mod workspace;

pub use backend::E2bBackend;
pub use config::{E2bConfig, E2bNetwork};

/// The kind's name, as in `backend = "e2b"`.
const KIND: &str = "e2b";

/// A caching manager over [`E2bBackend`].
///
/// ```no_run
/// # async fn example() -> wsm_core::Result<()> {
/// use wsm_core::{GetRequest, Scope, WorkspaceExt, WorkspaceManager};
/// use wsm_e2b::{E2BWorkspaceManager, E2bConfig};
///
/// // The key comes from `E2B_API_KEY`.
/// let manager = E2BWorkspaceManager::builder(E2bConfig::default()).build()?;
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// println!("{}", workspace.sh("id; pwd").await?.stdout.to_text());
/// # Ok(())
/// # }
/// ```
pub type E2BWorkspaceManager = wsm_core::CachingManager<E2bBackend>;
