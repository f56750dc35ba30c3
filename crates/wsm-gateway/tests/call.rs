//! One request in one run of the program, through a backend's own spawn, and through nothing but exec.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command as StdCommand, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use rustix::process::{Pid, kill_process};
use support::Bare;
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, time::timeout};
use wsm_core::{
    Backend, BackendConfig, Command, ErrorKind, ExitStatus, ManagedWorkspace, OpenRequest, ProcessEvent, ReadOptions,
    RemoveOptions, Signal, Workspace, WorkspaceId, WriteOptions, byte_stream,
};
use wsm_gateway::{ExecCalls, GatewayClient, GlobRequest, GrepRequest, UnpackRequest};
use wsm_local::LocalConfig;

const PROGRAM: &str = env!("CARGO_BIN_EXE_wsm-gateway");
const PATIENCE: Duration = Duration::from_secs(20);

mod support {
    use std::sync::Arc;

    use async_trait::async_trait;
    use wsm_core::*;

    /// A workspace with nothing but `exec`.
    #[derive(Debug)]
    pub(crate) struct Bare(pub(crate) Arc<dyn ManagedWorkspace>);

    #[async_trait]
    impl Workspace for Bare {
        fn info(&self) -> &WorkspaceInfo {
            self.0.info()
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::NONE
        }

        async fn exec(&self, command: Command) -> Result<ExecResult> {
            self.0.exec(command).await
        }
    }
}

/// A workspace of the local backend, as it is and with nothing but `exec`.
struct Setup {
    local: Arc<dyn ManagedWorkspace>,
    _base: TempDir,
}

impl Setup {
    async fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let backend = LocalConfig::new(base.path()).build().unwrap();
        let local = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap().workspace;
        Self { local, _base: base }
    }

    fn workdir(&self) -> &Path {
        Path::new(&self.local.info().workdir)
    }

    fn workspaces(&self) -> [Arc<dyn Workspace>; 2] {
        [Arc::clone(&self.local) as Arc<dyn Workspace>, Arc::new(Bare(Arc::clone(&self.local)))]
    }
}

async fn connect(workspace: Arc<dyn Workspace>) -> GatewayClient {
    GatewayClient::over_exec(ExecCalls::new(workspace, PROGRAM)).await.unwrap()
}

