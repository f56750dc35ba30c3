//! Which variables of the service commands get.

use std::{collections::BTreeMap, ffi::OsString};

use wsm_host::Environment;

use crate::config::LocalConfig;

/// What commands inherit. All else stays with the service: its variables may hold the keys to other people's data.
const INHERITED: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"];
const INHERITED_PREFIX: &str = "LC_";

/// The allowed ones among `inherited`, and the configured ones.
pub(crate) fn environment(config: &LocalConfig, inherited: impl Iterator<Item = (OsString, OsString)>) -> Environment {
    let is_allowed = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            INHERITED.contains(&name)
                || name.starts_with(INHERITED_PREFIX)
                || config.inherit_env.iter().any(|allowed| allowed == name)
        })
    };
    let mut variables: BTreeMap<OsString, OsString> = inherited.filter(|(name, _)| is_allowed(name)).collect();
    variables.extend(config.env.iter().map(|(name, value)| (name.into(), value.into())));
    Environment::new(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(config: &LocalConfig, inherited: &[(&str, &str)]) -> Vec<String> {
        let inherited = inherited.iter().map(|&(name, value)| (name.into(), value.into()));
        let environment = environment(config, inherited);
        environment.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
    }

    #[test]
    fn secrets_of_the_service_stay_with_it() {
        let inherited = [("PATH", "/bin"), ("LC_ALL", "C"), ("DATABASE_URL", "secret"), ("WSM_TOKEN", "secret")];
        assert_eq!(variables(&LocalConfig::new("/b"), &inherited), ["LC_ALL=C", "PATH=/bin"]);
    }

    #[test]
    fn configured_variables_are_added_and_win() {
        let config = LocalConfig::new("/b").with_env("PATH", "/opt/bin").with_env("A", "").with_inherited_env("PROXY");
        let inherited = [("PATH", "/bin"), ("PROXY", "p"), ("NO_PROXY", "n")];
        assert_eq!(variables(&config, &inherited), ["A=", "PATH=/opt/bin", "PROXY=p"]);
    }

    #[test]
    fn there_is_always_a_path() {
        assert_eq!(variables(&LocalConfig::new("/b"), &[]), [format!("PATH={}", Environment::DEFAULT_PATH)]);
    }
}
