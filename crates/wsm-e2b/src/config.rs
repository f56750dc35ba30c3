//! The options of the E2B backend.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use wsm_core::{BackendConfig, Error, Result, Variables};

use crate::{
    backend::E2bBackend,
    control::{Control, Place},
    metadata,
};

const KEY_VARIABLE: &str = "E2B_API_KEY";
const DOMAIN_VARIABLE: &str = "E2B_DOMAIN";
const API_URL_VARIABLE: &str = "E2B_API_URL";
const SANDBOX_URL_VARIABLE: &str = "E2B_SANDBOX_URL";
const DEFAULT_DOMAIN: &str = "e2b.app";

/// Options of the E2B backend.
///
/// ```
/// use wsm_e2b::E2bConfig;
///
/// let config = E2bConfig::default().with_template("my-template").with_api_key("e2b_…").with_timeout_seconds(900);
/// assert!(!format!("{config:?}").contains("e2b_…"));
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct E2bConfig {
    /// What sandboxes are made from: the id or the alias of a template. `base` by default.
    pub template: String,
    /// The API key. By default that of `E2B_API_KEY`. Never shown, and never written out.
    #[serde(skip_serializing)]
    pub api_key: SecretString,
    /// The domain of the service. By default that of `E2B_DOMAIN`, else `e2b.app`.
    pub domain: String,
    /// Where the control plane is. By default that of `E2B_API_URL`, else `https://api.<domain>`.
    pub api_url: String,
    /// Where the daemons of all sandboxes are reached. By default that of `E2B_SANDBOX_URL`, else each has a host of its own.
    pub sandbox_url: String,
    /// After how many seconds without use a sandbox pauses by itself. `300` by default. It is put off while it is used.
    pub timeout_seconds: u32,
    /// Variables that commands get. None of this process's are passed on.
    pub env: Variables,
    /// Further metadata of sandboxes.
    pub sandbox_metadata: BTreeMap<String, String>,
    /// What sandboxes reach, and who reaches them.
    pub network: E2bNetwork,
    /// Which installation of wsm sandboxes belong to. `wsm` by default. Those of another one are never touched.
    pub installation: String,
    /// As whom commands run and files are made. By default whom the template says, `user` for most.
    pub user: Option<String>,
}

/// What sandboxes reach, and who reaches them. What is not given is as E2B has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct E2bNetwork {
    /// Whether sandboxes reach the internet at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// Whether ports of a sandbox are open to who has no token for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses, networks and domains that are reached. Domains need `0.0.0.0/0` in `deny_out`.
    pub allow_out: Vec<String>,
    /// Addresses and networks that are not reached.
    pub deny_out: Vec<String>,
}

impl Default for E2bConfig {
    fn default() -> Self {
        Self {
            template: "base".to_owned(),
            api_key: SecretString::default(),
            domain: String::new(),
            api_url: String::new(),
            sandbox_url: String::new(),
            timeout_seconds: 300,
            env: Variables::default(),
            sandbox_metadata: BTreeMap::new(),
            network: E2bNetwork::default(),
            installation: "wsm".to_owned(),
            user: None,
        }
    }
}

impl E2bConfig {
    /// Sets what sandboxes are made from.
    #[must_use]
    pub fn with_template(mut self, template: impl Into<String>) -> Self {
        self.template = template.into();
        self
    }

    /// Sets the API key.
    #[must_use]
    pub fn with_api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = SecretString::from(key.into());
        self
    }

    /// Sets the domain of the service.
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Sets where the control plane is.
    #[must_use]
    pub fn with_api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = url.into();
        self
    }

    /// Sets where the daemons of all sandboxes are reached.
    #[must_use]
    pub fn with_sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = url.into();
        self
    }

    /// Sets after how many seconds without use a sandbox pauses by itself.
    #[must_use]
    pub fn with_timeout_seconds(mut self, seconds: u32) -> Self {
        self.timeout_seconds = seconds;
        self
    }

    /// Gives commands one more variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Gives sandboxes one more entry of metadata.
    #[must_use]
    pub fn with_sandbox_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sandbox_metadata.insert(name.into(), value.into());
        self
    }

    /// Sets what sandboxes reach, and who reaches them.
    #[must_use]
    pub fn with_network(mut self, network: E2bNetwork) -> Self {
        self.network = network;
        self
    }

    /// Sets which installation sandboxes belong to.
    #[must_use]
    pub fn with_installation(mut self, name: impl Into<String>) -> Self {
        self.installation = name.into();
        self
    }

    /// Sets as whom commands run.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    fn validate(&self) -> Result<()> {
        let Self { template, timeout_seconds, env, sandbox_metadata, network, installation, user, .. } = self;
        let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_word(template) {
            return Err(Error::invalid("template", format!("`template` is {template:?}: give an id or an alias")));
        }
        if *timeout_seconds == 0 {
            return Err(Error::invalid("timeout_seconds", "`timeout_seconds` is 0, with which a sandbox ends at once"));
        }
        env.validate()?;
        if let Some(name) = sandbox_metadata.keys().find(|name| name.is_empty() || metadata::is_reserved(name)) {
            let message = format!("`sandbox_metadata` can not hold {name:?}: wsm finds its own by that");
            return Err(Error::invalid("sandbox_metadata", message));
        }
        if let Some(entry) = network.allow_out.iter().chain(&network.deny_out).find(|entry| !is_word(entry)) {
            return Err(Error::invalid("network", format!("`network` holds {entry:?}, which names no place")));
        }
        // It is a value of metadata, and decoded a different number of times by different servers.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if installation.is_empty() || installation.len() > 63 || !installation.bytes().all(is_plain) {
            let message = "`installation` must be 1 to 63 letters, digits, dots, underscores and hyphens";
            return Err(Error::invalid("installation", message));
        }
        if user.as_ref().is_some_and(|user| !is_word(user) || user.contains(':')) {
            return Err(Error::invalid("user", "`user` must be the name of a user, without spaces and colons"));
        }
        Ok(())
    }
}

