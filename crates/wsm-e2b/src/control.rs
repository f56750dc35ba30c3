//! The client of the control plane: what is asked of the service about sandboxes.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode, header::HeaderMap};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use wsm_core::{Error, ErrorKind, Result};

use crate::{
    KIND,
    error::{Answer, Failure, chain, control},
    retry::{Budget, Repeat, Verdict, judge},
};

/// How long one try of a short call may take, and all its tries together.
const SHORT: Duration = Duration::from_secs(60);
/// The same for create, connect and pause, which wait for a machine.
const LONG: Duration = Duration::from_secs(150);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const LONGEST_ANSWER: usize = 8 << 20;
const PAGE: usize = 100;
/// More pages than any account has; a server that goes on is broken.
const MOST_PAGES: usize = 1000;

pub(crate) const USER_AGENT: &str = concat!("wsm/", env!("CARGO_PKG_VERSION"));

/// Where the daemons of sandboxes are.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// All at one URL, told apart by headers.
    Fixed(String),
    /// Each at a host of its own below a domain.
    OfDomain(String),
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) is_running: bool,
    pub(crate) started_at: Option<SystemTime>,
    pub(crate) end_at: Option<SystemTime>,
    pub(crate) metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedBody {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    state: String,
    #[serde(default)]
    started_at: Option<String>,
    #[serde(default)]
    end_at: Option<String>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

impl From<ListedBody> for Listed {
    fn from(body: ListedBody) -> Self {
        let time = |text: Option<String>| humantime::parse_rfc3339(text?.replace("+00:00", "Z").as_str()).ok();
        Self {
            id: body.sandbox_id,
            is_running: body.state == "running",
            started_at: time(body.started_at),
            end_at: time(body.end_at),
            metadata: body.metadata.unwrap_or_default(),
        }
    }
}

/// A sandbox that was created, or connected to.
#[derive(Debug, Clone)]
pub(crate) struct Reached {
    pub(crate) id: String,
    /// What its daemon wants to see.
    pub(crate) token: Option<SecretString>,
    /// What other ports want to see, when they are not public.
    pub(crate) traffic_token: Option<SecretString>,
    pub(crate) domain: Option<String>,
    /// Whether it was paused.
    pub(crate) was_paused: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReachedBody {
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(default)]
    envd_access_token: Option<SecretString>,
    #[serde(default)]
    traffic_access_token: Option<SecretString>,
    #[serde(default)]
    domain: Option<String>,
}

impl ReachedBody {
    fn reached(self, was_paused: bool) -> Reached {
        let Self { sandbox_id, envd_access_token, traffic_access_token, domain } = self;
        let full = |token: Option<SecretString>| token.filter(|token| !token.expose_secret().is_empty());
        Reached {
            id: sandbox_id,
            token: full(envd_access_token),
            traffic_token: full(traffic_access_token),
            domain: domain.filter(|domain| !domain.is_empty()),
            was_paused,
        }
    }
}

/// How a pause ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    /// It is paused.
    Done,
    /// There is no such sandbox.
    Gone,
}

/// The control plane of an account. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Control(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    base: String,
    key: SecretString,
    /// Whether the server turned out to have no `POST /v2/…`.
    is_old: AtomicBool,
}

/// An answer that is a success.
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Reply {
    fn json<T: for<'de> Deserialize<'de>>(&self) -> Result<T, Failure> {
        // The error's text could quote a token.
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::Garbled(format!("{:?} at line {}, column {}", error.classify(), error.line(), error.column()))
        })
    }
}

/// Makes a client that trusts whom this machine trusts.
pub(crate) fn http(only_http1: bool) -> Result<reqwest::ClientBuilder> {
    use rustls_platform_verifier::BuilderVerifierExt;

    let unusable = |error: rustls::Error| {
        Error::new(ErrorKind::Backend, "TLS can not be used").with_backend(KIND).with_source(error)
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_platform_verifier())
        .map_err(unusable)?
        .with_no_client_auth();
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(90));
    Ok(if only_http1 { builder.http1_only() } else { builder })
}

impl Control {
    pub(crate) fn new(base: String, key: SecretString) -> Result<Self> {
        let mut header = reqwest::header::HeaderValue::from_str(key.expose_secret()).map_err(|_| {
            Error::invalid("api_key", "`api_key` holds a character that no request can carry").with_backend(KIND)
        })?;
        header.set_sensitive(true);
        let headers = HeaderMap::from_iter([(reqwest::header::HeaderName::from_static("x-api-key"), header)]);
        let http = http(false)?.default_headers(headers).build().map_err(|error| {
            Error::new(ErrorKind::Backend, "no HTTP client can be made").with_source(error.without_url())
        })?;
        Ok(Self(Arc::new(Inner { http, base, key, is_old: AtomicBool::new(false) })))
    }

