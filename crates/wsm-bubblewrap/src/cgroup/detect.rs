//! Where control groups can be made on this machine, and what becomes of those that a crash left.
//!
//! With the old hierarchy (v1) each controller has a tree of its own, with the new one (v2) all share one. In both, ours are
//! made below the group that this process is in, which is where an operator delegates (`Delegate=yes` in a unit), and where
//! the limits on the service as a whole keep counting.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::{Controller, Group, Limits};

/// How ours begin. What follows is the number of the process that made it, the time when that started, since numbers come
/// again, and the namespace in which it has the number.
const PREFIX: &str = "wsm-";
/// Where this process goes with v2, which allows no processes in a group that has groups below it.
const OWN_LEAF: &str = "wsm-service";

/// The control groups of this machine, as far as this process may make some.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// By controller, the directory in which to make them.
    parents: BTreeMap<Controller, PathBuf>,
    is_unified: bool,
    /// Why the other controllers are not there.
    obstacle: Option<String>,
    /// What distinguishes this process' groups.
    instance: String,
}

impl Cgroups {
    /// Looks at this machine, and tries what can be done. Blocks.
    pub(crate) fn detect() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let me = std::process::id();
        let instance = format!("{me}-{}-{}", start_time(me).unwrap_or_default(), pid_namespace().unwrap_or_default());
        Self::find(&own, &mounts, Path::new("/"), instance)
    }

    /// As [`detect`](Self::detect), with the paths in `mounts` below `root`.
    fn find(own: &str, mounts: &str, root: &Path, instance: String) -> Self {
        let mut found = Self { parents: BTreeMap::new(), is_unified: false, obstacle: None, instance };
        let mut obstacles = Vec::new();
        for controller in Controller::ALL {
            let place = v1_place(own, mounts, controller.name()).map(|place| below(root, &place));
            match place.map(|place| try_out(&place, controller, false).map(|()| place)) {
                Some(Ok(place)) => {
                    found.parents.insert(controller, place);
                }
                Some(Err(cause)) => obstacles.push(format!("`{}`: {cause}", controller.name())),
                None => {}
            }
        }
        if found.parents.is_empty()
            && obstacles.is_empty()
            && let Some(place) = v2_place(own, mounts).map(|place| below(root, &place))
        {
            found.is_unified = true;
            match prepare_unified(&place) {
                Ok(parent) => {
                    for controller in Controller::ALL {
                        match try_out(&parent, controller, true) {
                            Ok(()) => {
                                found.parents.insert(controller, parent.clone());
                            }
                            Err(cause) => obstacles.push(format!("`{}`: {cause}", controller.name())),
                        }
                    }
                }
                Err(cause) => obstacles.push(format!("{}: {cause}", place.display())),
            }
        }
        found.obstacle = (!obstacles.is_empty()).then(|| obstacles.join("; "));
        found
    }

    /// What can be limited, in words.
    pub(crate) fn describe(&self) -> Option<String> {
        let names: Vec<_> = self.parents.keys().map(|controller| controller.name()).collect();
        let version = if self.is_unified { "v2" } else { "v1" };
        (!names.is_empty()).then(|| format!("control groups ({version}) limit {}", names.join(", ")))
    }

    /// Which of the limits nobody would keep, in words, with what to do.
    pub(crate) fn missing(&self, limits: Limits) -> Option<String> {
        let names = limits.names().filter(|(_, controller)| !self.parents.contains_key(controller));
        let names: Vec<_> = names.map(|(name, _)| format!("`{name}`")).collect();
        if names.is_empty() {
            return None;
        }
        let why = self.obstacle.as_deref().unwrap_or("no controller of that kind is mounted");
        Some(format!(
            "{} can not be limited here, so workspaces run without: this process may not make control groups ({why}). \
             Run wsm as root, or let systemd delegate them (`Delegate=yes` in its unit)",
            names.join(", ")
        ))
    }

    /// Makes a group with as many of the limits as can be kept; none when that is none of them. Blocks.
    ///
    /// # Errors
    ///
    /// What the system says. Nothing is left then.
    pub(crate) fn create(&self, name: &str, limits: Limits) -> io::Result<Option<Group>> {
        // The sandbox before may still be ending, and another backend of this process may open the same workspace.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("{PREFIX}{}-{name}-{}", self.instance, MADE.fetch_add(1, Ordering::Relaxed));
        let mut group = Group::new(self.is_unified);
        for (_, controller) in limits.names() {
            if let Some(parent) = self.parents.get(&controller) {
                group.add_directory(controller, parent.join(&name))?;
            }
        }
        if group.is_empty() {
            return Ok(None);
        }
        group.limit(limits)?;
        Ok(Some(group))
    }

    /// Ends what an earlier process left, and removes its groups. Gives the number of groups. Blocks.
    ///
    /// Those of processes in other namespaces are left alone: from here, nobody can tell whether they live.
    pub(crate) fn sweep(&self) -> usize {
        let Some(here) = pid_namespace() else { return 0 };
        let mut swept = 0;
        for (controller, parent) in &self.parents {
            for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(maker) = name.to_str().and_then(maker) else { continue };
                if maker.namespace != here || start_time(maker.pid) == Some(maker.started) {
                    continue;
                }
                let mut group = Group::new(self.is_unified);
                group.adopt(*controller, entry.path());
                match group.end() {
                    Ok(()) => swept += 1,
                    Err(error) => tracing::warn!(%error, group = %entry.path().display(), "a control group is left"),
                }
            }
        }
        swept
    }
}

