//! A running sandbox: how it is started, watched and ended.
//!
//! `bwrap` makes the sandbox and waits for its first process. That one is held back until it is in its control group, says
//! through the door when it is ready, and ends when the door closes.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    net::Ipv4Addr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    pin::Pin,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use command_fds::{CommandFdExt, FdMapping};
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    net::{TcpStream, unix::pipe::Receiver},
    process::{Child, Command},
    sync::{oneshot, watch},
    time::timeout,
};
use tokio_util::task::TaskTracker;
use wsm_core::{ByteChannel, Cause, Error, ErrorKind, Result};
use wsm_host::{
    blocking,
    handshake::{Token, introduce},
};

use crate::{
    cgroup::Group,
    door::Door,
    refusal::{self, Circumstances},
    spec::{ARGS, BLOCK, DOOR, FIRST_CONTENT, LIFE, Plan, STATUS, terminated},
    status::Report,
};

/// How long making a sandbox may take. It takes milliseconds, and seconds on a machine that is short of everything.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long the first process may take to end all commands after its door was closed.
const END_GRACE: Duration = Duration::from_secs(7);
/// How long the kernel may take to end a killed sandbox.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long `bwrap` may take to report an end.
const REPORT_LIMIT: Duration = Duration::from_secs(2);
/// How `wsm-gateway serve` ends when it can not have its port.
const PORT_TAKEN: i32 = 98;
/// How much is kept of what the first process says about its own troubles, in bytes.
const STDERR_KEPT: usize = 4 << 10;

/// What to start, and as whom.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) bwrap: &'a Path,
    pub(crate) plan: Plan,
    /// None for the user of this process.
    pub(crate) uid: Option<u32>,
    pub(crate) group: Option<Group>,
    /// What its first process holds as long as it lives.
    pub(crate) life: Option<File>,
    /// Where its first process listens, if it does.
    pub(crate) port: Option<u16>,
    pub(crate) circumstances: Circumstances,
}

/// A running sandbox. Dropping it ends it, though nobody waits for that.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// None once it is being ended.
    door: Mutex<Option<Arc<Door>>>,
    /// The first process. A descriptor never means another process.
    init: OwnedFd,
    ending: watch::Receiver<Option<Ending>>,
    group: Option<Arc<Group>>,
    /// Where to connect to, if not through the door.
    port: Option<(u16, Token)>,
}

/// How a sandbox ended.
#[derive(Debug, Clone)]
struct Ending {
    /// None when no program was run.
    code: Option<i32>,
    /// The last that it said.
    stderr: String,
}

impl Sandbox {
    /// Makes a sandbox and waits until it takes connections. `tasks` watch it.
    ///
    /// # Errors
    ///
    /// `unavailable` with what to do when `bwrap` is missing or refused; `timeout`; `capacity` when this process or machine
    /// has too much open.
    ///
    /// # Cancel safety
    ///
    /// A dropped start ends what it made.
    pub(crate) async fn start(mut start: Start<'_>, tasks: &TaskTracker) -> Result<Self> {
        let group = start.group.take().map(Arc::new);
        let started = Self::start_in(start, group.clone(), tasks);
        let started = match timeout(START_LIMIT, started).await {
            Ok(started) => started,
            Err(_) => Err(Error::new(ErrorKind::Timeout, format!("no sandbox was made within {START_LIMIT:?}"))),
        };
        if started.is_err()
            && let Some(group) = group
        {
            end_group(group).await;
        }
        started
    }

    async fn start_in(start: Start<'_>, group: Option<Arc<Group>>, tasks: &TaskTracker) -> Result<Self> {
        let Start { bwrap, plan, uid, group: _, life, port, circumstances } = start;
        let (mut door, inner) = Door::new().map_err(exhausted)?;
        let (status, status_writer) = pipe().map_err(exhausted)?;
        let (block, unblock) = pipe().map_err(exhausted)?;
        let mut files = vec![(DOOR, inner), (STATUS, status_writer), (BLOCK, block)];
        files.extend(life.map(|life| (LIFE, life.into())));
        let child = spawn(bwrap, &plan, uid, files)?;
        let outer = child.id();
        let (pid_sender, pid) = oneshot::channel();
        let (ending_sender, mut ending) = watch::channel(None);
        let status = Receiver::from_owned_fd(status).map_err(exhausted)?;
        tasks.spawn(follow(child, status, pid_sender, ending_sender));

        let Ok(pid) = pid.await else { return Err(explain(&mut ending, circumstances).await) };
        let Some(init) = open_child(pid, outer) else { return Err(explain(&mut ending, circumstances).await) };
        if let Some(group) = &group {
            let group = Arc::clone(group);
            let placed = blocking(move || {
                group.add(pid).map_err(|cause| {
                    let message = "the sandbox could not be put into its control group";
                    Error::new(ErrorKind::Backend, message).with_source(cause)
                })
            });
            if let Err(error) = placed.await {
                // Before it runs anything. Letting go of what holds it back would let it run.
                let _ = pidfd_send_signal(&init, Signal::KILL);
                return Err(error);
            }
        }
        // It is held back by a read that ends now. What it would say of a write that nobody reads, its end says better.
        let _ = rustix::io::write(&unblock, &[0]);
        drop(unblock);
        if !door.is_ready().await {
            return Err(match port {
                Some(port) if code(&mut ending).await == Some(PORT_TAKEN) => taken(port),
                _ => explain(&mut ending, circumstances).await,
            });
        }
        let port = match port {
            Some(port) => Some((port, door.token().await.map_err(|cause| ended().with_source(cause))?)),
            None => None,
        };
        Ok(Self { door: Mutex::new(Some(Arc::new(door))), init, ending, group, port })
    }

