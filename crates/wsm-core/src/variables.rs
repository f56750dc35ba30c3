//! Environment variables that keep their values to themselves.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut},
};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Environment variables by name, as an option of a backend. Values may hold secrets, so only names are shown.
///
/// ```
/// use wsm_core::Variables;
///
/// let variables = Variables::from_iter([("TOKEN", "hidden")]);
/// assert_eq!(variables["TOKEN"], "hidden");
/// assert_eq!(format!("{variables:?}"), r#"{"TOKEN"}"#);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Checks that programs can be given them.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `env` when a name is empty or holds `=`, or when NUL is anywhere.
    pub fn validate(&self) -> Result<()> {
        validate(&self.0)
    }
}

pub(crate) fn validate(env: &BTreeMap<String, String>) -> Result<()> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    match env.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        None => Ok(()),
        Some((name, _)) if is_name(name) => {
            Err(Error::invalid("env", format!("the value of `{name}` in `env` holds a NUL byte")))
        }
        Some((name, _)) => Err(Error::invalid(
            "env",
            format!("`env` can not hold {name:?}: names are not empty and hold neither `=` nor NUL"),
        )),
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Deref for Variables {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Variables {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<BTreeMap<String, String>> for Variables {
    fn from(variables: BTreeMap<String, String>) -> Self {
        Self(variables)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
