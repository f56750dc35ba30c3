//! The options of the Docker backend.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wsm_core::{BackendConfig, Error, Result, Variables};
use wsm_host::options;

use crate::{backend::DockerBackend, tls::TlsFiles};

/// Labels whose names begin so are ours, and no option may set them.
pub(crate) const RESERVED_LABELS: [&str; 2] = ["agentscope.", "wsm."];

/// Options of the Docker backend.
///
/// ```
/// use wsm_docker::{DockerConfig, DockerNetwork};
///
/// let config = DockerConfig::new("/var/lib/wsm/workspaces").with_network(DockerNetwork::None).with_memory(512 << 20);
/// # let _ = config;
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DockerConfig {
    /// The directory that holds the workspaces and their index. Made at start if it does not exist. It belongs to wsm:
    /// nobody else should write into it but through a workspace.
    pub basedir: PathBuf,
    /// The image that workspaces are based on. `python:3.11-slim` by default. Any will do, also an empty one.
    pub base_image: String,
    /// Which Node.js is put in: that of the image `node:<version>-slim`. `20` by default; empty for none.
    pub node_version: String,
    /// Python packages, as `pip install` takes them, that commands find installed. They need `python3` in the base image.
    pub extra_pip: Vec<String>,
    /// A file of PEM certificates that is put into the image, for commands and for the building of it: all whom they are to
    /// trust, as behind a proxy that opens TLS. None by default: the image's own.
    pub ca_file: Option<PathBuf>,
    /// The network that the image is built on, as `host` or a network's name: what `extra_pip` is fetched over. The engine's
    /// own default by default.
    pub build_network: Option<String>,
    /// Variables that commands get. None of this process's are passed on.
    pub env: Variables,
    /// As whom commands run: `uid`, `uid:gid`, or a name that the image knows. By default the user of this process, to whom
    /// the files then belong.
    pub user: Option<String>,
    /// What commands can reach. [`DockerNetwork::Private`] by default.
    pub network: DockerNetwork,
    /// Whether commands on the private network are kept from the addresses at which clouds give credentials to whoever asks.
    /// They are by default.
    pub block_metadata: bool,
    /// How much memory a workspace may use. No limit by default.
    pub memory: Option<ByteSize>,
    /// How many processors' time a workspace may use. No limit by default.
    pub cpus: Option<f64>,
    /// How many processes and threads a workspace may have. 1024 by default.
    pub pids: Option<u32>,
    /// How large the container's own layer may grow, where the engine's storage driver can limit it. No limit by default.
    pub disk: Option<ByteSize>,
    /// Further files and directories of the host that commands see.
    pub mounts: Vec<ExtraMount>,
    /// Further labels of containers.
    pub labels: BTreeMap<String, String>,
    /// Where the engine is, as `unix:///var/run/docker.sock` or `tcp://host:2375`. By default where `DOCKER_HOST` says, then
    /// where the current context of the `docker` command is, then `/var/run/docker.sock`.
    pub host: Option<String>,
    /// The files for TLS to an engine at `tcp://…`. By default what `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` say beside
    /// `DOCKER_HOST`, or what the context of the `docker` command has.
    pub tls: Option<TlsFiles>,
    /// A port of this machine's loopback over which the gateway is reached, by whoever knows a token. It takes the network
    /// `host`, and one workspace has it at a time. None by default: nobody else can even try.
    pub gateway_port: Option<u16>,
    /// How the gateway is reached. [`Connect::Auto`] by default.
    pub connect: Connect,
}

impl Default for DockerConfig {
    /// Without a basedir, which must be given.
    fn default() -> Self {
        Self {
            basedir: PathBuf::new(),
            base_image: "python:3.11-slim".to_owned(),
            node_version: "20".to_owned(),
            extra_pip: Vec::new(),
            ca_file: None,
            build_network: None,
            env: Variables::default(),
            user: None,
            network: DockerNetwork::Private,
            block_metadata: true,
            memory: None,
            cpus: None,
            pids: Some(1024),
            disk: None,
            mounts: Vec::new(),
            labels: BTreeMap::new(),
            host: None,
            tls: None,
            gateway_port: None,
            connect: Connect::Auto,
        }
    }
}

/// What commands can reach. Written `private`, `none`, `host`, or as the name of a network that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DockerNetwork {
    /// The outside, but no other workspace. A network of wsm's own, which it makes.
    Private,
    /// Nothing but a loopback of their own.
    None,
    /// All that the host can reach, its own loopback among it.
    Host,
    /// What that network reaches.
    Named(String),
}

impl Serialize for DockerNetwork {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Private => "private",
            Self::None => "none",
            Self::Host => "host",
            Self::Named(name) => name,
        })
    }
}

impl<'de> Deserialize<'de> for DockerNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            "private" => Self::Private,
            "none" => Self::None,
            "host" => Self::Host,
            _ => Self::Named(text),
        })
    }
}

