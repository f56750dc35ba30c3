//! Servers behind URLs, with sessions that can be forgotten.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::{any, post},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{sleep, timeout},
};
use wsm_core::ErrorKind;
use wsm_gateway::{McpHeaders, McpServerSpec, McpState};

use crate::setup::{MAX_MESSAGE, PATIENCE, eventually, key, object, setup};

/// What a server behind a URL remembers, and what the test makes it do.
#[derive(Default)]
struct Seen {
    sessions: HashSet<String>,
    /// The methods of MCP, with the headers that came with them.
    requests: Vec<(String, HeaderMap)>,
    counts: HashMap<String, u64>,
    /// Whether it wants `Authorization: Bearer good`.
    is_locked: bool,
    deleted: Vec<String>,
    /// Whether it answers to forgotten sessions as some servers do, and not as the protocol wants.
    is_odd: bool,
    elsewhere: Option<SocketAddr>,
}

type Shared = Arc<Mutex<Seen>>;

struct HttpServer {
    address: SocketAddr,
    seen: Shared,
    _serving: JoinSet<()>,
}

impl HttpServer {
    async fn start() -> Self {
        let seen = Shared::default();
        let router = Router::new()
            .route("/mcp", any(mcp))
            .route("/moved", post(|| async { Redirect::temporary("/mcp") }))
            .route("/elsewhere", any(elsewhere))
            .with_state(Arc::clone(&seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, _serving: serving }
    }

    fn spec(&self, path: &str) -> McpServerSpec {
        McpServerSpec::http(format!("http://{}{path}", self.address)).with_start_timeout(Duration::from_secs(20))
    }

    fn count(&self, method: &str) -> usize {
        self.seen.lock().requests.iter().filter(|(seen, _)| seen == method).count()
    }

    /// The values of a header in all requests with that method.
    fn headers(&self, method: &str, name: &str) -> Vec<String> {
        let seen = self.seen.lock();
        let of_method = seen.requests.iter().filter(|(seen, _)| seen == method);
        of_method.map(|(_, headers)| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned()).collect()
    }
}

async fn elsewhere(State(seen): State<Shared>) -> Response {
    let to = seen.lock().elsewhere.unwrap();
    Redirect::temporary(&format!("http://{to}/mcp")).into_response()
}

async fn mcp(State(seen): State<Shared>, method: Method, headers: HeaderMap, body: String) -> Response {
    let session = headers.get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
    if method == Method::GET {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    if method == Method::DELETE {
        let session = session.unwrap();
        seen.lock().sessions.remove(&session);
        seen.lock().deleted.push(session);
        return StatusCode::NO_CONTENT.into_response();
    }
    let message: Value = serde_json::from_str(&body).unwrap();
    let name = message["params"]["name"].as_str().unwrap_or_default().to_owned();
    let called = match message["method"].as_str().unwrap() {
        "tools/call" => format!("tools/call {name}"),
        method => method.to_owned(),
    };
    seen.lock().requests.push((called.clone(), headers.clone()));
    let is_good = headers.get(header::AUTHORIZATION).is_some_and(|value| value == "Bearer good");
    if seen.lock().is_locked && !is_good {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response();
    }
    if called == "initialize" {
        let id = format!("session-{}", seen.lock().requests.len());
        seen.lock().sessions.insert(id.clone());
        let result = json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "http-fixture", "version": "1"},
        });
        return ([("mcp-session-id", id)], answer(&message, &result)).into_response();
    }
    let Some(session) = session.filter(|session| seen.lock().sessions.contains(session)) else {
        if seen.lock().is_odd {
            let error = json!({"code": -32000, "message": "Bad Request: No valid session ID provided"});
            return refusal(&error).into_response();
        }
        return StatusCode::NOT_FOUND.into_response();
    };
    if message["id"].is_null() {
        return StatusCode::ACCEPTED.into_response();
    }
    let text = match name.as_str() {
        "count" => {
            let mut seen = seen.lock();
            let count = seen.counts.entry(session).or_default();
            *count += 1;
            count.to_string()
        }
        // Answers as a stream, after a while.
        "slow" => {
            let event = format!("data: {}\n\n", message_of(&message, &text("slow")));
            let events = futures::stream::once(async move {
                sleep(Duration::from_secs(60)).await;
                Ok::<_, Infallible>(event)
            });
            let stream = Body::from_stream(events);
            return ([(header::CONTENT_TYPE, "text/event-stream")], stream).into_response();
        }
        "events" => {
            let result = json!({"content": [{"type": "hologram", "depth": 3}], "new": 1});
            let body = format!("event: message\ndata: {}\n\n", message_of(&message, &result));
            return ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response();
        }
        "huge" => "x".repeat(MAX_MESSAGE + 1),
        "broken" => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "unread" => return refusal(&json!({"code": -32700, "message": "it can not be read"})).into_response(),
        "garbage" => return ([(header::CONTENT_TYPE, "application/json")], "<html>hello</html>").into_response(),
        other => other.to_owned(),
    };
    answer(&message, &self::text(&text)).into_response()
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn message_of(request: &Value, result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string()
}

