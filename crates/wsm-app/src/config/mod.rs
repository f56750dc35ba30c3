//! The configuration: defaults, then `wsm.toml`, then `WSM_*` variables, then flags. Later ones win.

mod error;
mod fields;
mod key;
mod known;
mod show;
mod sources;
mod tree;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use secrecy::SecretString;
use toml::{Table, Value};
use wsm_core::UserId;

#[cfg_attr(
    not(any(feature = "local", feature = "bubblewrap", feature = "docker", feature = "e2b")),
    expect(unused_imports, reason = "this build has no backend")
)]
pub(crate) use fields::field_names;
use key::{APP_KEYS, Key, Kind, MANAGER_KEYS};
use known::check_known;
use show::is_secret;
use tree::{Leaf, Node, Origin};

pub use error::ConfigError;
pub use sources::Sources;

use crate::{
    app::{AppConfig, Limits},
    assemble::{BackendKind, KNOWN_BACKENDS},
    auth::AuthConfig,
};

/// Where the service listens unless told otherwise.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The effective configuration.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The kind of backend.
    pub backend: &'static BackendKind,
    /// Where the workspaces of backends with directories are; none for a backend without.
    pub basedir: Option<PathBuf>,
    /// Whether nobody chose `basedir`.
    pub basedir_is_default: bool,
    /// The store's file.
    pub store: PathBuf,
    /// Whether nobody chose `store`.
    pub store_is_default: bool,
    /// Where the service listens.
    pub listen: SocketAddr,
    /// What is logged.
    pub log: String,
    /// Whether nobody chose `log`.
    pub log_is_default: bool,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// What the application needs to know.
    pub app: AppConfig,
    /// The manager's options.
    pub manager: Table,
    /// The backend's own options.
    pub options: Table,
    tree: Node,
}

/// A backend's options may be secrets, so only their names are shown.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("backend", &self.backend.name)
            .field("store", &self.store)
            .field("listen", &self.listen)
            .field("app", &self.app)
            .field("manager", &self.manager)
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    ///
    /// The first [`ConfigError`] found, naming the key, what is allowed, and where the value came from.
    pub fn load(sources: &Sources, backends: &'static [BackendKind]) -> Result<Self, ConfigError> {
        let tree = sources.read()?;
        check_known(&tree, backends)?;
        let app_values = check_values(&tree, &[], APP_KEYS)?;
        let text = |path: &str| app_values.get(path).and_then(Value::as_str).map(str::to_owned);

        let backend = find_backend(&tree, text("backend").as_deref().unwrap_or("local"), backends)?;
        let table = tree.get(&[backend.name]).cloned().unwrap_or_default();
        let manager = manager_options(&tree, &table, backend.name)?;
        let mut options = backend_options(&table, backend)?;

        let data = data_directory();
        let mut basedir = None;
        let mut basedir_is_default = false;
        if backend.option_keys().contains(&"basedir") {
            let leaf = stronger(leaf(&tree, &["basedir"]), leaf(&table, &["basedir"]));
            let path = match leaf {
                Some(leaf) => match Kind::Path.check("basedir", leaf)? {
                    Value::String(path) => path.into(),
                    _ => PathBuf::new(),
                },
                None => data.join("workspaces"),
            };
            basedir_is_default = leaf.is_none();
            options.insert("basedir".to_owned(), Value::String(path.to_string_lossy().into_owned()));
            basedir = Some(path);
        }

        let store_is_default = text("store").is_none();
        let store = text("store").map_or_else(|| data.join("wsm.db"), PathBuf::from);
        let mut app = AppConfig::new(&store);
        app.auth = auth(&tree, &app_values)?;
        app.limits = limits(&tree, &app_values)?;
        if let Some(node) = text("node") {
            app.node = node;
        }
        if let Some(timeout) = text("shutdown_timeout").as_deref().and_then(key::duration) {
            app.shutdown_timeout = timeout;
        }
        app.allow_foreign_owner = manager.get("allow_foreign_owner").and_then(Value::as_bool).unwrap_or(false);
        app.prewarmed = manager
            .get("prewarm")
            .and_then(|prewarm| prewarm.get("size"))
            .and_then(Value::as_integer)
            .is_some_and(|size| size > 0);

        Ok(Self {
            backend,
            basedir,
            basedir_is_default,
            store,
            store_is_default,
            listen: text("listen").as_deref().and_then(key::address).unwrap_or(DEFAULT_LISTEN),
            log_is_default: text("log").is_none(),
            log: text("log").unwrap_or_else(|| "info".to_owned()),
            log_format: if text("log_format").as_deref() == Some("json") { LogFormat::Json } else { LogFormat::Text },
            app,
            manager,
            options,
            tree,
        })
    }
}

