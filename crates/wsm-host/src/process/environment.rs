//! The variables that commands get.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

/// The variables that every command of a [`Launcher`](crate::Launcher) starts from. There is always a `PATH`.
#[derive(Clone)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// Where programs are when nobody gives a `PATH`.
    pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

    /// Exactly these variables, and the [default `PATH`](Self::DEFAULT_PATH) if they hold none.
    pub fn new(mut variables: BTreeMap<OsString, OsString>) -> Self {
        variables.entry("PATH".into()).or_insert_with(|| Self::DEFAULT_PATH.into());
        Self(variables)
    }

    /// The names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Where programs are looked for, unless a command brings its own `PATH`.
    pub(super) fn path(&self) -> &OsStr {
        self.0.get(OsStr::new("PATH")).map_or(OsStr::new(Self::DEFAULT_PATH), OsString::as_os_str)
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

    #[test]
    fn there_is_always_a_path() {
        let variables = |environment: Environment| -> Vec<(OsString, OsString)> {
            environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let default = ("PATH".into(), Environment::DEFAULT_PATH.into());
        assert_eq!(variables(Environment::new(BTreeMap::new())), [default]);
        let given = [("A".into(), "1".into()), ("PATH".into(), "/opt/bin".into())];
        assert_eq!(variables(Environment::new(BTreeMap::from(given.clone()))), given);
    }

    #[test]
    fn debug_shows_no_value() {
        let shown = format!("{:?}", Environment::new(BTreeMap::from([("TOKEN".into(), "CANARY".into())])));
        assert!(shown.contains("TOKEN") && !shown.contains("CANARY"), "{shown}");
    }
}
