//! The client of the daemon in a sandbox: HTTP and procedures, one request each. What to do about failures is decided above.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use reqwest::{
    RequestBuilder, Response,
    header::{HeaderMap, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use wsm_core::{Error, ExitStatus, Result};

use crate::{
    control::{Place, Reached, encoded},
    envelope::{Decoder, encode},
    error::{Answer, Failure},
    process::{Incoming, Source},
};

/// Where the daemon listens in every sandbox.
const PORT: u16 = 49983;
/// How often a silent stream says that it is there. The daemon dies of anything that is not above zero.
const KEEPALIVE: HeaderValue = HeaderValue::from_static("50");
/// For how long a stream may be silent: two and a half times as long.
const SILENCE: Duration = Duration::from_secs(125);
/// How long the first message of a stream may take.
const OPENING: Duration = Duration::from_secs(30);
/// How long a procedure with one answer may take.
pub(crate) const SHORT: Duration = Duration::from_secs(30);
/// The longest answer of a procedure: a listing of some hundred thousand files.
const LONGEST_ANSWER: usize = 64 << 20;

/// As whom something is done in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    /// Whom the configuration or the template says.
    Default,
    Root,
}

/// The daemon of one sandbox. Cheap to clone; shows no secrets.
#[derive(Debug, Clone)]
pub(crate) struct Daemon(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    base: String,
    headers: HeaderMap,
    user: Option<String>,
    place: Place,
    sandbox: String,
    token: Option<SecretString>,
    traffic_token: Option<SecretString>,
}

