//! Serves a workspace from its inside.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::{DumpableBehavior, getpid, set_dumpable_behavior},
};
use tokio::{
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use wsm_core::{Error, ErrorKind, Result, WorkspaceId, WorkspaceInfo};
use wsm_gateway::{McpLimits, McpRegistry, Served};
use wsm_host::{Environment, HostWorkspace, Launcher, Opening, Reach};

use crate::{
    args::Serve,
    channel::{Channel, join_pipes},
    orphans::Reaper,
};

/// How long a command that is ended has for cleaning up.
const GRACE: Duration = Duration::from_secs(1);
/// How many calls may block at once. Each has a thread, which is a good part of what an idle gateway weighs.
const BLOCKING_THREADS: usize = 32;
/// How long to wait before accepting again when there was no room for one more connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the channel closes or `SIGTERM` comes, and ends all commands.
///
/// # Errors
///
/// `invalid_input` when something about the options can not be used; `backend` when the other side does not keep to the
/// protocol.
pub(crate) fn serve(options: Serve) -> Result<()> {
    let Serve { source, workdir, mcp_servers } = options;
    // Before any command can run: it has the same user, and would otherwise be allowed to take the channel out of this
    // process, to write into its memory, or to stop it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|cause| Error::new(ErrorKind::Backend, "can not shut commands out").with_source(cause))?;
    // Before anything else is opened that could have the number.
    let channel = Channel::open(source)?;
    let opening = open(workdir)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(|cause| Error::new(ErrorKind::Backend, "no runtime can be made").with_source(cause))?;
    runtime.block_on(run(channel, opening, mcp_servers))
}

/// What is served: the directory, and everything else that this process can see.
fn open(workdir: Option<PathBuf>) -> Result<Opened> {
    let given = workdir.unwrap_or_else(|| PathBuf::from("."));
    let unusable = |cause: std::io::Error| {
        Error::invalid("workdir", format!("`{}` can not be worked in", given.display())).with_source(cause)
    };
    let path = fs::canonicalize(&given).map_err(unusable)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, &path, flags, Mode::empty()).map_err(|errno| unusable(errno.into()))?;
    let Some(workdir) = path.to_str() else {
        return Err(Error::invalid("workdir", format!("`{}` is not UTF-8", path.display())));
    };
    let environment = Environment::new(env::vars_os().collect());
    let launcher = Arc::new(Launcher::alone(environment, GRACE));
    let info = WorkspaceInfo::new(id(), "gateway", workdir);
    let capabilities = HostWorkspace::CAPABILITIES.with_shell(Path::new("/bin/sh").exists());
    let opening = Opening::new(info, capabilities, Reach::Everything, File::from(directory), Arc::clone(&launcher));
    Ok(Opened { opening: Arc::new(opening), launcher })
}

/// The workspace's own id, where whoever started this process has told it.
fn id() -> WorkspaceId {
    let told = env::var("WSM_WORKSPACE_ID").ok().and_then(|id| WorkspaceId::new(id).ok());
    told.unwrap_or_else(WorkspaceId::random)
}

/// An opened workspace, and what its commands are started by.
#[derive(Debug)]
struct Opened {
    opening: Arc<Opening>,
    launcher: Arc<Launcher>,
}

async fn run(channel: Channel, Opened { opening, launcher }: Opened, mcp_servers: Option<usize>) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())
        .map_err(|cause| Error::new(ErrorKind::Backend, "can not hear of `SIGTERM`").with_source(cause))?;
    // Orphans come to the first process, and to no other.
    let mut reaper = if getpid().is_init() { Some(Reaper::new(launcher)?) } else { None };
    let reaping = async {
        match &mut reaper {
            Some(reaper) => reaper.run().await,
            None => std::future::pending().await,
        }
    };
    let host = Arc::new(HostWorkspace::new(Arc::clone(&opening)));
    let mut limits = McpLimits::default();
    limits.max_servers = mcp_servers.unwrap_or(limits.max_servers);
    let mcp = McpRegistry::new(Arc::clone(&host), limits);
    let work = async {
        let served = Served::new(host).with_mcp(mcp.clone());
        let result = tokio::select! {
            result = serve_channel(channel, served) => result,
            _ = terminated.recv() => Ok(()),
        };
        // Before what they run in ends, so that they have their chance to end by themselves.
        mcp.close().await;
        opening.end().await.and(result)
    };
    tokio::select! {
        result = work => result,
        () = reaping => Ok(()),
    }
}

async fn serve_channel(channel: Channel, served: Served) -> Result<()> {
    let unwatched = |cause| Error::new(ErrorKind::Backend, "the channel can not be watched").with_source(cause);
    let result = match channel {
        Channel::Pipes(stdin, stdout) => wsm_gateway::serve(served, join_pipes(stdin, stdout)?).await,
        Channel::Socket(stream) => {
            stream.set_nonblocking(true).map_err(unwatched)?;
            wsm_gateway::serve(served, UnixStream::from_std(stream).map_err(unwatched)?).await
        }
        Channel::Listener(listener, _file) => {
            listener.set_nonblocking(true).map_err(unwatched)?;
            accept(UnixListener::from_std(listener).map_err(unwatched)?, served).await
        }
    };
    match result {
        // A broken connection is as closed as one that was closed in good order.
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        result => result,
    }
}

/// Serves every connection, for ever.
async fn accept(listener: UnixListener, served: Served) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(wsm_gateway::serve(served.clone(), stream));
                }
                // Too many files are open. Others will be closed.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            // What went wrong on one connection is known to its other side.
            Some(_) = connections.join_next() => {}
        }
    }
}
