//! An application over the in-memory backend, and a client that talks to its router.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::ConnectInfo};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;
use wsm_app::{App, AppConfig, Metrics, create_app};
use wsm_core::{
    CachingManager, IsolationPolicy, ManagerSettings, WorkspaceManager,
    memory::{MemoryConfig, MemoryEngine},
};

/// A client for a service.
pub(crate) fn http() -> reqwest::Client {
    wsm_app::tls::install();
    reqwest::Client::new()
}

pub(crate) struct TestApp {
    pub(crate) app: App,
    pub(crate) engine: MemoryEngine,
    pub(crate) manager: Arc<dyn WorkspaceManager>,
    pub(crate) dir: tempfile::TempDir,
}

/// A started application with the defaults.
pub(crate) async fn app() -> TestApp {
    app_with(ManagerSettings::default(), |config| config).await
}

pub(crate) async fn app_under(isolation: IsolationPolicy) -> TestApp {
    app_with(ManagerSettings::default().with_isolation(isolation), |config| config).await
}

pub(crate) async fn app_with(settings: ManagerSettings, configure: impl FnOnce(AppConfig) -> AppConfig) -> TestApp {
    let dir = tempfile::tempdir().unwrap();
    let engine = MemoryEngine::new();
    let metrics = Arc::new(Metrics::new());
    let manager = CachingManager::builder(MemoryConfig::new(engine.clone()))
        .settings(settings)
        .listener(Arc::clone(&metrics) as _)
        .build()
        .unwrap();
    let manager: Arc<dyn WorkspaceManager> = Arc::new(manager);
    let config = configure(AppConfig::new(dir.path().join("wsm.db")).with_metrics(metrics));
    let app = create_app(Arc::clone(&manager), config);
    app.lifecycle.start().await.unwrap();
    TestApp { app, engine, manager, dir }
}

impl TestApp {
    /// A user on this machine.
    pub(crate) fn user(&self, name: &str) -> Client {
        client(&self.app.router).header("x-user-id", name)
    }

    /// Somebody on this machine who does not say who they are.
    pub(crate) fn nobody(&self) -> Client {
        client(&self.app.router)
    }
}

pub(crate) fn client(router: &Router) -> Client {
    Client { router: router.clone(), peer: Some([127, 0, 0, 1].into()), headers: Vec::new() }
}

#[derive(Clone)]
pub(crate) struct Client {
    router: Router,
    peer: Option<IpAddr>,
    headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn from(mut self, peer: impl Into<Option<IpAddr>>) -> Self {
        self.peer = peer.into();
        self
    }

    pub(crate) async fn get(&self, uri: &str) -> Reply {
        self.send(Method::GET, uri, Body::empty()).await
    }

    pub(crate) async fn delete(&self, uri: &str) -> Reply {
        self.send(Method::DELETE, uri, Body::empty()).await
    }

    pub(crate) async fn put(&self, uri: &str, body: impl Into<Body>) -> Reply {
        self.send(Method::PUT, uri, body.into()).await
    }

    pub(crate) async fn post(&self, uri: &str, body: &Value) -> Reply {
        let json = self.clone().header("content-type", "application/json");
        json.send(Method::POST, uri, Body::from(body.to_string())).await
    }

    pub(crate) async fn send(&self, method: Method, uri: &str, body: Body) -> Reply {
        let response = self.start(method, uri, body).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// Gives the answer as soon as it begins.
    pub(crate) async fn start(&self, method: Method, uri: &str, body: Body) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(peer) = self.peer {
            request = request.extension(ConnectInfo(SocketAddr::new(peer, 40_000)));
        }
        self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap()
    }

    /// Makes a session and gives the query that names it.
    pub(crate) async fn session(&self, agent: &str) -> String {
        let reply = self.post("/sessions", &serde_json::json!({ "agent_id": agent })).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        format!("agent_id={agent}&session_id={}", reply.json()["session_id"].as_str().unwrap())
    }

    /// Runs a shell line in a session's workspace.
    pub(crate) async fn sh(&self, session: &str, line: &str) -> Reply {
        self.post(&format!("/workspace/exec?{session}"), &serde_json::json!({ "command": ["sh", "-c", line] })).await
    }
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Checks that this is a well-formed problem and gives its status and code.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem = self.json();
        let text = |key: &str| problem[key].as_str().unwrap_or_else(|| panic!("`{key}` in {problem}")).to_owned();
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(text("type"), format!("urn:wsm:problem:{}", text("code")));
        assert_eq!(text("request_id"), self.headers["x-request-id"].to_str().unwrap());
        for key in ["title", "detail", "kind"] {
            assert!(!text(key).is_empty(), "`{key}` in {problem}");
        }
        (self.status.as_u16(), text("code"))
    }

    /// The problem's field.
    pub(crate) fn field(&self) -> String {
        self.problem();
        self.json()["field"].as_str().unwrap_or_default().to_owned()
    }
}

/// Waits for a condition, with a deadline.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
