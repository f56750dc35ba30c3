//! Starts commands.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::fcntl_dupfd_cloexec,
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    net::unix::pipe::Sender,
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use wsm_core::{Command, Error, ErrorKind, Process, ProcessOutput, ProcessStdin, Result, WorkspaceId};

use super::{
    child::Root,
    driver::Driver,
    environment::Environment,
    hunt::Hunt,
    image::image,
    marker::{Instance, Marked},
    orphans::{OwnChildren, Reaped},
    output::OutputPipe,
    refusal,
    stdin::StdinPipe,
    vfork::{Files, keep_ends_of_children, spawn},
};
use crate::{Identity, blocking::blocking, error};

/// How many pieces of output wait for the reader before the command has to.
const EVENTS_AHEAD: usize = 4;
/// How often a program that is being written is tried again, with a pause that doubles from a millisecond on.
const BUSY_TRIES: u32 = 6;

/// Starts commands, and ends what they have started.
///
/// Making one makes the kernel keep the ends of this process's children, where it was started with `SIGCHLD` ignored.
#[derive(Debug)]
pub struct Launcher {
    instance: Instance,
    environment: Environment,
    grace: Duration,
    /// How many commands were started.
    started: AtomicU64,
    children: OwnChildren,
    /// Whether it has to do without `/proc`, if there is none.
    is_alone: bool,
}

/// The workspace that a command runs in.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) id: WorkspaceId,
    /// Cancelled when the workspace is put away: its commands end.
    pub(crate) closing: CancellationToken,
    /// Whose tasks the workspace waits for before it counts as put away.
    pub(crate) tasks: TaskTracker,
}

/// A command to start.
pub(crate) struct Launch<D> {
    pub(crate) command: Command,
    pub(crate) stdin: Stdin,
    /// Opens the directory to run in.
    pub(crate) directory: D,
    pub(crate) host: Host,
    /// Keeps the host from counting as put away while nobody follows the command yet.
    pub(crate) _token: TaskTrackerToken,
    /// When the command is ended with all that it started.
    pub(crate) deadline: Option<Instant>,
    /// For a service, what asks it to end.
    pub(crate) service: Option<CancellationToken>,
}

/// Where a command's input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// There is none.
    Empty,
    /// A pipe that the caller writes to.
    Pipe,
}

impl Launcher {
    /// Starts commands of workspaces on a basedir. The commands carry marks, by which a later process finds them when this
    /// one is killed. `grace` is how long commands that are ended have between `SIGTERM` and `SIGKILL`.
    ///
    /// # Errors
    ///
    /// When this process does not find itself in `/proc`.
    pub fn new(basedir: Identity, environment: Environment, grace: Duration) -> Result<Self> {
        let instance =
            Instance::new(basedir).map_err(|cause| error::io("this process could not be found in `/proc`", cause))?;
        Ok(Self::of(instance, environment, grace, false))
    }

    /// Starts commands that nobody looks for when this process was killed: for the first process of a sandbox, with which
    /// they end.
    ///
    /// Works also without `/proc`. A command that must end is then killed with its process group, and what has left that
    /// is not found.
    pub fn alone(environment: Environment, grace: Duration) -> Self {
        Self::of(Instance::alone(), environment, grace, true)
    }

    fn of(instance: Instance, environment: Environment, grace: Duration, is_alone: bool) -> Self {
        keep_ends_of_children();
        Self { instance, environment, grace, started: AtomicU64::new(0), children: OwnChildren::default(), is_alone }
    }

    /// Ends what runs in a workspace on the basedir, whoever started it. Returns how many processes that were.
    ///
    /// # Errors
    ///
    /// When `/proc` can not be read, or processes are left that nothing ends.
    ///
    /// # Cancel safety
    ///
    /// Once begun, it goes on to its end, on a task of `tasks`.
    pub async fn end_everywhere(&self, tasks: &TaskTracker, id: &WorkspaceId) -> Result<usize> {
        self.end_marked(tasks, Marked::AnyInstance(self.instance.basedir(), id.clone())).await
    }

    /// Ends what processes that are gone have left running on the basedir. Returns how many processes that were.
    ///
    /// # Errors
    ///
    /// As for [`end_everywhere`](Self::end_everywhere).
    ///
    /// # Cancel safety
    ///
    /// As for [`end_everywhere`](Self::end_everywhere).
    pub async fn end_strays(&self, tasks: &TaskTracker) -> Result<usize> {
        self.end_marked(tasks, Marked::Strays(self.instance.basedir())).await
    }

    /// Ends what this launcher has started in a workspace.
    pub(crate) async fn end_own(&self, tasks: &TaskTracker, id: &WorkspaceId) -> Result<usize> {
        if self.is_alone && !Path::new("/proc/self").exists() {
            // There is nowhere to look.
            return Ok(0);
        }
        self.end_marked(tasks, Marked::Workspace(self.instance.clone(), id.clone())).await
    }

