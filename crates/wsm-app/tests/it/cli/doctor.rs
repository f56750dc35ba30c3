//! `wsm doctor`.

use std::fs;

use serde_json::Value;

use super::{Service, output, told};

const PLACES: [&str; 4] = ["--basedir", "base", "--store", "wsm.db"];

fn lines(text: &str, word: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(word)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_place_that_works_has_no_failure_and_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let doctor = |more: &[&str]| told(output(dir.path(), &[&["doctor"], &PLACES[..], more].concat()));
    let (code, text, errors) = doctor(&["--url", "http://127.0.0.1:1"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{text}");
    assert_eq!(lines(&text, "failed"), [""; 0]);
    assert!(text.contains("wsm serve") && text.contains("there is no sandbox"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");

    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let (code, text, _) = doctor(&["--all", "--url", &service.url]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("one answers at {}", service.url)), "{text}");
    assert!(text.contains(&format!("process {}", service.child.id())), "{text}");
    assert!(text.contains("version 1, 1 sessions, 1 workspaces"), "{text}");
    let report: Value = serde_json::from_str(&doctor(&["--json"]).1).unwrap();
    let statuses: Vec<_> = report["checks"].as_array().unwrap().iter().map(|check| check["status"].clone()).collect();
    assert!(statuses.contains(&"ok".into()) && statuses.contains(&"warning".into()), "{report}");
    service.stop();
}

#[test]
fn what_does_not_work_is_failed_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "text ".repeat(1000)).unwrap();
    for (args, word) in [
        (&["--basedir", "file", "--store", "wsm.db"][..], "basedir"),
        (&["--basedir", "base", "--store", "file"], "store"),
        (&["--basedir", "base", "--store", "file/below"], "store"),
        (&["--set", "tll=5s"], "configuration"),
        (&["--url", "https://wsm.example"], "service"),
    ] {
        let (code, text, _) = told(output(dir.path(), &[&["doctor"], args].concat()));
        assert_eq!(code, 1, "{text}");
        assert!(lines(&text, "failed").iter().any(|line| line.contains(word)), "{word}: {text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
    }
}
