//! The real program, driven as a backend drives it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

use std::{
    fs,
    future::Future,
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::{Command as StdCommand, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use rustix::process::{Pid, Signal, getuid, kill_process};
use support::{Gated, Gateway, Inside, Way};
use tokio::{
    io::AsyncWriteExt,
    process::Command as Program,
    time::{sleep, timeout},
};
use wsm_conformance::{Subject, Verdict, run_all};
use wsm_core::{
    Backend, BackendConfig, Command, ErrorKind, ExitStatus, InitProgram, Layer, ManagedWorkspace, OpenedInfo, Outcome,
    OutcomeKind, ProcessEvent, Workspace, WorkspaceExt, WorkspaceId, byte_stream,
};
use wsm_gateway::{
    ExecCalls, GatewayClient, GatewayLayer, GlobRequest, GrepRequest, Overwrite, UnpackRequest, WalkOptions,
};
use wsm_local::LocalConfig;

/// Much longer than anything takes, and short enough to wait for when a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

mod support {
    use std::{
        collections::HashMap,
        os::unix::process::ExitStatusExt,
        path::PathBuf,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use async_trait::async_trait;
    use futures::stream::BoxStream;
    use parking_lot::Mutex;
    use rustix::process::{Pid, Signal, kill_process};
    use tokio::{net::UnixStream, process::Child};
    use wsm_core::*;
    use wsm_local::LocalBackend;

    /// How a gateway is reached.
    #[derive(Debug)]
    pub(crate) enum Way {
        /// By one end of a socket pair, once.
        Pair(Mutex<Option<UnixStream>>),
        /// By the name of a socket.
        Path(PathBuf),
    }

    /// A running program.
    #[derive(Debug)]
    pub(crate) struct Gateway {
        pub(crate) way: Way,
        pub(crate) pid: Pid,
        child: tokio::sync::Mutex<Option<Child>>,
    }

    impl Gateway {
        pub(crate) fn new(way: Way, child: Child) -> Arc<Self> {
            let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
            Arc::new(Self { way, pid, child: tokio::sync::Mutex::new(Some(child)) })
        }

        /// Waits for the program's end, and expects a good one. None when somebody has seen it already.
        pub(crate) async fn ended(&self) -> Option<std::process::ExitStatus> {
            let mut child = self.child.lock().await;
            if let Way::Pair(unused) = &self.way {
                unused.lock().take();
            }
            let status = child.as_mut()?.wait().await.unwrap();
            *child = None;
            Some(status)
        }

        /// Ends the program as a backend does that can not close its channel.
        async fn terminate(&self) {
            if self.child.lock().await.is_some() {
                // Nobody else reaps it, so that the number is its own.
                let _ = kill_process(self.pid, Signal::TERM);
            }
            if let Some(status) = self.ended().await {
                // One that was just started may not listen to the signal yet.
                assert!(status.success() || status.signal() == Some(15), "{status}");
            }
        }

        async fn expect_end(&self) {
            if let Some(status) = self.ended().await {
                assert_eq!(status.code(), Some(0), "{status}");
            }
        }
    }

    /// A workspace that is reached through a gateway, whose directory is one of the local backend's.
    #[derive(Debug)]
    pub(crate) struct Inside {
        pub(crate) info: WorkspaceInfo,
        pub(crate) gateway: Arc<Gateway>,
        pub(crate) directory: Option<Arc<dyn ManagedWorkspace>>,
    }

    #[async_trait]
    impl Workspace for Inside {
        fn info(&self) -> &WorkspaceInfo {
            &self.info
        }

        fn capabilities(&self) -> Capabilities {
            let shell = Capabilities::NONE.with_shell(true).with_background(true);
            shell.with_init(true).with_connect(true)
        }

        async fn exec(&self, _: Command) -> Result<ExecResult> {
            Err(Error::unsupported("exec"))
        }

        async fn connect(&self, _: &Endpoint) -> Result<Connection> {
            let stream = match &self.gateway.way {
                Way::Pair(stream) => stream.lock().take(),
                Way::Path(path) if self.directory.is_none() || self.gateway.child.lock().await.is_some() => {
                    let connected = UnixStream::connect(path).await;
                    Some(connected.map_err(|cause| {
                        Error::new(ErrorKind::Unavailable, "nobody listens on the socket").with_source(cause)
                    })?)
                }
                Way::Path(_) => None,
            };
            match stream {
                Some(stream) => Ok(Connection::Bytes(Box::pin(stream))),
                None => Err(Error::new(ErrorKind::Gone, "the gateway has ended")),
            }
        }
    }

    #[async_trait]
    impl ManagedWorkspace for Inside {
        async fn suspend(&self) -> Result<Option<Checkpoint>> {
            match self.gateway.way {
                // The channel was closed, with which it ends.
                Way::Pair(_) => self.gateway.expect_end().await,
                Way::Path(_) => self.gateway.terminate().await,
            }
            match &self.directory {
                Some(directory) => directory.suspend().await,
                None => Ok(None),
            }
        }

        async fn detach(&self) -> Result<()> {
            if let Way::Pair(_) = self.gateway.way {
                self.gateway.expect_end().await;
            }
            match &self.directory {
                Some(directory) => directory.detach().await,
                None => Ok(()),
            }
        }

        async fn health(&self) -> Result<Health> {
            match &self.directory {
                Some(directory) => directory.health().await,
                None => Ok(Health::Alive(None)),
            }
        }

        async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
            match &self.directory {
                Some(directory) => directory.keep_alive(duration).await,
                None => Ok(None),
            }
        }
    }

    /// A backend that starts one program for each workspace. The local backend knows the directories.
    #[derive(Debug)]
    pub(crate) struct Gated {
        pub(crate) local: LocalBackend,
        /// Where sockets are; none for socket pairs.
        pub(crate) sockets: Option<PathBuf>,
        /// All of a workspace. The last one is the one that is shared, if it can be.
        pub(crate) gateways: Mutex<HashMap<WorkspaceId, Vec<Arc<Gateway>>>>,
    }

    static SOCKETS: AtomicU32 = AtomicU32::new(0);

    impl Gated {
        async fn end(&self, id: &WorkspaceId) {
            let running = self.gateways.lock().remove(id);
            for gateway in running.into_iter().flatten() {
                gateway.terminate().await;
            }
        }

        fn start(&self, workdir: &str) -> Arc<Gateway> {
            match &self.sockets {
                None => super::start_pair(super::program(), &["--workdir", workdir]),
                Some(sockets) => {
                    let path = sockets.join(SOCKETS.fetch_add(1, Ordering::Relaxed).to_string());
                    super::start_listening(&path, workdir)
                }
            }
        }
    }

    #[async_trait]
    impl Backend for Gated {
        fn kind(&self) -> &'static str {
            self.local.kind()
        }

        fn capabilities(&self) -> Capabilities {
            let shell = Capabilities::NONE.with_shell(true).with_background(true);
            super::layer().capabilities(shell.with_init(true).with_connect(true))
        }

        async fn open(&self, request: OpenRequest) -> Result<Opened> {
            let mut opened = self.local.open(request).await?;
            let info = opened.workspace.info().clone();
            if opened.outcome.kind != OutcomeKind::Reattached {
                // Nothing that was opened before goes on.
                self.end(&info.id).await;
            }
            let running = self.gateways.lock().get(&info.id).and_then(|all| all.last().cloned());
            // Whoever has one end of a pair has it alone.
            let gateway = running.filter(|_| self.sockets.is_some()).unwrap_or_else(|| {
                let gateway = self.start(&info.workdir);
                self.gateways.lock().entry(info.id.clone()).or_default().push(Arc::clone(&gateway));
                gateway
            });
            if let Way::Path(path) = &gateway.way {
                super::eventually("the gateway listens", async || UnixStream::connect(path).await.is_ok()).await;
            }
            let layer_info = OpenedInfo::new(info.id.clone(), opened.outcome.clone(), info.generation);
            let inside = Arc::new(Inside { info, gateway, directory: Some(opened.workspace) });
            opened.workspace = super::layer().wrap(inside, &layer_info).await?;
            Ok(opened)
        }

        async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
            self.local.find(id).await
        }

        fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
            self.local.list()
        }

        async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
            self.end(id).await;
            self.local.destroy(id).await
        }

        async fn start(&self) -> Result<()> {
            self.local.start().await
        }
    }
}

