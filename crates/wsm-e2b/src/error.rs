//! What E2B answers when it does not do as asked, and what that is in the words of the contract.

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use wsm_core::{Error, ErrorKind, Retry};

use crate::KIND;

/// How much of a body that is no JSON is kept for people.
const MOST_TEXT: usize = 2 << 10;

/// Why a request failed. Holds nothing secret: URLs and headers are left out.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// No connection could be made: the request was not sent.
    Unreachable(String),
    /// It was sent, and no answer came, or not the whole of it.
    NoAnswer(String),
    /// An answer came that is not what was asked for.
    Garbled(String),
    /// It was refused.
    Answer(Answer),
}

/// An answer that is no success.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The word for machines, where there is one: `error_code` of the control plane, `code` of a procedure.
    pub(crate) code: String,
    pub(crate) message: String,
    /// `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
    /// `Should-Retry`.
    pub(crate) should_retry: Option<bool>,
}

impl Answer {
    /// Reads whatever body came: JSON of the control plane, of a procedure, of the proxy; text; a page.
    pub(crate) fn read(status: u16, body: &[u8]) -> Self {
        let parsed: Option<Value> = serde_json::from_slice(body).ok().filter(Value::is_object);
        let (code, message) = match &parsed {
            Some(object) => {
                let text = |field: &str| object[field].as_str().map(str::to_owned);
                let code = text("error_code").or_else(|| text("code")).unwrap_or_default();
                (code, text("message").unwrap_or_default())
            }
            None => {
                let kept = &body[..body.len().min(MOST_TEXT)];
                (String::new(), String::from_utf8_lossy(kept).trim().to_owned())
            }
        };
        let code = if parsed.is_none() && message == "404 page not found" { "unimplemented".into() } else { code };
        Self { status, code, message, ..Self::default() }
    }

    /// Reads what a proxy or the server says about another try.
    pub(crate) fn with_headers(mut self, headers: &reqwest::header::HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        self.retry_after = text("retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        self.should_retry = text("should-retry").map(|text| text.eq_ignore_ascii_case("true"));
        self
    }

    /// The word for machines, made from the status where the body has none.
    pub(crate) fn code(&self) -> &str {
        if !self.code.is_empty() {
            return &self.code;
        }
        match self.status {
            400 => "invalid_argument",
            401 => "unauthenticated",
            403 => "permission_denied",
            404 => "not_found",
            409 => "already_exists",
            413 | 429 => "resource_exhausted",
            499 => "canceled",
            500 => "internal",
            501 | 505 => "unimplemented",
            502 | 503 => "unavailable",
            504 => "deadline_exceeded",
            _ => "unknown",
        }
    }

    fn shown(&self) -> String {
        // A page tells people nothing.
        let message = if self.message.starts_with('<') { "an HTML page" } else { self.message.as_str() };
        match message {
            "" => format!("status {}", self.status),
            message => format!("status {}: {message}", self.status),
        }
    }
}

impl Failure {
    /// What a client could not do, without the URL.
    pub(crate) fn of(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let text = chain(&error);
        if error.is_connect() || error.is_builder() {
            Self::Unreachable(text)
        } else if error.is_decode() {
            Self::Garbled(text)
        } else {
            Self::NoAnswer(text)
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Answer(answer) => Some(answer.status),
            Self::Unreachable(_) | Self::NoAnswer(_) | Self::Garbled(_) => None,
        }
    }

    /// Without a secret that a server may have repeated.
    pub(crate) fn without(mut self, secret: &SecretString) -> Self {
        let secret = secret.expose_secret();
        if let (Self::Answer(answer), false) = (&mut self, secret.is_empty()) {
            answer.message = answer.message.replace(secret, "***");
        }
        self
    }

    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Unreachable(why) => format!("no connection: {why}"),
            Self::NoAnswer(why) => format!("no answer: {why}"),
            Self::Garbled(why) => format!("an answer that makes no sense: {why}"),
            Self::Answer(answer) => answer.shown(),
        }
    }
}

