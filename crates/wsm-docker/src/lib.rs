#![doc = include_str!("../README.md")]

mod backend;
mod build_args;
mod client;
mod config;
mod container;
mod enter;
mod hold;
mod image;
mod leftovers;
mod lock;
mod metadata;
mod network;
mod reach;
mod refusal;
mod restart;
mod seen;
mod tls;
mod user;
mod workspace;

pub use backend::DockerBackend;
pub use config::{Connect, DockerConfig, DockerNetwork, ExtraMount};
pub use tls::TlsFiles;

/// The kind's name, as in `backend = "docker"`.
const KIND: &str = "docker";

/// A caching manager over [`DockerBackend`].
///
/// Its workspaces are driven through the gateway, so it needs the layer that brings it:
///
/// ```no_run
/// # async fn example(gateway: wsm_core::InitProgram) -> wsm_core::Result<()> {
/// use wsm_core::{GetRequest, Scope, WorkspaceExt, WorkspaceManager};
/// use wsm_docker::{DockerConfig, DockerWorkspaceManager};
/// use wsm_gateway::GatewayLayer;
///
/// let config = DockerConfig::new("/var/lib/wsm/workspaces");
/// let layer = std::sync::Arc::new(GatewayLayer::new(gateway));
/// let manager = DockerWorkspaceManager::builder(config).layer(layer).build()?;
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// println!("{}", workspace.sh("id; ls /").await?.stdout.to_text());
/// # Ok(())
/// # }
/// ```
pub type DockerWorkspaceManager = wsm_core::CachingManager<DockerBackend>;