fn program() -> Program {
    Program::new(env!("CARGO_BIN_EXE_wsm-gateway"))
}

fn layer() -> GatewayLayer {
    GatewayLayer::new(InitProgram { path: PathBuf::new(), hash: String::new(), args: Vec::new() })
}

/// Starts a program that serves one end of a socket pair as its stdin and stdout.
fn start_pair(mut program: Program, args: &[&str]) -> Arc<Gateway> {
    let (near, far) = StdUnixStream::pair().unwrap();
    let far = OwnedFd::from(far);
    program.args(["serve", "--stdio"]).args(args);
    program.stdin(far.try_clone().unwrap()).stdout(far).kill_on_drop(true);
    near.set_nonblocking(true).unwrap();
    let near = tokio::net::UnixStream::from_std(near).unwrap();
    Gateway::new(Way::Pair(Some(near).into()), program.spawn().unwrap())
}

fn start_listening(path: &Path, workdir: &str) -> Arc<Gateway> {
    let mut program = program();
    program.args(["serve", "--workdir", workdir, "--socket"]).arg(path).stdin(Stdio::null()).kill_on_drop(true);
    Gateway::new(Way::Path(path.to_owned()), program.spawn().unwrap())
}

/// Drives a gateway as its only user.
async fn drive(gateway: &Arc<Gateway>) -> Arc<dyn ManagedWorkspace> {
    let info = wsm_core::WorkspaceInfo::new(WorkspaceId::random(), "test", "/");
    let layer_info = OpenedInfo::new(info.id.clone(), Outcome::new(OutcomeKind::Created), 0);
    let inside = Inside { info, gateway: Arc::clone(gateway), directory: None };
    layer().wrap(Arc::new(inside), &layer_info).await.unwrap()
}

