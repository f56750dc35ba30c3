//! `wsm ls`, `show`, `close` and `destroy`.

use std::process::Stdio;

use serde_json::Value;

use super::{Service, fed, told, wait};

#[tokio::test]
async fn workspaces_are_listed_shown_closed_and_destroyed() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--isolation", "per_session"]);
    let ask = |args: &[&str]| service.ask(dir.path(), args);
    assert_eq!(ask(&["ls"]).1, "", "nothing but a hint");
    let id = service.session("s").await["workspace_id"].as_str().unwrap().to_owned();
    service.sh("s", "touch f").await;
    ask(&["exec", "--user", "bob", "--", "true"]);

    let (code, table, errors) = ask(&["ls"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let header: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["WORKSPACE", "USER", "STATE", "USES", "IDLE", "OPENING"]);
    let row = table.lines().find(|line| line.starts_with(&id)).unwrap();
    assert!(row.contains("ann") && row.contains("live") && !table.contains('\u{1b}'), "{table}");
    assert_eq!(table.lines().count(), 3);
    assert_eq!(ask(&["ls", "--user", "bob"]).1.lines().count(), 2);

    let (_, listed, _) = ask(&["ls", "--json"]);
    let (_, answer) = service.call("GET", "/admin/workspaces", None).await;
    let ids = |value: &Value| value["items"].as_array().unwrap().iter().map(|it| it["workspace_id"].clone()).collect();
    let (listed, answer): (Vec<Value>, Vec<Value>) = (ids(&serde_json::from_str(&listed).unwrap()), ids(&answer));
    assert_eq!(listed, answer);
    let (_, shown, _) = ask(&["show", &id]);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["policy", "per_session"])), "{shown}");
    let shown: Value = serde_json::from_str(&ask(&["show", &id, "--json"]).1).unwrap();
    assert_eq!(shown["user_id"], "ann");

    assert_eq!(ask(&["close", &id]), (0, String::new(), String::new()));
    assert_eq!(ask(&["ls"]).1.lines().count(), 2);
    assert_eq!(ask(&["ls", "--all"]).1.lines().count(), 3);
    assert_eq!(service.sh("s", "ls").await["stdout"], "f\n", "closing keeps the files");

    let (code, _, errors) = ask(&["destroy", &id]);
    assert_eq!(code, 1);
    assert!(errors.contains("--yes"), "{errors}");
    assert_eq!(told(fed(service.wsm(dir.path(), &["destroy", &id]), b"y\n")).0, 1, "a pipe can not agree");
    assert_eq!(service.sh("s", "ls").await["stdout"], "f\n");
    assert_eq!(ask(&["destroy", &id, "--yes"]), (0, String::new(), String::new()));
    assert_eq!(service.sh("s", "ls").await["stdout"], "");

    let (code, _, errors) = ask(&["show", "no/such?id"]);
    assert_eq!(code, 1);
    assert!(errors.contains("(code workspace_not_found, request "), "{errors}");
    assert_eq!(ask(&["show", ".."]).0, 1);
    assert_eq!(ask(&["destroy", "nothing", "--yes"]).0, 1);
    service.stop();
}

#[tokio::test]
async fn a_workspace_in_use_is_closed_by_force_only() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let id = service.session("s").await["workspace_id"].as_str().unwrap().to_owned();
    let mut busy = service.wsm(dir.path(), &["exec", "--session", "s", "--", "sh", "-c", "echo begun; exec sleep 600"]);
    let mut busy = busy.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::io::Read::read_exact(busy.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let (code, _, errors) = service.ask(dir.path(), &["close", &id, "--wait", "50ms"]);
    assert_eq!(code, 1);
    assert!(errors.contains("(code "), "{errors}");
    assert!(busy.try_wait().unwrap().is_none(), "it runs on");
    assert_eq!(service.ask(dir.path(), &["close", &id, "--force"]).0, 0);
    assert_ne!(wait(&mut busy).code(), Some(0));
    for wait in ["soon", "-1s", "2h"] {
        let (code, _, errors) = service.ask(dir.path(), &["close", &id, "--wait", wait]);
        assert!(code == 1 && errors.contains("wait"), "{wait}: {code} {errors}");
    }
    service.stop();
}

/// Operators' routes are not for everybody, and the refusal says so.
#[tokio::test]
async fn tokens_are_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--set", "auth.token=front", "--set", "auth.tokens.bob=of-bob"];
    let service = Service::start(dir.path(), &more);
    let with = |token: &str, args: &[&str]| {
        told(service.wsm(dir.path(), args).env("WSM_TOKEN", token).env("WSM_USER", "bob").output().unwrap())
    };
    assert_eq!(with("front", &["ls"]).0, 0);
    assert_eq!(with("of-bob", &["exec", "--", "echo", "hi"]).1, "hi\n");
    for (token, code) in [("of-bob", "operators_only"), ("wrong", "invalid_token")] {
        let (exit, _, errors) = with(token, &["ls"]);
        assert!(exit == 1 && errors.contains(code), "{errors}");
    }
    service.stop();
}
