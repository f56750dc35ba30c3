//! Serves a workspace from its inside.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::{DumpableBehavior, Resource, Rlimit, getpid, getrlimit, set_dumpable_behavior, setrlimit},
};
use tokio::{
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    sync::Notify,
    task::JoinSet,
    time::timeout,
};
use wsm_core::{Error, ErrorKind, Result, WorkspaceId, WorkspaceInfo};
use wsm_gateway::{HostFileTools, McpLimits, McpRegistry, Served};
use wsm_host::{Environment, HostWorkspace, Launcher, Opening, Reach, handshake::Token};

use crate::{
    args::Serve,
    channel::{Channel, join_pipes},
    door::Door,
    footprint::forget_code,
    orphans::Reaper,
    port::{Port, serve_caller, serve_proven, watch},
};

/// After how long without the end of a request it counts as idle.
const REST: Duration = Duration::from_secs(10);
/// How long a command that is ended has for cleaning up.
const GRACE: Duration = Duration::from_secs(1);
/// How long ending all commands may take. Well above [`GRACE`].
const END_LIMIT: Duration = Duration::from_secs(5);
/// Holds what callers must know. It stays with this process.
const TOKEN: &str = "WSM_GATEWAY_TOKEN";
/// Enough for some ten thousand commands.
const MOST_FILES: u64 = 65_536;
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
    let Serve { source, port, token, id, workdir, path, mcp_servers } = options;
    shut_commands_out()?;
    allow_many_files();
    // Before anything else is opened that could have the number.
    let channel = Channel::open(source)?;
    let port = port.map(Port::open).transpose()?;
    let token = if token { Some(take_token()?) } else { None };
    let opening = open(id.unwrap_or_else(WorkspaceId::random), workdir, &path)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .map_err(|cause| Error::new(ErrorKind::Backend, "no runtime can be made").with_source(cause))?;
    // Much of what has run so far is not needed again.
    forget_code();
    runtime.block_on(run(channel, port, token, opening, mcp_servers))
}

/// Each command that runs takes three files and more, and the usual limit is for programs of another age. Commands inherit it.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum.map_or(Some(MOST_FILES), |most| Some(most.min(MOST_FILES))), ..limit };
    if limit.current.is_some_and(|current| current < MOST_FILES) {
        // Without it, there is room for fewer commands at once, which is told when it is reached.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// To be called before any command can run: it has the same user, and would otherwise be allowed to take the channel out of
/// this process, to write into its memory, or to stop it.
pub(crate) fn shut_commands_out() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|cause| Error::new(ErrorKind::Backend, "can not shut commands out").with_source(cause))
}

/// What is served: the directory, and everything else that this process can see.
pub(crate) fn open(id: WorkspaceId, workdir: Option<PathBuf>, first_on_path: &[PathBuf]) -> Result<Opened> {
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
    let environment = environment(Path::new(workdir), first_on_path)?;
    let launcher = Arc::new(Launcher::alone(environment, GRACE));
    let info = WorkspaceInfo::new(id, "gateway", workdir);
    let capabilities = HostWorkspace::CAPABILITIES.with_shell(Path::new("/bin/sh").exists());
    let opening = Opening::new(info, capabilities, Reach::Everything, File::from(directory), Arc::clone(&launcher));
    Ok(Opened { opening: Arc::new(opening), launcher })
}

/// The token that whoever started this process has told.
fn take_token() -> Result<Token> {
    let told = env::var(TOKEN).ok().and_then(|text| Token::from_text(&text));
    told.ok_or_else(|| {
        Error::invalid("token", format!("`--token` needs 64 hexadecimal digits in the variable {TOKEN}"))
    })
}

/// The variables of this process, with some directories before all others on `PATH`.
fn environment(workdir: &Path, first_on_path: &[PathBuf]) -> Result<Environment> {
    let mut variables: BTreeMap<OsString, OsString> = env::vars_os().filter(|(name, _)| name != TOKEN).collect();
    if !first_on_path.is_empty() {
        let path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_else(|| Environment::DEFAULT_PATH.into());
        let first = first_on_path.iter().map(|directory| workdir.join(directory));
        let path = env::join_paths(first.chain(env::split_paths(&path)))
            .map_err(|cause| Error::invalid("path", "`--path` can not hold a colon").with_source(cause))?;
        variables.insert("PATH".into(), path);
    }
    Ok(Environment::new(variables))
}

/// An opened workspace, and what its commands are started by.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) opening: Arc<Opening>,
    launcher: Arc<Launcher>,
}