async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

async fn sh(workspace: &Arc<dyn ManagedWorkspace>, line: &str) -> String {
    let result = workspace.sh(line).await.unwrap();
    assert!(result.status.success(), "{line}: {result:?}");
    result.stdout.to_text().trim_end().to_owned()
}

/// Whether a process is there and runs.
fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

/// Runs the whole suite.
fn every_case_holds(sockets: bool) {
    let base = tempfile::tempdir().unwrap();
    let sockets = sockets.then(|| tempfile::tempdir().unwrap());
    let connect = {
        let base = base.path().to_owned();
        let sockets = sockets.as_ref().map(|sockets| sockets.path().to_owned());
        move || {
            let local = LocalConfig::new(&base).build()?;
            Ok(Arc::new(Gated { local, sockets: sockets.clone(), gateways: Default::default() }) as Arc<dyn Backend>)
        }
    };
    let report = run_all(&Subject::new(connect).keeping((base, sockets)));
    let failed = report.cases.iter().filter(|case| matches!(case.verdict, Verdict::Failed(_)));
    let failed: Vec<String> = failed.map(|case| format!("{}: {:?}", case.name, case.verdict)).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let passed = report.cases.iter().filter(|case| case.verdict == Verdict::Passed).count();
    println!("{passed} of {} cases passed, the others do not apply", report.cases.len());
    assert!(passed > report.cases.len() / 2);
}

#[test]
fn every_case_holds_over_socket_pairs() {
    every_case_holds(false);
}

#[test]
fn every_case_holds_over_unix_sockets() {
    every_case_holds(true);
}

