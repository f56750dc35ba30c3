//! Connections that are shared, slow, broken or not what they should be.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::Mutex,
    task::JoinSet,
    time::timeout,
};
use wsm_core::{
    Backend, BackendConfig, Capabilities, Command, ErrorKind, ExitStatus, Layer, ManagedWorkspace, OpenRequest,
    ProcessEvent, ReadOptions, Result, Workspace, WorkspaceId, WriteOptions,
    memory::{MemoryConfig, MemoryEngine},
};
use wsm_gateway::{GatewayClient, GatewayLayer, Io, Served, serve};

/// A workspace in memory, its gateway, and what breaks their connection.
struct Setup {
    workspace: Arc<dyn ManagedWorkspace>,
    servers: Arc<Mutex<JoinSet<Result<()>>>>,
    connections: Arc<AtomicUsize>,
}

mod support {
    use std::{sync::Arc, time::Duration};

    use async_trait::async_trait;
    use tokio::{sync::Mutex, task::JoinSet};
    use wsm_core::*;

    /// A workspace that is connected to through a gateway in this process.
    #[derive(Debug)]
    pub(crate) struct Inside {
        pub(crate) workspace: Arc<dyn ManagedWorkspace>,
        pub(crate) servers: Arc<Mutex<JoinSet<Result<()>>>>,
        pub(crate) connections: Arc<std::sync::atomic::AtomicUsize>,
    }

    #[async_trait]
    impl Workspace for Inside {
        fn info(&self) -> &WorkspaceInfo {
            self.workspace.info()
        }

        fn capabilities(&self) -> Capabilities {
            self.workspace.capabilities().with_init(true).with_connect(true)
        }

        async fn exec(&self, _: Command) -> Result<ExecResult> {
            Err(Error::unsupported("exec"))
        }

        async fn connect(&self, _: &Endpoint) -> Result<Connection> {
            self.connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let (near, far) = tokio::io::duplex(64 << 10);
            let workspace = Arc::clone(&self.workspace) as Arc<dyn Workspace>;
            self.servers.lock().await.spawn(wsm_gateway::serve(wsm_gateway::Served::new(workspace), far));
            Ok(Connection::Bytes(Box::pin(near)))
        }
    }

    #[async_trait]
    impl ManagedWorkspace for Inside {
        async fn suspend(&self) -> Result<Option<Checkpoint>> {
            self.workspace.suspend().await
        }

        async fn detach(&self) -> Result<()> {
            self.workspace.detach().await
        }

        async fn health(&self) -> Result<Health> {
            self.workspace.health().await
        }

        async fn keep_alive(&self, duration: Duration) -> Result<Option<Duration>> {
            self.workspace.keep_alive(duration).await
        }
    }
}

