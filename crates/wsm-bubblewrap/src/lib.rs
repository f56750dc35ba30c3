#![doc = include_str!("../README.md")]

mod backend;
mod cgroup;
mod config;
mod door;
mod etc;
mod identity;
mod install;
mod life;
mod probe;
mod refusal;
mod sandbox;
mod seccomp;
mod spec;
mod status;
mod workspace;

pub use backend::BubblewrapBackend;
pub use config::{BubblewrapConfig, Network, UidRange};

/// The kind's name, as in `backend = "bubblewrap"`.
const KIND: &str = "bubblewrap";

/// A caching manager over [`BubblewrapBackend`].
///
/// Its workspaces are driven through the gateway, so it needs the layer that brings it:
///
/// ```no_run
/// # async fn example(gateway: wsm_core::InitProgram) -> wsm_core::Result<()> {
/// use wsm_bubblewrap::{BubblewrapConfig, BubblewrapWorkspaceManager};
/// use wsm_core::{GetRequest, Scope, WorkspaceExt, WorkspaceManager};
/// use wsm_gateway::GatewayLayer;
///
/// let config = BubblewrapConfig::new("/var/lib/wsm/workspaces");
/// let layer = std::sync::Arc::new(GatewayLayer::new(gateway));
/// let manager = BubblewrapWorkspaceManager::builder(config).layer(layer).build()?;
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// println!("{}", workspace.sh("id; ls /").await?.stdout.to_text());
/// # Ok(())
/// # }
/// ```
pub type BubblewrapWorkspaceManager = wsm_core::CachingManager<BubblewrapBackend>;