/// The leaf of the higher layer; in one layer, the backend's table wins.
fn stronger<'a>(top: Option<&'a Leaf>, table: Option<&'a Leaf>) -> Option<&'a Leaf> {
    match (top, table) {
        (Some(top), Some(table)) if top.origin.rank() > table.origin.rank() => Some(top),
        (top, table) => table.or(top),
    }
}

fn leaf<'a>(node: &'a Node, path: &[impl AsRef<str>]) -> Option<&'a Leaf> {
    match node.get(path) {
        Some(Node::Leaf(leaf)) => Some(leaf),
        Some(Node::Table(_)) | None => None,
    }
}

/// Checks the values of `keys` in a table, and gives them by their dotted names.
fn check_values(tree: &Node, prefix: &[&str], keys: &[Key]) -> Result<BTreeMap<String, Value>, ConfigError> {
    let mut values = BTreeMap::new();
    for Key { path, kind, about: _ } in keys {
        let name = prefix.iter().chain(*path).copied().collect::<Vec<_>>().join(".");
        match tree.get(path) {
            None => {}
            Some(Node::Table(_)) if *kind == Kind::Secrets => {}
            Some(Node::Table(table)) => {
                if let Some(leaf) = table.values().find_map(Node::any_leaf) {
                    return Err(ConfigError::new(&name, &leaf.origin, "this is a value, not a table"));
                }
            }
            Some(Node::Leaf(leaf)) => {
                values.insert(path.join("."), kind.check(&name, leaf)?);
            }
        }
    }
    Ok(values)
}

/// The manager's options from the top level and the backend's table.
fn manager_options(tree: &Node, table: &Node, backend: &str) -> Result<Table, ConfigError> {
    check_values(tree, &[], MANAGER_KEYS)?;
    check_values(table, &[backend], MANAGER_KEYS)?;
    let mut options = Table::new();
    for Key { path, kind, about: _ } in MANAGER_KEYS {
        let Some(leaf) = stronger(leaf(tree, path), leaf(table, path)) else { continue };
        let value = kind.check(&path.join("."), leaf)?;
        match *path {
            [group, key] => {
                let group = options.entry(group.to_owned()).or_insert_with(|| Value::Table(Table::new()));
                if let Value::Table(group) = group {
                    group.insert((*key).to_owned(), value);
                }
            }
            _ => {
                options.insert(path[0].to_owned(), value);
            }
        }
    }
    Ok(options)
}

/// The backend's own options. What was given as plain text is what the backend takes it for.
fn backend_options(table: &Node, backend: &BackendKind) -> Result<Table, ConfigError> {
    let mut options = Table::new();
    let Node::Table(nodes) = table else { return Ok(options) };
    for (key, node) in nodes.iter().filter(|(key, _)| MANAGER_KEYS.iter().all(|known| known.path[0] != key.as_str())) {
        let check = |value: &Value| backend.check(&Table::from_iter([(key.clone(), value.clone())]));
        let (mut value, text) = (node.to_value(), node.to_text_value());
        if let Err(message) = check(&value) {
            if value == text || check(&text).is_err() {
                let Some(leaf) = node.any_leaf() else { continue };
                // The message may repeat the value.
                let secret = is_secret(std::slice::from_ref(key));
                let message = if secret { "what it holds can not be read".to_owned() } else { message };
                return Err(ConfigError::new(&format!("{}.{key}", backend.name), &leaf.origin, message));
            }
            value = text;
        }
        options.insert(key.clone(), value);
    }
    Ok(options)
}

