//! What becomes of workspaces: how many requests an opening takes, who owns them, and what happens behind the client's back.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use std::{
    io::Write,
    sync::{Arc, LazyLock},
    time::Duration,
};

use common::*;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tracing_subscriber::util::SubscriberInitExt;
use wsm_core::{
    Backend, BackendConfig, Command, ErrorKind, GetRequest, IsolationPolicy, OpenRequest, OutcomeKind, Placement,
    Scope, WorkspaceExt, WorkspaceManager,
};
use wsm_e2b::{E2BWorkspaceManager, E2bBackend};
use wsm_fake_e2b::{Ending, FakeE2b, Fault, Operation, SandboxState, What};

macro_rules! fixture {
    () => {
        match Fixture::new().await {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

fn operations(fake: &FakeE2b) -> Vec<Operation> {
    let all = fake.requests().all().into_iter().map(|request| request.operation).collect();
    fake.requests().clear();
    all
}

#[tokio::test]
async fn the_list_by_which_replicas_agree_goes_beside_the_first_command() {
    // The one is asked for while the other has no answer.
    for (hanging, skip, other, count) in
        [(Operation::List, 1, Operation::Start, 1), (Operation::Start, 0, Operation::List, 2)]
    {
        let fixture = fixture!();
        let hang = What::Lose { applied: false, ending: Ending::Hang };
        fixture.fake.faults().push(Fault::new(hanging, hang).skip(skip));
        tokio::select! {
            opened = fixture.backend.open(request("w")) => panic!("{opened:?}"),
            () = eventually("the other is asked for, too", async || fixture.count(other) == count) => {}
        }
    }
}

#[tokio::test]
async fn an_opening_takes_as_few_requests_as_it_can() {
    let fixture = fixture!();
    let workspace = fixture.workspace().await;
    // The second list is how two replicas that create at once agree. It goes beside the first command.
    let [first, create, beside @ ..] = &operations(&fixture.fake)[..] else { panic!("nothing was asked") };
    assert_eq!((*first, *create), (Operation::List, Operation::Create));
    assert!(matches!(beside, [Operation::Start, Operation::List] | [Operation::List, Operation::Start]), "{beside:?}");
    fixture.workspace().await;
    assert_eq!(operations(&fixture.fake), [Operation::List, Operation::Connect, Operation::Start]);
    workspace.suspend().await.unwrap();
    assert_eq!(operations(&fixture.fake), [Operation::Start, Operation::Pause]);
    let workspace = fixture.workspace().await;
    assert_eq!(operations(&fixture.fake), [Operation::List, Operation::Connect, Operation::Start]);
    workspace.exec(Command::new("true")).await.unwrap();
    assert_eq!(operations(&fixture.fake), [Operation::Start], "one command is one round trip");
    workspace.write_bytes("f", "x".into()).await.unwrap();
    assert_eq!(operations(&fixture.fake), [Operation::Stat, Operation::Upload, Operation::Move]);
    workspace.read_text("f", 9).await.unwrap();
    assert_eq!(operations(&fixture.fake), [Operation::Download]);
}

#[tokio::test]
async fn metadata_say_whose_a_sandbox_is() {
    let fixture = fixture!();
    let scope = Scope::new("ann@example.org", "coder", "s1").unwrap();
    let placement = Placement { policy: IsolationPolicy::PerAgent, scope };
    let request = OpenRequest::new(id("w")).with_owner(user("ann@example.org")).with_placement(placement);
    fixture.backend.open(request).await.unwrap();
    let sandbox = fixture.only();
    let text = |name: &str| sandbox.metadata.get(name).map(String::as_str).unwrap_or_default();
    assert_eq!((text("agentscope.workspace.id"), text("agentscope.agent.id")), ("w", "coder"));
    assert_eq!(text("agentscope.user.id"), "ann_40example.org");
    assert_eq!((text("wsm.owner"), text("wsm.generation")), ("wsm", "0"));
    assert!(!text("wsm.instance").is_empty() && !text("wsm.attempt").is_empty());
    assert!(sandbox.auto_pause && sandbox.secure);
    let found = fixture.another().find(&id("w")).await.unwrap().unwrap();
    assert_eq!(found.owner, Some(user("ann@example.org")));
}

#[tokio::test]
async fn another_installations_sandbox_is_refused_and_never_touched() {
    let fixture = fixture!();
    let theirs: E2bBackend = config(&fixture.fake).with_installation("theirs").build().unwrap();
    let workspace = theirs.open(request("w")).await.unwrap().workspace;
    for _ in 0..2 {
        let error = fixture.backend.open(request("w")).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "foreign_installation"), "{error:?}");
        let error = fixture.backend.destroy(&id("w")).await.unwrap_err();
        assert_eq!(error.code(), "foreign_installation", "{error:?}");
        assert_eq!(fixture.backend.find(&id("w")).await.unwrap(), None);
        assert_eq!(fixture.backend.list().count().await, 0);
        let before = fixture.only();
        assert!(matches!(before.state, SandboxState::Running | SandboxState::Paused));
        workspace.suspend().await.unwrap();
    }
    assert_eq!(fixture.count(Operation::Create), 1);
    assert_eq!(fixture.only().state, SandboxState::Paused);
}

#[tokio::test]
async fn a_refused_user_changes_nothing_even_where_only_the_sandbox_knows_the_owner() {
    let fixture = fixture!();
    // Made for nobody, as one in a buffer is; then claimed.
    let workspace = fixture.backend.open(OpenRequest::new(id("w"))).await.unwrap().workspace;
    fixture.workspace().await;
    workspace.suspend().await.unwrap();
    let error = fixture.another().open(OpenRequest::new(id("w")).with_owner(user("eve"))).await.unwrap_err();
    assert_eq!(error.code(), "foreign_owner", "{error:?}");
    assert_eq!(fixture.only().state, SandboxState::Paused, "it is put away again");
    assert_eq!(fixture.open("w").await.outcome.kind, OutcomeKind::Resumed);
}

#[tokio::test]
async fn superfluous_sandboxes_are_put_aside_named_and_removed_when_asked() {
    let fixture = fixture!();
    write(&fixture.workspace().await, "f", "the one").await;
    let first = fixture.only().id;
    // Another replica does not see it, and makes a second one.
    let other = fixture.another();
    fixture.fake.faults().push(Fault::new(Operation::List, What::EmptyList).times(2));
    let second = open(&other, "w").await;
    assert_eq!(second.outcome.kind, OutcomeKind::Created);
    assert_eq!(fixture.fake.sandboxes().all().len(), 2);
    let opened = open(&fixture.another(), "w").await;
    assert_eq!(text(&opened.workspace, "f").await, "the one", "the older one is chosen");
    eventually("the other is paused", async || {
        fixture.fake.sandboxes().all().iter().any(|it| it.id != first && it.state == SandboxState::Paused)
    })
    .await;
    let leftovers = fixture.backend.leftovers().await.unwrap();
    let [leftover] = &leftovers[..] else { panic!("{leftovers:?}") };
    assert!(leftover.name != first && leftover.workspace_id == Some(id("w")) && leftover.reason.contains(&first));
    assert!(fixture.backend.remove_leftover(leftover).await.unwrap());
    assert!(!fixture.backend.remove_leftover(leftover).await.unwrap(), "it is gone");
    assert_eq!(fixture.only().id, first);
}

#[tokio::test]
async fn destroying_leaves_none_of_several() {
    let fixture = fixture!();
    fixture.open("w").await;
    fixture.fake.faults().push(Fault::new(Operation::List, What::EmptyList).times(2));
    open(&fixture.another(), "w").await.workspace.suspend().await.unwrap();
    fixture.open("v").await;
    assert_eq!(fixture.fake.sandboxes().all().len(), 3);
    fixture.another().destroy(&id("w")).await.unwrap();
    assert_eq!(fixture.only().metadata["agentscope.workspace.id"], "v");
}

#[tokio::test]
async fn a_step_after_the_creation_that_fails_leaves_nothing() {
    let fixture = fixture!();
    let refuse = r#"{"code":"unauthenticated","message":"invalid username: 'nobody-there'"}"#;
    fixture.fake.faults().push(Fault::answer(Operation::Start, 401, refuse));
    let error = fixture.backend.open(request("w")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error:?}");
    assert!(fixture.fake.sandboxes().all().is_empty());
}

#[tokio::test]
async fn a_suspend_waits_for_nobody_elses_workspace() {
    let fixture = fixture!();
    let slow = fixture.open("slow").await.workspace;
    let other = fixture.open("other").await.workspace;
    fixture.fake.faults().push(Fault::new(Operation::Pause, What::SlowPause { ms: 3000 }));
    let suspending = async {
        slow.suspend().await.unwrap();
        Instant::now()
    };
    let using = async {
        sleep(Duration::from_millis(300)).await;
        assert!(sh(&other, "true").await.status.success());
        fixture.open("third").await;
        other.suspend().await.unwrap();
        Instant::now()
    };
    let (suspended, used) = tokio::join!(suspending, using);
    assert!(used < suspended, "the others waited");
}

#[tokio::test]
async fn a_manager_resumes_what_has_paused_by_itself() {
    let fixture = fixture!();
    let manager = E2BWorkspaceManager::builder(config(&fixture.fake)).build().unwrap();
    let get = GetRequest::new(Scope::new("ann", "coder", "s1").unwrap());
    let workspace = manager.get_workspace(&get).await.unwrap();
    workspace.write_bytes("f", "kept".into()).await.unwrap();
    fixture.fake.sandboxes().pause(&fixture.only().id).await.unwrap();
    assert_eq!(workspace.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    drop(workspace);
    let workspace = manager.get_workspace(&get).await.unwrap();
    assert_eq!(workspace.read_text("f", 99).await.unwrap(), "kept");
    drop(workspace);
    manager.shutdown(Duration::from_secs(20)).await;
    assert_eq!(fixture.only().state, SandboxState::Paused);
}

/// All that is logged in this test program.
static LOG: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(Arc::default);

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn neither_logs_nor_errors_hold_the_key_or_a_token() {
    let fixture = fixture!();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(|| Writer).finish();
    let _ = subscriber.try_init();
    let workspace = fixture.workspace().await;
    write(&workspace, "f", "x").await;
    sh(&workspace, "true").await;
    let mut shown = format!("{:?}{:#?}{workspace:?}", fixture.backend, fixture.backend);
    // A server that repeats what it was told.
    let echo = format!(r#"{{"code":400,"message":"bad key {KEY}"}}"#);
    for operation in [Operation::List, Operation::Connect] {
        fixture.fake.faults().push(Fault::answer(operation, 400, echo.clone()));
        let error = fixture.another().open(request("w")).await.unwrap_err();
        shown += &format!("{error:?}{error:#?}{}", error.report());
    }
    fixture.fake.faults().push(Fault::answer(Operation::Stat, 403, "no"));
    shown += &format!("{:?}", workspace.stat("f").await.unwrap_err());
    workspace.suspend().await.unwrap();
    shown += &String::from_utf8_lossy(&LOG.lock());
    assert!(shown.contains("***"), "what a server repeats is hidden");
    assert!(!shown.contains(KEY), "the key is shown");
    // A token of the stand-in is 64 hexadecimal digits.
    let is_token = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(!shown.split(|c: char| !c.is_ascii_alphanumeric()).any(is_token), "a token is shown");
}