async fn read(client: &GatewayClient, path: &str) -> Vec<u8> {
    let body = client.read(path, ReadOptions::default()).await.unwrap().body;
    body.try_fold(Vec::new(), async |mut whole, piece| {
        Ok({
            whole.extend_from_slice(&piece);
            whole
        })
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn every_operation_is_one_run_of_the_program() {
    let setup = Setup::new().await;
    for workspace in setup.workspaces() {
        let client = connect(workspace).await;
        // Every byte there is, and more than any buffer on the way holds.
        let bytes: Vec<u8> = (0..3_000_000u32).map(|number| (number * 7 / 3) as u8).collect();
        let written = client.write("d/file", byte_stream(bytes.clone()), &WriteOptions::default()).await.unwrap();
        assert_eq!(written.size, 3_000_000);
        assert_eq!(fs::read(setup.workdir().join("d/file")).unwrap(), bytes);
        assert!(read(&client, "d/file").await == bytes);
        assert_eq!(client.stat("d/file").await.unwrap().size, 3_000_000);
        client.make_dir("d/e").await.unwrap();
        client.rename("d/file", "d/e/file").await.unwrap();
        let names = client.list("d").await.unwrap().into_iter().map(|entry| entry.name);
        assert_eq!(names.collect::<Vec<_>>(), ["e"]);
        let gone = client.stat("d/file").await.unwrap_err();
        assert_eq!((gone.kind(), gone.field()), (ErrorKind::NotFound, Some("path")));

        let command = Command::shell("cat; echo two >&2; exit 3").with_stdin(bytes.clone());
        let result = client.exec(command.with_output_limit(10 << 20)).await.unwrap();
        assert_eq!(result.status, ExitStatus::Exited { code: 3 });
        assert!(result.stdout.bytes == bytes && result.stderr.to_text() == "two\n");
        let missing = client.exec(Command::new("no-such-program")).await.unwrap_err();
        assert_eq!(missing.code(), "program_not_found");
        let slow = Command::shell("echo begun; sleep 600").with_timeout(Duration::from_secs(1));
        let result = client.exec(slow).await.unwrap();
        assert!(matches!(result.status, ExitStatus::TimedOut), "{:?}", result.status);
        assert_eq!(result.stdout.to_text(), "begun\n");

        fs::write(setup.workdir().join("text"), "hit\n").unwrap();
        let found = client.glob(&GlobRequest::new("**/*")).await.unwrap();
        assert_eq!(found.entries.len(), 2);
        assert_eq!(client.grep(&GrepRequest::new("hit")).await.unwrap().lines[0].path, "text");
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_path_with_name(setup.workdir().join("text"), "inside").unwrap();
        let archive = archive.into_inner().unwrap();
        let unpacked = client.unpack(&UnpackRequest::new("out"), byte_stream(archive)).await.unwrap();
        assert_eq!((unpacked.files, unpacked.bytes), (1, 4));
        client.remove("out", RemoveOptions::default().with_recursive(true)).await.unwrap();
        client.remove("d", RemoveOptions::default().with_recursive(true)).await.unwrap();
        timeout(PATIENCE, client.close()).await.unwrap();
    }
}

#[tokio::test]
async fn many_calls_at_once_do_not_meet() {
    let setup = Setup::new().await;
    for workspace in setup.workspaces() {
        let client = connect(workspace).await;
        let runs = (0..40).map(|number| {
            let client = client.clone();
            async move {
                let result = client.exec(Command::shell(format!("echo {number}; exit {number}"))).await.unwrap();
                assert_eq!(result.stdout.to_text(), format!("{number}\n"));
                assert_eq!(result.status, ExitStatus::Exited { code: number });
            }
        });
        timeout(PATIENCE, futures::future::join_all(runs)).await.unwrap();
    }
}

#[tokio::test]
async fn where_there_is_spawn_a_command_can_be_talked_to_and_signalled() {
    let setup = Setup::new().await;
    let client = connect(setup.workspaces()[0].clone()).await;
    let line = "trap 'echo caught; exit 5' TERM; while read line; do echo \"got $line\"; done";
    let mut process = client.spawn(&Command::shell(line)).await.unwrap();
    process.stdin.write_all(b"one\n").await.unwrap();
    assert_eq!(process.output.next().await, Some(ProcessEvent::Stdout("got one\n".into())));
    process.control.signal(Signal::Terminate).await.unwrap();
    // The shell looks at its traps between two lines.
    process.stdin.write_all(b"two\n").await.unwrap();
    let rest = async {
        let (mut said, mut status) = (String::new(), None);
        while let Some(event) = process.output.next().await {
            match event {
                ProcessEvent::Stdout(bytes) => said.push_str(&String::from_utf8_lossy(&bytes)),
                ProcessEvent::Stderr(bytes) => panic!("{bytes:?}"),
                ProcessEvent::End(end) => status = Some(end),
            }
        }
        (said, status)
    };
    let (said, status) = timeout(PATIENCE, rest).await.unwrap();
    assert!(said.ends_with("caught\n"), "{said}");
    assert_eq!(status, Some(ExitStatus::Exited { code: 5 }));
}

/// The command that sleeps this long, if it is there.
fn sleeping(seconds: &str) -> Option<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line == format!("sleep\0{seconds}\0").into_bytes()
    });
    let mut pids = found.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Pid::from_raw(pids.next()?)
}