#[tokio::test]
async fn the_end_of_the_channel_ends_everything_also_what_left_its_session() {
    let (near, far) = StdUnixStream::pair().unwrap();
    // By way of a shell, since the standard library gives a child no other files than the first three.
    let mut shell = Program::new("sh");
    shell.args(["-c", r#"exec "$0" serve --fd 7 7<&0 < /dev/null"#, env!("CARGO_BIN_EXE_wsm-gateway")]);
    shell.stdin(OwnedFd::from(far)).kill_on_drop(true);
    let child = shell.spawn().unwrap();
    near.set_nonblocking(true).unwrap();
    let near = tokio::net::UnixStream::from_std(near).unwrap();
    let gateway = Gateway::new(Way::Pair(Some(near).into()), child);

    let workspace = drive(&gateway).await;
    let background = sh(&workspace, "setsid sleep 600 > /dev/null 2>&1 & echo $!").await;
    let inherited = sh(&workspace, "ls /proc/self/fd").await;
    assert_eq!(inherited, "0\n1\n2\n3", "the third is the directory that `ls` reads");
    let mut running = workspace.spawn(Command::shell("(setsid sleep 600 &); echo $$; exec sleep 600")).await.unwrap();
    let Some(ProcessEvent::Stdout(pid)) = running.output.next().await else { panic!("the command says nothing") };
    let pid = String::from_utf8(pid.to_vec()).unwrap().trim().to_owned();
    assert!(is_alive(&background) && is_alive(&pid));

    workspace.suspend().await.unwrap();
    assert!(!is_alive(&background) && !is_alive(&pid));
}

#[tokio::test]
async fn a_killed_gateway_is_never_a_success_and_one_that_is_started_again_is_found() {
    let scratch = tempfile::tempdir().unwrap();
    let (socket, workdir) = (scratch.path().join("socket"), scratch.path().to_str().unwrap());
    let gateway = start_listening(&socket, workdir);
    eventually("the gateway listens", async || StdUnixStream::connect(&socket).is_ok()).await;
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "nobody else may connect");
    let workspace = drive(&gateway).await;

    let mut running = workspace.spawn(Command::shell("echo $$; exec sleep 600")).await.unwrap();
    let Some(ProcessEvent::Stdout(pid)) = running.output.next().await else { panic!("the command says nothing") };
    kill_process(gateway.pid, Signal::KILL).unwrap();
    let end = timeout(PATIENCE, running.output.next()).await.unwrap();
    assert!(matches!(end, Some(ProcessEvent::End(ExitStatus::Unknown { .. }))), "{end:?}");
    assert!(!gateway.ended().await.unwrap().success());
    // It has outlived its gateway, which was not the first process of anything.
    let pid = String::from_utf8(pid.to_vec()).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();

    assert_eq!(workspace.sh("true").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(socket.exists(), "what a killed gateway leaves behind must not stop the next one");
    let _again = start_listening(&socket, workdir);
    eventually("the gateway is back", async || workspace.sh("true").await.is_ok_and(|r| r.status.success())).await;
}

#[tokio::test]
async fn a_command_that_does_not_read_hears_signals_all_the_same() {
    let gateway = start_pair(program(), &[]);
    let workspace = drive(&gateway).await;
    let mut sleeping = workspace.spawn(Command::from_argv(["sleep", "600"])).await.unwrap();
    // More than a pipe holds, and less than may be under way.
    sleeping.stdin.write_all(&[0; 300_000]).await.unwrap();
    sleeping.control.signal(wsm_core::Signal::Terminate).await.unwrap();
    let end = timeout(PATIENCE, sleeping.output.next()).await.expect("it ends");
    assert_eq!(end, Some(ProcessEvent::End(ExitStatus::Signaled { signal: 15 })));
    workspace.suspend().await.unwrap();
}

#[tokio::test]
async fn a_socket_that_somebody_listens_on_is_not_taken_away() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output = program().args(["serve", "--socket"]).arg(&socket).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("can not listen"));
    StdUnixStream::connect(&socket).unwrap();
}

