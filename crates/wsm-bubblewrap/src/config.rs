//! The options of the bubblewrap backend.

use std::path::{Component, Path, PathBuf};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use wsm_core::{BackendConfig, Error, Result, Variables};
use wsm_host::options;

use crate::backend::BubblewrapBackend;

/// What of the host commands always see. Nothing of ours may lie below it.
pub(crate) const SYSTEM_TREES: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];

/// Places of the sandbox that are its own, so that nothing of the host can be shown there.
const OWN_PLACES: [&str; 6] = ["/dev", "/etc", "/proc", "/run", "/tmp", "/workspace"];

/// Options of the bubblewrap backend.
///
/// ```
/// use wsm_bubblewrap::{BubblewrapConfig, Network};
///
/// let config = BubblewrapConfig::new("/var/lib/wsm/workspaces").with_network(Network::None).with_memory(512 << 20);
/// # let _ = config;
/// ```
///
/// In a configuration file, sizes are written as people write them:
///
/// ```
/// let config: wsm_bubblewrap::BubblewrapConfig =
///     serde_json::from_str(r#"{ "basedir": "/srv/workspaces", "network": "none", "memory": "512MiB", "cpus": 1.5 }"#)?;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BubblewrapConfig {
    /// The directory that holds the workspaces and their index. Made at start if it does not exist. It belongs to wsm:
    /// nobody else should write into it but through a workspace.
    pub basedir: PathBuf,
    /// Whether commands share the network of the host. [`Network::Host`] by default.
    pub network: Network,
    /// How the gateway is reached. By default over a private channel that has neither a name nor a port. With a number: over
    /// TCP on that port of the loopback, with a token; that needs the host's network, and serves one workspace at a time.
    pub gateway_port: Option<u16>,
    /// Python packages, as `pip install` takes them, that commands find installed. They need `python3` with `venv` on the
    /// host, and the host's network.
    pub extra_pip: Vec<String>,
    /// Variables that commands get. None of this process's are passed on.
    pub env: Variables,
    /// Directories of the host that commands may read, besides the system's own, at the same path.
    pub read_only: Vec<PathBuf>,
    /// How much memory all processes of a workspace may use together. No limit by default.
    pub memory: Option<ByteSize>,
    /// How many processes and threads a workspace may have. 1024 by default.
    pub pids: Option<u32>,
    /// How many processors' time a workspace may use. No limit by default.
    pub cpus: Option<f64>,
    /// How large `/tmp` may grow. It lies in memory. 256 MiB by default.
    pub tmp_size: ByteSize,
    /// Under which users sandboxes run when this process runs as root. As any other user, sandboxes run as that.
    pub uids: UidRange,
    /// The `bwrap` program: a path, or a name to look for on `PATH`. `bwrap` by default.
    pub bwrap: PathBuf,
}

impl Default for BubblewrapConfig {
    /// Without a basedir, which must be given.
    fn default() -> Self {
        Self {
            basedir: PathBuf::new(),
            network: Network::Host,
            gateway_port: None,
            extra_pip: Vec::new(),
            env: Variables::default(),
            read_only: Vec::new(),
            memory: None,
            pids: Some(1024),
            cpus: None,
            tmp_size: ByteSize::mib(256),
            uids: UidRange::default(),
            bwrap: PathBuf::from("bwrap"),
        }
    }
}

/// What commands can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// All that the host can reach, its own loopback among it.
    Host,
    /// Nothing but a loopback of their own.
    None,
}

/// Numbers of users that exist for sandboxes alone.
///
/// Each workspace has one of its own, which also owns its files. With a `count` of 1 they share that one. Each
/// installation on a machine should have a range of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UidRange {
    /// The first one.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl Default for UidRange {
    /// 65,536 numbers from 2,000,000,000 on, which are above all that distributions and systemd give away
    /// (<https://systemd.io/UIDS-GIDS>), and below those that some programs take for negative.
    fn default() -> Self {
        Self { first: 2_000_000_000, count: 65_536 }
    }
}

impl UidRange {
    /// Whether the number belongs to it.
    pub(crate) fn contains(self, uid: u32) -> bool {
        uid.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }
}

impl BubblewrapConfig {
    /// Workspaces below `basedir`, with the defaults for all else.
    pub fn new(basedir: impl Into<PathBuf>) -> Self {
        Self { basedir: basedir.into(), ..Self::default() }
    }

