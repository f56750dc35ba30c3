//! The log of what was asked.

use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use serde::Serialize;

use crate::operation::Operation;

/// Headers whose values are not for a log.
const SECRET: [&str; 5] = ["authorization", "cookie", "x-access-token", "x-api-key", "e2b-traffic-access-token"];

/// A request, and how it was answered.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Recorded {
    /// What it was.
    pub operation: Operation,
    /// `GET`, for example.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// Without the question mark, and without the values of signatures.
    pub query: String,
    /// The sandbox that it was about.
    pub sandbox: Option<String>,
    /// In lower case. The values of secret ones are `***`.
    pub headers: Vec<(String, String)>,
    /// None while there is no answer, or when it was lost.
    pub status: Option<u16>,
    /// Whether a fault happened to it.
    pub faulty: bool,
}

impl Recorded {
    /// The value of a header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }
}

/// Everything that was asked since the start, or since it was cleared.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    all: Arc<Mutex<Vec<Recorded>>>,
}

impl Requests {
    /// All of them, in the order in which they came.
    #[must_use]
    pub fn all(&self) -> Vec<Recorded> {
        self.all.lock().clone()
    }

    /// Those of one kind.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Vec<Recorded> {
        self.all.lock().iter().filter(|request| request.operation == operation).cloned().collect()
    }

    /// How many there were of one kind.
    #[must_use]
    pub fn count(&self, operation: Operation) -> usize {
        self.of(operation).len()
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.all.lock().clear();
    }

    /// Adds one, and says where to note its answer.
    pub(crate) fn add(&self, request: Recorded) -> usize {
        let mut all = self.all.lock();
        all.push(request);
        all.len() - 1
    }

    /// Notes an answer. Whoever cleared the log meanwhile does not want it.
    pub(crate) fn answered(&self, index: usize, path: &str, status: u16) {
        if let Some(request) = self.all.lock().get_mut(index).filter(|request| request.path == path) {
            request.status = Some(status);
        }
    }
}

pub(crate) fn shown(headers: &HeaderMap) -> Vec<(String, String)> {
    let shown = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let value = match SECRET.contains(&name.as_str()) {
            true => "***".to_owned(),
            false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        (name.as_str().to_owned(), value)
    };
    headers.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_recorded() {
        let mut headers = HeaderMap::new();
        headers.insert("X-API-Key", "secret".parse().unwrap());
        headers.insert("Accept", "text/html".parse().unwrap());
        let shown = shown(&headers);
        assert!(shown.contains(&("x-api-key".to_owned(), "***".to_owned())));
        assert!(shown.contains(&("accept".to_owned(), "text/html".to_owned())));
    }
}