async fn setup() -> Setup {
    let backend = MemoryConfig::new(MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    let (servers, connections) = (Arc::new(Mutex::new(JoinSet::new())), Arc::new(AtomicUsize::new(0)));
    let inside = support::Inside {
        workspace: opened.workspace,
        servers: Arc::clone(&servers),
        connections: Arc::clone(&connections),
    };
    let program = wsm_core::InitProgram { path: PathBuf::new(), hash: String::new(), args: Vec::new() };
    let info = wsm_core::OpenedInfo::new(inside.workspace.info().id.clone(), opened.outcome, 0);
    let workspace = GatewayLayer::new(program).wrap(Arc::new(inside), &info).await.unwrap();
    Setup { workspace, servers, connections }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_commands_at_once_share_one_connection_and_none_is_lost() {
    let setup = setup().await;
    let runs = (0..1000).map(|number| {
        let workspace = Arc::clone(&setup.workspace);
        async move {
            let result = workspace.exec(Command::shell(format!("echo {number}; exit {}", number % 200))).await.unwrap();
            (result.stdout.to_text(), result.status)
        }
    });
    let results = timeout(Duration::from_secs(60), futures::future::join_all(runs)).await.unwrap();
    for (number, (text, status)) in results.into_iter().enumerate() {
        assert_eq!(text, format!("{number}\n"));
        assert_eq!(status, ExitStatus::Exited { code: (number % 200) as i32 });
    }
    assert_eq!(setup.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_slow_reader_stops_its_own_stream_and_nobody_elses() {
    let setup = setup().await;
    let size = 8 << 20;
    let mut slow =
        setup.workspace.spawn(Command::from_argv(["head", "-c", &size.to_string(), "/dev/zero"])).await.unwrap();
    let first = slow.output.next().await.unwrap();
    for _ in 0..50 {
        assert!(setup.workspace.exec(Command::new("true")).await.unwrap().status.success());
    }
    let ProcessEvent::Stdout(piece) = first else { panic!("{first:?}") };
    let mut seen = piece.len();
    while let Some(event) = slow.output.next().await {
        match event {
            ProcessEvent::Stdout(piece) => seen += piece.len(),
            other => assert_eq!(other, ProcessEvent::End(ExitStatus::Exited { code: 0 })),
        }
    }
    assert_eq!(seen, size);
}

#[tokio::test]
async fn a_broken_connection_makes_running_commands_unknown_and_the_next_call_connects_anew() {
    let setup = setup().await;
    let running = {
        let workspace = Arc::clone(&setup.workspace);
        async move { workspace.exec(Command::shell("echo begun; sleep 600")).await.unwrap() }
    };
    let breaking = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        setup.servers.lock().await.shutdown().await;
    };
    let (result, ()) = timeout(Duration::from_secs(20), async { tokio::join!(running, breaking) }).await.unwrap();
    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
    assert_eq!(result.stdout.to_text(), "begun\n");
    assert!(setup.workspace.exec(Command::new("true")).await.unwrap().status.success());
    assert_eq!(setup.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_broken_connection_breaks_bodies_off_with_an_error() {
    let setup = setup().await;
    let body = futures::stream::iter([Ok(vec![b'x'; 3 << 20].into())]).boxed();
    setup.workspace.write("f", body, Default::default()).await.unwrap();
    let file = setup.workspace.read("f", ReadOptions::default()).await.unwrap();
    setup.servers.lock().await.shutdown().await;
    let error = file.body.try_fold(0, async |sum, piece| Ok(sum + piece.len())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let endless = futures::stream::iter([Ok("half".into())]).chain(futures::stream::pending()).boxed();
    let writing = setup.workspace.write("f", endless, Default::default());
    let breaking = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        setup.servers.lock().await.shutdown().await;
    };
    let (written, ()) = tokio::join!(timeout(Duration::from_secs(20), writing), breaking);
    assert_eq!(written.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(setup.workspace.stat("f").await.unwrap().size, 3 << 20, "the old file is whole");
}

#[tokio::test]
async fn a_directory_of_any_size_can_be_listed() {
    let setup = setup().await;
    let inner = &setup.workspace;
    for number in 0..12_000 {
        let name = format!("many/a-rather-long-name-for-a-file-so-that-the-listing-is-long-{number:06}");
        inner.make_dir(&name).await.unwrap();
    }
    assert_eq!(inner.list("many").await.unwrap().len(), 12_000);
}

/// A client whose first connection is to `far`.
async fn client_of(talk: impl FnOnce(DuplexStream) -> BoxFuture<'static, ()> + Send + 'static) -> wsm_core::Error {
    let (near, far) = tokio::io::duplex(64 << 10);
    let near = Arc::new(Mutex::new(Some(near)));
    let connect = move || {
        let near = Arc::clone(&near);
        async move { Ok(Box::new(near.lock().await.take().unwrap()) as Box<dyn Io>) }.boxed()
    };
    let (client, ()) = tokio::join!(GatewayClient::new(connect), talk(far));
    client.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_can_not_be_talked_to_is_told_apart() {
    let hello = br#"{"protocol":99,"contract":1,"version":"9.9.9"}"#;
    let old = client_of(move |mut far| {
        async move {
            let mut frame = vec![0, 0, 0, 0, 0];
            frame.extend((hello.len() as u32).to_le_bytes());
            frame.extend(hello);
            far.write_all(&frame).await.unwrap();
            let _ = far.read(&mut [0; 256]).await;
        }
        .boxed()
    });
    let error = old.await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "gateway_version"), "{error:?}");
    let garbage = client_of(|mut far| async move { far.write_all(b"HTTP/1.1 400 Bad Request").await.unwrap() }.boxed());
    assert_eq!(garbage.await.kind(), ErrorKind::Backend);
    let silent = client_of(|far| {
        async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(far);
        }
        .boxed()
    });
    assert_eq!(silent.await.kind(), ErrorKind::Timeout);
    let gone = client_of(|far| async move { drop(far) }.boxed());
    assert_eq!(gone.await.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_client_that_does_not_keep_to_the_protocol_is_hung_up_on() {
    let backend = MemoryConfig::new(MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    for bytes in
        [&b"\x09\0\0\0\0\0\0\0\0"[..], b"\x00\0\0\0\0\xff\xff\xff\xff", b"\x02\0\0\0\0\0\0\0\0", b"garbage garbage"]
    {
        let (mut near, far) = tokio::io::duplex(64 << 10);
        let serving = serve(Served::new(Arc::clone(&opened.workspace) as Arc<dyn Workspace>), far);
        near.write_all(bytes).await.unwrap();
        let (served, _) = tokio::join!(timeout(Duration::from_secs(10), serving), async {
            let mut rest = Vec::new();
            near.read_to_end(&mut rest).await
        });
        assert_eq!(served.unwrap().unwrap_err().kind(), ErrorKind::Backend);
    }
}

/// A client of a gateway that says hello and nothing more, and how often it has connected.
async fn silent_gateway() -> (GatewayClient, Arc<AtomicUsize>) {
    let capabilities = Capabilities::NONE.with_spawn(true);
    let hello = serde_json::json!({ "protocol": 1, "contract": 1, "version": "1", "capabilities": capabilities });
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let connect = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let hello = frame(0, 0, hello.to_string().as_bytes());
        async move {
            far.write_all(&hello).await.unwrap();
            // The other end stays as it is, and nobody reads from it.
            std::mem::forget(far);
            Ok(Box::new(near) as Box<dyn Io>)
        }
        .boxed()
    };
    (GatewayClient::new(connect).await.unwrap(), connections)
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_ever_for_a_gateway_that_was_stopped() {
    let (client, connections) = silent_gateway().await;
    let begun = tokio::time::Instant::now();
    let large = futures::stream::iter([Ok(vec![b'x'; 4 << 20].into())]).boxed();
    let options = WriteOptions::default();
    let (stat, read, written, pinged, ran) = tokio::join!(
        client.stat("f"),
        client.read("f", ReadOptions::default()),
        client.write("f", large, &options),
        client.ping(),
        client.exec(Command::new("true")),
    );
    for error in [stat.unwrap_err(), read.unwrap_err(), written.unwrap_err(), pinged.unwrap_err(), ran.unwrap_err()] {
        assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "gateway_silent"), "{error}");
    }
    assert!(begun.elapsed() <= Duration::from_secs(61), "{:?}", begun.elapsed());
    // A command's own limit counts before it has begun, too.
    let begun = tokio::time::Instant::now();
    let error = client.exec(Command::new("true").with_timeout(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(begun.elapsed() <= Duration::from_secs(17), "{:?}", begun.elapsed());
    assert_eq!(connections.load(Ordering::SeqCst), 2, "whoever asks next connects anew");
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_nothing_to_say_is_left_alone() {
    let setup = setup().await;
    // Neither without calls,
    tokio::time::sleep(Duration::from_secs(3600)).await;
    // nor with a command that is quiet for long.
    let slept = setup.workspace.exec(Command::from_argv(["sleep", "3600"])).await.unwrap();
    assert_eq!(slept.status, ExitStatus::Exited { code: 0 });
    assert_eq!(setup.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn suspending_closes_the_connection() {
    let setup = setup().await;
    setup.workspace.suspend().await.unwrap();
    let error = setup.workspace.exec(Command::new("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let mut servers = setup.servers.lock().await;
    let ended = timeout(Duration::from_secs(10), servers.join_next()).await.unwrap().unwrap();
    assert!(ended.unwrap().is_ok(), "the other side saw an orderly end");
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend(stream.to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    frame
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_has_stopped_reading_and_keeps_the_connection_half_open_is_hung_up_on() {
    let backend = MemoryConfig::new(MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    let body = futures::stream::iter([Ok(vec![b'x'; 300_000].into())]).boxed();
    opened.workspace.write("f", body, Default::default()).await.unwrap();
    let (near, far) = tokio::io::duplex(1024);
    let (mut reading, mut writing) = tokio::io::split(near);
    let serving = serve(Served::new(opened.workspace as Arc<dyn Workspace>), far);
    let talking = async {
        writing.write_all(&frame(0, 0, br#"{"protocol":1,"contract":1,"version":"1"}"#)).await.unwrap();
        let request = br#"{"op":"read","path":"f","offset":0,"length":null}"#;
        writing.write_all(&frame(1, 1, request)).await.unwrap();
        // Long enough for the answer to have filled the way back.
        tokio::time::sleep(Duration::from_secs(1)).await;
        writing.shutdown().await.unwrap();
    };
    let begun = tokio::time::Instant::now();
    let (served, ()) = timeout(Duration::from_secs(60), async { tokio::join!(serving, talking) }).await.unwrap();
    served.unwrap();
    let took = begun.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(8)).contains(&took), "{took:?}");
    // What was on its way is still there to be read, and then there is an end.
    drop(writing);
    let mut rest = Vec::new();
    timeout(Duration::from_secs(60), reading.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(!rest.is_empty() && rest.len() < 300_000);
}
