//! Where a configuration comes from.

use std::{fmt, path::PathBuf};

use toml::{Table, Value};

use super::{
    ConfigError,
    tree::{Node, Origin},
};

/// The file that is read from the working directory when no other is named.
const DEFAULT_FILE: &str = "wsm.toml";

/// Variables that start with `WSM_` and configure something other than what [`Settings`](super::Settings) holds.
///
/// `WSM_CONFIG` is `--config`; the next three belong to the commands that talk to a service; `WSM_REQUIRE` is for tests;
/// `WSM_GATEWAY` says where the gateway's program is; the last three are in the environment of every command in a workspace, which may be a `wsm` itself.
const OTHER_VARIABLES: &[&str] = &[
    "WSM_CONFIG",
    "WSM_URL",
    "WSM_TOKEN",
    "WSM_USER",
    "WSM_REQUIRE",
    "WSM_GATEWAY",
    "WSM_WORKSPACE_ID",
    "WSM_INSTANCE",
    "WSM_COMMAND",
];

/// What a Kubernetes Service named `wsm` puts into the environment of every Pod beside it.
const FOREIGN_PREFIXES: &[&str] = &["WSM_SERVICE_", "WSM_PORT"];

/// What a configuration is made of.
#[derive(Clone, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    directory: PathBuf,
    variables: Vec<(String, String)>,
    /// Variables of ours that hold something else than text.
    not_utf8: Vec<String>,
    flags: Vec<(Vec<String>, String, String)>,
}

/// Values may be secrets, so only their names are shown.
impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, directory, variables, not_utf8, flags } = self;
        f.debug_struct("Sources")
            .field("file", file)
            .field("directory", directory)
            .field("variables", &variables.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("not_utf8", not_utf8)
            .field("flags", &flags.iter().map(|(path, ..)| path.join(".")).collect::<Vec<_>>())
            .finish()
    }
}

impl Sources {
    /// Nothing but defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// `wsm.toml` in the working directory, if there is one, and the variables of this process.
    pub fn of_this_process() -> Self {
        let mut sources = Self::new().with_directory(".");
        // A name that is not UTF-8 can not be one of ours.
        let named = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        for (name, value) in named.filter(|(name, _)| name.starts_with("WSM_")) {
            match value.into_string() {
                Ok(value) => sources.variables.push((name, value)),
                Err(_) => sources.not_utf8.push(name),
            }
        }
        sources
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

    /// All layers in one tree.
    pub(super) fn read(&self) -> Result<Node, ConfigError> {
        if let Some(name) = self.not_utf8.iter().find(|name| *name == "WSM_CONFIG" || is_ours(name)) {
            let key = variable_path(name).join(".");
            return Err(ConfigError::new(&key, &Origin::Variable(name.clone()), "the value is not UTF-8"));
        }
        let mut tree = self.read_file()?.unwrap_or_default();
        for (name, value) in self.variables.iter().filter(|(name, _)| is_ours(name)) {
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

/// Whether a variable that begins with `WSM_` sets a key.
fn is_ours(name: &str) -> bool {
    !OTHER_VARIABLES.contains(&name) && !FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
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
    let segments: Vec<&str> = name.strip_prefix("WSM_").unwrap_or(name).split("__").collect();
    let own = |position: usize| position >= 2 && !segments[position - 1].eq_ignore_ascii_case("prewarm");
    let key = |(position, segment): (usize, &&str)| {
        if own(position) { (*segment).to_owned() } else { segment.to_lowercase() }
    };
    segments.iter().enumerate().map(key).collect()
}
