//! Newtypes for every id, and the one rule that all of them follow.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind};

/// The longest id that is accepted, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 256;

/// Why a string is not an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdError {
    field: &'static str,
    problem: IdProblem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdProblem {
    Empty,
    TooLong(usize),
    ControlCharacter(u32),
}

impl IdError {
    /// The field that was refused, such as `user_id`.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field;
        match self.problem {
            IdProblem::Empty => write!(f, "`{field}` is empty")?,
            IdProblem::TooLong(bytes) => write!(f, "`{field}` is {bytes} bytes long")?,
            IdProblem::ControlCharacter(code) => {
                write!(f, "`{field}` holds the control character U+{code:04X}")?;
            }
        }
        write!(f, ": allowed are 1 to {MAX_ID_BYTES} bytes of UTF-8 without control characters")
    }
}

impl std::error::Error for IdError {}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        Error::new(ErrorKind::InvalidInput, error.to_string()).with_field(error.field)
    }
}

fn check(field: &'static str, text: &str) -> Result<(), IdError> {
    let problem = if text.is_empty() {
        IdProblem::Empty
    } else if text.len() > MAX_ID_BYTES {
        IdProblem::TooLong(text.len())
    } else if let Some(c) = text.chars().find(|c| c.is_control()) {
        IdProblem::ControlCharacter(c.into())
    } else {
        return Ok(());
    };
    Err(IdError { field, problem })
}

macro_rules! id {
    ($(#[$docs:meta])* $name:ident, $field:literal) => {
        $(#[$docs])*
        ///
        /// Opaque: any UTF-8 of 1 to [`MAX_ID_BYTES`] bytes without control characters. Cloning is cheap.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name of the field that errors about this id give.
            pub const FIELD: &'static str = $field;

            /// Checks `text` and makes an id of it.
            ///
            /// # Errors
            ///
            /// [`IdError`] when the text is empty, too long, or holds a control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check(Self::FIELD, text)?;
                Ok(Self(text.into()))
            }

            /// Like [`new`](Self::new), but reads "not given" (none, or the empty string) as `None`.
            ///
            /// # Errors
            ///
            /// [`IdError`] when a text is given that is not an id.
            pub fn optional(text: Option<&str>) -> Result<Option<Self>, IdError> {
                text.filter(|text| !text.is_empty()).map(Self::new).transpose()
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// Who asks: a tenant's user.
    UserId,
    "user_id"
);
id!(
    /// Which agent of the user asks.
    AgentId,
    "agent_id"
);
id!(
    /// Which conversation of the agent the request belongs to.
    SessionId,
    "session_id"
);
id!(
    /// Names one workspace for ever.
    WorkspaceId,
    "workspace_id"
);

impl WorkspaceId {
    /// A fresh id that nobody can guess: 128 bits, of which 122 are random, as 32 hexadecimal digits.
    pub fn random() -> Self {
        let mut buffer = [0; uuid::fmt::Simple::LENGTH];
        Self((&*uuid::Uuid::new_v4().simple().encode_lower(&mut buffer)).into())
    }

    /// Makes the id that a policy assigns of a digest. Its characters always satisfy the rule of ids.
    pub(crate) fn from_digest(digest: &[u8; 16]) -> Self {
        let mut buffer = [0; ASSIGNED_LEN];
        let (prefix, digits) = buffer.split_at_mut(ASSIGNED_PREFIX.len());
        prefix.copy_from_slice(ASSIGNED_PREFIX.as_bytes());
        // There is room for exactly two digits of each byte, and a lack of it is the only thing that this refuses.
        let encoded = hex::encode_to_slice(digest, digits).is_ok();
        debug_assert!(encoded);
        Self(std::str::from_utf8(&buffer).unwrap_or_default().into())
    }

    /// Whether the id has the form of those that a policy assigns.
    ///
    /// Anybody who knows the ids of a user and an agent can compute theirs. So somebody who names such an id, which does
    /// not exist yet and no policy gives them, would take another's workspace before it is made.
    ///
    /// ```
    /// use wsm_core::{IsolationPolicy, Scope, WorkspaceId};
    ///
    /// let scope = Scope::new("ann", "coder", "s1")?;
    /// assert!(IsolationPolicy::PerAgent.assign(&scope).is_assigned());
    /// assert!(!WorkspaceId::random().is_assigned());
    /// # Ok::<(), wsm_core::IdError>(())
    /// ```
    pub fn is_assigned(&self) -> bool {
        let digits = self.0.strip_prefix(ASSIGNED_PREFIX).unwrap_or_default();
        self.0.len() == ASSIGNED_LEN && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// What the ids that a policy assigns begin with. Ids that people bring along, such as UUIDs, do not.
const ASSIGNED_PREFIX: &str = "ws-";
const ASSIGNED_LEN: usize = ASSIGNED_PREFIX.len() + 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_use_mail_addresses_urns_and_emoji() {
        for text in ["a", "ann@example.org", "urn:x:y", "..", "../../etc", "文", "a b", "🦀", &"x".repeat(256)] {
            assert_eq!(UserId::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_refusal_names_the_field_and_what_is_allowed() {
        for (text, problem) in [
            (String::new(), "is empty"),
            ("x".repeat(257), "is 257 bytes long"),
            ("x".repeat(10_000), "is 10000 bytes long"),
            ("a\0b".to_owned(), "control character U+0000"),
            ("a\nb".to_owned(), "control character U+000A"),
            ("a\u{7f}".to_owned(), "control character U+007F"),
            ("a\u{85}".to_owned(), "control character U+0085"),
        ] {
            let message = AgentId::new(&text).unwrap_err().to_string();
            assert!(message.starts_with("`agent_id` "), "{message}");
            assert!(message.contains(problem), "{message}");
            assert!(message.contains("1 to 256 bytes"), "{message}");
        }
    }

    #[test]
    fn null_and_empty_mean_not_given() {
        assert_eq!(WorkspaceId::optional(None).unwrap(), None);
        assert_eq!(WorkspaceId::optional(Some("")).unwrap(), None);
        assert_eq!(WorkspaceId::optional(Some("w")).unwrap().unwrap().as_str(), "w");
        assert!(WorkspaceId::optional(Some("\u{1}")).is_err());
    }

    #[test]
    fn random_ids_differ() {
        let ids: std::collections::HashSet<_> = (0..1000).map(|_| WorkspaceId::random()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.as_str().len() == 32));
    }
}
