//! The configuration: defaults, then `wsm.toml`, then `WSM_*` variables, then flags. Later ones win.

mod fields;
mod key;
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

#[cfg_attr(not(feature = "local"), expect(unused_imports, reason = "this build has no backend"))]
pub(crate) use fields::field_names;
use key::{APP_KEYS, Key, Kind, MANAGER_KEYS};
use tree::{Leaf, Node, Origin};

use crate::{
    app::{AppConfig, Limits},
    assemble::{BackendKind, KNOWN_BACKENDS, effective_manager_options},
    auth::AuthConfig,
};

/// The file that is read from the working directory when no other is named.
const DEFAULT_FILE: &str = "wsm.toml";

/// Where the service listens unless told otherwise.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

/// Variables that start with `WSM_` and configure something other than what [`Settings`] holds.
///
/// `WSM_CONFIG` is `--config`; the next three belong to the commands that talk to a service; the last one is for tests.
const OTHER_VARIABLES: &[&str] = &["WSM_CONFIG", "WSM_URL", "WSM_TOKEN", "WSM_USER", "WSM_REQUIRE"];

/// What a Kubernetes Service named `wsm` puts into the environment of every Pod beside it.
const FOREIGN_PREFIXES: &[&str] = &["WSM_SERVICE_", "WSM_PORT"];

/// A value that the configuration can not take, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    key: String,
    origin: String,
    message: String,
}

impl ConfigError {
    fn new(key: &str, origin: &Origin, message: impl Into<String>) -> Self {
        Self { key: key.to_owned(), origin: origin.to_string(), message: message.into() }
    }

    /// The key at fault, such as `sweep_interval` or `local.basedir`.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, origin, message } = self;
        if key.is_empty() {
            write!(f, "{message} (in {origin})")
        } else {
            write!(f, "`{key}`: {message} (in {origin})")
        }
    }
}

impl std::error::Error for ConfigError {}

/// What a configuration is made of.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    directory: PathBuf,
    variables: Vec<(String, String)>,
    flags: Vec<(Vec<String>, String, String)>,
}

impl Sources {
    /// Nothing but defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// `wsm.toml` in the working directory, if there is one, and the variables of this process.
    pub fn of_this_process() -> Self {
        // A variable that is not UTF-8 can not be one of ours: values are checked where they are read.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
        Self::new().with_directory(".").with_variables(variables)
    }

    /// Reads this file, which must exist.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Reads `wsm.toml` in this directory, if it exists and no other file is named.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Adds variables. Those that do not begin with `WSM_` are left out.
    #[must_use]
    pub fn with_variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables.extend(variables.into_iter().filter(|(name, _)| name.starts_with("WSM_")));
        self
    }

    /// Adds a flag that sets a top-level key.
    #[must_use]
    pub fn with_flag(mut self, flag: &str, key: &str, value: impl Into<String>) -> Self {
        self.flags.push((vec![key.to_owned()], value.into(), flag.to_owned()));
        self
    }

    /// Adds a `--set KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when it is not of that form.
    pub fn with_set(mut self, assignment: &str) -> Result<Self, ConfigError> {
        let refuse = |message: &str| ConfigError::new("", &Origin::Flag("--set".to_owned()), message);
        let (key, value) = assignment.split_once('=').ok_or_else(|| refuse("give KEY=VALUE, such as `ttl=5m`"))?;
        let path = parse_path(key).ok_or_else(|| {
            refuse(&format!("`{key}` is not a key, such as `local.basedir`; names with other characters need quotes"))
        })?;
        self.flags.push((path, value.to_owned(), format!("--set {key}")));
        Ok(self)
    }

    fn read(&self) -> Result<Node, ConfigError> {
        let mut tree = self.read_file()?.unwrap_or_default();
        for (name, value) in &self.variables {
            if OTHER_VARIABLES.contains(&name.as_str()) || FOREIGN_PREFIXES.iter().any(|it| name.starts_with(it)) {
                continue;
            }
            let path = variable_path(name);
            tree.merge(Node::from_text(&path, value, &Origin::Variable(name.clone())));
        }
        for (path, value, flag) in &self.flags {
            tree.merge(Node::from_text(path, value, &Origin::Flag(flag.clone())));
        }
        Ok(tree)
    }

    fn read_file(&self) -> Result<Option<Node>, ConfigError> {
        let variable = || self.variables.iter().find(|(name, _)| name == "WSM_CONFIG").map(|(_, path)| path.into());
        let named = self.file.clone().or_else(variable);
        let path = named.clone().unwrap_or_else(|| self.directory.join(DEFAULT_FILE));
        if named.is_none() && (self.directory.as_os_str().is_empty() || !path.exists()) {
            return Ok(None);
        }
        let origin = Origin::File(path.clone());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| ConfigError::new("", &origin, format!("the file can not be read: {error}")))?;
        // The error's own display quotes the line, which may hold a secret.
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            ConfigError::new("", &origin, format!("line {line} is not TOML: {}", error.message()))
        })?;
        Ok(Some(Node::from_table(table, &origin)))
    }
}

