//! Two service processes of one installation, and one that is killed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{Contained, containers, docker_says, engine, gated, program};
use futures::{StreamExt, TryStreamExt, future::join_all};
use wsm_core::{
    Backend, CachingManager, FoundState, ManagedWorkspace, ManagerSettings, OpenRequest, OutcomeKind, Ready,
    WorkspaceExt, WorkspaceId, WorkspaceManager,
};
use wsm_docker::DockerConfig;

fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

/// Another service process over the same basedir.
struct Service {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Service {
    fn start(contained: &Contained) -> Self {
        let mut service = Program::new(std::env::current_exe().unwrap());
        service.args(["--exact", "a_service_that_takes_orders", "--nocapture"]);
        service.env("WSM_TEST_SERVICE", contained.base.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = service.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut started = Self { orders: child.stdin.take().unwrap(), child, answers };
        started.answer();
        started
    }

    fn order(&mut self, what: &str, id: &str, rest: &str) {
        writeln!(self.orders, "{what} {id} {rest}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let line = self.answers.next().unwrap().unwrap();
            if let Some(answer) = line.strip_prefix("> ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str, id: &str, rest: &str) -> String {
        self.order(what, id, rest);
        self.answer()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What [`Service`] runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_takes_orders() {
    let Some(base) = std::env::var_os("WSM_TEST_SERVICE") else { return };
    let backend = gated(DockerConfig::new(base).with_host(engine().unwrap()), program().unwrap()).unwrap();
    backend.start().await.unwrap();
    println!("\n> ready");
    let mut opened = std::collections::HashMap::<String, Arc<dyn ManagedWorkspace>>::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let (what, id, rest) = (words[0], words[1].to_owned(), words[2]);
        let answer = match what {
            "open" => {
                let result = backend.open(OpenRequest::new(WorkspaceId::new(&id).unwrap())).await.unwrap();
                opened.insert(id, result.workspace);
                format!("{:?}", result.outcome.kind)
            }
            "sh" => opened[&id].sh(rest).await.unwrap().stdout.to_text().trim().to_owned(),
            _ => format!("{:?}", opened.remove(&id).unwrap().suspend().await.is_ok()),
        };
        println!("> {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_share_a_workspace_and_the_last_one_ends_it() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let mut other = Service::start(&contained);
    let id = unique("shared");
    let mine = contained.open(&id).await;
    assert_eq!(other.ask("open", &id, ""), "Reattached");
    other.order("sh", &id, "echo begun > f; sleep 3; echo ended");
    while mine.read_text("f", 100).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Idle here, and in use there.
    mine.suspend().await.unwrap();
    assert_eq!(other.answer(), "ended", "its command was not ended");
    assert_eq!(containers(&id).len(), 1);
    let again = contained.opened(&id).await;
    assert_eq!(again.outcome.kind, OutcomeKind::Reattached);
    assert_eq!(other.ask("suspend", &id, ""), "true");
    assert_eq!(again.workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
    again.workspace.suspend().await.unwrap();
    assert!(containers(&id).is_empty(), "nobody has it any more");
    assert_eq!(other.ask("open", &id, ""), "Resumed");
    contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
    assert!(containers(&id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_that_open_one_id_at_once_make_one_container() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let mut other = Service::start(&contained);
    for round in 0..8 {
        let id = unique(&format!("race-{round}"));
        other.order("open", &id, "");
        tokio::time::sleep(Duration::from_millis(round * 20)).await;
        let mine = contained.opened(&id).await;
        let kinds = BTreeSet::from([other.answer(), format!("{:?}", mine.outcome.kind)]);
        assert!(kinds.contains("Created"), "{kinds:?}");
        assert_eq!(containers(&id).len(), 1, "{kinds:?}");
        assert_eq!(other.ask("sh", &id, "echo one > f; cat f"), "one");
        assert_eq!(mine.workspace.read_text("f", 100).await.unwrap(), "one\n");
        // One puts it away while the other opens it.
        other.order("suspend", &id, "");
        let again = contained.opened(&id).await.workspace;
        assert_eq!(other.answer(), "true");
        assert_eq!(again.read_text("f", 100).await.unwrap(), "one\n");
        again.suspend().await.unwrap();
        assert!(containers(&id).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_leaves_containers_that_the_next_one_adopts() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let prefix = unique("orphan");
    let ids: Vec<String> = (0..20).map(|number| format!("{prefix}-{number}")).collect();
    let mut service = Service::start(&contained);
    for id in &ids {
        assert_eq!(service.ask("open", id, ""), "Created");
        service.ask("sh", id, "(sleep 1000 &) >/dev/null 2>&1");
    }
    let owner = std::fs::read_to_string(contained.base.path().join(".wsm/installation")).unwrap();
    let all = || -> BTreeSet<String> {
        let filter = format!("label=wsm.owner={owner}");
        docker_says(&["ps", "--quiet", "--filter", &filter]).lines().map(str::to_owned).collect()
    };
    let before = all();
    assert_eq!(before.len(), 20);
    let found: Vec<_> = contained.backend.list().try_collect().await.unwrap();
    assert!(found.iter().all(|found| found.state == FoundState::Running && !found.is_abandoned), "{found:?}");
    drop(service);
    let found: Vec<_> = contained.backend.list().try_collect().await.unwrap();
    assert!(found.iter().all(|found| found.is_abandoned), "{found:?}");

    let config = DockerConfig::new(contained.base.path()).with_host(engine().unwrap());
    let next = gated(config, program().unwrap()).unwrap();
    let settings =
        ManagerSettings::default().with_ttl(Duration::from_secs(12)).with_sweep_interval(Duration::from_secs(1));
    let manager = CachingManager::builder(Ready(next)).settings(settings).build().unwrap();
    let events = manager.subscribe();
    manager.start().await.unwrap();
    // Nobody asks for them.
    let opened = events.filter_map(async |event| match event.kind {
        wsm_core::EventKind::Opened { opening, .. } => Some(opening),
        _ => None,
    });
    let openings: Vec<_> = opened.take(20).collect().await;
    assert!(openings.iter().all(|opening| opening.kind == OutcomeKind::Reattached), "{openings:?}");
    assert_eq!(all(), before, "all adopted, none doubled");
    let used = contained.opened(&ids[0]).await.workspace;
    assert_eq!(used.sh("ps -e | grep -c '[s]leep'").await.unwrap().stdout.to_text(), "1\n", "what ran goes on");
    tokio::time::timeout(Duration::from_secs(60), async {
        while all().len() > 1 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("what nobody uses is put away, but for what another process has open");
    used.suspend().await.unwrap();
    assert!(manager.shutdown(Duration::from_secs(10)).await.failed.is_empty());
    assert!(all().is_empty());
    for directory in [".wsm/run", ".wsm/held"] {
        assert_eq!(std::fs::read_dir(contained.base.path().join(directory)).unwrap().count(), 0, "{directory}");
    }
    let orders = join_all(ids.iter().map(|id| contained.opened(id))).await;
    assert!(orders.iter().all(|opened| opened.outcome.kind == OutcomeKind::Resumed));
}
