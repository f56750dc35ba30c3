//! The two sides of a copy.

use std::{convert::Infallible, ffi::OsString, path::PathBuf, str::FromStr};

/// Where bytes come from or go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Side {
    /// A path in the workspace of a session.
    Remote {
        /// The session.
        session: String,
        /// The path; relative ones start at the workspace directory.
        path: String,
    },
    /// A path of this machine.
    Local(PathBuf),
    /// Standard input or output.
    Stream,
}

/// A colon before the first slash makes a side remote, so `./a:b` is local.
impl FromStr for Side {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        Ok(match text.split_once(':').filter(|(session, _)| !session.is_empty() && !session.contains('/')) {
            Some((session, path)) => Self::Remote {
                session: session.to_owned(),
                path: if path.is_empty() { ".".to_owned() } else { path.to_owned() },
            },
            None => Self::Local(OsString::from(text).into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_the_first_slash_names_a_session() {
        let remote = |session: &str, path: &str| Side::Remote { session: session.to_owned(), path: path.to_owned() };
        for (text, side) in [
            ("-", Side::Stream),
            ("s:a/b", remote("s", "a/b")),
            ("s:", remote("s", ".")),
            ("s:/abs", remote("s", "/abs")),
            ("s:a:b", remote("s", "a:b")),
            ("./a:b", Side::Local("./a:b".into())),
            ("/a:b", Side::Local("/a:b".into())),
            (":a", Side::Local(":a".into())),
            ("a", Side::Local("a".into())),
        ] {
            assert_eq!(text.parse(), Ok(side), "{text}");
        }
    }
}