#[tokio::test]
async fn a_command_that_does_not_read_hears_signals_all_the_same() {
    let setup = Setup::new().await;
    let client = connect(setup.workspaces()[0].clone()).await;
    for signal in [Signal::Terminate, Signal::Kill] {
        let mut sleeping = client.spawn(&Command::from_argv(["sleep", "600"])).await.unwrap();
        // More than the pipes on the way hold, and less than may be under way.
        sleeping.stdin.write_all(&[0; 500_000]).await.unwrap();
        sleeping.control.signal(signal).await.unwrap();
        let end = timeout(PATIENCE, sleeping.output.next()).await.expect("it ends");
        assert!(matches!(end, Some(ProcessEvent::End(status)) if !status.success()), "{signal:?}");
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_ends_and_one_in_the_background_stays() {
    let setup = Setup::new().await;
    for (index, workspace) in setup.workspaces().into_iter().enumerate() {
        let client = connect(workspace).await;
        let (dropped, kept) = (format!("7{index}11.5"), format!("7{index}22.5"));
        let result = client.exec(Command::shell(format!("sleep {kept} > /dev/null 2>&1 &"))).await.unwrap();
        assert!(result.status.success());
        eventually("it runs in the background", || sleeping(&kept).is_some()).await;
        {
            let running = client.exec(Command::shell(format!("sleep {dropped}")));
            tokio::select! {
                result = running => panic!("{result:?}"),
                () = eventually("it runs", || sleeping(&dropped).is_some()) => {}
            }
        }
        eventually("it was ended", || sleeping(&dropped).is_none()).await;
        kill_process(sleeping(&kept).unwrap(), rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn a_gateway_that_is_there_already_answers_through_its_socket() {
    let setup = Setup::new().await;
    let socket = setup.workdir().join("socket");
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("only-here"), "").unwrap();
    let mut gateway = StdCommand::new(PROGRAM)
        .args(["serve", "--workdir", elsewhere.path().to_str().unwrap(), "--socket"])
        .arg(&socket)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    for workspace in setup.workspaces() {
        let calls = ExecCalls::new(workspace, PROGRAM).with_socket(socket.to_str().unwrap());
        let connected = async {
            loop {
                match GatewayClient::over_exec(calls.clone()).await {
                    Ok(client) => break client,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let client = timeout(PATIENCE, connected).await.unwrap();
        assert_eq!(client.glob(&GlobRequest::new("*")).await.unwrap().entries[0].path, "only-here");
        let bytes = vec![7; 3 << 20];
        client.write("large", byte_stream(bytes.clone()), &WriteOptions::default()).await.unwrap();
        assert!(read(&client, "large").await == bytes);
        client.remove("large", RemoveOptions::default()).await.unwrap();
    }
    gateway.kill().unwrap();
    gateway.wait().unwrap();
}

#[tokio::test]
async fn a_program_that_is_missing_or_something_else_is_told_so() {
    let setup = Setup::new().await;
    for workspace in setup.workspaces() {
        let missing = ExecCalls::new(Arc::clone(&workspace), "/no/such/program");
        let error = GatewayClient::over_exec(missing).await.unwrap_err();
        assert_eq!(error.code(), "program_not_found", "{error:?}");
        let other = ExecCalls::new(workspace, "/bin/false");
        let error = GatewayClient::over_exec(other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
        assert!(error.message().contains("gave no answer"), "{error:?}");
    }
    let client = connect(setup.workspaces()[1].clone()).await;
    let error = client.spawn(&Command::new("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let body = stream::iter([Ok(vec![0; 65 << 20].into())]).boxed();
    let error = client.write("huge", body, &WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), "too_large", "{error:?}");
}

/// Runs `call` with this on its stdin.
fn call(stdin: &[u8]) -> Output {
    let mut child = StdCommand::new(PROGRAM)
        .arg("call")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_answer_is_written_whatever_comes_in() {
    for (stdin, said) in [
        (&b"{\"protocol\":1,\"request\":{\"op\":\"ping\"}}\n"[..], "\"done\""),
        (b"{\"protocol\":1,\"request\":{\"op\":\"stat\",\"path\":\".\"}}", "\"directory\""),
        (b"{\"protocol\":99,\"request\":{\"op\":\"ping\"}}\n", "gateway_version"),
        (b"{\"protocol\":1,\"request\":{\"op\":\"dance\"}}\n", "invalid_input"),
        (b"{\"protocol\":1,\"request\":{\"op\":\"glob\",\"pattern\":\"*\",\"frob\":1}}\n", "frob"),
        (b"\xff\xff\n", "invalid_input"),
        (b"", "invalid_input"),
    ] {
        let output = call(stdin);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains(said), "{:?}: {output:?}", String::from_utf8_lossy(stdin));
    }
}
