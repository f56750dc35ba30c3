//! The namespaces that the processes of one sandbox live in.
//!
//! bubblewrap makes them, and keeps them with a process that does nothing. A thread then enters them and starts all the
//! commands: so these are children of this process, which knows how they end, and have the pids that they see themselves.
//! Only root can enter namespaces with one thread of many.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::fd::{AsFd, OwnedFd},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use tokio::{runtime::Handle, sync::oneshot};

use super::user::User;

/// What bubblewrap says before it has made everything.
const READY: &str = "ready";
/// What the daemon starts a command with. Says itself what can not be started, with 126 or 127.
const WRAPPED: &str = r#"exec nice -n 0 "$@""#;
/// The same with a terminal of its own.
const WRAPPED_WITH_TERMINAL: &str = r#"exec setsid --ctty nice -n 0 "$@""#;

type Job = Box<dyn FnOnce(&Inside) + Send>;
type FileJob = Box<dyn FnOnce() + Send>;

/// The sandbox, or its daemon, is not there any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone;

#[derive(Debug)]
pub(crate) struct Machine {
    commands: mpsc::Sender<Job>,
    files: mpsc::Sender<FileJob>,
    init: OwnedFd,
}

/// A command to start.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) argv: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: PathBuf,
    pub(crate) user: User,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<Winsize>,
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) child: tokio::process::Child,
    /// As the processes of the sandbox see it.
    pub(crate) pid: u32,
    pub(crate) handle: OwnedFd,
    pub(crate) terminal: Option<OwnedFd>,
}

#[derive(Debug)]
pub(crate) enum SpawnError {
    Gone,
    NoDirectory,
    Failed(io::Error),
}

impl Machine {
    /// Makes the namespaces with this directory as their root. Must be called within a runtime.
    pub(crate) async fn boot(root: &Path) -> io::Result<Self> {
        let (commands, jobs) = mpsc::channel::<Job>();
        let (ready, booted) = oneshot::channel();
        let (root, runtime) = (root.to_owned(), Handle::current());
        thread::Builder::new().name("sandbox".to_owned()).spawn(move || {
            match Inside::enter(&root, runtime) {
                Ok((inside, init)) => {
                    let _ = ready.send(Ok(init));
                    jobs.into_iter().for_each(|job| job(&inside));
                    inside.end();
                }
                Err(error) => drop(ready.send(Err(error))),
            };
        })?;
        let init = booted.await.map_err(|_| io::Error::other("the thread of the sandbox ended"))??;
        let handle = pidfd_open(init, PidfdFlags::empty())?;
        let files = files_thread(init)?;
        Ok(Self { commands, files, init: handle })
    }

    pub(crate) async fn spawn(&self, plan: Plan) -> Result<Spawned, SpawnError> {
        let (answer, spawned) = oneshot::channel();
        let job: Job = Box::new(move |inside| drop(answer.send(inside.spawn(&plan))));
        self.commands.send(job).map_err(|_| SpawnError::Gone)?;
        spawned.await.map_err(|_| SpawnError::Gone)?
    }

    /// Does something with files, where all paths are those of the sandbox.
    pub(crate) async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, done) = oneshot::channel();
        let job: FileJob = Box::new(move || drop(answer.send(work())));
        self.files.send(job).map_err(|_| Gone)?;
        done.await.map_err(|_| Gone)
    }

    /// Sends a signal to all processes of the sandbox but the first.
    pub(crate) async fn signal_all(&self, signal: &'static str) {
        let (answer, done) = oneshot::channel();
        let job: Job = Box::new(move |_| {
            let mut kill = Command::new("/bin/sh");
            let _ = kill.args(["-c", &format!("kill -{signal} -1")]).stderr(Stdio::null()).status();
            let _ = answer.send(());
        });
        if self.commands.send(job).is_ok() {
            let _ = done.await;
        }
    }

    /// Ends all of its processes.
    pub(crate) fn halt(&self) {
        let _ = pidfd_send_signal(&self.init, Signal::KILL);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.halt();
    }
}

/// What the thread inside of the namespaces has.
struct Inside {
    runtime: Handle,
    bwrap: Child,
    /// What stands for the daemon: all commands are in its process group, as they are in the daemon's.
    daemon: parking_lot::Mutex<Child>,
    group: i32,
    /// `/proc` as seen from outside.
    proc: OwnedFd,
}

