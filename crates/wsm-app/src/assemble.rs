//! Makes the manager that a configuration names. The only file that knows which backends there are.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use toml::{Table, Value};
use wsm_core::{
    BackendConfig, CachingManager, Error, ErrorKind, EventListener, Layer, ManagerSettings, Prewarm, Result,
    WorkspaceManager,
};

#[cfg(any(feature = "local", feature = "bubblewrap", feature = "docker", feature = "e2b"))]
use crate::config::field_names;
use crate::config::{Settings, parse_duration};

/// Every backend of wsm, whether this build has it or not, so that a table for one that it lacks is no unknown key.
pub(crate) const KNOWN_BACKENDS: [&str; 7] = ["local", "bubblewrap", "docker", "k8s", "e2b", "daytona", "opensandbox"];

/// The backends of this build.
pub static BACKENDS: &[BackendKind] = &[
    #[cfg(feature = "local")]
    BackendKind {
        name: "local",
        option_keys: field_names::<wsm_local::LocalConfig>,
        check: check::<wsm_local::LocalConfig>,
        build: build::<wsm_local::LocalConfig>,
    },
    #[cfg(feature = "bubblewrap")]
    BackendKind {
        name: "bubblewrap",
        option_keys: field_names::<wsm_bubblewrap::BubblewrapConfig>,
        check: check::<wsm_bubblewrap::BubblewrapConfig>,
        build: |parts| {
            build_with::<wsm_bubblewrap::BubblewrapConfig>(parts, |config| {
                Ok(vec![Arc::new(gateway()?.with_packages(config.extra_pip.clone()))])
            })
        },
    },
    #[cfg(feature = "docker")]
    BackendKind {
        name: "docker",
        option_keys: field_names::<wsm_docker::DockerConfig>,
        check: check::<wsm_docker::DockerConfig>,
        // Its packages are in the image.
        build: |parts| build_with::<wsm_docker::DockerConfig>(parts, |_| Ok(vec![Arc::new(gateway()?)])),
    },
    #[cfg(feature = "e2b")]
    BackendKind {
        name: "e2b",
        option_keys: field_names::<wsm_e2b::E2bConfig>,
        check: check::<wsm_e2b::E2bConfig>,
        build: |parts| build_with::<wsm_e2b::E2bConfig>(parts, |_| Ok(gateway_beside())),
    },
];

/// Drives sandboxes by the gateway of this installation. Reads it, which is done once, at the start.
#[cfg(any(feature = "bubblewrap", feature = "docker"))]
fn gateway() -> Result<wsm_gateway::GatewayLayer> {
    Ok(wsm_gateway::GatewayLayer::new(wsm_gateway::find_program()?))
}

/// Brings the gateway of this installation into sandboxes that have a daemon of their own for commands and files. They work
/// without it too, so that it may be missing.
#[cfg(feature = "e2b")]
fn gateway_beside() -> Vec<Arc<dyn Layer>> {
    match wsm_gateway::find_program() {
        Ok(program) => vec![Arc::new(wsm_gateway::GatewayBeside::new(program))],
        Err(error) => {
            tracing::info!(error = %error.report(), "no MCP servers and no searches in sandboxes: there is no gateway");
            Vec::new()
        }
    }
}

/// A kind of backend that can be configured by name.
#[derive(Debug)]
pub struct BackendKind {
    /// The name, as in `backend = "local"`.
    pub name: &'static str,
    option_keys: fn() -> &'static [&'static str],
    check: fn(&Table) -> Result<(), String>,
    build: fn(Parts<'_>) -> Result<Arc<dyn WorkspaceManager>>,
}

impl BackendKind {
    /// The keys of its table, without the manager's.
    pub fn option_keys(&self) -> &'static [&'static str] {
        (self.option_keys)()
    }

    /// Checks whether these options, with defaults for all others, can be read.
    pub(crate) fn check(&self, options: &Table) -> Result<(), String> {
        (self.check)(options)
    }
}