#[tokio::test]
async fn files_are_reached_from_the_workdir_and_from_the_root() {
    let scratch = tempfile::tempdir().unwrap();
    fs::create_dir(scratch.path().join("work")).unwrap();
    let (work, elsewhere) = (scratch.path().join("work"), scratch.path().join("else/where"));
    let gateway = start_pair(program(), &["--workdir", work.to_str().unwrap()]);
    let workspace = drive(&gateway).await;
    workspace.write_bytes("near", "1".into()).await.unwrap();
    workspace.write_bytes(elsewhere.to_str().unwrap(), "2".into()).await.unwrap();
    std::os::unix::fs::symlink(&elsewhere, work.join("link")).unwrap();
    assert_eq!(fs::read_to_string(work.join("near")).unwrap(), "1");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "2");
    for path in ["../else/where", "link", elsewhere.to_str().unwrap()] {
        assert_eq!(workspace.read_text(path, 10).await.unwrap(), "2", "{path}");
    }
    let refused = workspace.remove(work.to_str().unwrap(), Default::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    workspace.suspend().await.unwrap();
}

/// The gateway is another process of the same user, so nothing but its own precaution keeps commands out.
#[tokio::test]
async fn commands_can_not_look_into_the_gateway() {
    let scratch = tempfile::tempdir().unwrap();
    let mut program = if getuid().is_root() {
        // Root may look into everything.
        let copy = scratch.path().join("wsm-gateway");
        fs::copy(env!("CARGO_BIN_EXE_wsm-gateway"), &copy).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(scratch.path(), open).unwrap();
        let mut setpriv = Program::new("setpriv");
        setpriv.args(["--reuid=12345", "--regid=12345", "--clear-groups"]).arg(copy);
        setpriv
    } else {
        program()
    };
    program.current_dir(scratch.path());
    let gateway = start_pair(program, &[]);
    let workspace = drive(&gateway).await;
    let parent = sh(&workspace, "echo $PPID").await;
    for line in ["cat /proc/PID/environ", "ls /proc/PID/fd", "readlink /proc/PID/exe", "head -c 1 /proc/PID/mem"] {
        let result = workspace.sh(&line.replace("PID", &parent)).await.unwrap();
        assert!(!result.status.success(), "{line}: {result:?}");
        assert!(result.stderr.to_text().contains("ermission denied") || line.starts_with("readlink"), "{result:?}");
    }
    workspace.suspend().await.unwrap();
}

#[tokio::test]
async fn a_first_process_reaps_orphans_and_loses_no_exit_status() {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let permitted = StdCommand::new("unshare").args(unshare).arg("true").output();
    if !permitted.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: `unshare` is not permitted here: {permitted:?}");
        return;
    }
    let mut program = Program::new("unshare");
    program.args(unshare).arg(env!("CARGO_BIN_EXE_wsm-gateway"));
    let gateway = start_pair(program, &[]);
    let workspace = drive(&gateway).await;
    assert_eq!(sh(&workspace, "echo $PPID").await, "1");

    // Every command leaves an orphan that ends at about the same time as the command.
    let commands = (0..200).map(|number| {
        let workspace = Arc::clone(&workspace);
        async move {
            let status = workspace.sh(&format!("(sleep 0.0{} &); exit {number}", number % 7)).await.unwrap().status;
            assert_eq!(status, ExitStatus::Exited { code: number });
        }
    });
    timeout(PATIENCE * 3, futures::future::join_all(commands)).await.unwrap();
    let zombies = "cat /proc/[0-9]*/stat 2> /dev/null | grep -c ') Z ' || true";
    eventually("all orphans are reaped", async || sh(&workspace, zombies).await == "0").await;

    // It ends with its namespace, and with it what nobody could find.
    let hidden = "env -i setsid sh -c 'echo hidden > /dev/null; exec sleep 600' > /dev/null 2>&1 &";
    workspace.sh(hidden).await.unwrap();
    workspace.suspend().await.unwrap();
}