fn answer(request: &Value, result: &Value) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], message_of(request, result))
}

/// An answer to a request that nobody has read as one.
fn refusal(error: &Value) -> impl IntoResponse {
    let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
    (StatusCode::BAD_REQUEST, [(header::CONTENT_TYPE, "application/json")], body)
}

fn bearer(token: &str) -> McpHeaders {
    McpHeaders::new().with("Authorization", format!("Bearer {token}"))
}

#[tokio::test]
async fn headers_are_replaced_while_the_session_goes_on_and_are_nowhere_to_be_seen() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    server.seen.lock().is_locked = true;
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &bearer("good").with("X-Org", "CANARY")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    assert_eq!(server.headers("tools/call count", "x-org"), ["CANARY"]);

    server.seen.lock().is_locked = false;
    setup.mcp.set_headers(&key, &bearer("CANARY-2")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "2", "the session goes on");
    assert_eq!(server.headers("tools/call count", "authorization"), ["Bearer good", "Bearer CANARY-2"]);
    assert_eq!(server.headers("tools/call count", "x-org"), ["CANARY", ""], "all are replaced");
    assert_eq!(server.count("initialize"), 1);
    // Registering it again with other headers is the same.
    setup.mcp.register(&key, &server.spec("/mcp"), &bearer("CANARY-3")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "3");
    assert_eq!(server.headers("tools/call count", "authorization")[2], "Bearer CANARY-3");

    let listed = setup.mcp.list().await.unwrap();
    let shown = format!("{listed:?} {:?} {}", setup.registry, serde_json::to_string(&listed).unwrap());
    assert!(!shown.contains("CANARY") && !shown.contains("/mcp"), "{shown}");
    assert_eq!(std::fs::read_dir(setup.directory.path()).unwrap().count(), 0, "nothing is written");
    let refused = setup.mcp.set_headers(&key, &McpHeaders::new().with("Mcp-Session-Id", "1")).await.unwrap_err();
    assert_eq!(refused.field(), Some("headers"));
    setup.close().await;
}

#[tokio::test]
async fn credentials_that_are_refused_are_told_apart_and_can_be_replaced() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    server.seen.lock().is_locked = true;
    let key = key("session", "web");
    let error = setup.mcp.register(&key, &server.spec("/mcp"), &bearer("CANARY")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "mcp_unauthorized"), "{error}");
    assert!(!format!("{error:?}").contains("CANARY"));
    setup.mcp.set_headers(&key, &bearer("good")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    setup.mcp.set_headers(&key, &bearer("stale")).await.unwrap();
    let error = setup.call(&key, "count", json!({})).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "mcp_unauthorized"), "{error}");
    setup.mcp.set_headers(&key, &bearer("good")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "2");
    setup.close().await;
}

#[tokio::test]
async fn h04_a_forgotten_session_is_begun_anew_once_and_the_call_says_so() {
    for is_odd in [false, true] {
        a_forgotten_session_is_begun_anew(is_odd).await;
    }
}

async fn a_forgotten_session_is_begun_anew(is_odd: bool) {
    let (setup, server) = (setup().await, HttpServer::start().await);
    server.seen.lock().is_odd = is_odd;
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &McpHeaders::new()).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    assert_eq!(setup.text(&key, "count", json!({})).await, "2");
    server.seen.lock().sessions.clear();
    let again = setup.call(&key, "count", json!({})).await.unwrap();
    assert_eq!(again.text(), "1", "a new session");
    assert!(again.state_lost.unwrap().contains("forgotten"));
    assert_eq!(server.count("initialize"), 2);
    // The refused request was sent once more, and no other.
    assert_eq!(server.count("tools/call count"), 4);
    let next = setup.call(&key, "count", json!({})).await.unwrap();
    assert_eq!((next.text().as_str(), next.state_lost), ("2", None));
    setup.close().await;
}