/// Reads a dotted key as TOML does, quotes and all.
fn parse_path(key: &str) -> Option<Vec<String>> {
    let table: Table = format!("{key} = 0").parse().ok()?;
    let mut path = Vec::new();
    let mut value = &Value::Table(table);
    while let Value::Table(table) = value {
        let (key, next) = table.iter().next().filter(|_| table.len() == 1)?;
        path.push(key.clone());
        value = next;
    }
    Some(path)
}

/// `WSM_LOCAL__ENV__Path` is `local.env.Path`: keys are lower case, names of the user's choice are as they are.
fn variable_path(name: &str) -> Vec<String> {
    let segments: Vec<&str> = name.trim_start_matches("WSM_").split("__").collect();
    let own = |position: usize| position >= 2 && !segments[position - 1].eq_ignore_ascii_case("prewarm");
    let key = |(position, segment): (usize, &&str)| {
        if own(position) { (*segment).to_owned() } else { segment.to_lowercase() }
    };
    segments.iter().enumerate().map(key).collect()
}

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
#[derive(Debug, Clone)]
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
        let mut options = match table.to_value() {
            Value::Table(table) => table,
            _ => Table::new(),
        };
        for key in MANAGER_KEYS {
            options.remove(key.path[0]);
        }

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

    /// The effective configuration as TOML with where each value came from, secrets hidden.
    pub fn show(&self) -> String {
        let Limits {
            exec_timeout,
            max_exec_timeout,
            exec_output_limit,
            max_exec_output_limit,
            max_request_bytes,
            max_upload_bytes,
        } = self.app.limits;
        let time = |duration| humantime::format_duration(duration).to_string();
        let mut effective = Table::new();
        let mut put = |key: &str, value: Value| {
            effective.insert(key.to_owned(), value);
        };
        put("backend", self.backend.name.into());
        put("store", self.store.to_string_lossy().into_owned().into());
        put("listen", self.listen.to_string().into());
        put("node", self.app.node.clone().into());
        put("log", self.log.clone().into());
        put("log_format", if self.log_format == LogFormat::Json { "json" } else { "text" }.into());
        put("shutdown_timeout", time(self.app.shutdown_timeout).into());
        put("exec_timeout", time(exec_timeout).into());
        put("max_exec_timeout", time(max_exec_timeout).into());
        for (key, bytes) in [
            ("exec_output_limit", exec_output_limit as u64),
            ("max_exec_output_limit", max_exec_output_limit as u64),
            ("max_request_bytes", max_request_bytes as u64),
            ("max_upload_bytes", max_upload_bytes),
        ] {
            put(key, i64::try_from(bytes).unwrap_or(i64::MAX).into());
        }
        if let Some(auth) = self.tree.get(&["auth"]) {
            put("auth", auth.to_value());
        }
        // Checked when the configuration was read.
        for (key, value) in effective_manager_options(self).unwrap_or_default() {
            put(&key, value);
        }
        put(self.backend.name, Value::Table(self.options.clone()));

        let mut plain = String::new();
        let mut tables = String::new();
        self.show_table(&mut plain, &mut tables, &mut Vec::new(), &effective);
        plain + &tables
    }

    fn show_table(&self, plain: &mut String, tables: &mut String, path: &mut Vec<String>, table: &Table) {
        for (key, value) in table {
            path.push(key.clone());
            if let Value::Table(table) = value {
                let mut lines = String::new();
                let mut below = String::new();
                self.show_table(&mut lines, &mut below, path, table);
                let name = path.iter().map(|key| quoted_key(key)).collect::<Vec<_>>().join(".");
                if !lines.is_empty() {
                    tables.push_str(&format!("\n[{name}]\n{lines}"));
                }
                tables.push_str(&below);
            } else {
                let shown = if is_secret(path) { "\"<hidden>\"".to_owned() } else { value.to_string() };
                let origin = self.origin_of(path).map_or_else(|| "the default".to_owned(), |it| it.to_string());
                plain.push_str(&format!("{} = {shown}  # {origin}\n", quoted_key(key)));
            }
            path.pop();
        }
    }

    fn origin_of(&self, path: &[String]) -> Option<Origin> {
        let mut in_table = vec![self.backend.name.to_owned()];
        in_table.extend_from_slice(path);
        let leaf = stronger(leaf(&self.tree, path), leaf(&self.tree, &in_table));
        // `basedir` is shown in the backend's table, wherever it stands.
        leaf.or_else(|| self.tree.get(&path[path.len() - 1..]).and_then(Node::any_leaf).filter(|_| path.len() == 2))
            .map(|leaf| leaf.origin.clone())
    }
}