    /// Ends what is marked, on a task of its own: once begun, it is brought to its end.
    async fn end_marked(&self, tasks: &TaskTracker, marked: Marked) -> Result<usize> {
        match tasks.spawn(Hunt::marked(marked).run(self.grace)).await {
            Ok(hunted) => hunted,
            Err(cause) => Err(Error::new(ErrorKind::Backend, "ending processes was broken off").with_source(cause)),
        }
    }

    /// Reaps the ended children of this process that are not commands of this launcher: what the first process of a
    /// sandbox inherits. Returns whether it got to see all of them; if not, a command was in the way that is about to be
    /// reaped, and a moment later it should be called again.
    ///
    /// Only for a process in which nothing but this launcher starts children.
    pub fn reap_orphans(&self) -> bool {
        self.children.reap_orphans() == Reaped::All
    }

    pub(super) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// How long commands that are ended have for cleaning up.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// Starts a command. A task of the host's follows it from the beginning, so that dropping what this returns ends it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the call may start the command all the same; it is ended then.
    pub(crate) async fn start<D>(self: &Arc<Self>, launch: Launch<D>) -> Result<Process>
    where
        D: Fn() -> Result<OwnedFd> + Send + Sync + 'static,
    {
        let launch = Arc::new(launch);
        let mut tries_left = BUSY_TRIES;
        let mut pause = Duration::from_millis(1);
        loop {
            tries_left -= 1;
            let (launcher, launch, is_last) = (Arc::clone(self), Arc::clone(&launch), tries_left == 0);
            if let Some(process) = blocking(move || launcher.attempt(&launch, is_last)).await? {
                return Ok(process);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// One try, which blocks for as long as the kernel needs to load the program. None when the program is busy and
    /// this is not the last try.
    fn attempt<D>(self: &Arc<Self>, launch: &Launch<D>, is_last: bool) -> Result<Option<Process>>
    where
        D: Fn() -> Result<OwnedFd>,
    {
        let Launch { command, stdin, directory, host, _token: _, deadline, service } = launch;
        let directory = directory()?;
        let started = self.fork(command, *stdin, &directory, host);
        let Started { root, number, input, stdout, stderr } = match started {
            Ok(started) => started,
            Err(cause) if refusal::is_busy(&cause) && !is_last => return Ok(None),
            Err(cause) => {
                let path = command.env.get("PATH").map(OsStr::new).unwrap_or_else(|| self.environment.path());
                return Err(refusal::explain(command.program(), path, directory.as_fd(), cause));
            }
        };
        let control = root.control();
        let (sender, mut events) = mpsc::channel(EVENTS_AHEAD);
        let driver = Driver {
            root,
            stdout,
            stderr,
            events: sender,
            deadline: *deadline,
            service: service.clone(),
            closing: host.closing.clone(),
            launcher: Arc::clone(self),
            number,
        };
        host.tasks.spawn(driver.drive());
        let output = ProcessOutput::new(futures::stream::poll_fn(move |context| events.poll_recv(context)));
        Ok(Some(Process::new(input, output, control)))
    }

    fn fork(&self, command: &Command, stdin: Stdin, directory: &OwnedFd, host: &Host) -> io::Result<Started> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let (stdout, stdout_writer) = OutputPipe::new()?;
        let (stderr, stderr_writer) = OutputPipe::new()?;
        let (stdin, input): (OwnedFd, ProcessStdin) = match stdin {
            Stdin::Empty => (nothing_to_read()?, Box::pin(tokio::io::sink())),
            Stdin::Pipe => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                (reader, Box::pin(StdinPipe::new(Sender::from_owned_fd(writer)?)))
            }
        };
        let image = image(command, &self.environment, &self.instance.variables(&host.id, number))?;
        let (stdin, stdout_writer, stderr_writer) = (above_2(stdin)?, above_2(stdout_writer)?, above_2(stderr_writer)?);
        let files = Files {
            stdin: stdin.as_fd(),
            stdout: stdout_writer.as_fd(),
            stderr: stderr_writer.as_fd(),
            directory: directory.as_fd(),
        };
        let (pid, pidfd) = self.children.start(|| spawn(&image, &files))?;
        let root = Root::new(pid, pidfd, self.children.clone())?;
        Ok(Started { root, number, input, stdout, stderr })
    }
}

fn nothing_to_read() -> io::Result<OwnedFd> {
    match File::open("/dev/null") {
        // An empty root file system has no devices. A pipe that nobody writes to is as empty.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(pipe_with(PipeFlags::CLOEXEC)?.0),
        opened => Ok(opened?.into()),
    }
}

/// Moves a descriptor away from the numbers that a child's own three will have, where a service gets them that was
/// started without.
fn above_2(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() > 2 { Ok(file) } else { Ok(fcntl_dupfd_cloexec(file, 3)?) }
}

/// A child that nobody follows yet.
struct Started {
    root: Root,
    number: u64,
    input: ProcessStdin,
    stdout: OutputPipe,
    stderr: OutputPipe,
}