fn find_backend(
    tree: &Node,
    name: &str,
    backends: &'static [BackendKind],
) -> Result<&'static BackendKind, ConfigError> {
    backends.iter().find(|backend| backend.name == name).ok_or_else(|| {
        let built = backends.iter().map(|it| format!("`{}`", it.name)).collect::<Vec<_>>().join(", ");
        let message = if KNOWN_BACKENDS.contains(&name) {
            format!("this wsm was built without `{name}`: it has {built}")
        } else {
            format!("`{name}` is no backend: this wsm has {built}")
        };
        let origin = leaf(tree, &["backend"]).map_or(Origin::Flag("--backend".to_owned()), |leaf| leaf.origin.clone());
        ConfigError::new("backend", &origin, message)
    })
}

fn auth(tree: &Node, values: &BTreeMap<String, Value>) -> Result<AuthConfig, ConfigError> {
    let mut auth = AuthConfig::default();
    if let Some(Value::String(token)) = values.get("auth.token") {
        auth.token = Some(SecretString::from(token.clone()));
    }
    if let Some(Node::Table(tokens)) = tree.get(&["auth", "tokens"]) {
        for (user, node) in tokens {
            let key = format!("auth.tokens.{user}");
            match node {
                Node::Leaf(leaf) => {
                    let Value::String(token) = Kind::Secret.check(&key, leaf)? else { continue };
                    let user =
                        UserId::new(user).map_err(|error| ConfigError::new(&key, &leaf.origin, error.to_string()))?;
                    auth.tokens.push((user, SecretString::from(token)));
                }
                Node::Table(_) => {
                    if let Some(leaf) = node.any_leaf() {
                        let message = "this is a token, not a table: names with dots need quotes";
                        return Err(ConfigError::new(&key, &leaf.origin, message));
                    }
                }
            }
        }
    }
    Ok(auth)
}

fn limits(tree: &Node, values: &BTreeMap<String, Value>) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    let time = |key: &str, into: &mut Duration| {
        if let Some(duration) = values.get(key).and_then(Value::as_str).and_then(key::duration) {
            *into = duration;
        }
    };
    time("exec_timeout", &mut limits.exec_timeout);
    time("max_exec_timeout", &mut limits.max_exec_timeout);
    time("max_body_pause", &mut limits.max_body_pause);
    time("head_timeout", &mut limits.head_timeout);
    let bytes = |key: &str| values.get(key).and_then(Value::as_integer).map(i64::unsigned_abs);
    let size = |key: &str, into: &mut usize| {
        if let Some(bytes) = bytes(key) {
            *into = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
    };
    size("exec_output_limit", &mut limits.exec_output_limit);
    size("max_exec_output_limit", &mut limits.max_exec_output_limit);
    size("max_request_bytes", &mut limits.max_request_bytes);
    if let Some(bytes) = bytes("max_upload_bytes") {
        limits.max_upload_bytes = bytes;
    }
    for (key, ceiling, over) in [
        ("exec_timeout", "max_exec_timeout", limits.exec_timeout > limits.max_exec_timeout),
        ("exec_output_limit", "max_exec_output_limit", limits.exec_output_limit > limits.max_exec_output_limit),
    ] {
        let culprit = stronger(leaf(tree, &[key]), leaf(tree, &[ceiling]));
        if let (true, Some(leaf)) = (over, culprit) {
            return Err(ConfigError::new(key, &leaf.origin, format!("the default is above the ceiling `{ceiling}`")));
        }
    }
    Ok(limits)
}

/// Reads a time above zero and of at most 100 years, such as `300ms` or `5m`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    key::duration(text)
}

/// Where the platform keeps a program's data: for root, with the data of services, since nobody else can enter root's home,
/// and sandboxes run as somebody else.
fn data_directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME").unwrap_or_else(|| Path::new("/var/lib").to_owned());
    let is_system = rustix::process::geteuid().is_root() && home() == Path::new("/root");
    let base = if is_system && variable("XDG_DATA_HOME").is_none() {
        Path::new("/var/lib").to_owned()
    } else if cfg!(target_os = "macos") {
        home().join("Library/Application Support")
    } else {
        variable("XDG_DATA_HOME").unwrap_or_else(|| home().join(".local/share"))
    };
    base.join("wsm")
}

/// What every key is for, as lines for people.
pub fn describe_keys() -> Vec<(String, &'static str)> {
    APP_KEYS.iter().chain(MANAGER_KEYS).map(|key| (key.path.join("."), key.about)).collect()
}

#[cfg(test)]
mod tests;
