//! How sandboxes end, and what is left of them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command as Program, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{Sandboxed, basedir, gated, inits, kill_sandbox, processes_with, program, require_bwrap, unique};
use rustix::process::{Signal, geteuid, kill_process};
use wsm_bubblewrap::{BubblewrapConfig, BubblewrapWorkspaceManager, Network, UidRange};
use wsm_core::{
    Backend, BackendConfig, Cause, Command, Encoding, Error, ErrorKind, ExitStatus, FoundState, GetRequest, Health,
    Loss, OutcomeKind, Scope, WorkspaceExt, WorkspaceId, WorkspaceManager,
};
use wsm_gateway::GatewayLayer;

/// Much longer than anything takes, and short enough to wait for when a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "real processes take real time")]
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn get(id: &str) -> GetRequest {
    GetRequest::new(Scope::new("ann", "coder", "s").unwrap()).with_workspace_id(WorkspaceId::new(id).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_sandbox_was_killed_the_next_get_opens_it_anew_and_says_so() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let config = BubblewrapConfig::new(sandboxed.base.path());
    let layer = Arc::new(GatewayLayer::new(program().unwrap()));
    let manager = BubblewrapWorkspaceManager::builder(config).layer(layer).build().unwrap();
    manager.start().await.unwrap();
    let id = unique("killed");
    let handle = manager.get_workspace(&get(&id)).await.unwrap();
    handle.sh("echo kept > f; (sleep 100 &) ; echo > /tmp/lost").await.unwrap();
    let running = handle.sh("touch begun; sleep 100");
    let killing = async {
        while handle.stat("begun").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(kill_sandbox(&id));
    };
    let (result, ()) = tokio::join!(running, killing);
    let status = result.unwrap().status;
    assert!(matches!(status, ExitStatus::Unknown { .. }), "never a success, never a guess: {status:?}");
    drop(handle);
    let handle = manager.get_workspace(&get(&id)).await.unwrap();
    let outcome = &handle.opening().outcome;
    assert_eq!((outcome.kind, outcome.cause), (OutcomeKind::Resumed, Some(Cause::Killed)), "{outcome:?}");
    assert!(outcome.lost.contains(&Loss::Processes) && !outcome.lost.contains(&Loss::WorkspaceFiles), "{outcome:?}");
    let after = handle.sh("cat f; ls /tmp; ps ax | grep -c '[s]leep 100'").await.unwrap();
    assert_eq!(after.stdout.to_text(), "kept\n0\n");
    drop(handle);
    let report = manager.shutdown(Duration::from_secs(10)).await;
    assert!(report.failed.is_empty(), "{report:?}");
    eventually("nothing is left after a shutdown", || processes_with(&id).is_empty()).await;
}

/// What [`a_killed_service_leaves_no_process`] runs as a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_to_be_killed() {
    let Some(base) = std::env::var_os("WSM_TEST_SERVICE") else { return };
    let backend = gated(BubblewrapConfig::new(base), program().unwrap()).unwrap();
    backend.start().await.unwrap();
    let mut opened = Vec::new();
    for id in std::env::var("WSM_TEST_IDS").unwrap().split(' ') {
        let request = wsm_core::OpenRequest::new(WorkspaceId::new(id).unwrap());
        let workspace = backend.open(request).await.unwrap().workspace;
        workspace.sh("setsid sleep 1000 > /dev/null 2>&1 & (setsid sleep 1000 &) > /dev/null 2>&1").await.unwrap();
        workspace
            .sh("setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 0.1; done' > /dev/null 2>&1 &")
            .await
            .unwrap();
        workspace.sh("echo kept > f").await.unwrap();
        opened.push(workspace);
    }
    println!("\nopen");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_service_leaves_no_process() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let ids = [unique("orphan"), unique("orphan"), unique("orphan")];
    let mut service = Program::new(std::env::current_exe().unwrap());
    service.args(["--exact", "a_service_that_is_to_be_killed", "--nocapture"]);
    service.env("WSM_TEST_SERVICE", sandboxed.base.path()).env("WSM_TEST_IDS", ids.join(" ")).stdout(Stdio::piped());
    let mut service = service.spawn().unwrap();
    let lines = BufReader::new(service.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "open"), "the service opens its workspaces");
    let init = inits(&ids[0])[0];
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let inside = namespace(&init.as_raw_nonzero().to_string());
    let processes = || {
        let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        numbers.filter(|number| inside.is_some() && namespace(number) == inside).count()
    };
    // Only root sees other users' namespaces.
    assert!(processes() > 3 || !geteuid().is_root(), "{}", processes());
    service.kill().unwrap();
    service.wait().unwrap();
    // Whoever comes at once has the directory for himself all the same.
    let early = sandboxed.open(&ids[0]).await;
    assert_eq!(inits(&ids[0]).len(), 1);
    early.suspend().await.unwrap();
    eventually("no sandbox is left", || ids.iter().all(|id| processes_with(id).is_empty())).await;
    assert_eq!(processes(), 0);
    // The next service finds the files, and removes what was left of limits.
    sandboxed.backend.start().await.unwrap();
    let opened = sandboxed.opened(&ids[1]).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Resumed);
    assert_eq!(opened.workspace.read_text("f", 100).await.unwrap(), "kept\n");
    let groups = fs::read_dir("/sys/fs/cgroup/pids").into_iter().flatten().flatten();
    let left =
        groups.filter(|group| group.file_name().to_string_lossy().starts_with(&format!("wsm-{}-", service.id())));
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_kept_and_an_excess_is_told() {
    let configure =
        |config: BubblewrapConfig| config.with_memory(96 << 20).with_pids(64).with_tmp_size(1 << 20).with_cpus(0.5);
    let Some(sandboxed) = Sandboxed::new(configure).await else { return };
    let id = unique("limited");
    let workspace = sandboxed.open(&id).await;
    let full = workspace.sh("head -c 2000000 /dev/zero > /tmp/x; stat -c %s /tmp/x").await.unwrap();
    assert_eq!(full.stdout.to_text().trim(), (1 << 20).to_string());
    assert!(full.stderr.to_text().contains("No space left"), "{full:?}");
    let probe = sandboxed.backend.probe().await.unwrap();
    if let Some(warning) = probe.warnings.iter().find(|warning| warning.contains("can not be limited here")) {
        println!("skipped: {warning}");
        return;
    }
    assert!(probe.facts.iter().any(|fact| fact.contains("limit memory, pids, cpu")), "{probe:?}");
    let forks = "i=0; while [ $i -lt 100 ]; do sleep 6 & i=$((i+1)); done 2>&1; wait";
    let forked = workspace.sh(forks).await.unwrap();
    assert!(forked.stdout.to_text().contains("annot fork"), "{forked:?}");
    // The shell gives up at once, and leaves what it has started. Until that ends, there is no room for a command.
    let mut tries = 0;
    let none_is_left = "ps ax | grep -q '[s]leep 6' && exit 1; true";
    while !workspace.sh(none_is_left).await.is_ok_and(|ran| ran.status.success()) {
        tries += 1;
        assert!(tries < 200, "there is no room again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let burn = "perl -e 'use Time::HiRes; $t = Time::HiRes::time(); while ((times)[0] < 0.5) {} print(Time::HiRes::time() - $t)'";
    let burnt = workspace.sh(burn).await.unwrap();
    let seconds: f64 = burnt.stdout.to_text().parse().unwrap_or_else(|_| panic!("{burnt:?}"));
    assert!(seconds > 0.8, "half a processor: {seconds}");

    let eaten = workspace.sh("perl -e '$x = \"x\" x (300 << 20); print length $x'").await.unwrap();
    assert!(!eaten.status.success(), "{eaten:?}");
    // Either the one process was ended, or with it all of them.
    let health = workspace.health().await.unwrap();
    assert!(matches!(health, Health::Alive(_) | Health::Dead(Cause::OutOfMemory)), "{health:?}");
    kill_sandbox(&id);
    eventually("it is dead", || inits(&id).is_empty()).await;
    let opened = sandboxed.opened(&id).await;
    assert_eq!(opened.outcome.cause, Some(Cause::OutOfMemory), "{:?}", opened.outcome);
    assert_eq!(opened.workspace.sh("echo again").await.unwrap().stdout.to_text(), "again\n");
}

/// Threads that block end after ten seconds without work, so that there is none left when commands take all the room.
#[tokio::test(flavor = "multi_thread")]
async fn without_room_for_a_thread_calls_are_answered() {
    let Some(sandboxed) = Sandboxed::new(|config| config.with_pids(32)).await else { return };
    let warnings = sandboxed.backend.probe().await.unwrap().warnings;
    if let Some(warning) = warnings.iter().find(|warning| warning.contains("can not be limited here")) {
        println!("skipped: {warning}");
        return;
    }
    let id = unique("crowded");
    let workspace = sandboxed.open(&id).await;
    let mark = unique("crowd-of-31");
    let crowd = format!(
        "perl -e 'while (1) {{ $p = fork; if (!defined $p) {{ select undef, undef, undef, 0.05 }} \
         elsif (!$p) {{ sleep 1000; exit }} }}' {mark} > /dev/null 2>&1 &"
    );
    workspace.sh(&crowd).await.unwrap();
    let init = inits(&id)[0].as_raw_nonzero();
    let threads = || fs::read_dir(format!("/proc/{init}/task")).map_or(0, Iterator::count);
    let is_full = || threads() == 1 && processes_with(&mark).len() == 31;
    eventually("the threads that block have ended, and their room is taken", is_full).await;
    let answers = async { (workspace.sh("true").await, workspace.stat(".").await) };
    let (command, file) = tokio::time::timeout(PATIENCE, answers).await.expect("an answer comes");
    assert_eq!(command.unwrap_err().kind(), ErrorKind::Capacity);
    // There may be room at times.
    assert!(file.as_ref().map_or_else(|error| error.kind() == ErrorKind::Capacity, |_| true), "{file:?}");
    assert!(matches!(workspace.health().await.unwrap(), Health::Alive(_)));
}

/// Whether a workspace has a control group that limits its processes, or had one that is left.
fn has_group(id: &str) -> bool {
    let id = Encoding::hash(id);
    let groups = fs::read_dir("/sys/fs/cgroup/pids").into_iter().flatten().flatten();
    groups.filter_map(|group| group.file_name().into_string().ok()).any(|name| name.contains(&id))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_sandboxes_leave_nothing() {
    let Some(sandboxed) = Sandboxed::new(|config| config.with_network(Network::None)).await else { return };
    sandboxed.backend.start().await.unwrap();
    let files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    let limits = sandboxed.backend.probe().await.unwrap().facts.iter().any(|fact| fact.contains("(v1) limit"));
    for round in 0..10 {
        let ids: Vec<String> = (0..10).map(|number| unique(&format!("hundred-{round}-{number}"))).collect();
        let opened = futures::future::join_all(ids.iter().map(|id| sandboxed.open(id))).await;
        futures::future::join_all(opened.iter().map(|workspace| workspace.sh("echo x > f"))).await;
        // Or what is looked for in the end is not how they are called.
        assert!(!limits || ids.iter().all(|id| has_group(id)), "{ids:?}");
        for (number, workspace) in opened.iter().enumerate() {
            match number % 3 {
                0 => drop(workspace.suspend().await.unwrap()),
                1 => assert!(kill_sandbox(&ids[number])),
                _ => {}
            }
            let id = WorkspaceId::new(&ids[number]).unwrap();
            sandboxed.backend.destroy(&id).await.unwrap();
        }
        for id in &ids {
            eventually("the sandbox is gone", || processes_with(id).is_empty()).await;
            assert!(!has_group(id), "a control group is left");
        }
    }
    let left = |directory: &str| fs::read_dir(sandboxed.base.path().join(directory)).map_or(0, Iterator::count);
    assert_eq!((left(".wsm/index"), left(".wsm/trash"), left(".wsm/uids"), left(".wsm/places")), (0, 0, 0, 0));
    eventually("no file is left open", || files() <= before + 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_holds_also_when_the_first_process_stands_still() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let id = unique("still");
    let workspace = sandboxed.open(&id).await;
    let running =
        workspace.exec(Command::shell("echo so far; touch begun; sleep 60").with_timeout(Duration::from_secs(4)));
    let mark = sandboxed.directory(&id).join("begun");
    let stopping = async {
        eventually("the command runs", || mark.exists()).await;
        // What it has said needs a moment, too.
        tokio::time::sleep(Duration::from_millis(500)).await;
        kill_process(inits(&id)[0], Signal::STOP).unwrap();
    };
    let begun = tokio::time::Instant::now();
    let (result, ()) = tokio::join!(running, stopping);
    let result = result.unwrap();
    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
    assert_eq!(result.stdout.to_text(), "so far\n");
    assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    // And putting it away does not wait for it for ever.
    workspace.suspend().await.unwrap();
    assert!(inits(&id).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_tells_the_living_from_the_dead() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let id = unique("found");
    drop(sandboxed.open(&id).await);
    let workspace_id = WorkspaceId::new(&id).unwrap();
    let state = async || sandboxed.backend.find(&workspace_id).await.unwrap().unwrap().state;
    assert_eq!(state().await, FoundState::Running);
    assert!(kill_sandbox(&id));
    let begun = tokio::time::Instant::now();
    while state().await != FoundState::Suspended {
        assert!(begun.elapsed() < PATIENCE, "it is dead");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_replaced_is_noticed() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let id = unique("replaced");
    let workspace = sandboxed.open(&id).await;
    workspace.write_bytes("f", "x".into()).await.unwrap();
    fs::remove_dir_all(sandboxed.directory(&id)).unwrap();
    assert_eq!(workspace.health().await.unwrap(), Health::Dead(Cause::Deleted));
    let opened = sandboxed.opened(&id).await;
    assert_eq!((opened.outcome.kind, opened.workspace.info().generation), (OutcomeKind::Recreated, 1));
    assert_eq!(opened.workspace.list(".").await.unwrap(), []);
    assert_eq!(inits(&id).len(), 1);
}

/// A refusal, from a real attempt to open.
async fn refusal(config: BubblewrapConfig) -> Error {
    let backend = gated(config, program().unwrap()).unwrap();
    let error = backend.start().await.unwrap_err();
    // Nor does it open anything, with or without a start.
    let id = unique("refused");
    let request = wsm_core::OpenRequest::new(WorkspaceId::new(&id).unwrap());
    assert_eq!(backend.open(request).await.unwrap_err().code(), error.code());
    assert!(inits(&id).is_empty());
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn what_bwrap_refuses_is_never_done_without_it() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let base = || BubblewrapConfig::new(sandboxed.base.path().join("fresh"));
    let error = refusal(base().with_bwrap("/nowhere/bwrap")).await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "bwrap_missing"));
    assert!(error.to_string().contains("apt-get install bubblewrap"), "{error}");

    // As a host that has the program and refuses what it asks for: a probe of the version alone would see nothing.
    let tools = basedir();
    fs::set_permissions(tools.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let refusing = tools.path().join("bwrap");
    let script = "#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.8.0;; --help) exec bwrap --help;;\n\
                  *) echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1;; esac\n";
    fs::write(&refusing, script.replace("exec bwrap", "exec /usr/bin/bwrap")).unwrap();
    fs::set_permissions(&refusing, fs::Permissions::from_mode(0o755)).unwrap();
    let error = refusal(base().with_bwrap(&refusing)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("setting up uid map"), "{error}");

    if !geteuid().is_root() {
        println!("skipped: only root has sandboxes of other users");
        return;
    }
    let closed = tempfile::tempdir().unwrap();
    fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let error = refusal(BubblewrapConfig::new(closed.path().join("deep"))).await;
    assert_eq!(error.code(), "path_not_enterable", "{error}");
    assert!(error.to_string().contains("chmod"), "{error}");
}

/// Each holds a file that only root can read, and a link to it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_can_not_fool_the_service() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let secret = basedir();
    fs::write(secret.path().join("secret"), "s3cret").unwrap();
    let workspace = sandboxed.open("fool").await;
    let target = secret.path().display();
    workspace
        .sh(&format!("ln -s {target}/secret link; ln -s {target} dir; mkfifo pipe; mkdir -p a/b; chmod 000 a"))
        .await
        .unwrap();
    workspace.suspend().await.unwrap();
    if geteuid().is_root() {
        // As after a change of the configuration: everything is given to another user, and nothing outside.
        std::os::unix::fs::chown(sandboxed.directory("fool"), Some(0), Some(0)).unwrap();
    }
    let workspace = sandboxed.open("fool").await;
    workspace.suspend().await.unwrap();
    sandboxed.backend.destroy(&WorkspaceId::new("fool").unwrap()).await.unwrap();
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(secret.path().join("secret")).unwrap();
    assert_eq!(metadata.uid(), geteuid().as_raw());
    assert_eq!(fs::read_to_string(secret.path().join("secret")).unwrap(), "s3cret");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_all_users_are_taken_it_says_so() {
    if !geteuid().is_root() || require_bwrap().is_err() {
        println!("skipped: only root has sandboxes of other users");
        return;
    }
    let configure = |config: BubblewrapConfig| config.with_uids(UidRange { first: 1_900_000_000, count: 2 });
    let Some(sandboxed) = Sandboxed::new(configure).await else { return };
    let _both = (sandboxed.open("one").await, sandboxed.open("two").await);
    let request = wsm_core::OpenRequest::new(WorkspaceId::new("three").unwrap());
    let error = sandboxed.backend.open(request).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Capacity, Some("uids")));
    sandboxed.backend.destroy(&WorkspaceId::new("one").unwrap()).await.unwrap();
    let opened = sandboxed.opened("three").await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Created, "nobody was told before");
}

#[test]
fn a_basedir_that_a_link_hides_below_what_is_shown_is_refused() {
    if !geteuid().is_root() {
        println!("skipped: only root can make a directory below /usr");
        return;
    }
    let hidden = Path::new("/usr/local").join(format!("wsm-test-{}", std::process::id()));
    fs::create_dir(&hidden).unwrap();
    let links = basedir();
    let link = links.path().join("workspaces");
    std::os::unix::fs::symlink(&hidden, &link).unwrap();
    let backend = BubblewrapConfig::new(&link).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(backend.start());
    fs::remove_dir_all(&hidden).unwrap();
    if require_bwrap().is_ok() {
        assert_eq!(result.unwrap_err().field(), Some("basedir"));
    }
}