#[tokio::test]
async fn h06_calls_of_a_forgotten_session_that_were_under_way_fail_and_are_not_sent_again() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &McpHeaders::new()).await.unwrap();
    let pending = setup.call(&key, "slow", json!({}));
    let expiring = async {
        eventually("the call is under way", async || server.count("tools/call slow") == 1).await;
        server.seen.lock().sessions.clear();
        setup.call(&key, "count", json!({})).await.unwrap()
    };
    let (pending, counted) = timeout(PATIENCE, async { tokio::join!(pending, expiring) }).await.unwrap();
    let error = pending.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(counted.text(), "1");
    assert_eq!(server.count("tools/call slow"), 1);
    setup.close().await;
}

#[tokio::test]
async fn h09_headers_follow_no_redirect_to_another_server() {
    let (setup, server, other) = (setup().await, HttpServer::start().await, HttpServer::start().await);
    server.seen.lock().elsewhere = Some(other.address);
    let key = key("session", "web");
    let error = setup.mcp.register(&key, &server.spec("/elsewhere"), &bearer("CANARY")).await.unwrap_err();
    assert!(error.message().contains("redirects to another server"), "{error}");
    assert!(other.seen.lock().requests.is_empty());
    // Within one server they do, since that is where a missing slash leads.
    setup.mcp.register(&key, &server.spec("/moved"), &bearer("good")).await.unwrap();
    assert_eq!(setup.text(&key, "count", json!({})).await, "1");
    assert_eq!(server.headers("tools/call count", "authorization"), ["Bearer good"]);
    setup.close().await;
}

#[tokio::test]
async fn results_that_come_as_events_come_through_as_the_server_gave_them() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &McpHeaders::new()).await.unwrap();
    let result = setup.call(&key, "events", json!({})).await.unwrap();
    assert_eq!(result.content, [json!({"type": "hologram", "depth": 3})]);
    assert_eq!(result.other["new"], 1);
    setup.close().await;
}

#[tokio::test]
async fn removing_ends_the_session() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &McpHeaders::new()).await.unwrap();
    let session = server.seen.lock().sessions.iter().next().cloned().unwrap();
    assert!(setup.mcp.remove(&key).await.unwrap());
    assert_eq!(server.seen.lock().deleted, [session]);
    setup.close().await;
}

#[tokio::test]
async fn answers_that_can_not_be_taken_are_errors_of_their_call() {
    let (setup, server) = (setup().await, HttpServer::start().await);
    let key = key("session", "web");
    setup.mcp.register(&key, &server.spec("/mcp"), &McpHeaders::new()).await.unwrap();
    for tool in ["huge", "broken", "garbage"] {
        let error = setup.call(&key, tool, json!({})).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "mcp_request_failed"), "{tool}: {error}");
        assert!(error.message().len() < 1000 && !error.message().contains("http://"), "{error}");
        assert_eq!(setup.text(&key, "count2", json!({})).await, "count2");
    }
    let unread = setup.call(&key, "unread", json!({})).await.unwrap_err();
    assert!(unread.message().contains("it can not be read"), "{unread}");
    let late = setup.mcp.call(&key, "slow", object(json!({})), Some(Duration::from_millis(200)));
    assert_eq!(timeout(PATIENCE, late).await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    eventually("it was told", async || server.count("notifications/cancelled") == 1).await;
    assert!(matches!(setup.status(&key).await.state, McpState::Ready { .. }));
    setup.close().await;
}

#[tokio::test]
async fn h14_nobody_behind_the_url_is_told_and_its_secrets_are_not() {
    let setup = setup().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let spec = McpServerSpec::http(format!("http://{unused}/CANARY?token=CANARY"));
    let key = key("session", "web");
    let error = setup.mcp.register(&key, &spec, &McpHeaders::new()).await.unwrap_err();
    assert_eq!(error.code(), "mcp_start_failed");
    let listed = format!("{:?} {error:?} {error}", setup.mcp.list().await.unwrap());
    assert!(!listed.contains("CANARY"), "{listed}");
    assert!(error.message().contains("`web`") && error.message().contains("refused"), "{error}");
    setup.close().await;
}
