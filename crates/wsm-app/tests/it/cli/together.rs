//! Several processes on one store and one basedir.

use std::process::Child;

use super::{Service, output, stderr, told, wait, wsm};

const PLACES: [&str; 4] = ["--basedir", "base", "--store", "wsm.db"];

fn run<'a>(options: &[&'a str], line: &'a str) -> Vec<&'a str> {
    [&["run"], &PLACES[..], options, &["--", "sh", "-c", line]].concat()
}

#[test]
fn two_runs_of_one_id_share_it_on_a_new_basedir_and_on_an_old_one() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        for round in ["new", "old"] {
            let start = |name: &str| -> Child {
                let line = format!("echo {name} > {round}-{name}; pwd");
                let piped = std::process::Stdio::piped;
                wsm(dir.path(), &run(&["--workspace-id", "w"], &line)).stdout(piped()).stderr(piped()).spawn().unwrap()
            };
            let outputs = [start("a"), start("b")].map(|child| child.wait_with_output().unwrap());
            let [a, b] = outputs.map(|output| {
                assert!(output.status.success(), "{round}: {}", stderr(&output));
                output.stdout
            });
            assert_eq!(a, b, "one directory");
        }
        let listed = told(output(dir.path(), &run(&["--workspace-id", "w"], "ls")));
        assert_eq!(listed.1, "new-a\nnew-b\nold-a\nold-b\n");
    }
}

#[tokio::test]
async fn a_run_beside_a_service_works_in_the_same_place_and_disturbs_no_command() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    service.session("s").await;
    let slow = service.sh("s", "echo begun > begun; while ! [ -e go ]; do sleep 0.02; done; echo done");
    let as_ann = ["--user", "ann", "--agent", "a"];
    let beside = async {
        crate::support::eventually("the command began", || dir.path().join("base/ann/a/begun").exists()).await;
        let first = tokio::task::spawn_blocking({
            let mut command = wsm(dir.path(), &run(&as_ann, "ls; touch go"));
            move || command.output().unwrap()
        });
        told(first.await.unwrap())
    };
    let (slow, beside) = tokio::join!(slow, beside);
    assert_eq!(beside, (0, "begun\n".into(), String::new()));
    assert_eq!((&slow["outcome"], &slow["stdout"]), (&"exited".into(), &"done\n".into()));
    service.stop();
    let mut last = wsm(dir.path(), &run(&as_ann, "test -e go")).spawn().unwrap();
    assert!(wait(&mut last).success());
}