/// An error with what caused it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Whether a 429 is about how much there may be, rather than about how fast it is asked for.
pub(crate) fn is_quota(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["maximum number of concurrent", "sandbox limit reached", "concurrent sandboxes"]
        .iter()
        .any(|said| message.contains(said))
}

/// What the control plane's refusal of something is in the words of the contract. `doing` reads after "E2B did not".
pub(crate) fn control(failure: &Failure, doing: &str) -> Error {
    let told = |kind, message: String| Error::new(kind, message).with_backend(KIND);
    let answer = match failure {
        Failure::Unreachable(why) => {
            let message = format!("E2B can not be reached to {doing}: {why}: see `api_url` and `domain`");
            return told(ErrorKind::Unavailable, message).with_retry(Retry::Exhausted).with_field("api_url");
        }
        Failure::NoAnswer(_) | Failure::Garbled(_) => {
            let message = format!("E2B was asked to {doing}: {}", failure.shown());
            return told(ErrorKind::Unavailable, message).with_retry(Retry::Exhausted);
        }
        Failure::Answer(answer) => answer,
    };
    let message = format!("E2B did not {doing}: {}", answer.shown());
    match answer.status {
        401 => told(
            ErrorKind::PermissionDenied,
            format!("E2B does not know the API key: set `api_key` or `E2B_API_KEY` ({message})"),
        )
        .with_code("api_key_unknown")
        .with_field("api_key"),
        403 => told(
            ErrorKind::PermissionDenied,
            format!("E2B knows the key in `api_key` and refuses it: look at the account ({message})"),
        )
        .with_code("api_key_refused")
        .with_field("api_key"),
        429 if is_quota(&answer.message) => {
            told(ErrorKind::Capacity, format!("no more sandboxes may run at once under this account ({message})"))
                .with_code("quota")
        }
        429 => {
            let retry = answer.retry_after.map_or(Retry::Exhausted, Retry::After);
            told(ErrorKind::Unavailable, message).with_code("rate_limited").with_retry(retry)
        }
        404 => told(ErrorKind::NotFound, message),
        409 => told(ErrorKind::Conflict, message),
        400 | 413 | 422 => told(ErrorKind::InvalidInput, message),
        504 => told(ErrorKind::Timeout, message).with_retry(Retry::Exhausted),
        500..=599 => told(ErrorKind::Unavailable, message).with_retry(Retry::Exhausted),
        _ => told(ErrorKind::Backend, message),
    }
}

/// What a refused creation is: names the option at fault where the answer tells.
pub(crate) fn creation(failure: &Failure, template: &str) -> Error {
    let error = control(failure, "create a sandbox");
    let Failure::Answer(answer) = failure else { return error };
    let said = answer.message.to_ascii_lowercase();
    let about = |field: &'static str, message: String| Error::invalid(field, message).with_backend(KIND);
    match answer.status {
        400 | 403 | 404 | 422 if said.contains("template") => {
            let message = format!("`template` is `{template}`, which E2B does not know: {}", answer.shown());
            about("template", message).with_code("unknown_template")
        }
        413 => about("sandbox_metadata", format!("`sandbox_metadata` or `env` is too large: {}", answer.shown())),
        400 | 422 if said.contains("metadata") => {
            about("sandbox_metadata", format!("E2B refuses `sandbox_metadata`: {}", answer.shown()))
        }
        400 | 422 if said.contains("timeout") => {
            about("timeout_seconds", format!("E2B refuses `timeout_seconds`: {}", answer.shown()))
        }
        400 | 422 if said.contains("network") || said.contains("allowout") || said.contains("denyout") => {
            about("network", format!("E2B refuses `network`: {}", answer.shown()))
        }
        400 | 422 if said.contains("env") => about("env", format!("E2B refuses `env`: {}", answer.shown())),
        _ => error,
    }
}

