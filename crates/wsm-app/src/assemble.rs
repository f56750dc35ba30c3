//! Makes the manager that a configuration names. The only file that knows which backends there are.

use std::sync::Arc;

use toml::Table;
use wsm_core::{EventListener, Result, WorkspaceManager};

use crate::config::Settings;

/// Every backend of wsm, whether this build has it or not, so that a table for one that it lacks is no unknown key.
pub(crate) const KNOWN_BACKENDS: [&str; 7] =
    ["local", "bubblewrap", "docker", "k8s", "e2b", "daytona", "opensandbox"];

/// The backends of this build.
pub static BACKENDS: &[BackendKind] = &[
    #[cfg(feature = "local")]
    BackendKind { name: "local", option_keys: local::option_keys, build: local::build },
];

/// A kind of backend that can be configured by name.
#[derive(Debug)]
pub struct BackendKind {
    /// The name, as in `backend = "local"`.
    pub name: &'static str,
    pub(crate) option_keys: fn() -> &'static [&'static str],
    build: fn(Parts<'_>) -> Result<Arc<dyn WorkspaceManager>>,
}

impl BackendKind {
    /// The keys of its table, without the manager's.
    pub fn option_keys(&self) -> &'static [&'static str] {
        (self.option_keys)()
    }
}

/// What a manager is made of.
struct Parts<'a> {
    options: &'a Table,
    manager: &'a Table,
    listener: Option<Arc<dyn EventListener>>,
}

/// Makes the manager.
///
/// # Errors
///
/// `invalid_input` naming the option at fault.
pub fn manager(settings: &Settings, listener: Option<Arc<dyn EventListener>>) -> Result<Arc<dyn WorkspaceManager>> {
    let parts = Parts { options: &settings.options, manager: &settings.manager, listener };
    (settings.backend.build)(parts)
}

#[cfg(feature = "local")]
mod local {
    use super::*;

    pub(super) fn option_keys() -> &'static [&'static str] {
        &["basedir", "env", "inherit_env", "kill_grace"]
    }

    pub(super) fn build(_parts: Parts<'_>) -> Result<Arc<dyn WorkspaceManager>> {
        Err(wsm_core::Error::unsupported("local"))
    }
}