    /// Sets what commands can reach.
    #[must_use]
    pub fn with_network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Gives commands one more variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Lets commands read one more directory of the host.
    #[must_use]
    pub fn with_read_only(mut self, directory: impl Into<PathBuf>) -> Self {
        self.read_only.push(directory.into());
        self
    }

    /// Sets how many bytes of memory a workspace may use.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Sets how many processes and threads a workspace may have.
    #[must_use]
    pub fn with_pids(mut self, pids: u32) -> Self {
        self.pids = Some(pids);
        self
    }

    /// Sets how many processors' time a workspace may use.
    #[must_use]
    pub fn with_cpus(mut self, cpus: f64) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Sets how many bytes `/tmp` may hold.
    #[must_use]
    pub fn with_tmp_size(mut self, bytes: u64) -> Self {
        self.tmp_size = ByteSize(bytes);
        self
    }

    /// Sets under which users sandboxes run when this process runs as root.
    #[must_use]
    pub fn with_uids(mut self, uids: UidRange) -> Self {
        self.uids = uids;
        self
    }

    /// Sets the port of the gateway.
    #[must_use]
    pub fn with_gateway_port(mut self, port: u16) -> Self {
        self.gateway_port = Some(port);
        self
    }

    /// Sets the `bwrap` program.
    #[must_use]
    pub fn with_bwrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bwrap = program.into();
        self
    }

    fn validate(&self) -> Result<()> {
        let Self {
            basedir,
            network,
            gateway_port,
            extra_pip,
            env,
            read_only,
            memory,
            pids,
            cpus,
            tmp_size,
            uids,
            bwrap,
        } = self;
        options::check_basedir(basedir)?;
        read_only.iter().try_for_each(|directory| check_read_only(directory))?;
        check_not_shown(basedir, read_only)?;
        env.validate()?;
        if *network == Network::None {
            if gateway_port.is_some() {
                return Err(needs_network(
                    "gateway_port",
                    "leave it out: the gateway is then reached over a private channel",
                ));
            }
            if !extra_pip.is_empty() {
                return Err(needs_network("extra_pip", "the packages could not be fetched"));
            }
        }
        if *gateway_port == Some(0) {
            return Err(Error::invalid(
                "gateway_port",
                "`gateway_port` is 0, which is no port: give one, or leave it out",
            ));
        }
        if let Some(package) = extra_pip.iter().find(|package| package.trim().is_empty() || package.contains('\0')) {
            return Err(Error::invalid("extra_pip", format!("`extra_pip` holds {package:?}, which names no package")));
        }
        if memory.is_some_and(|memory| memory.as_u64() < LEAST_MEMORY.as_u64()) {
            return Err(Error::invalid(
                "memory",
                format!("`memory` is less than {LEAST_MEMORY}, with which nothing runs"),
            ));
        }
        if pids.is_some_and(|pids| pids < LEAST_PIDS) {
            return Err(Error::invalid("pids", format!("`pids` is less than {LEAST_PIDS}, with which nothing runs")));
        }
        if cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus >= LEAST_CPUS)) {
            return Err(Error::invalid("cpus", format!("`cpus` must be a number from {LEAST_CPUS} on")));
        }
        if tmp_size.as_u64() == 0 {
            return Err(Error::invalid("tmp_size", "`tmp_size` is 0: most programs need some of `/tmp`"));
        }
        // The highest two numbers mean "nobody in particular" to the kernel.
        let is_possible =
            uids.count > 0 && uids.first > 0 && uids.first.checked_add(uids.count).is_some_and(|end| end < u32::MAX);
        if !is_possible {
            return Err(Error::invalid(
                "uids",
                "`uids` must have a `count` from 1 on, and neither hold 0 nor go beyond 4294967294",
            ));
        }
        if bwrap.as_os_str().is_empty() {
            return Err(Error::invalid("bwrap", "`bwrap` is empty: give the program, or leave it out"));
        }
        Ok(())
    }
}

const LEAST_MEMORY: ByteSize = ByteSize::mib(16);
const LEAST_PIDS: u32 = 16;
const LEAST_CPUS: f64 = 0.01;

fn needs_network(option: &'static str, why: &str) -> Error {
    Error::invalid(option, format!("`{option}` needs `network = \"host\"`: {why}"))
}

fn check_read_only(directory: &Path) -> Result<()> {
    let refuse = |problem: &str| {
        let message = format!("`read_only` can not hold {}: {problem}", directory.display());
        Err(Error::invalid("read_only", message))
    };
    if !directory.is_absolute() || directory.components().any(|part| part == Component::ParentDir) {
        return refuse("give an absolute path without `..`");
    }
    if directory == Path::new("/") {
        return refuse("that is everything, other workspaces and every socket of the host among it");
    }
    match OWN_PLACES.iter().find(|place| directory.starts_with(place)) {
        Some(place) => refuse(&format!("the sandbox has a {place} of its own")),
        None => Ok(()),
    }
}

