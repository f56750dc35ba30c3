//! What a sandbox is made of: a directory with its files, and namespaces with its processes while it is not paused to disk.

pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod user;

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{envd::Watcher, fault::Ending};
use machine::{Gone, Machine};
use process::{Process, Running};
use user::DEFAULT_USER;

/// What is mounted, or a link into what is mounted: not the sandbox' own.
const NOT_ITS_OWN: [&str; 12] =
    [".users", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"];
/// How long an exit code is known after the exit.
const REMEMBERED: Duration = Duration::from_secs(30);

/// One run of a sandbox, from its boot to the loss of its processes.
pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) processes: Mutex<BTreeMap<u32, Arc<Process>>>,
    pub(crate) watchers: Mutex<BTreeMap<String, Watcher>>,
    /// Cancelled at its end.
    pub(crate) over: CancellationToken,
    tasks: TaskTracker,
}

/// Ends all open streams of a sandbox, in a way.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) token: CancellationToken,
    pub(crate) ending: Mutex<Ending>,
}

impl Default for Cut {
    fn default() -> Self {
        Self { token: CancellationToken::new(), ending: Mutex::new(Ending::Canceled) }
    }
}

pub(crate) struct Guest {
    directory: PathBuf,
    run: Mutex<Option<Arc<Run>>>,
    cut: Mutex<Arc<Cut>>,
}

