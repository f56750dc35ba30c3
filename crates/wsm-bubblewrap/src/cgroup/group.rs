//! One control group: its directories, its limits, and its end.

use std::{collections::BTreeMap, fs, io, path::PathBuf, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use super::{Controller, Limits};

/// How long the kernel may take to see that the last process is gone, in steps.
const REMOVE_STEPS: u32 = 50;
const REMOVE_STEP: Duration = Duration::from_millis(20);
/// Of the processor's time, in microseconds.
const PERIOD: f64 = 100_000.0;

#[expect(clippy::disallowed_methods, reason = "this thread may block")]
fn pause() {
    thread::sleep(REMOVE_STEP);
}

/// A control group. Dropping it leaves it where it is.
#[derive(Debug)]
pub(crate) struct Group {
    directories: BTreeMap<Controller, PathBuf>,
    is_unified: bool,
}

impl Group {
    pub(super) fn new(is_unified: bool) -> Self {
        Self { directories: BTreeMap::new(), is_unified }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// Makes a directory for a controller, unless it shares one. On failure nothing is left of the group.
    pub(super) fn add_directory(&mut self, controller: Controller, directory: PathBuf) -> io::Result<()> {
        if !self.directories.values().any(|known| *known == directory)
            && let Err(cause) = fs::create_dir(&directory)
        {
            let _ = self.end();
            return Err(cause);
        }
        self.directories.insert(controller, directory);
        Ok(())
    }

    /// Takes over one that exists.
    pub(super) fn adopt(&mut self, controller: Controller, directory: PathBuf) {
        self.directories.insert(controller, directory);
    }

    /// Sets the limits for the controllers that are there. On failure nothing is left of the group.
    pub(super) fn limit(&self, limits: Limits) -> io::Result<()> {
        let limited = self.directories.iter().try_for_each(|(&controller, directory)| {
            let write = |file: &str, value: String| fs::write(directory.join(file), value);
            // Files that not every kernel has.
            let write_if_there = |file: &str, value: String| match write(file, value) {
                Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                    Ok(())
                }
                written => written,
            };
            match (controller, self.is_unified) {
                (Controller::Memory, true) => {
                    let Some(bytes) = limits.memory else { return Ok(()) };
                    write("memory.max", bytes.to_string())?;
                    write_if_there("memory.swap.max", "0".to_owned())?;
                    // The sandbox dies as a whole rather than lose some process that nobody misses at once.
                    write_if_there("memory.oom.group", "1".to_owned())
                }
                (Controller::Memory, false) => {
                    let Some(bytes) = limits.memory else { return Ok(()) };
                    write("memory.limit_in_bytes", bytes.to_string())?;
                    // Memory and swap together, which must not be less.
                    write_if_there("memory.memsw.limit_in_bytes", bytes.to_string())
                }
                (Controller::Pids, _) => limits.pids.map_or(Ok(()), |pids| write("pids.max", pids.to_string())),
                (Controller::Cpu, is_unified) => {
                    let Some(cpus) = limits.cpus else { return Ok(()) };
                    let quota = (cpus * PERIOD).round();
                    if is_unified {
                        return write("cpu.max", format!("{quota} {PERIOD}"));
                    }
                    write("cpu.cfs_period_us", PERIOD.to_string())?;
                    write("cpu.cfs_quota_us", quota.to_string())
                }
            }
        });
        if limited.is_err() {
            let _ = self.end();
        }
        limited
    }

    /// Puts a process in, and thereby all that it starts from then on. Blocks.
    pub(crate) fn add(&self, pid: i32) -> io::Result<()> {
        let mut directories: Vec<_> = self.directories.values().collect();
        directories.dedup();
        directories.iter().try_for_each(|directory| fs::write(directory.join("cgroup.procs"), pid.to_string()))
    }

    /// Whether the kernel ended a process of the group for want of memory. Blocks.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        let Some(directory) = self.directories.get(&Controller::Memory) else { return false };
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }

    /// Ends what is left in it and removes it. Blocks, for a second at most.
    ///
    /// # Errors
    ///
    /// What the system says of a directory that can not be removed. The others are removed.
    pub(crate) fn end(&self) -> io::Result<()> {
        let mut result = Ok(());
        for directory in self.directories.values() {
            for step in 0..REMOVE_STEPS {
                match fs::remove_dir(directory) {
                    Ok(()) => break,
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => break,
                    // Processes are in it, or have been a moment ago.
                    Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && step < REMOVE_STEPS - 1 => {
                        self.kill(directory);
                        pause();
                    }
                    Err(cause) => {
                        result = Err(cause);
                        break;
                    }
                }
            }
        }
        result
    }

    /// What forks faster than this goes round is caught by the limit on processes, or in the next round.
    fn kill(&self, directory: &std::path::Path) {
        if self.is_unified && fs::write(directory.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
