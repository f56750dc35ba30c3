//! A service that is not there.

use std::{error::Error, fmt};

/// Nobody answers at the URL.
#[derive(Debug)]
pub(crate) struct Absent {
    url: String,
    cause: String,
}

impl Absent {
    /// Of what went wrong, only the innermost says something that is not said already.
    pub(super) fn new(url: &str, error: &reqwest::Error) -> Self {
        let mut innermost: &dyn Error = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        Self { url: url.to_owned(), cause: innermost.to_string() }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, cause } = self;
        write!(f, "no service answers at {url}: start one with `wsm serve` ({cause})")
    }
}

impl Error for Absent {}