/// What commands can read anyway must not hold other people's workspaces.
fn check_not_shown(basedir: &Path, read_only: &[PathBuf]) -> Result<()> {
    let shown = SYSTEM_TREES.iter().map(Path::new).chain(read_only.iter().map(PathBuf::as_path));
    for tree in shown {
        if basedir.starts_with(tree) {
            let message = format!(
                "`basedir` {} lies below {}, which every sandbox can read: give another directory",
                basedir.display(),
                tree.display()
            );
            return Err(Error::invalid("basedir", message));
        }
        if tree.starts_with(basedir) {
            let message = format!("`read_only` can not hold {}: it is part of the `basedir`", tree.display());
            return Err(Error::invalid("read_only", message));
        }
    }
    Ok(())
}

/// As [`check_not_shown`], for the path that the basedir really has.
pub(crate) fn check_real_basedir(config: &BubblewrapConfig, path: &Path) -> Result<()> {
    let real = config.read_only.iter().map(|tree| tree.canonicalize().unwrap_or_else(|_| tree.clone()));
    check_not_shown(path, &real.collect::<Vec<_>>())
}

impl BackendConfig for BubblewrapConfig {
    type Backend = BubblewrapBackend;

    fn build(self) -> Result<BubblewrapBackend> {
        self.validate()?;
        Ok(BubblewrapBackend::from_valid(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_as_people_write_them() {
        let config: BubblewrapConfig =
            serde_json::from_str(r#"{"basedir":"/b","memory":"512MiB","tmp_size":"1GiB","uids":{"count":1}}"#).unwrap();
        assert_eq!(config.memory, Some(ByteSize::mib(512)));
        assert_eq!(config.tmp_size, ByteSize::gib(1));
        assert_eq!(config.uids, UidRange { count: 1, ..UidRange::default() });
        assert!(serde_json::to_string(&config).unwrap().contains(r#""memory":"512.0 MiB""#));
    }

    #[test]
    fn an_unknown_option_is_refused() {
        assert!(serde_json::from_str::<BubblewrapConfig>(r#"{"networks":"none"}"#).is_err());
        assert!(serde_json::from_str::<BubblewrapConfig>(r#"{"network":"some"}"#).is_err());
    }

    #[test]
    fn an_impossible_option_is_refused_by_name() {
        let base = || BubblewrapConfig::new("/b");
        for (config, field) in [
            (BubblewrapConfig::default(), "basedir"),
            (BubblewrapConfig::new("/usr/local/wsm"), "basedir"),
            (BubblewrapConfig::new("/opt/tools/wsm").with_read_only("/opt/tools"), "basedir"),
            (base().with_env("A=B", ""), "env"),
            (base().with_network(Network::None).with_gateway_port(9000), "gateway_port"),
            (base().with_gateway_port(0), "gateway_port"),
            (BubblewrapConfig { extra_pip: vec!["numpy".into()], ..base().with_network(Network::None) }, "extra_pip"),
            (BubblewrapConfig { extra_pip: vec![" ".into()], ..base() }, "extra_pip"),
            (base().with_read_only("opt"), "read_only"),
            (base().with_read_only("/opt/../etc"), "read_only"),
            (base().with_read_only("/"), "read_only"),
            (base().with_read_only("/run/docker.sock"), "read_only"),
            (base().with_read_only("/b/.wsm"), "read_only"),
            (base().with_memory(1), "memory"),
            (base().with_pids(1), "pids"),
            (base().with_cpus(0.0), "cpus"),
            (base().with_cpus(f64::NAN), "cpus"),
            (base().with_tmp_size(0), "tmp_size"),
            (base().with_uids(UidRange { first: 0, count: 1 }), "uids"),
            (base().with_uids(UidRange { first: 1, count: 0 }), "uids"),
            (base().with_uids(UidRange { first: u32::MAX - 1, count: 9 }), "uids"),
            (base().with_bwrap(""), "bwrap"),
        ] {
            assert_eq!(config.clone().build().unwrap_err().field(), Some(field), "{config:?}");
        }
        base().with_read_only("/opt/tools").build().unwrap();
        base().with_uids(UidRange { first: 1000, count: 1 }).build().unwrap();
    }
}
