//! Servers behind a URL.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::{HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use reqwest::redirect::{Attempt, Policy};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport,
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
use sse_stream::Sse;
use wsm_core::{Error, ErrorKind, Result};

use super::whole::wrapped;
use crate::mcp_types::McpHeaders;

/// How long a connection may take to come about.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How many redirects are followed, all within one origin.
const MAX_REDIRECTS: usize = 5;
/// How many idle connections to one host are kept, and for how long.
const IDLE_CONNECTIONS: usize = 2;
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// The headers that belong to the protocol.
const RESERVED: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// The headers of one server, which can be replaced while it is being talked to.
#[derive(Debug, Default)]
pub(super) struct RuntimeHeaders(RwLock<HashMap<HeaderName, HeaderValue>>);

impl RuntimeHeaders {
    /// Replaces all headers, or none.
    ///
    /// # Errors
    ///
    /// `invalid_input` for a name or a value that no request can carry, and for names that belong to the protocol.
    pub(super) fn replace(&self, headers: &McpHeaders) -> Result<()> {
        let mut parsed = HashMap::new();
        for (name, value) in headers.iter() {
            let refuse = |why: &str| Error::invalid("headers", format!("the header {name:?} {why}"));
            let header: HeaderName = name.parse().map_err(|_| refuse("has no name that HTTP allows"))?;
            if RESERVED.contains(&header.as_str()) {
                return Err(refuse("belongs to the protocol"));
            }
            // The value is not shown: it may be a secret that was mangled.
            let mut value = HeaderValue::from_str(value).map_err(|_| refuse("has a value that HTTP does not allow"))?;
            value.set_sensitive(true);
            parsed.insert(header, value);
        }
        *self.0.write() = parsed;
        Ok(())
    }
}

/// The one client for all servers behind URLs. It costs memory, so there is none before there is such a server.
#[derive(Debug, Default)]
pub(super) struct SharedClient(Mutex<Option<reqwest::Client>>);

impl SharedClient {
    /// The client.
    ///
    /// # Errors
    ///
    /// `backend` when this machine can not do that.
    pub(super) fn get(&self) -> Result<reqwest::Client> {
        let mut shared = self.0.lock();
        let client = match &*shared {
            Some(client) => client.clone(),
            None => client()?,
        };
        Ok(shared.insert(client).clone())
    }
}

fn client() -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_LIMIT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_LIMIT)
        .redirect(Policy::custom(follow));
    #[cfg(feature = "tls")]
    let builder = builder.tls_backend_preconfigured(tls()?);
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Backend, "no HTTP client can be made for MCP servers").with_source(error.without_url())
    })
}

/// Trusts whom this machine trusts: `SSL_CERT_FILE`, or the certificates that the system has.
#[cfg(feature = "tls")]
fn tls() -> Result<rustls::ClientConfig> {
    use rustls_platform_verifier::BuilderVerifierExt;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.and_then(|config| config.with_platform_verifier());
    Ok(config
        .map_err(|error| Error::new(ErrorKind::Backend, "TLS can not be used for MCP servers").with_source(error))?
        .with_no_client_auth())
}

/// Headers go along with a redirect, so it must not lead to anybody else.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let Some(first) = attempt.previous().first() else { return attempt.stop() };
    if first.origin() != attempt.url().origin() {
        return attempt.error("it redirects to another server, which is not followed");
    }
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("it redirects too often");
    }
    attempt.follow()
}

/// Checks an address.
///
/// # Errors
///
/// `invalid_input` for what is no URL of HTTP.
pub(super) fn check_url(url: &str) -> Result<()> {
    let problem = match reqwest::Url::parse(url) {
        Ok(url) if url.scheme() == "https" && !cfg!(feature = "tls") => {
            "needs TLS, which this gateway is built without"
        }
        Ok(url) if matches!(url.scheme(), "http" | "https") => return Ok(()),
        Ok(_) => "is not one of `http` or `https`",
        Err(_) => "is no URL",
    };
    Err(Error::invalid("url", format!("`{}` {problem}", crate::mcp_types::shown_url(url))))
}

