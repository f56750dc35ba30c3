//! The command with cloud sandboxes, over a stand-in for the cloud.

use std::path::Path;

use wsm_fake_e2b::{API_KEY, FakeE2b, Options, SandboxState};

use super::{Service, exit_cases, fed, told, wsm};

/// None, said aloud, where the stand-in can not run. `WSM_REQUIRE=e2b` makes that a failure.
async fn fake() -> Option<FakeE2b> {
    let Err(why) = FakeE2b::check() else { return Some(FakeE2b::start(Options::default()).await.unwrap()) };
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == "e2b"), "{why}");
    #[expect(clippy::print_stdout, reason = "a skipped test says why")]
    {
        println!("skipped: the stand-in for E2B can not run here: {why}");
    }
    None
}

fn flags(fake: &FakeE2b) -> Vec<String> {
    let mut flags = vec!["--backend".to_owned(), "e2b".to_owned(), "--store".to_owned(), "wsm.db".to_owned()];
    for (key, value) in
        [("api_key", API_KEY.to_owned()), ("api_url", fake.api_url()), ("sandbox_url", fake.sandbox_url())]
    {
        flags.extend(["--set".to_owned(), format!("e2b.{key}={value}")]);
    }
    flags
}

/// Not on the runtime's thread, which the stand-in needs.
async fn run(dir: &Path, subcommand: &str, flags: &[String], rest: &[&str]) -> (i32, String, String) {
    let mut command = wsm(dir, &[subcommand]);
    command.args(flags).args(rest);
    tokio::task::spawn_blocking(move || told(command.output().unwrap())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_and_their_exit_codes_are_theirs() {
    let Some(fake) = fake().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = flags(&fake);
    let ran = run(dir.path(), "run", &flags, &["--", "sh", "-c", "echo out; echo err >&2; pwd; echo kept > f"]).await;
    assert_eq!(ran, (0, "out\n/home/user/workspace\n".to_owned(), "err\n".to_owned()));
    let sandboxes = fake.sandboxes().all();
    assert_eq!(sandboxes.len(), 1, "{sandboxes:?}");
    assert_eq!(sandboxes[0].state, SandboxState::Paused, "it is put away");
    let plain = "/etc/passwd";
    for (options, command, code) in exit_cases(plain) {
        let rest: Vec<&str> = options.iter().copied().chain(["--"]).chain(command).collect();
        let (seen, _, stderr) = run(dir.path(), "run", &flags, &rest).await;
        assert_eq!(seen, code, "{rest:?}: {stderr}");
    }
    let (_, text, _) = run(dir.path(), "run", &flags, &["--", "cat", "f"]).await;
    assert_eq!(text, "kept\n", "one workspace for all");
    assert_eq!(fake.sandboxes().all().len(), 1);
    let mut command = wsm(dir.path(), &["run"]);
    command.args(&flags).args(["--", "wc", "-c"]);
    let counted = tokio::task::spawn_blocking(move || told(fed(command, &[b'x'; 100_000]))).await.unwrap();
    assert_eq!((counted.0, counted.1.as_str()), (0, "100000\n"), "{}", counted.2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_told_and_the_key_is_not() {
    let Some(fake) = fake().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = flags(&fake);
    let (code, text, errors) = run(dir.path(), "doctor", &flags, &["--url", "http://127.0.0.1:1"]).await;
    assert_eq!(code, 0, "{text}{errors}");
    assert!(text.contains("the API key works") && text.contains(&fake.api_url()), "{text}");
    let (_, shown, _) =
        run(dir.path(), "config", &[], &["show", "--backend", "e2b", "--set", "e2b.api_key=CANARY"]).await;
    assert!(shown.contains("api_key") && !shown.contains("CANARY"), "{shown}");
    let without = ["--backend".to_owned(), "e2b".to_owned(), "--store".to_owned(), "wsm.db".to_owned()];
    for (more, word) in [
        (vec![], "E2B_API_KEY"),
        (
            vec![
                "--set".to_owned(),
                "e2b.api_key=e2b_wrong".to_owned(),
                "--set".to_owned(),
                format!("e2b.api_url={}", fake.api_url()),
            ],
            "api_key",
        ),
        (
            vec![
                "--set".to_owned(),
                "e2b.api_key=e2b_x".to_owned(),
                "--set".to_owned(),
                "e2b.api_url=http://127.0.0.1:9".to_owned(),
            ],
            "api_url",
        ),
    ] {
        let flags: Vec<String> = without.iter().cloned().chain(more).collect();
        let (code, text, _) = run(dir.path(), "doctor", &flags, &["--url", "http://127.0.0.1:1"]).await;
        let failed = text.lines().any(|line| line.starts_with("failed") && line.contains(word));
        assert!(code == 1 && failed && !text.contains("e2b_wrong"), "{word}: {text}");
        let (code, _, errors) = run(dir.path(), "run", &flags, &["--", "true"]).await;
        assert!(code == 125 && errors.contains(word) && !errors.contains("e2b_wrong"), "{word}: {errors}");
    }
    assert!(fake.sandboxes().all().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_works_with_cloud_sandboxes() {
    let Some(fake) = fake().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "backend = \"e2b\"\nstore = \"wsm.db\"\n[e2b]\napi_key = \"{API_KEY}\"\napi_url = \"{}\"\nsandbox_url = \"{}\"\n",
        fake.api_url(),
        fake.sandbox_url()
    );
    std::fs::write(dir.path().join("wsm.toml"), config).unwrap();
    let mut command = wsm(dir.path(), &["serve", "--listen", "127.0.0.1:0"]);
    command.env("WSM_LOG", "debug");
    let place = dir.path().to_owned();
    let service = tokio::task::spawn_blocking(move || Service::start_command(command, &place)).await.unwrap();
    service.session("s").await;
    let body = serde_json::json!({ "command": ["sh", "-c", "echo $0 there", "hello"] });
    let (status, answer) = service.call("POST", "/workspace/exec?agent_id=a&session_id=s", Some(body)).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer.to_string().contains("hello there"), "{answer}");
    tokio::task::spawn_blocking(move || service.stop()).await.unwrap();
    assert!(fake.sandboxes().all().iter().all(|sandbox| sandbox.state == SandboxState::Paused));
    assert!(!std::fs::read_to_string(dir.path().join("log")).unwrap().contains(API_KEY));
}