    /// Makes a connection to the first process.
    ///
    /// # Errors
    ///
    /// `gone` when the sandbox has ended; `capacity` when too many files are open; `permission_denied` when somebody else
    /// listens on its port.
    ///
    /// # Cancel safety
    ///
    /// A connection that is not returned is closed.
    pub(crate) async fn connect(&self) -> Result<Pin<Box<dyn ByteChannel>>> {
        let door = self.door.lock().clone();
        let Some(door) = door.filter(|_| self.ending.borrow().is_none()) else { return Err(ended()) };
        let Some((port, token)) = &self.port else {
            let connected = door.connect().await.map_err(|cause| match cause.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended().with_source(cause),
                _ => exhausted(cause),
            })?;
            return Ok(Box::pin(connected));
        };
        let mut connected =
            TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.map_err(|cause| match cause.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => ended().with_source(cause),
                _ => exhausted(cause),
            })?;
        // Answers would otherwise wait for acknowledgements.
        connected.set_nodelay(true).map_err(exhausted)?;
        introduce(&mut connected, token).await?;
        Ok(Box::pin(connected))
    }

    /// Whether it runs, as far as can be seen at once.
    pub(crate) fn is_alive(&self) -> bool {
        // The door closes first, then the rest is ended, and then the first process counts as ended.
        let is_closed = self.door.lock().as_ref().is_none_or(|door| has_hung_up(&**door));
        self.ending.borrow().is_none() && !is_closed && !has_ended(&self.init)
    }

    /// Why it has ended, if it has.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(crate) async fn death(&self) -> Option<Cause> {
        if self.is_alive() {
            return None;
        }
        // How it ended is told a moment later.
        let mut ending = self.ending.clone();
        let ended = timeout(REPORT_LIMIT, ending.wait_for(Option::is_some)).await;
        let code = ended.ok().and_then(Result::ok).and_then(|ending| ending.as_ref()?.code);
        // 128 and the number of SIGKILL.
        if code != Some(137) {
            return Some(Cause::Unknown);
        }
        // Whether it was for that at this moment, nobody can say: the kernel counts the processes that it ended.
        let group = self.group.clone();
        let starved = blocking(move || Ok(group.is_some_and(|group| group.ran_out_of_memory())));
        Some(if starved.await.unwrap_or(false) { Cause::OutOfMemory } else { Cause::Killed })
    }

    /// Ends the sandbox and all that runs in it. May be called more than once.
    ///
    /// # Errors
    ///
    /// `timeout` when the kernel does not end a killed process, which waits for a broken disk for instance.
    ///
    /// # Cancel safety
    ///
    /// A dropped call has closed the door, so that the sandbox ends, and may leave an empty control group. Call it again.
    pub(crate) async fn end(&self) -> Result<()> {
        drop(self.door.lock().take());
        let mut ending = self.ending.clone();
        let mut gone = async |limit| timeout(limit, ending.wait_for(Option::is_some)).await.is_ok();
        if !gone(END_GRACE).await {
            tracing::warn!("a sandbox did not end by itself, and is killed");
            let _ = pidfd_send_signal(&self.init, Signal::KILL);
            if !gone(KILL_LIMIT).await {
                return Err(Error::new(ErrorKind::Timeout, "the kernel does not end the sandbox: is a disk stuck?"));
            }
        }
        if let Some(group) = &self.group {
            end_group(Arc::clone(group)).await;
        }
        Ok(())
    }
}

/// Runs a command of the sandbox' own to its end, to see whether there can be any.
///
/// # Errors
///
/// As for [`Sandbox::start`]; `backend` when the command fails.
///
/// # Cancel safety
///
/// A dropped call ends the command.
pub(crate) async fn try_out(bwrap: &Path, plan: &Plan, uid: Option<u32>, circumstances: Circumstances) -> Result<()> {
    let (status, status_writer) = pipe().map_err(exhausted)?;
    let mut child = spawn(bwrap, plan, uid, vec![(STATUS, status_writer)])?;
    let mut stderr = child.stderr.take();
    let run = async {
        let said = tail(stderr.as_mut()).await;
        (child.wait().await, said)
    };
    let (ended, said) = timeout(START_LIMIT, run).await.map_err(|_| {
        let message = format!("a sandboxed `true` did not end within {START_LIMIT:?}");
        Error::new(ErrorKind::Timeout, message)
    })?;
    drop(status);
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(refusal::explain(&said, circumstances)),
        Err(cause) => Err(Error::new(ErrorKind::Backend, "`bwrap` could not be waited for").with_source(cause)),
    }
}

