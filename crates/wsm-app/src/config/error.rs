//! What is wrong with a configuration, and where.

use std::fmt;

use super::tree::Origin;

/// A value that the configuration can not take, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    key: String,
    origin: String,
    message: String,
}

impl ConfigError {
    pub(super) fn new(key: &str, origin: &Origin, message: impl Into<String>) -> Self {
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
