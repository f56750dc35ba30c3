//! Workspaces from their first opening to their end, also across restarts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::{path::Path, time::Duration};

use futures::{StreamExt, TryStreamExt};
use support::*;
use test_log::test;
use wsm_core::{
    Backend, BackendConfig, Cause, Command, ErrorKind, FoundState, Health, IsolationPolicy, Loss, OpenRequest, Opened,
    OutcomeKind, Placement, Result, Scope, UserId, WorkspaceExt, WorkspaceId,
};
use wsm_local::{LocalBackend, LocalConfig};

fn owned(text: &str, owner: &str) -> OpenRequest {
    OpenRequest::new(id(text)).with_owner(UserId::new(owner).unwrap())
}

fn placed(id: WorkspaceId, policy: IsolationPolicy, scope: &Scope) -> OpenRequest {
    OpenRequest::new(id).with_owner(scope.user_id.clone()).with_placement(Placement { policy, scope: scope.clone() })
}

fn assigned(policy: IsolationPolicy, scope: &Scope) -> OpenRequest {
    placed(policy.assign(scope), policy, scope)
}

fn workdir(opened: &Opened) -> String {
    opened.workspace.info().workdir.clone()
}

async fn ids(backend: &LocalBackend) -> Vec<String> {
    let mut ids: Vec<_> = backend.list().map_ok(|found| found.id.to_string()).try_collect().await.unwrap();
    ids.sort();
    ids
}

