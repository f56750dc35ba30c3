//! `wsm cp`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Stdio,
};

use axum::routing::get;
use futures::StreamExt;

use super::{Service, fed, signal, stderr, wait, wsm};
use crate::support::eventually;

/// A service with a session `s`, and the directory of its workspace.
fn service(dir: &Path) -> (Service, std::path::PathBuf) {
    let service = Service::start(dir, &[]);
    assert_eq!(service.ask(dir, &["exec", "--session", "s", "--agent", "a", "--", "true"]).0, 0);
    (service, dir.join("base/ann/a"))
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn files_go_in_and_out_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (service, inside) = service(here);
    let copy = |source: &str, target: &str| service.ask(here, &["cp", source, target]);
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    fs::write(here.join("报告 ü.sh"), &bytes).unwrap();
    fs::set_permissions(here.join("报告 ü.sh"), PermissionsExt::from_mode(0o750)).unwrap();
    let done = (0, String::new(), String::new());
    assert_eq!(copy("报告 ü.sh", "s:"), done);
    assert!(fs::read(inside.join("报告 ü.sh")).unwrap() == bytes);
    assert_eq!(mode(&inside.join("报告 ü.sh")), 0o750);
    assert_eq!(copy("报告 ü.sh", "s:new/x"), done, "parents are made");
    assert_eq!(copy("s:报告 ü.sh", "back"), done);
    assert!(fs::read(here.join("back")).unwrap() == bytes);
    assert_eq!(mode(&here.join("back")), 0o750);
    fs::create_dir(here.join("d")).unwrap();
    assert_eq!(copy("s:new/x", "d"), done, "into a directory");
    assert!(here.join("d/x").exists());
    assert!(service.wsm(here, &["cp", "s:new/x", "-"]).output().unwrap().stdout == bytes);
    assert_eq!(fed(service.wsm(here, &["cp", "-", "s:from-stdin"]), &bytes).status.code(), Some(0));
    assert!(fs::read(inside.join("from-stdin")).unwrap() == bytes);
    fs::write(here.join("empty"), "").unwrap();
    assert_eq!(copy("empty", "s:"), done);
    assert_eq!(copy("s:empty", "empty-too"), done);
    assert_eq!(fs::read(here.join("empty-too")).unwrap(), b"");
    service.stop();
}

#[tokio::test]
async fn directories_go_with_all_that_is_in_them_but_links() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (service, inside) = service(here);
    fs::create_dir_all(here.join("t/a/empty")).unwrap();
    fs::write(here.join("t/a/f"), "f").unwrap();
    symlink("/etc", here.join("t/link")).unwrap();
    let (code, _, errors) = service.ask(here, &["cp", "t", "s:"]);
    assert_eq!((code, errors.lines().count()), (1, 1), "{errors}");
    assert!(errors.contains("t/link"), "{errors}");
    assert!(inside.join("t/a/empty").is_dir() && !inside.join("t/link").exists());
    fs::remove_file(here.join("t/link")).unwrap();
    assert_eq!(service.ask(here, &["cp", "t", "s:named"]).0, 0);
    assert_eq!(fs::read(inside.join("named/a/f")).unwrap(), b"f", "to a new name");
    assert_eq!(service.ask(here, &["cp", "t/.", "s:named/."]).0, 0, "what is in it");
    assert!(!inside.join("named/t").exists());

    symlink("/etc", inside.join("t/out")).unwrap();
    let (code, _, errors) = service.ask(here, &["cp", "s:t", "back"]);
    assert_eq!(code, 1);
    assert!(errors.contains("t/out"), "{errors}");
    assert_eq!(fs::read(here.join("back/a/f")).unwrap(), b"f");
    assert!(here.join("back/a/empty").is_dir() && !here.join("back/out").exists());
    fs::remove_file(inside.join("t/out")).unwrap();
    assert_eq!(service.ask(here, &["cp", "s:", "whole"]).0, 0);
    assert!(here.join("whole/t/a/f").exists());
    service.stop();
}

