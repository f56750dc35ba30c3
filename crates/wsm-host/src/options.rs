//! Options that several backends have, and what is wrong with some of their values.

use std::path::Path;

use wsm_core::{Error, Result};

/// Checks that a basedir is given.
///
/// # Errors
///
/// `invalid_input` about `basedir`.
pub fn check_basedir(basedir: &Path) -> Result<()> {
    if basedir.as_os_str().is_empty() {
        return Err(Error::invalid("basedir", "`basedir` is empty: give the directory that holds the workspaces"));
    }
    Ok(())
}

/// Checks names of variables in an option.
///
/// # Errors
///
/// `invalid_input` about that option.
pub fn check_variable_names<'n>(option: &'static str, names: impl IntoIterator<Item = &'n String>) -> Result<()> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    match names.into_iter().find(|name| !is_name(name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid(
            option,
            format!("`{option}` can not hold {name:?}: names are not empty and hold neither `=` nor NUL"),
        )),
    }
}

/// Durations as people write them: `1s`, `250ms`, `2m 30s`. To be used with serde's `with`.
pub mod human_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes a duration.
    ///
    /// # Errors
    ///
    /// The serializer's.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }

    /// Reads a duration.
    ///
    /// # Errors
    ///
    /// When it is none, quoting it.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text)
            .map_err(|error| D::Error::custom(format!("`{text}` is not a duration such as `1s` or `250ms`: {error}")))
    }
}
