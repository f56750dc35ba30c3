//! The options of the local backend.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use wsm_core::{BackendConfig, Result, SweepTrigger, Variables};
use wsm_host::options;

use crate::backend::LocalBackend;

/// Options of the local backend.
///
/// ```
/// use std::time::Duration;
/// use wsm_local::LocalConfig;
///
/// let config = LocalConfig::new("/srv/workspaces").with_env("LANG", "C.UTF-8").with_kill_grace(Duration::from_secs(2));
/// # let _ = config;
/// ```
///
/// In a configuration file, durations are written as people write them:
///
/// ```
/// let config: wsm_local::LocalConfig =
///     serde_json::from_str(r#"{ "basedir": "/srv/workspaces", "kill_grace": "500ms" }"#)?;
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalConfig {
    /// The directory that holds the workspaces and their index. Made at start if it does not exist. It belongs to wsm:
    /// nobody else should write into it but through a workspace.
    pub basedir: PathBuf,
    /// Variables that commands get besides the inherited ones.
    pub env: Variables,
    /// Names of variables that commands inherit from this process, besides `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL`,
    /// `LANG`, `LC_*`, `TZ`, `TERM` and `TMPDIR`.
    pub inherit_env: Vec<String>,
    /// How long a command that is ended has for cleaning up between `SIGTERM` and `SIGKILL`. 1 second by default.
    #[serde(with = "options::human_duration")]
    pub kill_grace: Duration,
}

impl Default for LocalConfig {
    /// Without a basedir, which must be given.
    fn default() -> Self {
        Self {
            basedir: PathBuf::new(),
            env: Variables::default(),
            inherit_env: Vec::new(),
            kill_grace: Duration::from_secs(1),
        }
    }
}

impl LocalConfig {
    /// Workspaces below `basedir`, with the defaults for all else.
    pub fn new(basedir: impl Into<PathBuf>) -> Self {
        Self { basedir: basedir.into(), ..Self::default() }
    }

    /// Gives commands one more variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Lets commands inherit one more variable of this process.
    #[must_use]
    pub fn with_inherited_env(mut self, name: impl Into<String>) -> Self {
        self.inherit_env.push(name.into());
        self
    }

    /// Sets how long a command that is ended has for cleaning up.
    #[must_use]
    pub fn with_kill_grace(mut self, grace: Duration) -> Self {
        self.kill_grace = grace;
        self
    }

    fn validate(&self) -> Result<()> {
        let Self { basedir, env, inherit_env, kill_grace: _ } = self;
        options::check_basedir(basedir)?;
        env.validate()?;
        options::check_variable_names("inherit_env", inherit_env)
    }
}

impl BackendConfig for LocalConfig {
    type Backend = LocalBackend;

    fn build(self) -> Result<LocalBackend> {
        self.validate()?;
        Ok(LocalBackend::from_valid(self))
    }

    /// Idle workspaces are looked for on the next `get_workspace`: an idle directory costs nothing, so no timer runs, and
    /// `sweep_interval` does nothing.
    fn sweep(&self) -> SweepTrigger {
        SweepTrigger::Get
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_people_write_them() {
        let config: LocalConfig = serde_json::from_str(r#"{"basedir":"/b","kill_grace":"250ms"}"#).unwrap();
        assert_eq!(config, LocalConfig::new("/b").with_kill_grace(Duration::from_millis(250)));
        assert!(serde_json::to_string(&config).unwrap().contains(r#""kill_grace":"250ms""#));
        let error = serde_json::from_str::<LocalConfig>(r#"{"kill_grace":"soon"}"#).unwrap_err().to_string();
        assert!(error.contains("`soon` is not a duration"), "{error}");
    }

    #[test]
    fn an_unknown_option_is_refused() {
        assert!(serde_json::from_str::<LocalConfig>(r#"{"base_dir":"/b"}"#).is_err());
    }

    #[test]
    fn an_impossible_option_is_refused_by_name() {
        for (config, field) in [
            (LocalConfig::default(), "basedir"),
            (LocalConfig::new("/b").with_env("A=B", ""), "env"),
            (LocalConfig::new("/b").with_env("A", "\0"), "env"),
            (LocalConfig::new("/b").with_inherited_env(""), "inherit_env"),
        ] {
            assert_eq!(config.build().unwrap_err().field(), Some(field));
        }
    }

    #[test]
    fn expiry_is_looked_for_when_a_workspace_is_asked_for() {
        assert_eq!(LocalConfig::new("/b").sweep(), SweepTrigger::Get);
    }
}
