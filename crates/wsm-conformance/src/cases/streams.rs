//! Commands that are streamed.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::{
    io::AsyncWriteExt,
    time::{sleep, timeout},
};
use wsm_core::{Command, ErrorKind, ExitStatus, ManagedWorkspace, Process, ProcessEvent, Signal};

use crate::{cases::cases, context::Context};

cases! {
    S1 output_arrives_while_the_command_runs [Spawn];
    S1 there_is_exactly_one_end_and_it_is_last [Spawn];
    S2 dropping_the_output_ends_the_tree [Spawn Files];
    S3 dropping_or_shutting_down_stdin_is_the_end_of_input [Spawn];
    S4 dropping_the_control_does_nothing [Spawn];
    S5 signals_reach_the_command [Spawn];
    S6 output_comes_through_whole_to_a_slow_reader [Spawn];
    S6 a_timeout_holds_for_streams_too [Spawn];
    E9 a_missing_program_is_an_error_before_any_stream [Spawn];
}

async fn spawn(workspace: &Arc<dyn ManagedWorkspace>, command: Command) -> Process {
    workspace.spawn(command).await.unwrap_or_else(|error| panic!("spawn failed: {}", error.report()))
}

/// All output of one kind, and the end.
async fn drain(mut process: Process) -> (Vec<u8>, ExitStatus) {
    let mut bytes = Vec::new();
    while let Some(event) = process.output.next().await {
        match event {
            ProcessEvent::Stdout(piece) => bytes.extend_from_slice(&piece),
            ProcessEvent::Stderr(_) => {}
            ProcessEvent::End(status) => return (bytes, status),
        }
    }
    panic!("the output ended without an end");
}

async fn output_arrives_while_the_command_runs(context: Context) {
    let workspace = context.workspace().await;
    let mut process = spawn(&workspace, Command::shell("echo one; cat")).await;
    let first = timeout(Duration::from_secs(20), process.output.next()).await.expect("output comes at once");
    assert_eq!(first, Some(ProcessEvent::Stdout("one\n".into())));
    process.stdin.write_all(b"two").await.expect("stdin takes input");
    process.stdin.flush().await.expect("stdin can be flushed");
    let second = timeout(Duration::from_secs(20), process.output.next()).await.expect("output comes at once");
    assert_eq!(second, Some(ProcessEvent::Stdout("two".into())));
    drop(process.stdin);
    assert_eq!(process.output.next().await, Some(ProcessEvent::End(ExitStatus::Exited { code: 0 })));
}

async fn there_is_exactly_one_end_and_it_is_last(context: Context) {
    let workspace = context.workspace().await;
    let process = spawn(&workspace, Command::shell("echo out; echo err >&2; exit 3")).await;
    drop(process.stdin);
    let events: Vec<_> = process.output.collect().await;
    let ends = events.iter().filter(|event| matches!(event, ProcessEvent::End(_))).count();
    assert_eq!((ends, events.last()), (1, Some(&ProcessEvent::End(ExitStatus::Exited { code: 3 }))), "{events:?}");
}

async fn dropping_the_output_ends_the_tree(context: Context) {
    let workspace = context.workspace().await;
    let process = spawn(&workspace, Command::shell("sleep 1; echo ran on > after")).await;
    let Process { stdin, output, control, .. } = process;
    drop(output);
    // The others stay, so that it is the output alone that counts.
    sleep(Duration::from_millis(2500)).await;
    let error = workspace.stat("after").await.expect_err("the command was ended");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    drop((stdin, control));
}

async fn dropping_or_shutting_down_stdin_is_the_end_of_input(context: Context) {
    let workspace = context.workspace().await;
    let mut process = spawn(&workspace, Command::new("cat")).await;
    process.stdin.write_all(b"x").await.expect("stdin takes input");
    process.stdin.shutdown().await.expect("stdin can be shut down");
    assert_eq!(drain(process).await, (b"x".to_vec(), ExitStatus::Exited { code: 0 }));
    let Process { stdin, output, control, .. } = spawn(&workspace, Command::new("cat")).await;
    drop(stdin);
    let ended: Vec<_> = output.collect().await;
    assert_eq!(ended, [ProcessEvent::End(ExitStatus::Exited { code: 0 })]);
    drop(control);
}

async fn dropping_the_control_does_nothing(context: Context) {
    let workspace = context.workspace().await;
    let Process { stdin, output, control, .. } = spawn(&workspace, Command::shell("sleep 1; echo done")).await;
    drop(control);
    let events: Vec<_> = output.collect().await;
    assert_eq!(events.len(), 2, "{events:?}");
    drop(stdin);
}

async fn signals_reach_the_command(context: Context) {
    let workspace = context.workspace().await;
    for signal in [Signal::Terminate, Signal::Interrupt, Signal::Kill] {
        let process = spawn(&workspace, Command::from_argv(["sleep", "30"])).await;
        process.control.signal(signal).await.expect("the signal is sent");
        let control = Arc::clone(&process.control);
        let (_, status) = timeout(Duration::from_secs(20), drain(process)).await.expect("it ends");
        assert_eq!(status, ExitStatus::Signaled { signal: signal.number() });
        control.signal(signal).await.expect("to signal what has ended is no error");
    }
}

async fn output_comes_through_whole_to_a_slow_reader(context: Context) {
    let workspace = context.workspace().await;
    let size = 24 << 20;
    let mut process = spawn(&workspace, Command::from_argv(["head", "-c", &size.to_string(), "/dev/zero"])).await;
    let (mut seen, mut pieces) = (0, 0);
    loop {
        match process.output.next().await.expect("an end comes") {
            ProcessEvent::Stdout(piece) => {
                seen += piece.len();
                pieces += 1;
                if pieces < 20 {
                    sleep(Duration::from_millis(10)).await;
                }
            }
            ProcessEvent::Stderr(text) => panic!("{text:?}"),
            ProcessEvent::End(status) => break assert!(status.success(), "{status}"),
        }
    }
    assert_eq!(seen, size);
}

async fn a_timeout_holds_for_streams_too(context: Context) {
    let workspace = context.workspace().await;
    let command = Command::shell("echo before; sleep 30").with_timeout(Duration::from_secs(2));
    let process = spawn(&workspace, command).await;
    let ended = timeout(Duration::from_secs(20), drain(process)).await.expect("it ends");
    assert_eq!(ended, (b"before\n".to_vec(), ExitStatus::TimedOut));
}

async fn a_missing_program_is_an_error_before_any_stream(context: Context) {
    let workspace = context.workspace().await;
    let error = workspace.spawn(Command::new("no-such-program")).await.expect_err("it can not start");
    assert_eq!(error.code(), "program_not_found", "{error:?}");
}