#[tokio::test]
async fn what_can_not_be_copied_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (service, inside) = service(here);
    fs::write(here.join("f"), "f").unwrap();
    fs::create_dir(here.join("t")).unwrap();
    fs::write(inside.join("g"), "g").unwrap();
    for (source, target, word) in [
        ("s:nothing", "x", "there is no `s:nothing`"),
        ("nothing", "s:x", "can not be read"),
        ("nosuch:f", "x", "no session `nosuch`"),
        ("f", "g", "SESSION:PATH"),
        ("s:g", "s:h", "must be local"),
        ("-", "-", "SESSION:PATH"),
        ("-", "s:", "names no file"),
        ("-", "s:x/", "names no file"),
        ("f", "s:x/", "no directory"),
        ("s:g", "x/", "no directory"),
        ("s:g", "no/where", "can not be written"),
        ("t", "s:g", "can not become one"),
        ("s:../../../etc/passwd", "x", "code path_outside"),
        ("f", "s:../x", "code path_outside"),
        ("s:t", "-", "does not exist"),
        ("s:.", "-", "directory"),
    ] {
        let (code, _, errors) = service.ask(here, &["cp", source, target]);
        assert_eq!(code, 1, "{source} {target}: {errors}");
        assert!(errors.contains(word), "{source} {target}: {errors}");
    }
    let mut names: Vec<_> = fs::read_dir(here).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.retain(|name| !name.to_str().unwrap().starts_with("wsm.db"));
    names.sort();
    assert_eq!(names, ["base", "f", "log", "t"]);
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 1);
    service.stop();
}

/// Sparse, so that the test needs no room, and with less memory than the file is long.
#[tokio::test]
async fn a_long_file_is_never_in_memory_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (service, inside) = service(here);
    let length = 300 << 20;
    fs::File::create(here.join("long")).unwrap().set_len(length).unwrap();
    for (source, target, made) in [("long", "s:long", inside.join("long")), ("s:long", "back", here.join("back"))] {
        let line = format!("ulimit -d 150000 && exec {} cp {source} {target}", env!("CARGO_BIN_EXE_wsm"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).current_dir(here).env("WSM_URL", &service.url).env("WSM_USER", "ann");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(made.metadata().unwrap().len(), length);
    }
    service.stop();
}

#[tokio::test]
async fn an_upload_over_the_limit_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let service = Service::start(here, &["--set", "max_upload_bytes=1MiB"]);
    assert_eq!(service.ask(here, &["exec", "--session", "s", "--", "true"]).0, 0);
    fs::File::create(here.join("long")).unwrap().set_len(50 << 20).unwrap();
    for _ in 0..5 {
        let (code, _, errors) = service.ask(here, &["cp", "long", "s:"]);
        assert!(code == 1 && errors.contains("too_large"), "{errors}");
        let streamed = fed(service.wsm(here, &["cp", "-", "s:x"]), &vec![0; 20 << 20]);
        assert!(stderr(&streamed).contains("too_large"), "{}", stderr(&streamed));
    }
    assert_eq!(service.ask(here, &["exec", "--session", "s", "--", "ls", "-A"]).1, "");
    service.stop();
}

/// A service whose every file begins and never ends.
async fn endless() -> (String, tokio::task::JoinSet<()>) {
    let file = || async {
        let begun = futures::stream::iter([Ok::<_, std::io::Error>("begun")]);
        axum::body::Body::from_stream(begun.chain(futures::stream::pending()))
    };
    let no_directory = (
        axum::http::StatusCode::UNPROCESSABLE_ENTITY,
        r#"{"detail":"no directory","code":"not_a_directory","request_id":"r"}"#,
    );
    let router = axum::Router::new()
        .route("/sessions/{id}", get(|| async { axum::Json(serde_json::json!({ "agent_id": "a" })) }))
        .route("/workspace/directories", get(move || async move { no_directory }))
        .route("/workspace/files", get(file));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, serving)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_stopped_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let (url, _serving) = endless().await;
    fs::write(here.join("target"), "old").unwrap();
    let half =
        || fs::read_dir(here).unwrap().any(|it| it.unwrap().file_name().to_str().unwrap().starts_with(".wsm-cp"));
    let mut command = wsm(here, &["cp", "s:endless", "target", "--url", &url]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    eventually("the copy began", half).await;
    signal(&child, rustix::process::Signal::INT);
    assert_eq!(wait(&mut child).code(), Some(130));
    assert!(!half());
    assert_eq!(fs::read(here.join("target")).unwrap(), b"old");
}
