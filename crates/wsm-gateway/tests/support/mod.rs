//! A gateway in this process, with file tools over a directory.

use std::{path::Path, sync::Arc};

use futures::FutureExt;
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, BackendConfig, OpenRequest, Workspace, WorkspaceId,
    memory::{MemoryConfig, MemoryEngine},
};
use wsm_gateway::{GatewayClient, HostFileTools, Io, Served, serve};

/// A client of a gateway whose searches and archives are about `directory`.
pub(crate) async fn client(directory: &Path) -> GatewayClient {
    let backend = MemoryConfig::new(MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    let workspace = opened.workspace as Arc<dyn Workspace>;
    let (served, servers) =
        (Served::new(workspace).with_file_tools(Arc::new(HostFileTools::new(directory))), TaskTracker::new());
    let connect = move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        servers.spawn(serve(served.clone(), far));
        async move { Ok(Box::new(near) as Box<dyn Io>) }.boxed()
    };
    GatewayClient::new(connect).await.unwrap()
}