fn secret(value: &str) -> Result<HeaderValue, Failure> {
    let mut value =
        HeaderValue::from_str(value).map_err(|_| Failure::Garbled("a token that no header can hold".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

impl Daemon {
    pub(crate) fn new(
        http: reqwest::Client,
        place: &Place,
        reached: &Reached,
        user: Option<String>,
    ) -> Result<Self, Failure> {
        let Reached { id, token, traffic_token, domain, was_paused: _ } = reached;
        let place = match (place, domain) {
            (Place::OfDomain(_), Some(domain)) => Place::OfDomain(domain.clone()),
            (place, _) => place.clone(),
        };
        let mut headers = routing(id, PORT);
        if let Some(token) = token {
            headers.insert("x-access-token", secret(token.expose_secret())?);
        }
        let base = url(&place, id, PORT);
        let (sandbox, token, traffic_token) = (id.clone(), token.clone(), traffic_token.clone());
        Ok(Self(Arc::new(Inner { http, base, headers, user, place, sandbox, token, traffic_token })))
    }

    /// How another port is reached: the URL, and what every request must carry.
    pub(crate) fn port(&self, port: u16) -> (String, Vec<(String, String)>) {
        let Inner { place, sandbox, traffic_token, .. } = &*self.0;
        let mut headers =
            vec![("e2b-sandbox-id".to_owned(), sandbox.clone()), ("e2b-sandbox-port".to_owned(), port.to_string())];
        if let Some(token) = traffic_token {
            headers.push(("e2b-traffic-access-token".to_owned(), token.expose_secret().to_owned()));
        }
        (url(place, sandbox, port), headers)
    }

    /// The client that knows how to reach a port.
    pub(crate) fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    fn request(&self, method: reqwest::Method, path: &str, who: As) -> RequestBuilder {
        let request = self.0.http.request(method, format!("{}{path}", self.0.base)).headers(self.0.headers.clone());
        let name = match who {
            As::Root => Some("root"),
            As::Default => self.0.user.as_deref(),
        };
        match name {
            // Names of users, no passwords.
            Some(name) => request.header("authorization", format!("Basic {}", STANDARD.encode(format!("{name}:")))),
            None => request,
        }
    }

    /// Calls a procedure with one answer.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have been carried out.
    pub(crate) async fn call(
        &self,
        procedure: &str,
        message: &Value,
        limit: Option<Duration>,
    ) -> Result<Value, Failure> {
        let mut request = self
            .request(reqwest::Method::POST, procedure, As::Default)
            .header("accept", "application/json")
            .header("connect-protocol-version", "1")
            .json(message);
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        let response = self.send(request).await?;
        let body = whole(response).await?;
        serde_json::from_slice(&body).map_err(|_| Failure::Garbled(format!("{procedure} answered no JSON")))
    }

    /// Whether the daemon answers.
    pub(crate) async fn health(&self, limit: Duration) -> Result<(), Failure> {
        let request = self.request(reqwest::Method::GET, "/health", As::Default).timeout(limit);
        self.send(request).await.map(drop)
    }

    /// Starts a command and waits until that is told. `limit` is the daemon's own, after which it kills the command.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have started the command.
    pub(crate) async fn start(&self, start: &Start<'_>) -> Result<(u32, Events), Failure> {
        let Start { argv, env, cwd, stdin, limit, who } = start;
        let [program, args @ ..] = argv else { return Err(Failure::Garbled("an empty command".to_owned())) };
        let mut process = json!({ "cmd": program, "args": args, "envs": env });
        if let Some(cwd) = cwd {
            process["cwd"] = json!(cwd);
        }
        let message = json!({ "process": process, "stdin": stdin });
        let mut request = self
            .request(reqwest::Method::POST, "/process.Process/Start", *who)
            .header("content-type", "application/connect+json")
            .header("connect-protocol-version", "1")
            .header("keepalive-ping-interval", KEEPALIVE)
            .body(encode(message.to_string().as_bytes()));
        if let Some(limit) = limit {
            request = request.header("connect-timeout-ms", limit.as_millis().max(1).to_string());
        }
        let opening = async {
            let response = self.send(request).await?;
            let mut events = Events { response, decoder: Decoder::default() };
            loop {
                match events.next().await? {
                    Incoming::Start(pid) => return Ok((pid, events)),
                    Incoming::Finished(Some(answer)) => return Err(Failure::Answer(answer)),
                    Incoming::Finished(None) | Incoming::End(_) | Incoming::Output(..) => {
                        return Err(Failure::Garbled("a stream that does not begin with a start".to_owned()));
                    }
                    Incoming::Other => {}
                }
            }
        };
        match tokio::time::timeout(OPENING, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::NoAnswer(format!("none within {OPENING:?}"))),
        }
    }

    /// Runs one of our own small commands to its end.
    ///
    /// # Cancel safety
    ///
    /// A dropped call lets the command run on, for its limit at most.
    pub(crate) async fn run(&self, argv: &[&str], limit: Duration, who: As) -> Result<Ran, Failure> {
        let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
        let env = std::collections::BTreeMap::new();
        let start = Start { argv: &argv, env: &env, cwd: None, stdin: false, limit: Some(limit), who };
        let running = async {
            let (_, mut events) = self.start(&start).await?;
            let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
            loop {
                match events.next().await? {
                    Incoming::Output(Source::Stdout, bytes) if stdout.len() < LONGEST_ANSWER => {
                        stdout.extend_from_slice(&bytes);
                    }
                    Incoming::Output(Source::Stderr, bytes) if stderr.len() < LONGEST_ANSWER => {
                        stderr.extend_from_slice(&bytes);
                    }
                    Incoming::End(status) => end = Some(status),
                    Incoming::Finished(None) => break,
                    Incoming::Finished(Some(answer)) => return Err(Failure::Answer(answer)),
                    Incoming::Start(_) | Incoming::Other | Incoming::Output(..) => {}
                }
            }
            let status = end.ok_or_else(|| Failure::NoAnswer("the stream ended without an end".to_owned()))?;
            Ok(Ran { status, stdout, stderr })
        };
        match tokio::time::timeout(limit + SHORT, running).await {
            Ok(ran) => ran,
            Err(_) => Err(Failure::NoAnswer("it did not end in time".to_owned())),
        }
    }

    fn files(&self, path: &str) -> String {
        let user = self.0.user.as_ref().map(|user| format!("&username={}", encoded(user))).unwrap_or_default();
        format!("/files?path={}{user}", encoded(path))
    }

    /// Opens a file. `range` as the header takes it.
    pub(crate) async fn download(&self, path: &str, range: Option<String>) -> Result<Response, Failure> {
        let request = self.request(reqwest::Method::GET, &self.files(path), As::Default);
        let mut request = request.header("accept-encoding", "identity");
        if let Some(range) = range {
            request = request.header("range", range);
        }
        let asked = async {
            let response = request.send().await.map_err(Failure::of)?;
            if response.status().as_u16() == 416 { Ok(response) } else { self.success(response).await }
        };
        tokio::time::timeout(SHORT, asked)
            .await
            .unwrap_or_else(|_| Err(Failure::NoAnswer(format!("none within {SHORT:?}"))))
    }

    /// The answer to a request, if it is a success.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        self.success(request.send().await.map_err(Failure::of)?).await
    }

    /// An answer, if it is a success. Nobody knows what a server repeats.
    async fn success(&self, response: Response) -> Result<Response, Failure> {
        let Inner { token, traffic_token, .. } = &*self.0;
        success(response)
            .await
            .map_err(|failure| [token, traffic_token].into_iter().flatten().fold(failure, Failure::without))
    }

    /// Writes a file from its beginning to its end. An error of the body leaves a part of it there.
    pub(crate) async fn upload(&self, path: &str, body: reqwest::Body) -> Result<(), Failure> {
        let request = self
            .request(reqwest::Method::POST, &self.files(path), As::Default)
            .header("content-type", "application/octet-stream")
            .body(body);
        let response = self.send(request).await?;
        whole(response).await.map(drop)
    }
}

fn routing(sandbox: &str, port: u16) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // An id is of small letters and digits; what is not can not be reached at all.
    if let Ok(id) = HeaderValue::from_str(sandbox) {
        headers.insert("e2b-sandbox-id", id);
    }
    headers.insert("e2b-sandbox-port", HeaderValue::from(port));
    headers
}