impl Guest {
    /// A sandbox with its files in a directory, which is made: empty, or with a copy of what is in another one.
    pub(crate) fn new(directory: PathBuf, copied: Option<&Path>) -> io::Result<Self> {
        let guest = Self { directory, run: Mutex::new(None), cut: Mutex::default() };
        fs::create_dir_all(&guest.directory)?;
        make_root(&guest.root())?;
        if let Some(copied) = copied {
            copy_own(copied, &guest.root())?;
        }
        Ok(guest)
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    fn checkpoint_directory(&self) -> PathBuf {
        self.directory.join("checkpoint")
    }

    pub(crate) async fn boot(&self) -> io::Result<()> {
        let machine = Machine::boot(&self.root()).await?;
        let run = Run {
            machine,
            processes: Mutex::default(),
            watchers: Mutex::default(),
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
        };
        *self.run.lock() = Some(Arc::new(run));
        Ok(())
    }

    pub(crate) fn run(&self) -> Result<Arc<Run>, Gone> {
        self.run.lock().clone().ok_or(Gone)
    }

    pub(crate) fn has_processes(&self) -> bool {
        self.run.lock().is_some()
    }

    pub(crate) fn cut(&self) -> Arc<Cut> {
        Arc::clone(&self.cut.lock())
    }

    /// Ends all open streams. Later ones are not touched.
    pub(crate) fn cut_streams(&self, ending: Ending) {
        let cut = std::mem::take(&mut *self.cut.lock());
        *cut.ending.lock() = ending;
        cut.token.cancel();
    }

    /// Stops all processes where they are.
    pub(crate) async fn freeze(&self) {
        if let Ok(run) = self.run() {
            run.machine.signal_all("STOP").await;
        }
    }

    pub(crate) async fn thaw(&self) {
        if let Ok(run) = self.run() {
            run.machine.signal_all("CONT").await;
        }
    }

    /// Ends all processes. The files stay.
    pub(crate) fn halt(&self) {
        if let Some(run) = self.run.lock().take() {
            run.over.cancel();
            run.machine.halt();
        }
    }

    /// Ends all, and removes the files.
    pub(crate) async fn destroy(&self) {
        let run = self.run.lock().clone();
        self.halt();
        if let Some(run) = run {
            // Processes that have not quite ended may write still.
            run.tasks.close();
            let _ = tokio::time::timeout(Duration::from_secs(1), run.tasks.wait()).await;
        }
        let directory = self.directory.clone();
        let _ = tokio::task::spawn_blocking(move || fs::remove_dir_all(directory)).await;
    }

    /// Keeps a copy of the files, in place of the one before.
    pub(crate) fn checkpoint(&self) -> io::Result<()> {
        let checkpoint = self.checkpoint_directory();
        if checkpoint.exists() {
            fs::remove_dir_all(&checkpoint)?;
        }
        fs::create_dir_all(&checkpoint)?;
        copy_own(&self.root(), &checkpoint)
    }

    /// Puts the files back to the last checkpoint; to what a new sandbox has, when there was none.
    pub(crate) fn roll_back(&self) -> io::Result<()> {
        let root = self.root();
        for entry in own_entries(&root)? {
            let is_directory = entry.symlink_metadata()?.is_dir();
            if is_directory { fs::remove_dir_all(entry)? } else { fs::remove_file(entry)? }
        }
        make_root(&root)?;
        let checkpoint = self.checkpoint_directory();
        if checkpoint.is_dir() { copy_own(&checkpoint, &root) } else { Ok(()) }
    }

    /// Copies the files to somewhere else, for a snapshot.
    pub(crate) fn copy_to(&self, target: &Path) -> io::Result<()> {
        fs::create_dir_all(target)?;
        copy_own(&self.root(), target)
    }

    /// Where a file is out here. Only for tests: links in its path are not those of the sandbox.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }
}

impl Run {
    /// Adds a process, and carries it through.
    pub(crate) fn add(self: &Arc<Self>, process: Arc<Process>, running: Running, limit: Option<Duration>) {
        self.processes.lock().insert(process.pid, Arc::clone(&process));
        let (over, run) = (self.over.clone(), Arc::downgrade(self));
        self.tasks.spawn(async move {
            Arc::clone(&process).drive(running, limit).await;
            tokio::select! {
                () = over.cancelled() => {}
                () = tokio::time::sleep(REMEMBERED) => {}
            }
            let Some(run) = run.upgrade() else { return };
            let mut processes = run.processes.lock();
            // Its pid may be another one's by now.
            if processes.get(&process.pid).is_some_and(|known| Arc::ptr_eq(known, &process)) {
                processes.remove(&process.pid);
            }
        });
    }
}

/// Makes what every sandbox has at its root.
fn make_root(root: &Path) -> io::Result<()> {
    make(root, 0o755)?;
    for directory in ["home", "mnt", "opt", "run", "srv", "usr", "var", ".users"] {
        make(&root.join(directory), 0o755)?;
    }
    for directory in ["tmp", "var/tmp"] {
        make(&root.join(directory), 0o1777)?;
    }
    make(&root.join("root"), 0o700)?;
    let home = root.join(DEFAULT_USER.home.trim_start_matches('/'));
    make(&home, 0o755)?;
    chown(&home, Some(DEFAULT_USER.id), Some(DEFAULT_USER.id))?;
    fs::write(root.join(".users/passwd"), user::passwd())?;
    fs::write(root.join(".users/group"), user::group())?;
    for link in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let (outside, inside) = (Path::new("/").join(link), root.join(link));
        if outside.is_symlink() && !inside.is_symlink() {
            symlink(fs::read_link(outside)?, inside)?;
        }
    }
    Ok(())
}

/// Makes a directory with this very mode, whatever the mask of this process.
fn make(directory: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(mode))
}

/// What is at the root of a sandbox and its own.
fn own_entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let entries: Vec<_> = fs::read_dir(root)?.collect::<io::Result<_>>()?;
    let is_own = |entry: &fs::DirEntry| !NOT_ITS_OWN.iter().any(|name| entry.file_name() == *name);
    Ok(entries.iter().filter(|entry| is_own(entry)).map(fs::DirEntry::path).collect())
}

fn copy_own(from: &Path, to: &Path) -> io::Result<()> {
    let entries = own_entries(from)?;
    if entries.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("cp");
    command.args(["--archive", "--reflink=auto", "--target-directory"]).arg(to).args(entries);
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}
