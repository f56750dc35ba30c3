//! Keeps commands from the addresses at which clouds give credentials to whoever asks.
//!
//! A bridge forwards to whatever the host can reach, and the engine has no option against that. So a route that refuses is put
//! into the container's own network namespace, before anybody is let in. Commands lack the right to change routes, and one
//! that refuses is found before any device that a socket is bound to.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use bollard::{
    models::{ContainerCreateBody, HostConfig},
    query_parameters::LogsOptionsBuilder,
};
use futures::TryStreamExt;
use tokio::{net::TcpStream, time::timeout};
use wsm_core::{Error, ErrorKind, Probe, Result};

use crate::{
    client::{Engine, LONG},
    container::{GATEWAY, LABEL_MARK, LABEL_OWNER},
    workspace::remove,
};

/// AWS, Azure, Google and others; credentials of AWS's tasks and pods; Alibaba. Separated by spaces.
pub(crate) const ADDRESSES: &str =
    "169.254.169.254 fd00:ec2::254 169.254.170.2 169.254.170.23 fd00:ec2::23 100.100.100.200";
/// How long such a service may take to answer this machine. It is near.
const NEAR: Duration = Duration::from_millis(500);

/// Blocks addresses, separated by spaces, in the network of a container that runs: from a container beside it, which has
/// nothing of it but its network, and no right but the one to change that. Not by a command within it: that would take more
/// rights than many engines have to give, for a program that commands of root's could have replaced.
///
/// # Errors
///
/// `backend` about `block_metadata`; what [`Engine::call`] says.
///
/// # Cancel safety
///
/// A dropped call may have blocked them or not. Call it again. The other container may be left; it has ended, and its label
/// says whose it is.
pub(crate) async fn block(engine: &Engine, container: &str, image: &str, addresses: &str, owner: &str) -> Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    let labels = [(LABEL_MARK, "true"), (LABEL_OWNER, owner)];
    let helper = ContainerCreateBody {
        image: Some(image.to_owned()),
        user: Some("0:0".to_owned()),
        entrypoint: Some(vec![GATEWAY.to_owned()]),
        cmd: Some(arguments(addresses).collect()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        host_config: Some(HostConfig {
            network_mode: Some(format!("container:{container}")),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: Some(vec!["NET_ADMIN".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            readonly_rootfs: Some(true),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let docker = engine.docker()?;
    let what = "block the addresses of metadata services";
    let created = engine.call(what, LONG, docker.create_container(None, helper)).await?;
    let run = async {
        engine.call(what, LONG, docker.start_container(&created.id, None)).await?;
        let waited = docker.wait_container(&created.id, None).try_collect::<Vec<_>>();
        match engine.call(what, LONG, waited).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let options = LogsOptionsBuilder::default().stderr(true).tail("5").build();
                let said = docker.logs(&created.id, Some(options)).map_ok(|line| line.to_string());
                let said: Vec<String> = said.try_collect().await.unwrap_or_default();
                Err(failed(&said.concat()).with_source(error))
            }
        }
    };
    let ran = run.await;
    remove(engine, &created.id).await?;
    ran
}

fn arguments(addresses: &str) -> impl Iterator<Item = String> {
    ["unroute"].into_iter().chain(addresses.split_whitespace()).map(str::to_owned)
}

fn failed(said: &str) -> Error {
    let message = format!(
        "the addresses of metadata services could not be blocked: {}; `block_metadata = false` leaves them open",
        said.trim()
    );
    Error::new(ErrorKind::Backend, message).with_field("block_metadata")
}

/// Says so when this machine can reach such a service, and nothing keeps workspaces from it.
pub(crate) async fn warn_if_served(probe: Probe) -> Probe {
    let address = Ipv4Addr::new(169, 254, 169, 254);
    match timeout(NEAR, TcpStream::connect(SocketAddr::from((address, 80)))).await {
        Ok(Ok(_)) => probe.with_warning(format!(
            "a metadata service answers at {address}, and workspaces can ask it for this machine's credentials: use the \
             `private` network with `block_metadata`, or refuse it to them by a firewall"
        )),
        _ => probe,
    }
}