/// Whether a value is hidden: tokens, keys, and variables that commands are given.
fn is_secret(path: &[String]) -> bool {
    let secret_word = |key: &String| ["token", "secret", "password", "api_key"].iter().any(|word| key.contains(word));
    path.iter().any(|key| key == "auth" || key == "env" || secret_word(key))
}

fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_owned() } else { Value::String(key.to_owned()).to_string() }
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

/// Refuses keys that nobody reads.
fn check_known(tree: &Node, backends: &[BackendKind]) -> Result<(), ConfigError> {
    let mut top: Vec<&str> = APP_KEYS.iter().chain(MANAGER_KEYS).map(|key| key.path[0]).collect();
    top.dedup();
    top.extend(KNOWN_BACKENDS);
    check_table(tree, "", &top)?;
    for name in ["auth", "prewarm"] {
        if let Some(node) = tree.get(&[name]) {
            check_table(node, name, &names_below(name))?;
        }
    }
    for backend in backends {
        if let Some(node) = tree.get(&[backend.name]) {
            let own = backend.option_keys().iter().copied();
            let known: Vec<&str> = own.chain(MANAGER_KEYS.iter().map(|key| key.path[0])).collect();
            check_table(node, backend.name, &known)?;
            if let Some(node) = node.get(&["prewarm"]) {
                check_table(node, &format!("{}.prewarm", backend.name), &names_below("prewarm"))?;
            }
        }
    }
    Ok(())
}

fn names_below(table: &str) -> Vec<&'static str> {
    let keys = APP_KEYS.iter().chain(MANAGER_KEYS);
    keys.filter(|key| key.path[0] == table).filter_map(|key| key.path.get(1).copied()).collect()
}

fn check_table(node: &Node, name: &str, known: &[&str]) -> Result<(), ConfigError> {
    let table = match node {
        Node::Table(table) => table,
        Node::Leaf(leaf) => return Err(ConfigError::new(name, &leaf.origin, "this is a table, not a value")),
    };
    for (key, node) in table {
        if known.contains(&key.as_str()) {
            continue;
        }
        let path = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        let Some(leaf) = node.any_leaf() else { continue };
        let nearest = known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(key, known), *known))
            .min()
            .filter(|(distance, known)| *distance <= (known.len() / 3).max(2));
        let hint = match nearest {
            Some((_, nearest)) => format!("did you mean `{nearest}`?"),
            None => format!("known are {}", known.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ")),
        };
        return Err(ConfigError::new(&path, &leaf.origin, format!("no such key: {hint}")));
    }
    Ok(())
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

/// Reads a time above zero, such as `300ms` or `5m`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    key::duration(text)
}

/// Where the platform keeps a program's data.
fn data_directory() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME").unwrap_or_else(|| Path::new("/var/lib").to_owned());
    let base = if cfg!(target_os = "macos") {
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