#[test(tokio::test)]
async fn an_opening_tells_what_happened() {
    let basedir = tempfile::tempdir().unwrap();
    let first = backend(basedir.path());
    let opened = open(&first, "w").await;
    assert_eq!((opened.outcome.kind, opened.outcome.lost.len()), (OutcomeKind::Created, 0));
    opened.workspace.write_bytes("file", "x".into()).await.unwrap();
    let again = open(&first, "w").await;
    assert_eq!((again.outcome.kind, again.outcome.lost.len()), (OutcomeKind::Reattached, 0));

    opened.workspace.suspend().await.unwrap();
    assert_eq!(again.workspace.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    let resumed = open(&first, "w").await;
    assert_eq!((resumed.outcome.kind, resumed.outcome.lost), (OutcomeKind::Resumed, [Loss::Processes].into()));
    assert_eq!(resumed.workspace.read_text("file", 9).await.unwrap(), "x");

    let second = backend(basedir.path());
    let restarted = open(&second, "w").await;
    assert_eq!((restarted.outcome.kind, restarted.workspace.info().generation), (OutcomeKind::Resumed, 0));
    assert_eq!(restarted.workspace.read_text("file", 9).await.unwrap(), "x");
}

#[test(tokio::test)]
async fn a_directory_that_vanished_is_told_and_raises_the_generation_for_ever() {
    for while_open in [true, false] {
        let basedir = tempfile::tempdir().unwrap();
        let first = backend(basedir.path());
        let opened = open(&first, "w").await;
        let pid = opened.workspace.sh("sleep 600 >/dev/null 2>&1 & echo $!").await.unwrap().stdout.to_text();
        if !while_open {
            opened.workspace.suspend().await.unwrap();
        }
        std::fs::remove_dir_all(workdir(&opened)).unwrap();
        if while_open {
            assert_eq!(opened.workspace.health().await.unwrap(), Health::Dead(Cause::Deleted));
            assert_eq!(opened.workspace.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
        }
        assert_eq!(first.find(&id("w")).await.unwrap().unwrap().state, FoundState::Dead);

        let recreated = open(&first, "w").await;
        let outcome = recreated.outcome;
        assert_eq!((outcome.kind, outcome.cause), (OutcomeKind::Recreated, Some(Cause::Deleted)));
        assert_eq!(outcome.lost, [Loss::Processes, Loss::WorkspaceFiles].into());
        assert_eq!(recreated.workspace.info().generation, 1);
        assert!(!is_alive(pid.trim().parse().unwrap()), "nothing runs on in the deleted directory");
        assert_eq!(recreated.workspace.health().await.unwrap(), Health::Alive(None));
        let restarted = open(&backend(basedir.path()), "w").await;
        assert_eq!((restarted.outcome.kind, restarted.workspace.info().generation), (OutcomeKind::Resumed, 1));
    }
}

#[test(tokio::test)]
async fn another_directory_in_the_place_of_an_open_one_is_a_loss() {
    let fixture = Fixture::new().await;
    let path = fixture.host_path("");
    std::fs::rename(&path, fixture.basedir.path().join("elsewhere")).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(fixture.workspace.health().await.unwrap(), Health::Dead(Cause::Deleted));
    let opened = open(&fixture.backend, "w").await;
    assert_eq!((opened.outcome.kind, opened.workspace.info().generation), (OutcomeKind::Recreated, 1));
}

#[test(tokio::test)]
async fn an_id_keeps_its_directory_whoever_opens_it_later_also_after_a_restart() {
    let basedir = tempfile::tempdir().unwrap();
    let leader = Scope::new("ann", "leader", "s1").unwrap();
    let request = assigned(IsolationPolicy::PerAgent, &leader);
    let own = request.id.clone();
    let opened = backend(basedir.path()).open(request).await.unwrap();
    let place = std::fs::canonicalize(basedir.path().join("ann/leader")).unwrap();
    assert_eq!(Path::new(&workdir(&opened)), place);
    opened.workspace.write_bytes("file", "of the leader".into()).await.unwrap();

    let helper = Scope::new("ann", "helper", "s2").unwrap();
    for request in [
        OpenRequest::new(own.clone()),
        owned(own.as_str(), "ann"),
        placed(own.clone(), IsolationPolicy::PerAgent, &helper),
        placed(own.clone(), IsolationPolicy::PerSession, &helper),
        placed(own.clone(), IsolationPolicy::PerUser, &leader),
    ] {
        let opened = backend(basedir.path()).open(request).await.unwrap();
        assert_eq!(Path::new(&workdir(&opened)), place);
        assert_eq!(opened.workspace.read_text("file", 99).await.unwrap(), "of the leader");
    }
    // And the other way round: first opened by id alone, it stays where it was put then.
    let first = workdir(&open(&backend(basedir.path()), IsolationPolicy::PerAgent.assign(&helper).as_str()).await);
    let later = backend(basedir.path()).open(assigned(IsolationPolicy::PerAgent, &helper)).await.unwrap();
    assert_eq!(workdir(&later), first);
    assert!(!basedir.path().join("ann/helper").exists());
}

#[test(tokio::test)]
async fn no_two_workspaces_share_a_directory_or_lie_inside_another() {
    let basedir = tempfile::tempdir().unwrap();
    let backend = backend(basedir.path());
    let mut requests: Vec<OpenRequest> =
        ["w", "..", ".", "/", "../../etc", "a/b", "a=2Fb", ".wsm", "ann", "W", &"x".repeat(256), &"é".repeat(128)]
            .map(|text| OpenRequest::new(id(text)))
            .into();
    for (user, agent) in
        [("ann", "coder"), ("..", ".."), (".wsm", "workspaces"), ("ann/coder", "x"), ("a", "b/c"), ("a/b", "c")]
    {
        let scope = Scope::new(user, agent, "s").unwrap();
        requests.extend(IsolationPolicy::ALL.map(|policy| assigned(policy, &scope)));
        // A second id that claims to be this agent's.
        requests.push(placed(WorkspaceId::random(), IsolationPolicy::PerAgent, &scope));
    }
    let base = std::fs::canonicalize(basedir.path()).unwrap();
    let mut directories = Vec::new();
    for request in requests {
        let directory = std::path::PathBuf::from(workdir(&backend.open(request).await.unwrap()));
        assert!(std::fs::canonicalize(&directory).unwrap() == directory && directory.starts_with(&base));
        directories.push(directory);
    }
    for (i, one) in directories.iter().enumerate() {
        for other in &directories[..i] {
            assert!(!one.starts_with(other) && !other.starts_with(one), "{} {}", one.display(), other.display());
        }
    }
    assert_eq!(ids(&backend).await.len(), directories.len());
}

#[test(tokio::test)]
async fn the_place_of_an_agent_is_free_again_after_destroy() {
    let basedir = tempfile::tempdir().unwrap();
    let backend = backend(basedir.path());
    let scope = Scope::new("ann", "coder", "s").unwrap();
    let (first, second) = (id("first"), id("second"));
    let place = workdir(&backend.open(placed(first.clone(), IsolationPolicy::PerAgent, &scope)).await.unwrap());
    assert_ne!(workdir(&backend.open(placed(second.clone(), IsolationPolicy::PerAgent, &scope)).await.unwrap()), place);
    backend.destroy(&first).await.unwrap();
    backend.destroy(&second).await.unwrap();
    assert_eq!(workdir(&backend.open(placed(second, IsolationPolicy::PerAgent, &scope)).await.unwrap()), place);
}

#[test(tokio::test)]
async fn a_foreign_owner_is_refused_without_a_name_and_nothing_changes() {
    let basedir = tempfile::tempdir().unwrap();
    let first = backend(basedir.path());
    let opened = first.open(owned("w", "ann@example.org")).await.unwrap();
    for backend in [&first, &backend(basedir.path())] {
        let before = backend.find(&id("w")).await.unwrap();
        let error = backend.open(owned("w", "bob")).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "foreign_owner"));
        assert!(!format!("{error:?}").contains("ann"), "{error:?}");
        assert_eq!(backend.find(&id("w")).await.unwrap(), before);
        backend.open(owned("w", "ann@example.org")).await.unwrap();
        backend.open(OpenRequest::new(id("w"))).await.unwrap();
        backend.open(owned("w", "bob").with_foreign_owner_allowed(true)).await.unwrap();
        let owner = backend.find(&id("w")).await.unwrap().unwrap().owner.unwrap();
        assert_eq!(owner.as_str(), "ann@example.org");
    }
    assert_eq!(opened.workspace.health().await.unwrap(), Health::Alive(None));
}