    /// Where it is.
    pub(crate) fn base(&self) -> &str {
        &self.0.base
    }

    async fn attempt(&self, ask: &Ask<'_>, limit: Duration) -> Result<Reply, Failure> {
        let mut request =
            self.0.http.request(ask.method.clone(), format!("{}{}", self.0.base, ask.path)).timeout(limit);
        request = request.header("accept", "application/json");
        if let Some(body) = &ask.body {
            request = request.json(body);
        }
        if let Some(key) = ask.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let mut response = request.send().await.map_err(Failure::of)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(Failure::of)? {
            body.extend_from_slice(&piece);
            if body.len() > LONGEST_ANSWER {
                return Err(Failure::Garbled("it does not end".to_owned()));
            }
        }
        if status.is_success() {
            return Ok(Reply { status, headers, body });
        }
        let answer = Answer::read(status.as_u16(), &body).with_headers(&headers);
        // Nobody knows what a server repeats.
        Err(Failure::Answer(answer).without(&self.0.key))
    }

    /// Asks until there is an answer that more asking would not change, or the time is over.
    async fn ask(&self, ask: Ask<'_>) -> Result<Reply, Failure> {
        let mut budget = Budget::new(ask.limit);
        loop {
            let failure = match self.attempt(&ask, budget.left().max(Duration::from_millis(1))).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            tracing::debug!(path = ask.path, failure = %failure.shown(), "E2B did not do as asked");
            match judge(&failure, ask.repeat) {
                Verdict::Again(after) if budget.again(after).await => {}
                Verdict::Again(_) | Verdict::GiveUp => return Err(failure),
            }
        }
    }

    /// All sandboxes, running and paused, that have this metadata: over all pages, each once.
    ///
    /// # Errors
    ///
    /// When it can not be told completely; never fewer than there are.
    pub(crate) async fn list(&self, name: &str, value: &str) -> Result<Vec<Listed>> {
        let filter = encoded(&format!("{}={}", encoded(&encoded(name)), encoded(&encoded(value))));
        let query = format!("/v2/sandboxes?metadata={filter}&state=running%2Cpaused&limit={PAGE}");
        let (mut found, mut seen): (Vec<Listed>, HashSet<String>) = Default::default();
        let (mut token, mut tokens) = (None::<String>, HashSet::new());
        for _ in 0..MOST_PAGES {
            let path = match &token {
                None => query.clone(),
                Some(token) => format!("{query}&nextToken={}", encoded(token)),
            };
            let listing = async {
                let reply = self.ask(Ask::get(&path)).await?;
                let page: Vec<ListedBody> = reply.json()?;
                Ok((reply, page))
            };
            let (reply, page) = listing.await.map_err(|failure| control(&failure, "list sandboxes"))?;
            let fits = |sandbox: &Listed| sandbox.metadata.get(name).is_some_and(|has| has == value);
            found.extend(page.into_iter().map(Listed::from).filter(|it| fits(it) && seen.insert(it.id.clone())));
            let next = reply.headers.get("x-next-token").and_then(|token| token.to_str().ok());
            match next.filter(|next| !next.is_empty()) {
                None => return Ok(found),
                Some(next) if !tokens.insert(next.to_owned()) => break,
                Some(next) => token = Some(next.to_owned()),
            }
        }
        let message = "E2B's list of sandboxes does not end: it repeats its pages";
        Err(Error::new(ErrorKind::Unavailable, message).with_backend(KIND))
    }

    /// Makes a sandbox. `key` is kept over all tries of the same one.
    ///
    /// # Errors
    ///
    /// The failure; [`outcome_is_unknown`] says whether there may be a sandbox nevertheless.
    pub(crate) async fn create(&self, body: &Value, key: &str) -> Result<Reached, Failure> {
        if !self.is_old() {
            let ask = Ask::post("/v2/sandboxes", body.clone(), Repeat::Harmless, LONG);
            let answer = self.ask(Ask { idempotency_key: Some(key), ..ask }).await;
            let Err(Some(missing)) = answer.as_ref().map_err(Missing::of) else {
                return Ok(answer?.json::<ReachedBody>()?.reached(false));
            };
            self.note(missing);
        }
        let mut body = body.clone();
        body["secure"] = json!(true);
        let reply = self.ask(Ask::post("/sandboxes", body, Repeat::LookFirst, LONG)).await?;
        Ok(reply.json::<ReachedBody>()?.reached(false))
    }

