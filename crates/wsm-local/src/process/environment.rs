//! The variables that commands get.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use crate::config::LocalConfig;

/// What commands inherit. All else stays with the service: its variables may hold the keys to other people's data.
const INHERITED: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"];
const INHERITED_PREFIX: &str = "LC_";
/// Where programs are when this process has no `PATH` itself.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables that every command of a backend starts from.
#[derive(Clone)]
pub(crate) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The allowed ones among `inherited`, and the configured ones.
    pub(crate) fn new(config: &LocalConfig, inherited: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let is_allowed = |name: &OsString| {
            name.to_str().is_some_and(|name| {
                INHERITED.contains(&name)
                    || name.starts_with(INHERITED_PREFIX)
                    || config.inherit_env.iter().any(|allowed| allowed == name)
            })
        };
        let mut variables: BTreeMap<OsString, OsString> = inherited.filter(|(name, _)| is_allowed(name)).collect();
        variables.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
        variables.extend(config.env.iter().map(|(name, value)| (name.into(), value.into())));
        Self(variables)
    }

    /// Where programs are looked for, unless a command brings its own `PATH`.
    pub(super) fn path(&self) -> &OsStr {
        self.0.get(OsStr::new("PATH")).map_or(OsStr::new(DEFAULT_PATH), OsString::as_os_str)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

/// Values may hold secrets, so only the names are shown.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(config: &LocalConfig, inherited: &[(&str, &str)]) -> Vec<String> {
        let inherited = inherited.iter().map(|&(name, value)| (name.into(), value.into()));
        let environment = Environment::new(config, inherited);
        environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn secrets_of_the_service_stay_with_it() {
        let inherited = [("PATH", "/bin"), ("LC_ALL", "C"), ("DATABASE_URL", "secret"), ("WSM_TOKEN", "secret")];
        assert_eq!(environment(&LocalConfig::new("/b"), &inherited), ["LC_ALL=C", "PATH=/bin"]);
    }

    #[test]
    fn configured_variables_are_added_and_win() {
        let config = LocalConfig::new("/b").with_env("PATH", "/opt/bin").with_env("A", "").with_inherited_env("PROXY");
        let inherited = [("PATH", "/bin"), ("PROXY", "p"), ("NO_PROXY", "n")];
        assert_eq!(environment(&config, &inherited), ["A=", "PATH=/opt/bin", "PROXY=p"]);
    }

    #[test]
    fn there_is_always_a_path() {
        assert_eq!(environment(&LocalConfig::new("/b"), &[]), [format!("PATH={DEFAULT_PATH}")]);
    }

    #[test]
    fn debug_shows_no_value() {
        let config = LocalConfig::new("/b").with_env("TOKEN", "CANARY");
        let shown = format!("{:?}", Environment::new(&config, std::iter::empty()));
        assert!(shown.contains("TOKEN") && !shown.contains("CANARY"), "{shown}");
    }
}