#[test(tokio::test)]
async fn a_workspace_without_an_owner_belongs_to_the_first_who_has_a_name() {
    let basedir = tempfile::tempdir().unwrap();
    let backend = backend(basedir.path());
    open(&backend, "w").await;
    assert_eq!(backend.find(&id("w")).await.unwrap().unwrap().owner, None);
    backend.open(owned("w", "ann")).await.unwrap();
    assert_eq!(backend.open(owned("w", "bob")).await.unwrap_err().code(), "foreign_owner");
}

#[test(tokio::test)]
async fn find_and_list_see_what_exists_and_change_nothing() {
    let basedir = tempfile::tempdir().unwrap();
    let backend = backend(basedir.path());
    assert_eq!(backend.find(&id("w")).await.unwrap(), None);
    assert_eq!(ids(&backend).await, Vec::<String>::new());
    let opened = open(&backend, "w").await;
    for i in 0..600 {
        let path = basedir.path().join(format!(".wsm/index/x{i}.json"));
        let record = format!(
            r#"{{"version":1,"id":"x{i}","path":"u/x{i}","owner":null,"generation":3,"created_at":"2030-01-01T00:00:00Z"}}"#
        );
        std::fs::write(path, record).unwrap();
    }
    let found = backend.find(&id("w")).await.unwrap().unwrap();
    assert_eq!((found.state, found.location.clone()), (FoundState::Running, workdir(&opened)));
    opened.workspace.suspend().await.unwrap();
    assert_eq!(backend.find(&id("w")).await.unwrap().unwrap().state, FoundState::Suspended);
    let mut expected: Vec<String> = (0..600).map(|i| format!("x{i}")).chain(["w".to_owned()]).collect();
    expected.sort();
    assert_eq!(ids(&backend).await, expected);
}

