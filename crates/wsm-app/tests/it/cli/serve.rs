//! `wsm serve`.

use serde_json::json;
use tokio::{task::JoinSet, time::Instant};

use super::{DEADLINE, Service, alive, log_of, output, signal, stderr, wait, wsm};
use crate::support::eventually;

#[tokio::test]
async fn a_stop_and_a_start_keep_sessions_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let session = service.session("s").await;
    service.sh("s", "echo kept > f").await;
    service.stop();
    let service = Service::start(dir.path(), &[]);
    assert_eq!(service.session("s").await, session);
    assert_eq!(service.sh("s", "cat f").await["stdout"], "kept\n");
    service.stop();
}

#[tokio::test]
async fn a_second_service_on_one_store_is_refused_and_a_run_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    service.sh("s", "echo shared > f").await;
    let second = output(dir.path(), &["serve", "--basedir", "base", "--store", "wsm.db", "--listen", "127.0.0.1:0"]);
    assert_eq!((second.status.code(), second.stdout.len()), (Some(1), 0));
    assert!(stderr(&second).contains("another wsm"), "{}", stderr(&second));
    let run = [
        "run",
        "--basedir",
        "base",
        "--store",
        "wsm.db",
        "--user",
        "ann",
        "--agent",
        "a",
        "--session",
        "s",
        "--",
        "cat",
        "f",
    ];
    let run = output(dir.path(), &run);
    assert_eq!(run.stdout, b"shared\n", "{}", stderr(&run));
    assert_eq!(service.sh("s", "cat f").await["stdout"], "shared\n", "the service goes on");
    service.stop();
}

/// A request whose command runs until somebody ends it.
async fn keep_busy(service: &Service) -> JoinSet<()> {
    service.session("s").await;
    let url = format!("{}/workspace/exec?agent_id=a&session_id=s", service.url);
    let request = crate::support::http().post(url).header("x-user-id", "ann");
    let request = request.json(&json!({ "command": ["sh", "-c", "echo $$ > pid; exec sleep 600"] }));
    let mut busy = JoinSet::new();
    busy.spawn(async move {
        let _ = request.send().await;
    });
    let deadline = Instant::now() + DEADLINE;
    // The request's own lease, and the running command's.
    while service.call("GET", "/admin/workspaces", None).await.1["items"][0]["leases"] != 2 {
        assert!(Instant::now() < deadline, "the command did not begin");
    }
    busy
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--set", "shutdown_timeout=300ms"]);
    let _busy = keep_busy(&service).await;
    service.stop();
}

/// What a command writes into a file, once it has.
async fn written(path: &std::path::Path) -> String {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    eventually("the command has written", || text().ends_with('\n')).await;
    text()
}

#[tokio::test]
async fn a_second_signal_does_not_wait_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut service = Service::start(dir.path(), &["--set", "shutdown_timeout=10m"]);
    let _busy = keep_busy(&service).await;
    signal(&service.child, rustix::process::Signal::TERM);
    eventually("the stop has begun", || log_of(dir.path()).contains("stopping;")).await;
    signal(&service.child, rustix::process::Signal::TERM);
    assert_eq!(wait(&mut service.child).code(), Some(143));
    // What such a stop leaves is ended by the next start.
    let pid = written(&dir.path().join("base/ann/a/pid")).await;
    Service::start(dir.path(), &[]).stop();
    eventually("the command is ended", || !alive(&pid)).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let session = service.session("s").await;
    assert!(session["workspace_id"].is_string());
    let pid_file = dir.path().join("base/ann/a/pid");
    let pid = tokio::select! {
        _ = service.sh("s", "echo $$ > pid; exec sleep 600") => panic!("the command ended by itself"),
        pid = written(&pid_file) => pid,
    };
    eventually("the command is ended", || !alive(&pid)).await;
    service.stop();
}

#[tokio::test]
async fn nothing_that_may_be_secret_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &["--log", "trace", "--set", "auth.token=CANARY-token"]);
    let client = crate::support::http();
    let call = |path: &str| {
        client.post(format!("{}{path}", service.url)).header("x-user-id", "ann").bearer_auth("CANARY-token")
    };
    call("/sessions").json(&json!({ "agent_id": "a", "session_id": "s" })).send().await.unwrap();
    for accept in ["application/json", "text/event-stream"] {
        let body = json!({
            "command": ["sh", "-c", "cat; echo CANARY-argument"], "env": { "A": "CANARY-value" }, "stdin": "CANARY-input",
        });
        let request = call("/workspace/exec?agent_id=a&session_id=s").header("accept", accept).json(&body);
        assert!(request.send().await.unwrap().text().await.unwrap().contains("CANARY-argument"));
    }
    let wrong = client.get(format!("{}/sessions", service.url)).bearer_auth("CANARY-wrong").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    let token = call("/workspace/files/download-token?agent_id=a&session_id=s&path=f").send().await.unwrap();
    let token: serde_json::Value = serde_json::from_slice(&token.bytes().await.unwrap()).unwrap();
    let token = token["token"].as_str().unwrap().to_owned();
    let url = format!("{}/workspace/files?agent_id=a&session_id=s&path=f&token={token}", service.url);
    assert_eq!(client.get(url).send().await.unwrap().status(), 404);
    service.stop();
    let log = log_of(dir.path());
    assert!(log.contains("running a command"), "the log says something");
    assert!(!log.contains("CANARY") && !log.contains(&token), "{log}");
}

