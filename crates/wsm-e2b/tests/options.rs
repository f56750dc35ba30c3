//! Bad input: each is an error that names the option, and makes and ends nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use common::*;
use wsm_core::{Backend, BackendConfig, Error, ErrorKind};
use wsm_e2b::{E2bBackend, E2bConfig, E2bNetwork};
use wsm_fake_e2b::{Account, Fault, Operation, Options};

async fn refused(config: E2bConfig) -> Error {
    let backend: E2bBackend = config.build().unwrap();
    backend.open(request("w")).await.expect_err("it is refused")
}

#[tokio::test]
async fn a_key_that_is_missing_unknown_or_refused_is_told_apart() {
    if std::env::var_os("E2B_API_KEY").is_none() {
        let error = E2bConfig::default().build().unwrap_err();
        assert_eq!((error.field(), error.code()), (Some("api_key"), "api_key_missing"), "{error:?}");
        assert!(error.message().contains("E2B_API_KEY"));
    }
    let mut options = Options::default();
    options.accounts = vec![Account::new(KEY), Account::new("e2b_blocked").refused()];
    let Some(fixture) = Fixture::with(options).await else { return };
    for (key, code) in [("e2b_unknown", "api_key_unknown"), ("e2b_blocked", "api_key_refused")] {
        let error = refused(config(&fixture.fake).with_api_key(key)).await;
        assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, code), "{error:?}");
        assert_eq!(error.field(), Some("api_key"));
        assert!(!error.report().to_string().contains(key), "{error:?}");
        let backend: E2bBackend = config(&fixture.fake).with_api_key(key).build().unwrap();
        assert_eq!(backend.probe().await.unwrap_err().code(), code);
    }
    assert!(fixture.fake.sandboxes().all().is_empty());
    assert_eq!(fixture.count(Operation::Create), 0);
}

#[tokio::test]
async fn what_the_service_refuses_is_told_by_the_option() {
    let Some(fixture) = Fixture::new().await else { return };
    let error = refused(config(&fixture.fake).with_template("no-such")).await;
    assert_eq!((error.field(), error.code()), (Some("template"), "unknown_template"), "{error:?}");
    assert!(error.message().contains("no-such"));
    let error = refused(config(&fixture.fake).with_timeout_seconds(1_000_000)).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("timeout_seconds")), "{error:?}");
    for (status, body) in [(400, r#"{"code":400,"message":"metadata is too large"}"#), (413, "too large")] {
        fixture.fake.faults().push(Fault::answer(Operation::Create, status, body));
        let error = refused(config(&fixture.fake).with_sandbox_metadata("x", "y".repeat(100_000))).await;
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("sandbox_metadata")), "{error:?}");
    }
    let error = refused(config(&fixture.fake).with_user("nobody-there")).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty(), "nothing is left of any");
}

#[tokio::test]
async fn a_service_that_can_not_be_reached_is_told_by_its_url() {
    for url in ["http://127.0.0.1:9", "http://no-such-host.invalid"] {
        let error = refused(E2bConfig::default().with_api_key("k").with_api_url(url)).await;
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unavailable, Some("api_url")), "{error:?}");
    }
    let Some(fixture) = Fixture::new().await else { return };
    // Where only the daemons can not be reached, the sandbox that was made is not left behind.
    let error = refused(config(&fixture.fake).with_sandbox_url("http://127.0.0.1:9")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty());
}

#[tokio::test]
async fn a_template_without_a_shell_is_told() {
    let Some(fixture) = Fixture::new().await else { return };
    // What a daemon says when there is nothing to run anything with.
    let body = r#"{"code":"invalid_argument","message":"error starting process: fork/exec /bin/sh: no such file or directory"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Start, 400, body));
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("template")), "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty());
}

#[tokio::test]
async fn the_network_policy_and_the_metadata_reach_the_service() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut network = E2bNetwork::default();
    network.allow_internet_access = Some(false);
    network.allow_public_traffic = Some(false);
    network.deny_out = vec!["0.0.0.0/0".to_owned()];
    network.allow_out = vec!["1.1.1.1".to_owned()];
    let backend: E2bBackend =
        config(&fixture.fake).with_network(network).with_sandbox_metadata("app", "prod").build().unwrap();
    let workspace = backend.open(request("w")).await.unwrap().workspace;
    assert_eq!(fixture.only().metadata["app"], "prod");
    // Ports that are not public are reached with a token, which no debugging output holds.
    let connection = workspace.connect(&wsm_core::Endpoint::Port(49983)).await.unwrap();
    let shown = format!("{connection:?}");
    let wsm_core::Connection::Http { headers, .. } = connection else { panic!("{shown}") };
    let token = headers.iter().find(|(name, _)| name == "e2b-traffic-access-token").expect("there is a token");
    assert!(!shown.contains(&token.1));
}