async fn run(
    channel: Channel,
    port: Option<Port>,
    token: Option<Token>,
    Opened { opening, launcher }: Opened,
    mcp_servers: Option<usize>,
) -> Result<()> {
    // Anybody in a sandbox may send the signal, to which its first process is deaf as long as it does not ask for it. So
    // where the channel is what ends it, it does not.
    let mut terminated = match &channel {
        Channel::Door(_) => None,
        _ => Some(
            signal(SignalKind::terminate())
                .map_err(|cause| Error::new(ErrorKind::Backend, "can not hear of `SIGTERM`").with_source(cause))?,
        ),
    };
    let terminated = async {
        match &mut terminated {
            Some(terminated) => terminated.recv().await,
            None => std::future::pending().await,
        }
    };
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
    let ended = Arc::new(Notify::new());
    let resting = async {
        loop {
            ended.notified().await;
            while timeout(REST, ended.notified()).await.is_ok() {}
            forget_code();
        }
    };
    let work = async {
        let tools = HostFileTools::new(&opening.info().workdir);
        let served = Served::new(host)
            .with_file_tools(Arc::new(tools))
            .with_mcp(mcp.clone())
            .with_notice_of_ends(Arc::clone(&ended));
        let result = tokio::select! {
            result = serve_channel(channel, port, token, served) => result,
            _ = terminated => Ok(()),
        };
        let ended = async {
            // Before what they run in ends, so that they have their chance to end by themselves.
            mcp.close().await;
            opening.end().await
        };
        // What does not end in time ends with the first process, or is left to whoever started this one.
        match timeout(END_LIMIT, ended).await {
            Ok(ended) => ended.and(result),
            Err(_) => result,
        }
    };
    tokio::select! {
        result = work => result,
        () = reaping => Ok(()),
        () = resting => Ok(()),
    }
}

async fn serve_channel(channel: Channel, port: Option<Port>, token: Option<Token>, served: Served) -> Result<()> {
    let unwatched = |cause| Error::new(ErrorKind::Backend, "the channel can not be watched").with_source(cause);
    let result = match channel {
        Channel::Pipes(stdin, stdout) => wsm_gateway::serve(served, join_pipes(stdin, stdout)?).await,
        Channel::Socket(stream) => {
            stream.set_nonblocking(true).map_err(unwatched)?;
            wsm_gateway::serve(served, UnixStream::from_std(stream).map_err(unwatched)?).await
        }
        Channel::Door(door) => {
            door.set_nonblocking(true).map_err(unwatched)?;
            let mut door = Door::new(UnixStream::from_std(door).map_err(unwatched)?);
            match port {
                Some(port) => serve_port(door, port, served).await,
                None => {
                    door.say_ready(&[]).await?;
                    accept(async || {
                        let stream = door.next().await?;
                        Ok(stream.map(|stream| wsm_gateway::serve(served.clone(), stream)))
                    })
                    .await
                }
            }
        }
        Channel::Port(listener) => {
            let (listener, token) = (watch(listener)?, token.map_or_else(Token::random, Ok)?);
            accept(async || {
                let (stream, _) = listener.accept().await?;
                Ok(Some(serve_proven(served.clone(), stream, token.clone())))
            })
            .await
        }
        Channel::Listener(listener, _file) => {
            listener.set_nonblocking(true).map_err(unwatched)?;
            let listener = UnixListener::from_std(listener).map_err(unwatched)?;
            accept(async || {
                let (stream, _) = listener.accept().await?;
                Ok(Some(serve_caller(served.clone(), stream, token.clone())))
            })
            .await
        }
    };
    match result {
        // A broken connection is as closed as one that was closed in good order.
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        result => result,
    }
}

/// Serves every caller on a port that knows the token, for as long as the door is open.
async fn serve_port(mut door: Door, port: Port, served: Served) -> Result<()> {
    let (listener, token) = port.listen()?;
    door.say_ready(token.as_bytes()).await?;
    accept(async || {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                Ok(Some(serve_proven(served.clone(), stream, token.clone())))
            }
            closed = door.next() => closed.map(|_| None),
        }
    })
    .await
}

/// Serves every connection, until there will be no more.
async fn accept<F>(mut next: impl AsyncFnMut() -> io::Result<Option<F>>) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = next() => match accepted {
                Ok(Some(serving)) => {
                    connections.spawn(serving);
                }
                Ok(None) => return Ok(()),
                // Too many files are open. Others will be closed.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            // What went wrong on one connection is known to its other side.
            Some(_) = connections.join_next() => {}
        }
    }
}