fn spawn(bwrap: &Path, plan: &Plan, uid: Option<u32>, mut files: Vec<(i32, OwnedFd)>) -> Result<Child> {
    files.push((ARGS, content(&terminated(&plan.options)).map_err(exhausted)?));
    for (number, bytes) in (FIRST_CONTENT..).zip(&plan.contents) {
        files.push((number, content(bytes).map_err(exhausted)?));
    }
    let mut command = std::process::Command::new(bwrap);
    command.args(&plan.command_line).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Of its own, so that an interrupt from the terminal of the service does not reach it.
    command.process_group(0);
    if let Some(uid) = uid {
        // Takes all other groups away as well.
        command.uid(uid).gid(uid);
    }
    let mappings = files.into_iter().map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd }).collect();
    let mapped = command.fd_mappings(mappings);
    mapped
        .map_err(|cause| Error::new(ErrorKind::Backend, "two files for `bwrap` have one number").with_source(cause))?;
    let spawned = Command::from(command).kill_on_drop(true).spawn();
    spawned.map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => refusal::missing(bwrap),
        io::ErrorKind::PermissionDenied => {
            let message = match uid {
                Some(uid) => format!("`{}` could not be run as user {uid}", bwrap.display()),
                None => format!("`{}` could not be run", bwrap.display()),
            };
            Error::new(ErrorKind::Unavailable, message).with_code("bwrap_refused").with_source(cause)
        }
        _ => exhausted(cause),
    })
}

/// Sees a sandbox to its end.
async fn follow(mut child: Child, status: Receiver, pid: oneshot::Sender<i32>, ending: watch::Sender<Option<Ending>>) {
    let mut stderr = child.stderr.take();
    let reports = async {
        let (mut lines, mut pid, mut code) = (BufReader::new(status).lines(), Some(pid), None);
        // Read to the end: `bwrap` would be ended by a report that nobody reads.
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(report) = Report::parse(&line) else { continue };
            if let Some(child_pid) = report.child_pid
                && let Some(pid) = pid.take()
            {
                let _ = pid.send(child_pid);
            }
            code = report.exit_code.or(code);
        }
        code
    };
    let (code, stderr, _) = tokio::join!(reports, tail(stderr.as_mut()), child.wait());
    ending.send_replace(Some(Ending { code, stderr }));
}

/// Reads to the end and keeps the last of it.
async fn tail(stream: Option<&mut (impl AsyncRead + Unpin)>) -> String {
    let Some(stream) = stream else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), [0; 1024]);
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..length]);
        let excess = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Why there is no sandbox, once it is certain that there is none.
async fn explain(ending: &mut watch::Receiver<Option<Ending>>, circumstances: Circumstances) -> Error {
    match ending.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ending { stderr, .. })) => refusal::explain(stderr, circumstances),
        _ => refusal::explain("", circumstances),
    }
}

async fn code(ending: &mut watch::Receiver<Option<Ending>>) -> Option<i32> {
    ending.wait_for(Option::is_some).await.ok()?.as_ref()?.code
}

fn taken(port: u16) -> Error {
    let message = format!(
        "`gateway_port` {port} is in use, perhaps by another workspace: give another one, or leave it out, which needs no port"
    );
    Error::new(ErrorKind::Conflict, message).with_field("gateway_port")
}

/// Holds on to the first process; none when it has ended already, and its number may be another's.
fn open_child(pid: i32, outer: Option<u32>) -> Option<OwnedFd> {
    let init = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // The outer process was not waited for yet, so that its number is still its own.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent: u32 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (Some(parent) == outer).then_some(init)
}

/// Whether a process is no more.
fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

/// Whether the other side of a socket has closed it.
fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let looked = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && polled.iter().any(|polled| polled.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

async fn end_group(group: Arc<Group>) {
    let ended = blocking(move || {
        group.end().map_err(|cause| Error::new(ErrorKind::Backend, "a control group is left").with_source(cause))
    });
    if let Err(error) = ended.await {
        tracing::warn!(error = %error.report(), "what is left of a sandbox is removed at the next start");
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// A file in memory.
fn content(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("wsm", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file.into())
}

fn ended() -> Error {
    Error::new(ErrorKind::Gone, "the sandbox has ended: ask for the workspace again")
}

fn exhausted(cause: io::Error) -> Error {
    Error::new(ErrorKind::Capacity, "no sandbox can be made now: this process or machine has too much open or running")
        .with_source(cause)
}