#[test(tokio::test)]
async fn destroy_removes_everything_and_the_id_is_new_again() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir -p a/b; echo x > a/b/c; mkdir shut; touch shut/x; chmod 000 shut; ln -s / root").await;
    let other = open(&fixture.backend, "other").await;
    let path = fixture.host_path("");
    fixture.backend.destroy(&id("w")).await.unwrap();
    assert!(!path.exists());
    assert_eq!(std::fs::read_dir(fixture.basedir.path().join(".wsm/trash")).unwrap().count(), 0);
    assert_eq!(fixture.workspace.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(fixture.workspace.stat(".").await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(fixture.backend.find(&id("w")).await.unwrap(), None);
    assert_eq!(ids(&fixture.backend).await, ["other"]);
    fixture.backend.destroy(&id("w")).await.unwrap();
    let again = open(&fixture.backend, "w").await;
    assert_eq!((again.outcome.kind, again.workspace.info().generation), (OutcomeKind::Created, 0));
    assert!(again.workspace.list(".").await.unwrap().is_empty());
    assert_eq!(other.workspace.health().await.unwrap(), Health::Alive(None));
}

#[test(tokio::test)]
async fn destroy_ends_what_another_process_runs_there() {
    let fixture = Fixture::new().await;
    let other = backend(fixture.basedir.path());
    let there = open(&other, "w").await.workspace;
    let pid = there.sh("sleep 600 >/dev/null 2>&1 & echo $!").await.unwrap().stdout.to_text().trim().parse().unwrap();
    assert!(is_alive(pid));
    fixture.workspace.suspend().await.unwrap();
    assert!(is_alive(pid), "suspend ends what this backend runs");
    fixture.backend.destroy(&id("w")).await.unwrap();
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn a_detached_workspace_goes_on_for_others() {
    let fixture = Fixture::new().await;
    let other = open(&fixture.backend, "w").await.workspace;
    let pid = fixture.sh("sleep 600 >/dev/null 2>&1 & echo $!").await.parse().unwrap();
    fixture.workspace.detach().await.unwrap();
    assert_eq!(fixture.workspace.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(fixture.workspace.stat(".").await.unwrap_err().kind(), ErrorKind::Gone);
    assert!(is_alive(pid));
    assert!(other.exec(Command::new("true")).await.unwrap().status.success());
    assert_eq!(open(&fixture.backend, "w").await.outcome.kind, OutcomeKind::Reattached);
    other.suspend().await.unwrap();
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn a_suspend_that_was_given_up_is_finished_by_the_next_opening() {
    let fixture = Fixture::new().await;
    let pid = fixture.sh("(trap '' TERM; sleep 600) >/dev/null 2>&1 & echo $!").await.parse().unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(1), fixture.workspace.suspend()).await;
    assert!(given_up.is_err());
    let opened = soon("it is opened", fixture.backend.open(OpenRequest::new(id("w")))).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert!(!is_alive(pid));
}

#[test(tokio::test)]
async fn two_backends_on_one_basedir_agree() {
    let basedir = tempfile::tempdir().unwrap();
    let backends: Vec<LocalBackend> = (0..4).map(|_| backend(basedir.path())).collect();
    let scope = Scope::new("ann", "coder", "s").unwrap();
    let all = (0..40).map(|i| backends[i % 4].open(assigned(IsolationPolicy::PerAgent, &scope)));
    let opened: Vec<Opened> = futures::future::try_join_all(all).await.unwrap();
    let created = opened.iter().filter(|opened| opened.outcome.kind == OutcomeKind::Created).count();
    let directories: std::collections::HashSet<String> = opened.iter().map(workdir).collect();
    assert_eq!((created, directories.len()), (1, 1));
    assert!(opened.iter().all(|opened| opened.workspace.info().generation == 0));
}

#[test(tokio::test)]
async fn a_damaged_record_is_an_error_that_names_the_file_and_never_a_fresh_directory() {
    let fixture = Fixture::new().await;
    fixture.workspace.write_bytes("file", "precious".into()).await.unwrap();
    fixture.workspace.suspend().await.unwrap();
    open(&fixture.backend, "fine").await;
    let file = fixture.basedir.path().join(".wsm/index/w.json");
    let record = std::fs::read_to_string(&file).unwrap();
    for damage in [
        String::new(),
        record[..record.len() / 2].to_owned(),
        record.replace("\"w\"", "\"v\""),
        record.replace("workspaces", ".."),
    ] {
        std::fs::write(&file, damage).unwrap();
        let damaged = |result: Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.code(), "index_damaged");
            assert!(error.to_string().contains(".wsm/index/w.json"), "{error}");
        };
        damaged(fixture.backend.open(OpenRequest::new(id("w"))).await.map(drop));
        damaged(fixture.backend.find(&id("w")).await.map(drop));
        damaged(fixture.backend.destroy(&id("w")).await);
        let listed: Vec<_> = fixture.backend.list().collect().await;
        assert_eq!((listed.len(), listed.iter().filter(|found| found.is_ok()).count()), (2, 1));
        damaged(listed.into_iter().find_map(Result::err).map_or(Ok(()), Err));
    }
    std::fs::write(&file, record).unwrap();
    let restored = open(&fixture.backend, "w").await;
    assert_eq!(restored.workspace.read_text("file", 99).await.unwrap(), "precious");
}

#[test(tokio::test)]
async fn what_a_crash_interrupted_is_told_as_if_it_had_not_been() {
    let basedir = tempfile::tempdir().unwrap();
    open(&backend(basedir.path()), "w").await;
    let file = basedir.path().join(".wsm/index/w.json");
    let interrupted = |arriving: &str, generation: u64| {
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        record["arriving"] = arriving.into();
        record["generation"] = generation.into();
        std::fs::write(&file, record.to_string()).unwrap();
        std::fs::remove_dir_all(basedir.path().join(".wsm/workspaces/w")).unwrap();
    };
    interrupted("created", 0);
    let opened = open(&backend(basedir.path()), "w").await;
    assert_eq!((opened.outcome.kind, opened.workspace.info().generation), (OutcomeKind::Created, 0));
    interrupted("recreated", 1);
    for (kind, generation) in [(OutcomeKind::Recreated, 1), (OutcomeKind::Resumed, 1)] {
        let opened = open(&backend(basedir.path()), "w").await;
        assert_eq!((opened.outcome.kind, opened.workspace.info().generation), (kind, generation));
    }
}

#[test(tokio::test)]
async fn a_directory_without_a_record_is_kept() {
    let basedir = tempfile::tempdir().unwrap();
    let scope = Scope::new("ann", "coder", "s").unwrap();
    std::fs::create_dir_all(basedir.path().join("ann/coder")).unwrap();
    std::fs::write(basedir.path().join("ann/coder/file"), "x").unwrap();
    let opened = backend(basedir.path()).open(assigned(IsolationPolicy::PerAgent, &scope)).await.unwrap();
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_eq!(opened.workspace.read_text("file", 9).await.unwrap(), "x");
}

#[test(tokio::test)]
async fn an_unusable_basedir_is_refused_at_the_start_with_what_to_do() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    for basedir in [file.clone(), file.join("below"), "/proc/wsm".into()] {
        let error = backend(&basedir).start().await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("basedir")), "{error:?}");
        assert!(error.to_string().contains(basedir.to_str().unwrap()), "{error}");
    }
    let error = backend(&file).probe().await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unavailable, Some("basedir")));
}