/// Where `cargo xtask gateway` puts the program.
const BUILT: &str = "target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";

/// The statically linked program, if it was built.
fn static_program() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(BUILT);
    let named = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
    named.or(Some(built)).filter(|path| path.is_file())
}

#[tokio::test]
async fn an_empty_root_is_enough() {
    let Some(built) = static_program() else {
        println!("skipped: needs the static program: `cargo xtask gateway`, or its path in WSM_GATEWAY");
        return;
    };
    if !getuid().is_root() {
        println!("skipped: only root may `chroot`");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::copy(built, root.path().join("wsm-gateway")).unwrap();
    fs::create_dir(root.path().join("inside")).unwrap();
    let mut chroot = Program::new("chroot");
    chroot.arg(root.path()).arg("/wsm-gateway");
    let gateway = start_pair(chroot, &["--workdir", "/inside"]);
    let workspace = drive(&gateway).await;

    let error = workspace.sh("true").await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "program_not_found"));
    workspace.write_bytes("a/file", "1".into()).await.unwrap();
    workspace.write_bytes("/inside/a/file", "2".into()).await.unwrap();
    workspace.write_bytes("/else/where", "3".into()).await.unwrap();
    assert_eq!(workspace.read_text("a/file", 10).await.unwrap(), "2");
    assert_eq!(workspace.list("a").await.unwrap().len(), 1, "a draft is left behind");
    workspace.rename("a/file", "/else/file").await.unwrap();
    assert_eq!(workspace.list("/else").await.unwrap().len(), 2);
    // A program that is there runs, and what it says comes back.
    let version = workspace.exec(Command::new("/wsm-gateway").arg("version")).await.unwrap();
    assert!(version.stdout.to_text().starts_with("wsm-gateway "), "{version:?}");

    let client = workspace.extension(std::any::TypeId::of::<GatewayClient>()).unwrap();
    let client = client.downcast::<GatewayClient>().unwrap();
    let found = client.glob(&GlobRequest::new("/**/file")).await.unwrap();
    assert_eq!(found.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/else/file"]);
    let walk = WalkOptions::default().with_path("/else");
    let found = client.grep(&GrepRequest::new("^[23]$").with_walk(walk)).await.unwrap();
    let lines = found.lines.iter().map(|line| (line.path.as_str(), line.text.as_str()));
    assert_eq!(lines.collect::<Vec<_>>(), [("/else/file", "2"), ("/else/where", "3")]);
    for (path, archive) in archives() {
        let request = UnpackRequest::new(path).with_overwrite(Overwrite::Replace);
        let unpacked = client.unpack(&request, byte_stream(archive.clone())).await.unwrap();
        assert_eq!((unpacked.files, unpacked.bytes), (1, 5), "{path}");
        // Over what is there, too.
        client.unpack(&request, byte_stream(archive)).await.unwrap();
        assert_eq!(workspace.read_text(&format!("{path}/d/f"), 10).await.unwrap(), "hello");
    }
    let left: Vec<String> = workspace.list(".").await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(left.iter().filter(|name| name.starts_with('.')).count(), 0, "{left:?}");

    // One request in one run of the program, and the searches of the command line, as the inside's own commands.
    let calls = ExecCalls::new(Arc::clone(&workspace) as Arc<dyn Workspace>, "/wsm-gateway");
    let called = GatewayClient::over_exec(calls).await.unwrap();
    assert_eq!(called.grep(&GrepRequest::new("hello")).await.unwrap().lines.len(), 3);
    let grep = Command::from_argv(["/wsm-gateway", "grep", "hello", "--path", "zip"]);
    assert_eq!(workspace.exec(grep).await.unwrap().stdout.to_text(), "zip/d/f:1:hello\n");
    called.close().await;
    workspace.suspend().await.unwrap();
}

/// The same file in every kind of archive.
fn archives() -> [(&'static str, Vec<u8>); 3] {
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o600);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, "d/f", &b"hello"[..]).unwrap();
    let tar = builder.into_inner().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&tar).unwrap();
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("d/f", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(b"hello").unwrap();
    [("tar", tar), ("tar.gz", gzip.finish().unwrap()), ("zip", zip.finish().unwrap().into_inner())]
}