/// Two backends for tests of the configuration, which need not be built.
#[cfg(test)]
pub(crate) static TEST_BACKENDS: &[BackendKind] = &[
    BackendKind {
        name: "local",
        option_keys: || &["basedir", "env", "attempts"],
        check: check::<TestOptions>,
        build: refuse,
    },
    BackendKind { name: "e2b", option_keys: || &["api_key", "template"], check: check::<TestOptions>, build: refuse },
];

/// The options of both.
#[cfg(test)]
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct TestOptions {
    basedir: String,
    env: std::collections::BTreeMap<String, String>,
    attempts: u32,
    api_key: String,
    template: String,
}

#[cfg(test)]
fn refuse(_: Parts<'_>) -> Result<Arc<dyn WorkspaceManager>> {
    Err(Error::unsupported("build"))
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

#[cfg_attr(
    not(any(feature = "local", feature = "bubblewrap", feature = "docker", feature = "e2b")),
    allow(dead_code, reason = "this build has no backend")
)]
fn check<C: DeserializeOwned>(options: &Table) -> Result<(), String> {
    options.clone().try_into::<C>().map(|_| ()).map_err(|error| error.message().to_owned())
}

/// Makes the caching manager over a backend whose configuration is `C`.
#[cfg(feature = "local")]
fn build<C>(parts: Parts<'_>) -> Result<Arc<dyn WorkspaceManager>>
where
    C: BackendConfig + DeserializeOwned,
{
    build_with::<C>(parts, |_| Ok(Vec::new()))
}

/// As [`build`], with the layers that the configuration asks for.
#[cfg_attr(
    not(any(feature = "local", feature = "bubblewrap", feature = "docker", feature = "e2b")),
    expect(dead_code, reason = "this build has no backend")
)]
fn build_with<C>(
    parts: Parts<'_>,
    layers: impl FnOnce(&C) -> Result<Vec<Arc<dyn Layer>>>,
) -> Result<Arc<dyn WorkspaceManager>>
where
    C: BackendConfig + DeserializeOwned,
{
    let Parts { options, manager, listener } = parts;
    let config: C = options.clone().try_into().map_err(|error: toml::de::Error| {
        // The error's own display quotes the value, which may be a secret.
        Error::new(ErrorKind::InvalidInput, format!("the backend's table: {}", error.message()))
    })?;
    let layers = layers(&config)?;
    let mut builder = CachingManager::builder(config).settings(manager_settings(manager)?);
    for layer in layers {
        builder = builder.layer(layer);
    }
    if let Some(listener) = listener {
        builder = builder.listener(listener);
    }
    Ok(Arc::new(builder.build()?))
}

/// The manager's options as the configuration holds them, checked already.
fn manager_settings(options: &Table) -> Result<ManagerSettings> {
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    let count = |value: Option<&Value>| value.and_then(Value::as_integer).and_then(|it| usize::try_from(it).ok());
    let mut settings = ManagerSettings::default();
    if let Some(policy) = text("isolation") {
        settings.isolation = policy.parse()?;
    }
    for (key, time) in [
        ("ttl", &mut settings.ttl),
        ("sweep_interval", &mut settings.sweep_interval),
        ("open_timeout", &mut settings.open_timeout),
        ("suspend_timeout", &mut settings.suspend_timeout),
        ("health_timeout", &mut settings.health_timeout),
    ] {
        if let Some(duration) = text(key).and_then(parse_duration) {
            *time = duration;
        }
    }
    settings.max_workspaces = count(options.get("max_workspaces")).or(settings.max_workspaces);
    for (key, limit) in
        [("max_provisioning", &mut settings.max_provisioning), ("max_suspending", &mut settings.max_suspending)]
    {
        *limit = count(options.get(key)).unwrap_or(*limit);
    }
    if let Some(prewarm) = options.get("prewarm") {
        let made = count(prewarm.get("size")).filter(|size| *size > 0).map(Prewarm::new);
        settings.prewarm = made.map(|it| match count(prewarm.get("max_creating")) {
            Some(most) => it.with_max_creating(most),
            None => it,
        });
    }
    if let Some(allow) = options.get("allow_foreign_owner").and_then(Value::as_bool) {
        settings.allow_foreign_owner = allow;
    }
    if let Some(keep) = options.get("housekeeping").and_then(Value::as_bool) {
        settings.housekeeping = keep;
    }
    Ok(settings)
}