    fn is_old(&self) -> bool {
        self.0.is_old.load(Ordering::Relaxed)
    }

    /// The first version is asked from here on only if it is sure that there is no second.
    fn note(&self, missing: Missing) {
        if missing == Missing::Surely {
            self.0.is_old.store(true, Ordering::Relaxed);
        }
    }

    /// Attaches to a sandbox, and resumes it if it is paused: with its memory, or from its disk alone. Never shortens what time
    /// it has.
    ///
    /// # Errors
    ///
    /// The failure; 404 is "no such sandbox".
    pub(crate) async fn connect(&self, sandbox: &str, timeout: Duration, memory: bool) -> Result<Reached, Failure> {
        let mut body = json!({ "timeout": timeout.as_secs() });
        if !memory {
            body["memory"] = json!(false);
        }
        let path = |version: &str| format!("{version}/sandboxes/{}/connect", encoded(sandbox));
        let mut is_old = self.is_old();
        let reply = loop {
            let path = path(if is_old { "" } else { "/v2" });
            let answer = self.ask(Ask::post(&path, body.clone(), Repeat::Harmless, LONG)).await;
            match answer.as_ref().map_err(Missing::of) {
                Err(Some(missing)) if !is_old => self.note(missing),
                _ => break answer?,
            }
            is_old = true;
        };
        let reached = reply.json::<ReachedBody>()?.reached(reply.status == StatusCode::CREATED);
        if short(&reached.id) != short(sandbox) {
            return Err(Failure::Garbled(format!("it is about sandbox `{}` instead of `{sandbox}`", reached.id)));
        }
        Ok(reached)
    }

    /// What is known of a sandbox; none when there is no such one.
    ///
    /// # Errors
    ///
    /// `unavailable` when it can not be told.
    pub(crate) async fn get(&self, sandbox: &str) -> Result<Option<Listed>> {
        let path = format!("/sandboxes/{}", encoded(sandbox));
        let asked = async { self.ask(Ask::get(&path)).await?.json::<ListedBody>() };
        match asked.await {
            Ok(body) => Ok(Some(body.into())),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(control(&failure, "look at the sandbox")),
        }
    }

    /// As [`get`](Self::get), but "no such sandbox" only when that was said twice, with a pause between.
    pub(crate) async fn get_surely(&self, sandbox: &str, pause: Duration) -> Result<Option<Listed>> {
        if let Some(found) = self.get(sandbox).await? {
            return Ok(Some(found));
        }
        tokio::time::sleep(pause).await;
        self.get(sandbox).await
    }

    /// Pauses a sandbox with its memory. A refusal that does not mean "already paused" is looked into, not believed.
    ///
    /// # Errors
    ///
    /// `unavailable`, `conflict` when it is neither paused nor gone in the end.
    pub(crate) async fn pause(&self, sandbox: &str) -> Result<Paused> {
        let path = format!("/sandboxes/{}/pause", encoded(sandbox));
        let mut budget = Budget::new(LONG);
        loop {
            let failure = match self.ask(Ask::post(&path, json!({}), Repeat::LookFirst, LONG)).await {
                Ok(_) => return Ok(Paused::Done),
                Err(failure) => failure,
            };
            match &failure {
                Failure::Answer(answer) if answer.status == 409 && answer.message.contains("already paused") => {
                    return Ok(Paused::Done);
                }
                Failure::Answer(answer) if matches!(answer.status, 400 | 401 | 403 | 429) => {
                    return Err(control(&failure, "pause the sandbox"));
                }
                _ => {}
            }
            match self.get(sandbox).await? {
                None => return Ok(Paused::Gone),
                Some(found) if !found.is_running => return Ok(Paused::Done),
                Some(_) if budget.again(None).await => {}
                Some(_) => return Err(control(&failure, "pause the sandbox")),
            }
        }
    }