#[test]
fn the_doors_stay_shut_beyond_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let args = ["serve", "--basedir", "base", "--store", "wsm.db", "--listen", listen];
        let refused = output(dir.path(), &args);
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("auth.token"), "{}", stderr(&refused));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
    }
    let args = ["--listen", "0.0.0.0:0", "--set", "auth.token=secret"];
    Service::start(dir.path(), &args).stop();
}

#[test]
fn a_wrong_configuration_is_refused_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    for (args, parts) in [
        (&["--ttl", "0s"][..], ["`ttl`", "above zero"]),
        (&["--ttl", "-5s"], ["`ttl`", "`--ttl`"]),
        (&["--sweep-interval", "300"], ["`sweep_interval`", "with its unit"]),
        (&["--max-workspaces", "0"], ["`max_workspaces`", "at least 1"]),
        (&["--isolation", "per_team"], ["`isolation`", "`per_user`"]),
        (&["--set", "sweep_intervall=5m"], ["did you mean `sweep_interval`?", "--set"]),
        (&["--set", "local.basdir=x"], ["did you mean `basedir`?", "--set"]),
        (&["--set", "local.kill_grace=soon"], ["`local.kill_grace`", "--set"]),
        (&["--config", "missing.toml"], ["can not be read", "missing.toml"]),
        (&["--backend", "k8s"], ["`backend`", "`local`"]),
        (&["--log", "=,="], ["`log`", "levels by module"]),
    ] {
        let refused = output(dir.path(), &[&["serve", "--basedir", "base", "--store", "wsm.db"], args].concat());
        assert_eq!(refused.status.code(), Some(1), "{args:?}");
        for part in parts {
            assert!(stderr(&refused).contains(part), "{part:?} is not in {}", stderr(&refused));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?} made something");
    }
    std::fs::write(dir.path().join("file"), "").unwrap();
    let refused = output(dir.path(), &["serve", "--basedir", "file", "--store", "wsm.db", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("basedir"), "{}", stderr(&refused));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
}

/// The place where workspaces are is never nearly the one that was meant.
#[test]
fn a_variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;

    let dir = tempfile::tempdir().unwrap();
    let run = ["run", "--store", "wsm.db", "--", "true"];
    for (name, key) in [("WSM_BASEDIR", "`basedir`"), ("WSM_CONFIG", "`config`")] {
        let refused = wsm(dir.path(), &run).env(name, std::ffi::OsStr::from_bytes(b"base\xff")).output().unwrap();
        let told = stderr(&refused);
        assert_eq!(refused.status.code(), Some(125));
        assert!(told.contains(key) && told.contains("not UTF-8") && told.contains(name), "{told}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
    }
}

#[test]
fn as_many_files_may_be_open_as_the_machine_allows() {
    let dir = tempfile::tempdir().unwrap();
    let serve = wsm(dir.path(), &["serve", "--basedir", "base", "--store", "wsm.db", "--listen", "127.0.0.1:0"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -Sn 300 && ulimit -Hn 2000 && exec \"$@\"", "sh"]).arg(serve.get_program());
    limited.args(serve.get_args()).current_dir(dir.path());
    limited.env_clear().envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let service = Service::start_command(limited, dir.path());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["2000", "2000"], "{files}");
    service.stop();
}

#[tokio::test]
async fn file_variables_and_flags_make_one_configuration() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("wsm.toml"),
        "isolation = 'per_user'\nmax_workspaces = 1\n[local]\nenv = { A = 'b' }",
    )
    .unwrap();
    let service = Service::start(dir.path(), &["--max-workspaces", "5", "--set", "local.env.PORT=8080"]);
    service.session("s").await;
    assert_eq!(service.sh("s", "echo $A $PORT").await["stdout"], "b 8080\n");
    let shown = output(dir.path(), &["config", "show", "--set", "ttl=5m"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("isolation = \"per_user\"  # the file `./wsm.toml`"), "{shown}");
    assert!(shown.contains("ttl = \"5m\"  # the flag `--set ttl`"), "{shown}");
    assert!(shown.contains("A = \"<hidden>\""), "{shown}");
    service.stop();
}