/// The options of the manager with all defaults, as the configuration would hold them.
///
/// # Errors
///
/// As for [`manager`].
pub fn effective_manager_options(settings: &Settings) -> Result<Table> {
    let settings = manager_settings(&settings.manager)?;
    let mut options = Table::new();
    options.insert("isolation".to_owned(), settings.isolation.as_str().into());
    options.insert("allow_foreign_owner".to_owned(), settings.allow_foreign_owner.into());
    options.insert("housekeeping".to_owned(), settings.housekeeping.into());
    for (key, time) in [
        ("ttl", settings.ttl),
        ("sweep_interval", settings.sweep_interval),
        ("open_timeout", settings.open_timeout),
        ("suspend_timeout", settings.suspend_timeout),
        ("health_timeout", settings.health_timeout),
    ] {
        options.insert(key.to_owned(), humantime::format_duration(time).to_string().into());
    }
    let number = |count: usize| Value::Integer(i64::try_from(count).unwrap_or(i64::MAX));
    options.insert("max_provisioning".to_owned(), number(settings.max_provisioning));
    options.insert("max_suspending".to_owned(), number(settings.max_suspending));
    if let Some(most) = settings.max_workspaces {
        options.insert("max_workspaces".to_owned(), number(most));
    }
    if let Some(Prewarm { size, max_creating, .. }) = settings.prewarm {
        let prewarm = [("size", size), ("max_creating", max_creating)].map(|(key, it)| (key.to_owned(), number(it)));
        options.insert("prewarm".to_owned(), Value::Table(prewarm.into_iter().collect()));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration accepts no manager option that would be dropped here.
    #[test]
    fn every_option_of_the_manager_reaches_it() {
        let default = format!("{:?}", manager_settings(&Table::new()).unwrap());
        for option in [
            "isolation = 'per_user'",
            "ttl = '1s'",
            "sweep_interval = '1s'",
            "max_workspaces = 7",
            "max_provisioning = 7",
            "max_suspending = 7",
            "open_timeout = '1s'",
            "suspend_timeout = '1s'",
            "health_timeout = '1s'",
            "prewarm = { size = 3 }",
            "allow_foreign_owner = true",
            "housekeeping = false",
        ] {
            let settings = format!("{:?}", manager_settings(&option.parse().unwrap()).unwrap());
            assert_ne!(settings, default, "{option}");
        }
        let prewarm = |text: &str| manager_settings(&text.parse().unwrap()).unwrap().prewarm;
        assert_ne!(prewarm("prewarm = { size = 3, max_creating = 9 }"), prewarm("prewarm = { size = 3 }"));
        assert_eq!(prewarm("prewarm = { size = 0 }"), None);
    }

    #[cfg(feature = "docker")]
    #[test]
    fn every_option_of_docker_is_a_key() {
        let docker = BACKENDS.iter().find(|backend| backend.name == "docker").unwrap();
        for option in [
            "gateway_port = 9000",
            "tls = { ca = '/ca.pem', cert = '/cert.pem', key = '/key.pem' }",
            "ca_file = '/ca.pem'",
            "build_network = 'host'",
            "block_metadata = false",
        ] {
            let options: Table = option.parse().unwrap();
            assert!(options.keys().all(|key| docker.option_keys().contains(&key.as_str())), "{option}");
            assert_eq!(docker.check(&options), Ok(()), "{option}");
        }
        assert!(docker.check(&"tls = { cacert = '/x' }".parse().unwrap()).unwrap_err().contains("`cacert`"));
        assert!(docker.check(&"gateway_port = 70000".parse().unwrap()).is_err());
    }
}