/// The process that made a group.
#[derive(Debug, PartialEq, Eq)]
struct Maker {
    pid: u32,
    started: u64,
    namespace: u64,
}

/// Who made a group of that name.
fn maker(name: &str) -> Option<Maker> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(4, '-');
    let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let namespace = parts.next()?.parse().ok()?;
    parts.next().map(|_| Maker { pid, started, namespace })
}

/// In which namespace this process has its number.
fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// When a process started, in ticks since the machine did.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything, come the fields from the third one on; this is the 22nd.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// A path of this machine, as seen from `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The directory of the group that this process is in, for one controller of the old hierarchy.
fn v1_place(own: &str, mounts: &str, controller: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    })?;
    place(mounts, path, |kind, options| kind == "cgroup" && options.split(',').any(|option| option == controller))
}

/// As [`v1_place`], for the new hierarchy.
fn v2_place(own: &str, mounts: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    place(mounts, path, |kind, _| kind == "cgroup2")
}

/// Where `path` of a hierarchy is mounted.
fn place(mounts: &str, path: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        let (kind, _, options) = (file_system.next()?, file_system.next()?, file_system.next()?);
        if !is_wanted(kind, options) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let rest = path.strip_prefix(root.trim_end_matches('/'))?;
        Some(Path::new(point).join(rest.trim_start_matches('/')))
    })
}

/// Lets groups below have controllers, and gives where they are to be made.
///
/// If this process is alone in its group, it moves into a leaf. If it is in a leaf already that the operator made for it
/// (`DelegateSubgroup=`), the one above is taken.
fn prepare_unified(own: &Path) -> io::Result<PathBuf> {
    let enable = |place: &Path| {
        let wanted = Controller::ALL.map(|controller| format!("+{}", controller.name())).join(" ");
        fs::write(place.join("cgroup.subtree_control"), wanted)
    };
    let Err(cause) = enable(own) else { return Ok(own.to_owned()) };
    if let Some(above) = own.parent().filter(|above| above.join("cgroup.subtree_control").exists())
        && enable(above).is_ok()
    {
        return Ok(above.to_owned());
    }
    let me = std::process::id().to_string();
    if fs::read_to_string(own.join("cgroup.procs"))?.lines().ne([me.as_str()]) {
        return Err(cause);
    }
    let leaf = own.join(OWN_LEAF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => fs::write(leaf.join("cgroup.procs"), me)?,
    }
    enable(own)?;
    Ok(own.to_owned())
}

