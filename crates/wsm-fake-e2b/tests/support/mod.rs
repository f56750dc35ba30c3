//! What the tests share: a fake, and a client that speaks its protocols without any help.

#![allow(dead_code, reason = "no test binary uses all of it")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "what is not as expected fails the test")]

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use wsm_fake_e2b::{API_KEY, FakeE2b, Options};

/// Says why nothing is tested. `WSM_REQUIRE=e2b` makes that a failure.
pub(crate) fn skipped(why: &str) {
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|required| required.trim() == "e2b"), "required by WSM_REQUIRE: {why}");
    println!("skipped: {why}");
}

/// None, said aloud, when this machine can not run the fake.
pub(crate) fn runtime() -> Option<Runtime> {
    if let Err(why) = FakeE2b::check() {
        skipped(&why.to_string());
        return None;
    }
    Some(Runtime::new().unwrap())
}

/// Runs a test with a fake, where there can be one.
pub(crate) fn with_fake(options: Options, test: impl AsyncFnOnce(&FakeE2b)) {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        let fake = FakeE2b::start(options).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), test(&fake)).await.unwrap();
    });
}

pub(crate) struct Api {
    client: Client,
    url: String,
    pub(crate) key: String,
}

impl Api {
    pub(crate) fn new(fake: &FakeE2b) -> Self {
        // Built with others, the client may have TLS, and wants to know by whom.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { client: Client::new(), url: fake.api_url(), key: API_KEY.to_owned() }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = method.parse().unwrap();
        self.client.request(method, format!("{}{path}", self.url)).header("X-API-Key", &self.key)
    }

    /// The status and the body, which is null when it is no JSON.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let request = self.request(method, path);
        let request = if body.is_null() { request } else { request.json(&body) };
        read(request.send().await.unwrap()).await
    }

    pub(crate) async fn create(&self, body: Value) -> Sandbox {
        let mut wanted = json!({ "templateID": "base", "timeout": 60 });
        wanted.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (status, made) = self.ask("POST", "/v2/sandboxes", wanted).await;
        assert_eq!(status, 201, "{made}");
        self.sandbox(&made)
    }

    pub(crate) fn sandbox(&self, opened: &Value) -> Sandbox {
        Sandbox {
            client: self.client.clone(),
            url: self.url.clone(),
            id: opened["sandboxID"].as_str().unwrap().to_owned(),
            token: opened["envdAccessToken"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

pub(crate) async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap_or_default();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

pub(crate) struct Sandbox {
    client: Client,
    url: String,
    pub(crate) id: String,
    pub(crate) token: String,
}

impl Sandbox {
    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let request = self.client.request(method.parse().unwrap(), format!("{}{path}", self.url));
        request
            .header("E2b-Sandbox-Id", &self.id)
            .header("E2b-Sandbox-Port", "49983")
            .header("X-Access-Token", &self.token)
    }

    pub(crate) async fn call(&self, procedure: &str, body: Value) -> (u16, Value) {
        read(self.request("POST", &format!("/{procedure}")).json(&body).send().await.unwrap()).await
    }

    pub(crate) async fn health(&self) -> (u16, Value) {
        read(self.request("GET", "/health").send().await.unwrap()).await
    }

    pub(crate) fn start_request(&self, argv: &[&str]) -> RequestBuilder {
        let process = json!({ "cmd": argv[0], "args": argv[1..] });
        self.stream_request("process.Process/Start", &json!({ "process": process, "stdin": false }))
    }

    pub(crate) fn stream_request(&self, procedure: &str, message: &Value) -> RequestBuilder {
        let payload = message.to_string().into_bytes();
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let body = [&[0][..], &length, &payload].concat();
        let request = self.request("POST", &format!("/{procedure}"));
        request.header("Content-Type", "application/connect+json").body(body)
    }

    /// All envelopes of a command, and whether the body ended properly.
    pub(crate) async fn start(&self, argv: &[&str]) -> (Vec<(u8, Value)>, bool) {
        envelopes(self.start_request(argv).send().await.unwrap()).await
    }
}

/// All whole envelopes of a body, and whether it ended properly.
pub(crate) async fn envelopes(mut response: Response) -> (Vec<(u8, Value)>, bool) {
    assert_eq!(response.status(), 200);
    let mut bytes = Vec::new();
    let is_proper = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes.extend(chunk),
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let mut all = Vec::new();
    let mut rest = &bytes[..];
    while let Some((header, after)) = rest.split_first_chunk::<5>() {
        let [flags, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if after.len() < length {
            break;
        }
        all.push((flags, serde_json::from_slice(&after[..length]).unwrap_or_default()));
        rest = &after[length..];
    }
    (all, is_proper && rest.is_empty())
}