/// How the gateway in a container is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Connect {
    /// Over its socket where the engine is on this machine, else through the engine.
    Auto,
    /// Over a socket in a directory that the container shares with this machine.
    Socket,
    /// Relayed by a command that the engine runs in the container. Works wherever the engine is.
    Engine,
}

/// A file or directory of the host that commands see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraMount {
    /// Where it is on the host. An absolute path.
    pub source: PathBuf,
    /// Where commands see it. An absolute path.
    pub target: String,
    /// Whether they may change it.
    #[serde(default)]
    pub writable: bool,
}

impl DockerConfig {
    /// Workspaces below `basedir`, with the defaults for all else.
    pub fn new(basedir: impl Into<PathBuf>) -> Self {
        Self { basedir: basedir.into(), ..Self::default() }
    }

    /// Sets the image that workspaces are based on.
    #[must_use]
    pub fn with_base_image(mut self, image: impl Into<String>) -> Self {
        self.base_image = image.into();
        self
    }

    /// Sets which Node.js is put in; none for an empty text.
    #[must_use]
    pub fn with_node_version(mut self, version: impl Into<String>) -> Self {
        self.node_version = version.into();
        self
    }

    /// Gives commands one more variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets as whom commands run.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets what commands can reach.
    #[must_use]
    pub fn with_network(mut self, network: DockerNetwork) -> Self {
        self.network = network;
        self
    }

    /// Sets whether commands on the private network are kept from metadata services.
    #[must_use]
    pub fn with_block_metadata(mut self, block: bool) -> Self {
        self.block_metadata = block;
        self
    }

    /// Has these Python packages put into the image.
    #[must_use]
    pub fn with_extra_pip(mut self, packages: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.extra_pip = packages.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whom commands trust.
    #[must_use]
    pub fn with_ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the network that the image is built on.
    #[must_use]
    pub fn with_build_network(mut self, network: impl Into<String>) -> Self {
        self.build_network = Some(network.into());
        self
    }

    /// Lets commands see one more file or directory of the host.
    #[must_use]
    pub fn with_mount(mut self, mount: ExtraMount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Gives containers one more label.
    #[must_use]
    pub fn with_label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Sets how many bytes of memory a workspace may use.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(ByteSize(bytes));
        self
    }

    /// Sets where the engine is.
    #[must_use]
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the files for TLS to the engine.
    #[must_use]
    pub fn with_tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Has the gateway reached over a port of the loopback.
    #[must_use]
    pub fn with_gateway_port(mut self, port: u16) -> Self {
        self.gateway_port = Some(port);
        self
    }

    /// Sets how the gateway is reached.
    #[must_use]
    pub fn with_connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    fn validate(&self) -> Result<()> {
        let Self { basedir, base_image, node_version, extra_pip, env, network, memory, cpus, mounts, labels, .. } =
            self;
        options::check_basedir(basedir)?;
        env.validate()?;
        check_word("base_image", base_image)?;
        if !node_version.is_empty() {
            check_word("node_version", node_version)?;
        }
        if let Some(user) = &self.user {
            check_word("user", user)?;
        }
        if let DockerNetwork::Named(name) = network {
            check_word("network", name)?;
        }
        if let Some(name) = &self.build_network {
            check_word("build_network", name)?;
        }
        self.check_port()?;
        if let Some(package) =
            extra_pip.iter().find(|package| package.trim().is_empty() || package.contains(['\0', '\n']))
        {
            return Err(Error::invalid("extra_pip", format!("`extra_pip` holds {package:?}, which names no package")));
        }
        if memory.is_some_and(|memory| memory < LEAST_MEMORY) {
            return Err(Error::invalid(
                "memory",
                format!("`memory` is less than {LEAST_MEMORY}, which the engine refuses"),
            ));
        }
        if cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus >= LEAST_CPUS)) {
            return Err(Error::invalid("cpus", format!("`cpus` must be a number from {LEAST_CPUS} on")));
        }
        if self.pids.is_some_and(|pids| pids < LEAST_PIDS) {
            return Err(Error::invalid("pids", format!("`pids` is less than {LEAST_PIDS}, with which nothing runs")));
        }
        mounts.iter().try_for_each(|mount| check_mount(mount, basedir))?;
        match labels.keys().find(|name| RESERVED_LABELS.iter().any(|reserved| name.starts_with(reserved))) {
            Some(name) => {
                Err(Error::invalid("labels", format!("`labels` can not hold `{name}`: wsm finds its own by that")))
            }
            None => Ok(()),
        }
    }
}

impl DockerConfig {
    fn check_port(&self) -> Result<()> {
        let problem = match (self.gateway_port, &self.network, self.connect) {
            (None, ..) => return Ok(()),
            (Some(0), ..) => "is 0, which is no port: give one, or leave it out",
            (_, network, _) if *network != DockerNetwork::Host => {
                "needs `network = \"host\"`, as a network of its own has a loopback of its own: leave it out, and the gateway \
                 is reached over a private socket"
            }
            (.., Connect::Auto) => return Ok(()),
            (.., Connect::Socket | Connect::Engine) => "does not go with `connect`: leave one of them out",
        };
        Err(Error::invalid("gateway_port", format!("`gateway_port` {problem}")))
    }
}