/// The way to one server.
#[derive(Debug, Clone)]
pub(super) struct HttpClient {
    client: reqwest::Client,
    headers: Arc<RuntimeHeaders>,
    sessions: Arc<AtomicU64>,
}

impl HttpClient {
    /// `sessions` counts how often the server was said hello to: more than once when it has forgotten a session.
    pub(super) fn new(client: reqwest::Client, headers: Arc<RuntimeHeaders>, sessions: Arc<AtomicU64>) -> Self {
        Self { client, headers, sessions }
    }

    /// A transport over it whose answers are at most `limit` bytes long.
    pub(super) fn transport(self, url: &str, limit: usize) -> StreamableHttpClientTransport<Self> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.max_sse_event_size = limit;
        config.max_json_response_size = limit;
        StreamableHttpClientTransport::with_client(self, config)
    }

    /// The protocol's own headers win.
    fn with_own(&self, protocol: HashMap<HeaderName, HeaderValue>) -> HashMap<HeaderName, HeaderValue> {
        let mut headers = self.headers.0.read().clone();
        headers.extend(protocol);
        headers
    }
}

type HttpError = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// A URL may hold secrets.
fn without_url(error: HttpError) -> HttpError {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
        other => other,
    }
}

/// Events whose results come through as they are.
fn whole(events: BoxStream<'static, Result<Sse, SseError>>) -> BoxStream<'static, Result<Sse, SseError>> {
    let wrap = |mut event: Sse| {
        if let Some(wrapped) = event.data.as_ref().and_then(|data| wrapped(data.as_bytes())) {
            event.data = Some(wrapped);
        }
        event
    };
    events.map_ok(wrap).boxed()
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let is_hello = matches!(
            &message,
            ClientJsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::InitializeRequest(_))
        );
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let had_session = session.is_some();
        let headers = self.with_own(headers);
        let posted = self.client.post_message_with_response_limits(uri, message, session, token, headers, limits).await;
        if is_hello && posted.is_ok() {
            self.sessions.fetch_add(1, Ordering::Relaxed);
        }
        match posted.map_err(without_url)? {
            StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(mut error), session)
                if error.id.is_none() && request.is_some() =>
            {
                // It was not even read as a request, so that it has done nothing. Servers that have been restarted say so
                // instead of the 404 that the protocol wants.
                if had_session && error.error.message.to_ascii_lowercase().contains("session") {
                    return Err(StreamableHttpError::SessionExpired);
                }
                error.id = request;
                Ok(StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), session))
            }
            StreamableHttpPostResponse::Sse(events, session) => {
                Ok(StreamableHttpPostResponse::Sse(whole(events), session))
            }
            response => Ok(response),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), HttpError> {
        let headers = self.with_own(headers);
        self.client.delete_session(uri, session, token, headers).await.map_err(without_url)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let limit = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, limit).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
        limit: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let headers = self.with_own(headers);
        let stream =
            self.client.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, limit).await;
        stream.map(whole).map_err(without_url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_checked_as_a_whole_and_never_shown() {
        let headers = RuntimeHeaders::default();
        headers.replace(&McpHeaders::new().with("Authorization", "Bearer CANARY").with("X-Org", "CANARY")).unwrap();
        for bad in [
            McpHeaders::new().with("bad name", "CANARY"),
            McpHeaders::new().with("X-Ok", "1").with("X-Bad", "CANARY\r\nX-Injected: 1"),
            McpHeaders::new().with("Mcp-Session-Id", "CANARY"),
            McpHeaders::new().with("HOST", "CANARY"),
        ] {
            let error = headers.replace(&bad).unwrap_err();
            assert_eq!(error.field(), Some("headers"));
            assert!(!format!("{error:?} {error}").contains("CANARY"), "{error:?}");
        }
        assert_eq!(headers.0.read().len(), 2, "the old ones stay");
        assert!(!format!("{headers:?}").contains("CANARY"), "{headers:?}");
    }

    #[test]
    fn addresses_are_checked() {
        check_url("http://127.0.0.1:8000/mcp").unwrap();
        for url in ["ftp://example.org/", "example.org", "", "file:///etc/passwd"] {
            assert_eq!(check_url(url).unwrap_err().field(), Some("url"), "{url}");
        }
    }
}