/// Runs the program in a directory, as somebody who may not read everything.
fn run_in(directory: &Path, args: &[&str], stdin: &[u8]) -> std::process::Output {
    let mut command = if getuid().is_root() {
        let copy = directory.join(".wsm-gateway");
        if !copy.exists() {
            fs::copy(env!("CARGO_BIN_EXE_wsm-gateway"), &copy).unwrap();
            fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        }
        let mut setpriv = StdCommand::new("setpriv");
        setpriv.args(["--reuid=12345", "--regid=12345", "--clear-groups"]).arg(copy);
        setpriv
    } else {
        StdCommand::new(env!("CARGO_BIN_EXE_wsm-gateway"))
    };
    command.args(args).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // One that has enough closes its stdin.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn searches_and_archives_work_from_the_command_line() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    for name in ["a.rs", "shut/b.rs", "c.txt"] {
        fs::create_dir_all(directory.join(name).parent().unwrap()).unwrap();
        fs::write(directory.join(name), "one\nneedle\nthree\n").unwrap();
    }
    fs::write(directory.join("binary"), b"\0needle").unwrap();
    fs::set_permissions(directory.join("shut"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();

    let output = run_in(directory, &["grep", "needle", "-C", "1"], b"");
    assert_eq!(
        text(&output.stdout),
        "a.rs-1-one\na.rs:2:needle\na.rs-3-three\nc.txt-1-one\nc.txt:2:needle\nc.txt-3-three\n"
    );
    let stderr = text(&output.stderr);
    assert!(stderr.contains("binary: no text from byte 0 on") && stderr.contains("shut: "), "{stderr}");
    assert_eq!(output.status.code(), Some(0));

    let output = run_in(directory, &["glob", "**/*.rs", "--json"], b"");
    let events: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["problem", "entry", "end"]);
    assert_eq!((events[1]["path"].as_str(), events[2]["problems"].as_u64()), (Some("a.rs"), Some(1)));

    let [_, (_, archive), _] = archives();
    let output = run_in(directory, &["unpack", "out"], &archive);
    assert_eq!(text(&output.stdout), "1 files, 0 directories, 0 links, 5 bytes\n", "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(directory.join("out/d/f")).unwrap(), "hello");
    fs::write(directory.join("archive"), &archive).unwrap();
    let output = run_in(directory, &["unpack", "out", "--file", "archive"], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not empty"), "{}", text(&output.stderr));
    let output = run_in(directory, &["grep", "(", "--path", "no"], b"");
    assert!(text(&output.stderr).contains("fixed_strings"), "{}", text(&output.stderr));
    fs::set_permissions(directory.join("shut"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_command_line_that_is_wrong_is_told_so() {
    for (args, code, said) in [
        (&["serve"][..], 2, "needs one of"),
        (&["serve", "--fd", "9"], 1, "no such file is open"),
        (&["serve", "--stdio"], 1, "neither pipes nor a unix socket"),
        (&["serve", "--stdio", "--workdir", "/no/such"], 1, "can not be worked in"),
    ] {
        let output = program().args(args).stdin(Stdio::null()).output().await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}

/// As an engine's own exec offers it.
#[tokio::test]
async fn two_pipes_carry_a_connection() {
    let mut program = program();
    program.args(["serve", "--stdio"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = program.spawn().unwrap();
    let (stdout, stdin) = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let pipes = parking_lot::Mutex::new(Some(tokio::io::join(stdout, stdin)));
    let client = wsm_gateway::GatewayClient::new(move || {
        let pipes = pipes.lock().take();
        Box::pin(async { Ok(Box::new(pipes.unwrap()) as Box<dyn wsm_gateway::Io>) })
    });
    let client = client.await.unwrap();
    client.ping().await.unwrap();
    client.close().await;
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
}