/// What is given, else what the environment says. Empty is not given.
fn or_variable(given: &str, variable: &str) -> Option<String> {
    if !given.is_empty() {
        return Some(given.to_owned());
    }
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

fn url(option: &'static str, text: &str) -> Result<String> {
    let refuse = |why: &str| Err(Error::invalid(option, format!("`{option}` is {text:?}: {why}")));
    match reqwest::Url::parse(text) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => refuse("it must begin with `https://` or `http://`"),
        Ok(url) if !url.has_host() => refuse("it names no host"),
        Ok(url) if url.query().is_some() || url.fragment().is_some() => refuse("it must end with the path"),
        // Not shown: the part before the host may be a password.
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Err(Error::invalid(option, format!("`{option}` holds a user or a password: requests carry `api_key` only")))
        }
        Ok(_) => Ok(text.trim_end_matches('/').to_owned()),
        Err(error) => refuse(&error.to_string()),
    }
}

impl BackendConfig for E2bConfig {
    type Backend = E2bBackend;

    fn build(self) -> Result<E2bBackend> {
        self.validate()?;
        let key = or_variable(self.api_key.expose_secret(), KEY_VARIABLE).ok_or_else(|| {
            Error::invalid("api_key", format!("there is no API key: set `api_key` or `{KEY_VARIABLE}`"))
                .with_code("api_key_missing")
        })?;
        let domain = or_variable(&self.domain, DOMAIN_VARIABLE).unwrap_or_else(|| DEFAULT_DOMAIN.to_owned());
        if domain.contains(['/', ':', '@', '?', '#']) || domain.contains(char::is_whitespace) {
            return Err(Error::invalid(
                "domain",
                format!("`domain` is {domain:?}: give a name such as `{DEFAULT_DOMAIN}`"),
            ));
        }
        let api = or_variable(&self.api_url, API_URL_VARIABLE).unwrap_or_else(|| format!("https://api.{domain}"));
        let api = url("api_url", &api)?;
        let sandboxes = match or_variable(&self.sandbox_url, SANDBOX_URL_VARIABLE) {
            Some(given) => Place::Fixed(url("sandbox_url", &given)?),
            None => Place::OfDomain(domain),
        };
        let control = Control::new(api, SecretString::from(key))?;
        E2bBackend::new(self, control, sandboxes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> E2bConfig {
        E2bConfig::default().with_api_key("e2b_CANARY")
    }

    #[test]
    fn the_documented_defaults() {
        let config: E2bConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(
            (config.template.as_str(), config.timeout_seconds, config.installation.as_str()),
            ("base", 300, "wsm")
        );
        let table = r#"
            api_key = "k"
            network = { allow_internet_access = false, allow_out = ["1.1.1.1"] }
        "#;
        let config: E2bConfig = toml::from_str(table).unwrap();
        assert_eq!(config.network.allow_internet_access, Some(false));
        assert!(toml::from_str::<E2bConfig>("apikey = 'k'").is_err());
    }

    #[test]
    fn the_key_is_neither_shown_nor_written() {
        let config = base();
        assert!(!format!("{config:?}").contains("CANARY"));
        assert!(!serde_json::to_string(&config).unwrap().contains("CANARY"));
        let backend = config.build().unwrap();
        assert!(!format!("{backend:?}{backend:#?}").contains("CANARY"));
    }

    #[test]
    fn an_impossible_option_is_refused_by_name() {
        for (config, field) in [
            (base().with_template(""), "template"),
            (base().with_template("a b"), "template"),
            (base().with_timeout_seconds(0), "timeout_seconds"),
            (base().with_env("A=B", ""), "env"),
            (base().with_sandbox_metadata("wsm.owner", "x"), "sandbox_metadata"),
            (base().with_sandbox_metadata("agentscope.user.id", "x"), "sandbox_metadata"),
            (base().with_installation("a b"), "installation"),
            (base().with_installation("x".repeat(64)), "installation"),
            (base().with_user("a:b"), "user"),
            (base().with_domain("https://e2b.app"), "domain"),
            (base().with_api_url("e2b.app"), "api_url"),
            (base().with_api_url("ftp://e2b.app"), "api_url"),
            (base().with_api_url("https://ann:CANARY@e2b.app"), "api_url"),
            (base().with_sandbox_url("https://e2b.app?x"), "sandbox_url"),
            (base().with_network(E2bNetwork { deny_out: vec![String::new()], ..E2bNetwork::default() }), "network"),
        ] {
            let error = config.clone().build().unwrap_err();
            assert_eq!(error.field(), Some(field), "{config:?}");
            assert!(!error.report().to_string().contains("CANARY"), "{error:?}");
        }
    }
}
