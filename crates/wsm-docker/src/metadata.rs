//! Keeps commands from the addresses at which clouds give credentials to whoever asks.
//!
//! A bridge forwards to whatever the host can reach, and the engine has no option against that. So a route that refuses is put
//! into the container's own network namespace, before anybody is let in. Commands lack the right to change routes, and one
//! that refuses is found before any device that a socket is bound to.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    time::Duration,
};

use bollard::{
    container::{AttachContainerResults, LogOutput},
    errors::Error as EngineError,
    models::{ContainerCreateBody, HostConfig, HostConfigLogConfig},
    query_parameters::AttachContainerOptionsBuilder,
};
use futures::{Stream, TryStreamExt};
use rustix::process::geteuid;
use tokio::{net::TcpStream, time::timeout};
use tokio_util::task::TaskTracker;
use wsm_core::{Error, ErrorKind, Probe, Result};
use wsm_host::blocking;

use crate::{
    client::{Engine, LONG, SHORT},
    container::{GATEWAY, LABEL_BLOCKER, LABEL_ID, LABEL_MARK},
    enter,
    seen::Seen,
    workspace::remove,
};

/// AWS, Azure, Google and others; credentials of AWS's tasks and pods; Alibaba. Separated by spaces.
pub(crate) const ADDRESSES: &str =
    "169.254.169.254 fd00:ec2::254 169.254.170.2 169.254.170.23 fd00:ec2::23 100.100.100.200";
/// What the gateway says when it has blocked them.
const DONE: &str = "unrouted\n";
const WHAT: &str = "block the addresses of metadata services";
/// How long such a service may take to answer this machine. It is near.
const NEAR: Duration = Duration::from_millis(500);

/// What blocks addresses in the network of a container: another one beside it, which has nothing of it but its network, and no
/// right but the one to change that. Not a command within it: that would take more rights than many engines have to give, for
/// a program that commands of root's could have replaced.
pub(crate) struct Blocker {
    container: String,
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, EngineError>> + Send>>,
}

impl Blocker {
    /// Makes one for a container, which need not run yet, and some addresses, separated by spaces; none for none.
    ///
    /// # Errors
    ///
    /// What [`Engine::call`] says.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may leave it. Its label says whose it is.
    pub(crate) async fn prepare(
        engine: &Engine,
        container: &str,
        image: &str,
        addresses: &str,
        owner: &str,
    ) -> Result<Option<Self>> {
        if addresses.is_empty() {
            return Ok(None);
        }
        let labels = [(LABEL_MARK, "true"), (LABEL_BLOCKER, owner)];
        let body = ContainerCreateBody {
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
                auto_remove: Some(true),
                log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let docker = engine.docker()?;
        let container = engine.call(WHAT, LONG, docker.create_container(None, body)).await?.id;
        let options = AttachContainerOptionsBuilder::default().stream(true).stdout(true).stderr(true).build();
        match engine.call(WHAT, SHORT, docker.attach_container(&container, Some(options))).await {
            Ok(AttachContainerResults { output, .. }) => Ok(Some(Self { container, output })),
            Err(error) => {
                remove(engine, &container).await?;
                Err(error)
            }
        }
    }

    /// Blocks them, now that the container runs. This one is removed on a task of its own, which nobody has to wait for.
    ///
    /// # Errors
    ///
    /// `backend` about `block_metadata`; what [`Engine::call`] says.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have blocked them or not, and leaves this one. Its label says whose it is.
    pub(crate) async fn run(mut self, engine: &Engine, tasks: &TaskTracker) -> Result<()> {
        let docker = engine.docker()?;
        let mut said = String::new();
        let run = async {
            engine.call(WHAT, LONG, docker.start_container(&self.container, None)).await?;
            let read = async {
                while let Some(part) = self.output.try_next().await? {
                    said.push_str(&String::from_utf8_lossy(&part.into_bytes()));
                    if said.contains(DONE) {
                        break;
                    }
                }
                Ok(())
            };
            engine.call(WHAT, LONG, read).await
        };
        let ran = run.await;
        self.discard(engine, tasks);
        ran?;
        if said.contains(DONE) { Ok(()) } else { Err(failed(&said)) }
    }

    /// Removes it.
    pub(crate) fn discard(self, engine: &Engine, tasks: &TaskTracker) {
        let engine = engine.clone();
        tasks.spawn(async move {
            if let Err(error) = remove(&engine, &self.container).await {
                tracing::warn!(container = self.container, error = %error.report(), "a container of no use is left");
            }
        });
    }
}

/// Whether this process may change the network of containers itself, which takes milliseconds rather than another container.
pub(crate) fn can_enter(engine: &Engine) -> bool {
    engine.is_local() && geteuid().is_root()
}

/// Blocks addresses in the network of a running container, by the gateway's program run there. False where this process can
/// not, for whatever reason: another container can.
///
/// # Cancel safety
///
/// A dropped call may have blocked them or not.
pub(crate) async fn block_from_here(engine: &Engine, seen: &Seen, addresses: &str, program: &Path) -> bool {
    let (Some(pid), true) = (seen.pid.filter(|pid| *pid > 0), can_enter(engine)) else { return false };
    if addresses.is_empty() {
        return true;
    }
    let Some(id) = seen.labels.get(LABEL_ID).cloned() else { return false };
    let (arguments, program) = (arguments(addresses).collect::<Vec<_>>(), program.to_owned());
    let entered = blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let own = format!("\0--id\0{id}\0");
        let is_meant = |line: &[u8]| {
            line.starts_with(GATEWAY.as_bytes()) && line.windows(own.len()).any(|part| part == own.as_bytes())
        };
        Ok(enter::run(pid, is_meant, &program, &arguments))
    });
    match entered.await {
        Ok(Ok(Some(output))) if output.stdout == DONE.as_bytes() => true,
        Ok(entered) => {
            tracing::debug!(?entered, "addresses can not be blocked from here");
            false
        }
        Err(error) => {
            tracing::debug!(error = %error.report(), "addresses can not be blocked from here");
            false
        }
    }
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