fn url(place: &Place, sandbox: &str, port: u16) -> String {
    match place {
        Place::Fixed(url) => url.clone(),
        Place::OfDomain(domain) => format!("https://{port}-{sandbox}.{domain}"),
    }
}

/// What a command is started as.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) argv: &'a [String],
    pub(crate) env: &'a std::collections::BTreeMap<String, String>,
    pub(crate) cwd: Option<&'a str>,
    pub(crate) stdin: bool,
    pub(crate) limit: Option<Duration>,
    pub(crate) who: As,
}

/// How one of our own commands ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// What happens to a command, as it comes.
#[derive(Debug)]
pub(crate) struct Events {
    response: Response,
    decoder: Decoder,
}

impl Events {
    /// The next thing. After [`Incoming::Finished`] there is none; a stream that breaks off before is a failure.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Incoming, Failure> {
        loop {
            let malformed = |error: crate::envelope::Malformed| Failure::Garbled(error.to_string());
            if let Some(envelope) = self.decoder.next_envelope().map_err(malformed)? {
                return Incoming::read(&envelope).map_err(Failure::Garbled);
            }
            let piece = tokio::time::timeout(SILENCE, self.response.chunk()).await;
            let piece = piece.map_err(|_| Failure::NoAnswer(format!("silence for {SILENCE:?}")))?;
            match piece.map_err(Failure::of)? {
                Some(piece) => self.decoder.push(&piece),
                None if self.decoder.has_rest() => return Err(Failure::NoAnswer("the stream was cut".to_owned())),
                None => return Err(Failure::NoAnswer("the stream broke off".to_owned())),
            }
        }
    }
}

/// The answer, if it is a success.
async fn success(mut response: Response) -> Result<Response, Failure> {
    let (status, headers) = (response.status(), response.headers().clone());
    if status.is_success() {
        return Ok(response);
    }
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(piece)) = response.chunk().await {
            body.extend_from_slice(&piece);
            if body.len() > 64 << 10 {
                break;
            }
        }
    };
    // Whatever of it came.
    let _ = tokio::time::timeout(SHORT, read).await;
    Err(Failure::Answer(Answer::read(status.as_u16(), &body).with_headers(&headers)))
}

async fn whole(mut response: Response) -> Result<Bytes, Failure> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(Failure::of)? {
        body.extend_from_slice(&piece);
        if body.len() > LONGEST_ANSWER {
            return Err(Failure::Garbled("an answer that does not end".to_owned()));
        }
    }
    Ok(body.into())
}

/// An error for a failure while reading a body, or a body's own silence.
pub(crate) async fn piece(response: &mut Response) -> Result<Option<Bytes>, Failure> {
    match tokio::time::timeout(SILENCE, response.chunk()).await {
        Ok(piece) => piece.map_err(Failure::of),
        Err(_) => Err(Failure::NoAnswer(format!("silence for {SILENCE:?}"))),
    }
}

/// The client for all daemons.
pub(crate) fn client() -> Result<reqwest::Client, Error> {
    // Frames without content, which the service sends in downloads, end an HTTP/2 connection.
    let builder = crate::control::http(true)?.pool_max_idle_per_host(256);
    builder.build().map_err(crate::control::build_error)
}