const LEAST_MEMORY: ByteSize = ByteSize::mib(6);
const LEAST_CPUS: f64 = 0.01;
const LEAST_PIDS: u32 = 16;

/// These become a part of a line of a Dockerfile.
fn check_word(option: &'static str, word: &str) -> Result<()> {
    if word.is_empty() || word.starts_with('-') || word.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(Error::invalid(option, format!("`{option}` is {word:?}: give a single word")));
    }
    Ok(())
}

fn check_mount(mount: &ExtraMount, basedir: &Path) -> Result<()> {
    let ExtraMount { source, target, .. } = mount;
    let refuse = |problem: &str| {
        let message = format!("`mounts` can not hold {} at {target}: {problem}", source.display());
        Err(Error::invalid("mounts", message))
    };
    let is_plain = |path: &Path| path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    if !is_plain(source) || !is_plain(Path::new(target)) {
        return refuse("both must be absolute paths without `..`");
    }
    if basedir.starts_with(source) || source.starts_with(basedir) {
        return refuse("that would show other workspaces");
    }
    // Compared by their parts, so that a `/.` at the end hides nothing.
    let target = Path::new(target);
    let is_taken = ["/", "/workspace"].iter().any(|taken| target == Path::new(taken))
        || ["/proc", "/sys", "/run/wsm"].iter().any(|taken| target.starts_with(taken))
        || Path::new("/run/wsm").starts_with(target);
    if is_taken {
        return refuse("that place is taken");
    }
    Ok(())
}

impl BackendConfig for DockerConfig {
    type Backend = DockerBackend;

    fn build(self) -> Result<DockerBackend> {
        self.validate()?;
        DockerBackend::from_valid(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults() {
        let config: DockerConfig = serde_json::from_str(r#"{"basedir":"/b"}"#).unwrap();
        assert_eq!(config, DockerConfig::new("/b"));
        assert_eq!((config.base_image.as_str(), config.node_version.as_str()), ("python:3.11-slim", "20"));
        let config: DockerConfig = serde_json::from_str(r#"{"network":"mine","memory":"1GiB"}"#).unwrap();
        assert_eq!(config.network, DockerNetwork::Named("mine".to_owned()));
        assert_eq!(config.memory, Some(ByteSize::gib(1)));
    }

    #[test]
    fn an_impossible_option_is_refused_by_name() {
        let base = || DockerConfig::new("/srv/ws");
        let mount = |source: &str, target: &str| DockerConfig {
            mounts: vec![ExtraMount { source: source.into(), target: target.into(), writable: false }],
            ..base()
        };
        let label = |name: &str| DockerConfig { labels: BTreeMap::from([(name.into(), "x".into())]), ..base() };
        for (config, field) in [
            (DockerConfig::default(), "basedir"),
            (base().with_base_image("a\nRUN evil"), "base_image"),
            (base().with_base_image(""), "base_image"),
            (base().with_node_version("20 x"), "node_version"),
            (base().with_user("--privileged"), "user"),
            (base().with_network(DockerNetwork::Named(String::new())), "network"),
            (base().with_env("A=B", ""), "env"),
            (base().with_memory(1), "memory"),
            (base().with_gateway_port(9000), "gateway_port"),
            (base().with_network(DockerNetwork::Host).with_gateway_port(0), "gateway_port"),
            (
                base().with_network(DockerNetwork::Host).with_gateway_port(1).with_connect(Connect::Engine),
                "gateway_port",
            ),
            (
                base().with_network(DockerNetwork::Host).with_gateway_port(1).with_host("tcp://192.0.2.1"),
                "gateway_port",
            ),
            (base().with_build_network("a b"), "build_network"),
            (base().with_ca_file("/no/such/file"), "ca_file"),
            (base().with_ca_file("/dev/null"), "ca_file"),
            (base().with_host("tcp://192.0.2.1").with_tls(TlsFiles::default().with_ca("/no/such/file")), "tls"),
            (DockerConfig { cpus: Some(0.0), ..base() }, "cpus"),
            (DockerConfig { pids: Some(1), ..base() }, "pids"),
            (DockerConfig { extra_pip: vec!["a\nb".into()], ..base() }, "extra_pip"),
            (mount("opt", "/opt"), "mounts"),
            (mount("/opt/../etc", "/opt"), "mounts"),
            (mount("/srv", "/x"), "mounts"),
            (mount("/srv/ws/other", "/x"), "mounts"),
            (mount("/opt", "/workspace"), "mounts"),
            (mount("/opt", "/workspace/."), "mounts"),
            (mount("/opt", "//run/wsm/x"), "mounts"),
            (mount("/opt", "/run"), "mounts"),
            (mount("/opt", "/proc/sys"), "mounts"),
            (label("wsm.owner"), "labels"),
            (label("agentscope.workspace"), "labels"),
        ] {
            assert_eq!(config.clone().build().unwrap_err().field(), Some(field), "{config:?}");
        }
    }
}