impl Inside {
    fn enter(root: &Path, runtime: Handle) -> io::Result<(Self, Pid)> {
        let (bwrap, init) = start_bwrap(root)?;
        let proc = rustix::fs::open("/proc", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        enter(init, true)?;
        let daemon = Command::new("/bin/sleep").arg("infinity").process_group(0).spawn()?;
        let group = pid_inside(&proc, daemon.id())?;
        let group = i32::try_from(group).map_err(io::Error::other)?;
        Ok((Self { runtime, bwrap, daemon: daemon.into(), group, proc }, init))
    }

    fn spawn(&self, plan: &Plan) -> Result<Spawned, SpawnError> {
        // Who kills the daemon's process group kills the daemon.
        if !matches!(self.daemon.lock().try_wait(), Ok(None)) {
            return Err(SpawnError::Gone);
        }
        if !plan.directory.is_dir() {
            return Err(SpawnError::NoDirectory);
        }
        // When the first process dies meanwhile, nothing can be started, for whatever reason the kernel gives.
        self.try_spawn(plan).map_err(|error| match self.daemon.lock().try_wait() {
            Ok(None) => SpawnError::Failed(error),
            _ => SpawnError::Gone,
        })
    }

    fn try_spawn(&self, plan: &Plan) -> io::Result<Spawned> {
        let wrapped = if plan.terminal.is_some() { WRAPPED_WITH_TERMINAL } else { WRAPPED };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", wrapped, "sh"]).args(&plan.argv);
        command.env_clear().envs(&plan.environment).current_dir(&plan.directory);
        command.uid(plan.user.id).gid(plan.user.id).process_group(self.group);
        let terminal = match plan.terminal {
            None => {
                command.stdin(if plan.stdin { Stdio::piped() } else { Stdio::null() });
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                None
            }
            Some(size) => {
                let (ours, theirs) = open_terminal(size)?;
                rustix::fs::fchown(&theirs, Some(rustix::fs::Uid::from_raw(plan.user.id)), None)?;
                command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
                Some(ours)
            }
        };
        let _runtime = self.runtime.enter();
        let child = tokio::process::Command::from(command).spawn()?;
        let outer = child.id().ok_or_else(|| io::Error::other("a process without an id"))?;
        let pid = pid_inside(&self.proc, outer)?;
        let handle = pidfd_open(to_pid(outer)?, PidfdFlags::empty())?;
        Ok(Spawned { child, pid, handle, terminal })
    }

    fn end(mut self) {
        // With the first process all others die.
        let _ = self.bwrap.kill();
        let mut daemon = self.daemon.into_inner();
        let _ = daemon.kill();
        let _ = daemon.wait();
        let _ = self.bwrap.wait();
    }
}

/// A thread for files alone: a command that is being started does not wait for a large directory.
fn files_thread(init: Pid) -> io::Result<mpsc::Sender<FileJob>> {
    let (files, jobs) = mpsc::channel::<FileJob>();
    let (ready, entered) = mpsc::channel();
    thread::Builder::new().name("sandbox-files".to_owned()).spawn(move || {
        let result = enter(init, false);
        let failed = result.is_err();
        let _ = ready.send(result);
        if failed {
            return;
        }
        jobs.into_iter().for_each(|job| job());
    })?;
    entered.recv().map_err(io::Error::other)??;
    Ok(files)
}

/// Starts bubblewrap, and waits until it has made everything. Gives also the first process inside.
fn start_bwrap(root: &Path) -> io::Result<(Child, Pid)> {
    let mut command = Command::new("bwrap");
    // Nothing of this process is seen inside.
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| name == "PATH"));
    command.args(["--unshare-pid", "--die-with-parent", "--bind"]).arg(root).arg("/");
    for directory in ["usr", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "sys"] {
        let outside = Path::new("/").join(directory);
        // What is a link outside was made as a link below the root already.
        if outside.is_dir() && !outside.is_symlink() {
            command.arg("--ro-bind").arg(&outside).arg(&outside);
        }
    }
    for file in ["passwd", "group"] {
        command.arg("--ro-bind").arg(root.join(".users").join(file)).arg(Path::new("/etc").join(file));
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--info-fd", "0", "--"]);
    command.args(["/bin/sh", "-c", &format!("echo {READY}; exec sleep infinity")]);
    // What it writes to for its information it closes inside too, and inputs are what nobody misses there.
    let (mut info, writer) = io::pipe()?;
    command.stdin(writer).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    // Its end of the pipe is the only one from here on.
    drop(command);
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output of bwrap"))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim() == READY {
        let mut text = String::new();
        info.read_to_string(&mut text)?;
        let info: serde_json::Value = serde_json::from_str(&text)?;
        let init = info["child-pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        return Ok((child, to_pid(init.unwrap_or_default())?));
    }
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut complaint)?;
    }
    let _ = child.wait();
    Err(io::Error::other(format!("bwrap failed: {}", complaint.trim())))
}

/// Moves this thread to where a process is: for its files, and for the pids of the children to come.
fn enter(process: Pid, with_pids: bool) -> io::Result<()> {
    let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", process.as_raw_nonzero()));
    let (mounts, pids) = (open("mnt")?, open("pid")?);
    // The root directory and the current one are shared with all threads otherwise.
    #[expect(unsafe_code, reason = "unsharing is unsafe with regard to descriptors, which stay shared here")]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::FS)?;
    }
    if with_pids {
        move_into_link_name_space(pids.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    }
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(())
}

/// How the processes of a sandbox see a process that is known by its pid out here.
fn pid_inside(proc: &OwnedFd, outer: u32) -> io::Result<u32> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let status = rustix::fs::openat(proc, format!("{outer}/status"), flags, Mode::empty())?;
    let mut text = String::new();
    File::from(status).read_to_string(&mut text)?;
    let pids = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pid = pids.and_then(|pids| pids.split_whitespace().last()).and_then(|pid| pid.parse().ok());
    pid.ok_or_else(|| io::Error::other("a process without a pid"))
}

fn to_pid(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("no such pid"))
}

/// Our end of a terminal, and the one for the command.
fn open_terminal(size: Winsize) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new())?, flags, Mode::empty())?;
    tcsetwinsize(&ours, size)?;
    Ok((ours, theirs))
}