    /// Ends a sandbox, running or paused. That there is none is fine.
    ///
    /// # Errors
    ///
    /// `unavailable`.
    pub(crate) async fn kill(&self, sandbox: &str) -> Result<()> {
        let path = format!("/sandboxes/{}", encoded(sandbox));
        match self.ask(Ask { method: Method::DELETE, ..Ask::get(&path) }).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.status() == Some(404) => Ok(()),
            Err(failure) => Err(control(&failure, "kill the sandbox")),
        }
    }

    /// Gives a running sandbox at least this much time from now on, at most an hour. Never shortens.
    ///
    /// # Errors
    ///
    /// The failure; 404 is "not running".
    pub(crate) async fn refresh(&self, sandbox: &str, duration: Duration) -> Result<(), Failure> {
        let path = format!("/sandboxes/{}/refreshes", encoded(sandbox));
        let body = json!({ "duration": duration.as_secs().min(LONGEST_REFRESH.as_secs()) });
        self.ask(Ask::post(&path, body, Repeat::Harmless, SHORT)).await.map(drop)
    }

    /// Gives a running sandbox this much time from now on. May shorten it.
    ///
    /// # Errors
    ///
    /// The failure; 404 is "not running".
    pub(crate) async fn set_timeout(&self, sandbox: &str, timeout: Duration) -> Result<(), Failure> {
        let path = format!("/sandboxes/{}/timeout", encoded(sandbox));
        let body = json!({ "timeout": timeout.as_secs() });
        self.ask(Ask::post(&path, body, Repeat::Harmless, SHORT)).await.map(drop)
    }
}

/// The longest time that [`Control::refresh`] gives.
pub(crate) const LONGEST_REFRESH: Duration = Duration::from_secs(3600);

struct Ask<'a> {
    method: Method,
    path: &'a str,
    body: Option<Value>,
    idempotency_key: Option<&'a str>,
    repeat: Repeat,
    limit: Duration,
}

impl<'a> Ask<'a> {
    fn get(path: &'a str) -> Self {
        let (body, idempotency_key) = (None, None);
        Self { method: Method::GET, path, body, idempotency_key, repeat: Repeat::Harmless, limit: SHORT }
    }

    fn post(path: &'a str, body: Value, repeat: Repeat, limit: Duration) -> Self {
        Self { method: Method::POST, path, body: Some(body), idempotency_key: None, repeat, limit }
    }
}

/// Whether a creation that failed so may have made a sandbox nevertheless.
pub(crate) fn outcome_is_unknown(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable(_) => false,
        Failure::NoAnswer(_) | Failure::Garbled(_) => true,
        Failure::Answer(answer) => {
            answer.status == 504
                || outcome_is_lost(failure)
                || answer.code == "idempotency_in_progress"
                || (answer.status == 500 && !answer.code.starts_with("sandbox_create"))
        }
    }
}

/// Whether the service has lost track of the creation that has this key, so that asking with it again tells nothing.
pub(crate) fn outcome_is_lost(failure: &Failure) -> bool {
    matches!(failure, Failure::Answer(answer) if answer.code == "idempotency_outcome_unknown")
}

/// Why a route may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// The server says that it has no such route.
    Surely,
    /// An answer that says nothing, which something between may have given.
    Perhaps,
}

impl Missing {
    /// None where the route is there, and what it is about is not.
    fn of(failure: &Failure) -> Option<Self> {
        let Failure::Answer(answer) = failure else { return None };
        let said = answer.message.to_ascii_lowercase();
        match answer.status {
            405 => Some(Self::Surely),
            404 if said.contains("no matching operation") || said.contains("page not found") => Some(Self::Surely),
            404 if said.is_empty() => Some(Self::Perhaps),
            _ => None,
        }
    }
}

/// The part of an id that counts: an old form has a second one.
fn short(sandbox: &str) -> &str {
    sandbox.split('-').next().unwrap_or_default()
}

const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, &UNRESERVED).to_string()
}

/// What a library of HTTP says, for an error.
pub(crate) fn build_error(error: reqwest::Error) -> Error {
    Error::new(ErrorKind::Backend, format!("no HTTP client can be made: {}", chain(&error.without_url())))
        .with_backend(KIND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_encoded_as_the_official_sdk_does() {
        let pair = |name: &str, value: &str| format!("{}={}", encoded(&encoded(name)), encoded(&encoded(value)));
        let inner = format!("{}&{}", pair("agentscope.workspace.id", "ws 1"), pair("app", "prod"));
        assert_eq!(encoded(&inner), "agentscope.workspace.id%3Dws%2525201%26app%3Dprod");
    }

    #[test]
    fn a_missing_route_is_no_missing_sandbox() {
        let answer = |status, message: &str| {
            Failure::Answer(Answer { status, message: message.to_owned(), ..Answer::default() })
        };
        for (answer, missing) in [
            (answer(404, "no matching operation was found"), Some(Missing::Surely)),
            (answer(405, ""), Some(Missing::Surely)),
            (answer(404, ""), Some(Missing::Perhaps)),
            (answer(404, "Sandbox \"ia\" doesn't exist or you don't have access to it"), None),
            (answer(404, "template 'x' not found"), None),
        ] {
            assert_eq!(Missing::of(&answer), missing, "{answer:?}");
        }
    }
}