/// An error of the daemon in a sandbox that fits nothing special.
pub(crate) fn daemon(failure: &Failure, doing: &str) -> Error {
    let message = format!("the sandbox did not {doing}: {}", failure.shown());
    let kind = match failure {
        Failure::Unreachable(_) | Failure::NoAnswer(_) | Failure::Garbled(_) => ErrorKind::Unavailable,
        Failure::Answer(answer) => match answer.code() {
            "invalid_argument" | "failed_precondition" | "out_of_range" => ErrorKind::InvalidInput,
            "not_found" => ErrorKind::NotFound,
            "already_exists" | "aborted" => ErrorKind::Conflict,
            "permission_denied" | "unauthenticated" => ErrorKind::PermissionDenied,
            "resource_exhausted" => ErrorKind::Capacity,
            "deadline_exceeded" => ErrorKind::Timeout,
            "unimplemented" => ErrorKind::Unsupported,
            "unavailable" | "canceled" => ErrorKind::Unavailable,
            _ => ErrorKind::Backend,
        },
    };
    let error = Error::new(kind, message).with_backend(KIND);
    if kind == ErrorKind::Unavailable { error.with_retry(Retry::Exhausted) } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_error_body_is_read() {
        for (body, code, message) in [
            (r#"{"code":404,"message":"no such"}"#, "not_found", "no such"),
            (r#"{"code":"unimplemented","message":"m"}"#, "unimplemented", "m"),
            (r#"{"code":404,"error_code":"x_y","message":"m"}"#, "x_y", "m"),
            ("404 page not found\n", "unimplemented", "404 page not found"),
            ("upstream request timeout", "not_found", "upstream request timeout"),
            ("", "not_found", ""),
            ("[1]", "not_found", "[1]"),
        ] {
            let answer = Answer::read(404, body.as_bytes());
            assert_eq!((answer.code(), answer.message.as_str()), (code, message), "{body}");
        }
    }

    #[test]
    fn a_page_is_cut_and_not_shown() {
        let page = format!("<html>{}", "x".repeat(9000));
        let answer = Answer::read(502, page.as_bytes());
        assert_eq!(answer.message.len(), MOST_TEXT);
        assert!(answer.shown().len() < 60, "{}", answer.shown());
    }

    #[test]
    fn what_a_server_repeats_of_a_secret_is_hidden() {
        let failure = Failure::Answer(Answer::read(401, br#"{"code":401,"message":"bad token s3cret: s3cret"}"#));
        let hidden = failure.without(&SecretString::from("s3cret")).without(&SecretString::from(""));
        assert!(hidden.shown().ends_with("bad token ***: ***"), "{}", hidden.shown());
    }

    #[test]
    fn refusals_name_the_option_at_fault() {
        let answer = |status, message: &str| {
            Failure::Answer(Answer { status, message: message.to_owned(), ..Answer::default() })
        };
        for (failure, kind, field) in [
            (answer(401, ""), ErrorKind::PermissionDenied, Some("api_key")),
            (answer(403, "team is blocked"), ErrorKind::PermissionDenied, Some("api_key")),
            (answer(404, "template 'x' not found"), ErrorKind::InvalidInput, Some("template")),
            (answer(400, "Timeout cannot be greater than 1 hours"), ErrorKind::InvalidInput, Some("timeout_seconds")),
            (answer(400, "metadata is too large"), ErrorKind::InvalidInput, Some("sandbox_metadata")),
            (answer(429, "you have reached the maximum number of concurrent E2B sandboxes"), ErrorKind::Capacity, None),
            (answer(429, "too fast"), ErrorKind::Unavailable, None),
            (Failure::Unreachable("refused".to_owned()), ErrorKind::Unavailable, Some("api_url")),
        ] {
            let error = creation(&failure, "x");
            assert_eq!((error.kind(), error.field()), (kind, field), "{error:?}");
        }
    }
}