#[test(tokio::test)]
async fn another_basedir_in_the_place_of_the_first_is_unavailable_and_creates_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let basedir = scratch.path().join("base");
    let backend = backend(&basedir);
    let opened = open(&backend, "w").await;
    std::fs::rename(&basedir, scratch.path().join("elsewhere")).unwrap();
    for replaced in [false, true] {
        if replaced {
            std::fs::create_dir(&basedir).unwrap();
        }
        assert_eq!(backend.open(OpenRequest::new(id("w"))).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(backend.find(&id("w")).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(backend.destroy(&id("w")).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(opened.workspace.health().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(std::fs::read_dir(&basedir).unwrap().count(), 0);
}

#[test(tokio::test)]
async fn probe_tells_what_there_is_and_warns_that_there_is_no_sandbox() {
    let scratch = tempfile::tempdir().unwrap();
    let basedir = scratch.path().join("base");
    let probe = backend(&basedir).probe().await.unwrap();
    assert!(!basedir.exists(), "a probe changes nothing");
    assert!(probe.warnings.iter().any(|warning| warning.contains("no sandbox")), "{probe:?}");
    assert!(probe.warnings.iter().any(|warning| warning.contains("does not exist yet")), "{probe:?}");
    backend(&basedir).start().await.unwrap();
    let probe = backend(&basedir).probe().await.unwrap();
    assert_eq!(probe.warnings.len(), 1);
    assert!(probe.facts.iter().any(|fact| fact.contains("file system")), "{probe:?}");
}

#[test(tokio::test)]
async fn start_deletes_what_a_crash_left_half_deleted() {
    let fixture = Fixture::new().await;
    let trash = fixture.basedir.path().join(".wsm/trash");
    std::fs::create_dir_all(trash.join("half/deleted")).unwrap();
    std::fs::write(trash.join("draft"), "{").unwrap();
    backend(fixture.basedir.path()).start().await.unwrap();
    assert_eq!(std::fs::read_dir(&trash).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_that_start_at_once_on_one_basedir_are_not_in_each_others_way() {
    for _ in 0..20 {
        let base = tempfile::tempdir().unwrap();
        let backends: Vec<_> = (0..8).map(|_| LocalConfig::new(base.path()).build().unwrap()).collect();
        let starts = backends.iter().map(|backend| backend.start());
        futures::future::try_join_all(starts).await.unwrap();
    }
}
