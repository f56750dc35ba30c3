//! A service that says no.

use std::fmt;

use reqwest::{Response, StatusCode};
use serde::Deserialize;

/// How much of an answer that is an error is read.
const MAX_BYTES: usize = 64 << 10;

/// What the service answered in place of what was asked for.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    problem: Option<Problem>,
    url: String,
}

#[derive(Debug, Deserialize)]
struct Problem {
    detail: String,
    code: String,
    #[serde(default)]
    request_id: String,
}

impl Refusal {
    pub(super) async fn read(mut response: Response, url: &str) -> Self {
        let status = response.status();
        let mut body = Vec::new();
        // Of an answer that breaks off, what came counts.
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_BYTES {
                break;
            }
        }
        Self { status, problem: serde_json::from_slice(&body).ok(), url: url.to_owned() }
    }

    /// The stable code of the error; empty when something else than wsm answered.
    pub(crate) fn code(&self) -> &str {
        self.problem.as_ref().map_or("", |problem| &problem.code)
    }

    /// What went wrong, without what only a search in a log needs.
    pub(crate) fn detail(&self) -> Option<&str> {
        self.problem.as_ref().map(|problem| &*problem.detail)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, problem, url } = self;
        match problem {
            Some(Problem { detail, code, request_id }) => write!(f, "{detail} (code {code}, request {request_id})"),
            None => write!(f, "{url} answers {status}, and not as wsm does: is it a wsm service?"),
        }
    }
}

impl std::error::Error for Refusal {}