/// Makes a group and limits it, as later in earnest.
fn try_out(parent: &Path, controller: Controller, is_unified: bool) -> io::Result<()> {
    // Several may try at once.
    static TRIES: AtomicU32 = AtomicU32::new(0);
    let number = TRIES.fetch_add(1, Ordering::Relaxed);
    let mut group = Group::new(is_unified);
    group.add_directory(controller, parent.join(format!("{PREFIX}try-{}-{number}", std::process::id())))?;
    group.limit(Limits { memory: Some(1 << 30), pids: Some(100), cpus: Some(1.0) })?;
    if let Err(error) = group.end() {
        tracing::debug!(%error, "a control group that was only a try is left");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_OWN: &str = "8:pids:/\n4:memory:/service/a\n1:cpu,cpuacct:/\n0::/\n";
    const V1_MOUNTS: &str = "\
        30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        32 30 0:28 /service /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        33 30 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
        34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2_OWN: &str = "0::/system.slice/wsm.service\n";
    const V2_MOUNTS: &str = "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_group_is_found_in_both_hierarchies() {
        let v1 = |controller| v1_place(V1_OWN, V1_MOUNTS, controller).unwrap().display().to_string();
        assert_eq!(v1("cpu"), "/sys/fs/cgroup/cpu,cpuacct/");
        assert_eq!(v1("memory"), "/sys/fs/cgroup/memory/a", "only a part of the tree is mounted");
        assert_eq!(v1("pids"), "/sys/fs/cgroup/pids/");
        assert_eq!(v1_place(V2_OWN, V2_MOUNTS, "memory"), None);
        let v2 = v2_place(V2_OWN, V2_MOUNTS).unwrap();
        assert_eq!(v2, Path::new("/sys/fs/cgroup/system.slice/wsm.service"));
    }

    /// Ordinary files stand for the kernel's, which shows what would be written and where.
    fn fake_v1() -> (tempfile::TempDir, Cgroups) {
        let root = tempfile::tempdir().unwrap();
        for place in ["cpu,cpuacct", "memory/a", "pids"] {
            fs::create_dir_all(root.path().join("sys/fs/cgroup").join(place)).unwrap();
        }
        let found = Cgroups::find(V1_OWN, V1_MOUNTS, root.path(), "77-1-5".to_owned());
        (root, found)
    }

    /// A file of the one group of a workspace below a place.
    fn read_in(place: &Path, file: &str) -> String {
        let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let groups: Vec<_> = names.filter(|name| name.starts_with("wsm-77-1-5-w-")).collect();
        assert_eq!(groups.len(), 1, "{groups:?}");
        fs::read_to_string(place.join(&groups[0]).join(file)).unwrap()
    }

    #[test]
    fn the_old_hierarchy_takes_a_directory_for_each_limit() {
        let (root, cgroups) = fake_v1();
        assert_eq!(cgroups.describe().unwrap(), "control groups (v1) limit memory, pids, cpu");
        assert_eq!(cgroups.missing(Limits { memory: Some(1), ..Limits::default() }), None);
        let limits = Limits { memory: Some(1 << 20), pids: Some(50), cpus: Some(0.5) };
        let group = cgroups.create("w", limits).unwrap().unwrap();
        group.add(42).unwrap();
        let read = |place: &str, file| read_in(&root.path().join("sys/fs/cgroup").join(place), file);
        assert_eq!(read("memory/a", "memory.limit_in_bytes"), "1048576");
        assert_eq!(read("pids", "pids.max"), "50");
        assert_eq!(read("cpu,cpuacct", "cpu.cfs_quota_us"), "50000");
        for place in ["memory/a", "pids", "cpu,cpuacct"] {
            assert_eq!(read(place, "cgroup.procs"), "42");
        }
        assert!(cgroups.create("x", Limits::default()).unwrap().is_none());
    }

    #[test]
    fn the_new_hierarchy_takes_one_directory() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("sys/fs/cgroup/system.slice/wsm.service");
        fs::create_dir_all(&own).unwrap();
        let cgroups = Cgroups::find(V2_OWN, V2_MOUNTS, root.path(), "77-1-5".to_owned());
        assert_eq!(fs::read_to_string(own.join("cgroup.subtree_control")).unwrap(), "+memory +pids +cpu");
        assert_eq!(cgroups.describe().unwrap(), "control groups (v2) limit memory, pids, cpu");
        let limits = Limits { memory: Some(1 << 20), pids: Some(50), cpus: Some(1.5) };
        let group = cgroups.create("w", limits).unwrap().unwrap();
        group.add(42).unwrap();
        let read = |file| read_in(&own, file);
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.oom.group"), "1");
        assert_eq!(read("pids.max"), "50");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("cgroup.procs"), "42");
    }

    #[test]
    fn without_rights_it_says_which_limits_nobody_keeps() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = Cgroups::find("", "", root.path(), String::new());
        assert_eq!(cgroups.describe(), None);
        let missing = cgroups.missing(Limits { memory: Some(1), cpus: Some(1.0), pids: None }).unwrap();
        assert!(missing.contains("`memory`, `cpus` can not be limited here"), "{missing}");
        assert!(missing.contains("Delegate=yes"), "{missing}");
        // A file where a group's directory would have to be.
        fs::create_dir_all(root.path().join("sys/fs/cgroup/memory")).unwrap();
        fs::write(root.path().join("sys/fs/cgroup/memory/a"), "").unwrap();
        let cgroups = Cgroups::find(V1_OWN, V1_MOUNTS, root.path(), String::new());
        let missing = cgroups.missing(Limits { memory: Some(1), ..Limits::default() }).unwrap();
        assert!(missing.contains("`memory`: "), "{missing}");
    }

    #[test]
    fn only_groups_of_processes_that_have_ended_are_left_over() {
        assert_eq!(maker("wsm-12-345-6-0a1b-0"), Some(Maker { pid: 12, started: 345, namespace: 6 }));
        assert_eq!(maker("wsm-12-345-0a1b-0"), None);
        assert_eq!(maker("wsm-try-12-0"), None);
        assert_eq!(maker("wsm-service"), None);
        assert_eq!(maker("docker-12-345-x"), None);
        let me = std::process::id();
        let (started, here) = (start_time(me).unwrap(), pid_namespace().unwrap());
        let (root, mut cgroups) = fake_v1();
        cgroups.parents.retain(|controller, _| *controller == Controller::Pids);
        let pids = root.path().join("sys/fs/cgroup/pids");
        let make = |started: u64, namespace: u64| {
            let group = pids.join(format!("wsm-{me}-{started}-{namespace}-w-0"));
            fs::create_dir(&group).unwrap();
            group
        };
        let (live, dead, elsewhere) = (make(started, here), make(started + 1, here), make(started + 1, here + 1));
        assert_eq!(cgroups.sweep(), 1);
        assert!(live.exists() && !dead.exists() && elsewhere.exists());
    }
}
