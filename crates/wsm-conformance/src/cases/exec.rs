//! Commands that run to their end.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use wsm_core::{Command, ErrorKind, ExitStatus, WriteOptions, byte_stream};

use crate::{
    cases::cases,
    context::{Context, alive, eventually, exec, sh, text, write},
};

cases! {
    E1 argv_reaches_the_program_exactly [];
    E2 streams_stay_apart_and_are_binary_safe [];
    E3 the_exit_code_is_the_commands_own [];
    E3 the_exit_code_is_never_lost_under_load [];
    E4 a_signal_is_told_with_its_number [];
    E5 a_timeout_keeps_the_output_so_far [];
    E5 a_timeout_ends_the_whole_tree [Shell Files];
    E5 a_timeout_lets_the_command_clean_up_first [Shell Files];
    E6 over_the_limit_both_ends_are_kept_and_the_rest_counted [];
    E6 under_the_limit_nothing_is_dropped [];
    E7 stdin_is_empty_unless_given [];
    E7 large_input_to_a_command_that_writes_as_much_does_not_deadlock [];
    E7 input_that_nobody_reads_is_no_error [];
    E8 variables_reach_the_command [];
    E8 the_command_runs_where_it_is_told [Files];
    E8 a_missing_directory_is_named_as_the_fault [];
    E9 a_missing_program_is_an_error_of_its_own [];
    E9 a_file_that_can_not_be_run_is_an_error_of_its_own [Shell Files];
    E10 a_grandchild_does_not_hold_back_the_end [Background Shell];
    E10 children_in_the_background_survive_a_normal_exit [Background Shell Files];
    E11 dropping_the_call_ends_the_tree [Shell Files];
}

async fn argv_reaches_the_program_exactly(context: Context) {
    let workspace = context.workspace().await;
    let words = ["a  b", "$HOME", "'q\"", "*", "", "é\u{1F980}", "\\n", "`id`", "x;y"];
    let result = exec(&workspace, Command::from_argv(["echo"].into_iter().chain(words))).await;
    // Some shells' `echo` reads backslashes; what is asked for here is the program.
    assert_eq!(result.stdout.to_text(), format!("{}\n", words.join(" ")));
}

async fn streams_stay_apart_and_are_binary_safe(context: Context) {
    let workspace = context.workspace().await;
    let result = sh(&workspace, r"printf '\000\377\325x\n'; printf 'err\376' >&2").await;
    assert_eq!(&result.stdout.bytes[..], b"\0\xff\xd5x\n");
    assert_eq!(&result.stderr.bytes[..], b"err\xfe");
}

async fn the_exit_code_is_the_commands_own(context: Context) {
    let workspace = context.workspace().await;
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 137, 255] {
        let result = sh(&workspace, &format!("exit {code}")).await;
        assert_eq!(result.status, ExitStatus::Exited { code });
    }
}

async fn the_exit_code_is_never_lost_under_load(context: Context) {
    let workspace = context.workspace().await;
    for _ in 0..8 {
        let results = futures::future::join_all((0..25).map(|_| sh(&workspace, "exit 42"))).await;
        for result in results {
            assert_eq!(result.status, ExitStatus::Exited { code: 42 });
        }
    }
}

async fn a_signal_is_told_with_its_number(context: Context) {
    let workspace = context.workspace().await;
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("INT", 2)] {
        let result = sh(&workspace, &format!("kill -{name} $$")).await;
        assert_eq!(result.status, ExitStatus::Signaled { signal });
    }
}

async fn a_timeout_keeps_the_output_so_far(context: Context) {
    let workspace = context.workspace().await;
    let before = Instant::now();
    let command = Command::shell("echo before; sleep 30").with_timeout(Duration::from_secs(2));
    let result = exec(&workspace, command).await;
    assert_eq!((result.status, result.stdout.to_text().as_str()), (ExitStatus::TimedOut, "before\n"));
    assert!(before.elapsed() < Duration::from_secs(20), "it took {:?}", before.elapsed());
}

async fn a_timeout_ends_the_whole_tree(context: Context) {
    let workspace = context.workspace().await;
    // A child, a child in a session of its own, and one whose parent has gone: none may outlive the timeout.
    let line = "echo $$ > pids; sleep 300 & echo $! >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 300' & \
                (setsid sh -c 'echo $$ >> pids; trap \"\" TERM; for i in $(seq 90); do sleep 1; done' >/dev/null 2>&1 &); wait";
    let result = exec(&workspace, Command::shell(line).with_timeout(Duration::from_secs(2))).await;
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert_eq!(text(&workspace, "pids").await.lines().count(), 4, "all four ran");
    eventually("the whole tree is gone", async || alive(&workspace, "pids").await.is_empty()).await;
}

async fn a_timeout_lets_the_command_clean_up_first(context: Context) {
    let workspace = context.workspace().await;
    let line = "trap 'echo cleaned > mark; exit 0' TERM; sleep 300 & wait";
    let result = exec(&workspace, Command::shell(line).with_timeout(Duration::from_secs(2))).await;
    assert_eq!(result.status, ExitStatus::TimedOut);
    assert_eq!(text(&workspace, "mark").await, "cleaned\n");
}

async fn over_the_limit_both_ends_are_kept_and_the_rest_counted(context: Context) {
    let workspace = context.workspace().await;
    let whole: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let result = exec(&workspace, Command::new("seq").arg("200000").with_output_limit(1001)).await;
    let (head, tail) = (&whole[..501], &whole[whole.len() - 500..]);
    assert_eq!(result.stdout.to_text(), format!("{head}{tail}"));
    assert_eq!((result.stdout.dropped, result.stdout.dropped_at), (whole.len() as u64 - 1001, Some(501)));
    assert_eq!(result.status, ExitStatus::Exited { code: 0 }, "the command runs on");
}

async fn under_the_limit_nothing_is_dropped(context: Context) {
    let workspace = context.workspace().await;
    let size = 3 << 20;
    let result = exec(&workspace, Command::from_argv(["head", "-c", &size.to_string(), "/dev/zero"])).await;
    assert_eq!((result.stdout.bytes.len(), result.stdout.dropped), (size, 0));
    assert_eq!(result.stdout.dropped_at, None);
}

async fn stdin_is_empty_unless_given(context: Context) {
    let workspace = context.workspace().await;
    let result = timeout(Duration::from_secs(20), exec(&workspace, Command::new("cat"))).await;
    assert_eq!(result.expect("an empty stdin ends at once").stdout.to_text(), "");
    let result = exec(&workspace, Command::new("cat").with_stdin("given")).await;
    assert_eq!(result.stdout.to_text(), "given");
}

async fn large_input_to_a_command_that_writes_as_much_does_not_deadlock(context: Context) {
    let workspace = context.workspace().await;
    let input: Vec<u8> = (0..6 << 20).map(|number: u32| (number % 251) as u8).collect();
    let running = exec(&workspace, Command::new("cat").with_stdin(input.clone()));
    let result = timeout(Duration::from_secs(60), running).await.expect("no deadlock");
    assert!(result.stdout.bytes == input, "{} bytes came back", result.stdout.bytes.len());
}

async fn input_that_nobody_reads_is_no_error(context: Context) {
    let workspace = context.workspace().await;
    let result = exec(&workspace, Command::new("true").with_stdin(vec![b'x'; 1 << 20])).await;
    assert_eq!(result.status, ExitStatus::Exited { code: 0 });
}

async fn variables_reach_the_command(context: Context) {
    let workspace = context.workspace().await;
    let command = Command::shell(r#"echo "$GREETING""#).with_env("GREETING", "it's \"é\" $HOME `id`");
    assert_eq!(exec(&workspace, command).await.stdout.to_text(), "it's \"é\" $HOME `id`\n");
}

async fn the_command_runs_where_it_is_told(context: Context) {
    let workspace = context.workspace().await;
    let workdir = workspace.info().workdir.clone();
    assert_eq!(exec(&workspace, Command::new("pwd")).await.stdout.to_text(), format!("{workdir}\n"));
    workspace.make_dir("a b/c").await.expect("a directory can be made");
    for cwd in ["a b/c", &format!("{workdir}/a b/c"), "./a b/../a b/c/."] {
        let result = exec(&workspace, Command::new("pwd").with_cwd(cwd)).await;
        assert_eq!(result.stdout.to_text(), format!("{workdir}/a b/c\n"), "{cwd}");
    }
}

async fn a_missing_directory_is_named_as_the_fault(context: Context) {
    let workspace = context.workspace().await;
    let error = workspace.exec(Command::new("pwd").with_cwd("no/such/place")).await.expect_err("it can not begin");
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("cwd")), "{error:?}");
}

async fn a_missing_program_is_an_error_of_its_own(context: Context) {
    let workspace = context.workspace().await;
    for program in ["no-such-program", "./no-such-file", "/no/such/path"] {
        let error = workspace.exec(Command::new(program)).await.expect_err("it can not start");
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "program_not_found"), "{error:?}");
    }
}

async fn a_file_that_can_not_be_run_is_an_error_of_its_own(context: Context) {
    let workspace = context.workspace().await;
    let options = WriteOptions::default().with_mode(0o644);
    workspace.write("script", byte_stream("#!/bin/sh\n"), options).await.expect("a file can be written");
    let error = workspace.exec(Command::new("./script")).await.expect_err("it can not start");
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "program_not_executable"), "{error:?}");
}

async fn a_grandchild_does_not_hold_back_the_end(context: Context) {
    let workspace = context.workspace().await;
    for line in ["sleep 30 & echo done", "setsid sleep 30 & echo done"] {
        let result = timeout(Duration::from_secs(20), sh(&workspace, line)).await.expect("it ends with the shell");
        assert_eq!((result.status, result.stdout.to_text().as_str()), (ExitStatus::Exited { code: 0 }, "done\n"));
    }
}

async fn children_in_the_background_survive_a_normal_exit(context: Context) {
    let workspace = context.workspace().await;
    let result = sh(&workspace, "(sleep 1; echo late > late) >/dev/null 2>&1 &").await;
    assert_eq!(result.status, ExitStatus::Exited { code: 0 });
    eventually("the child writes its file", async || workspace.stat("late").await.is_ok()).await;
}

async fn dropping_the_call_ends_the_tree(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "pids", "").await;
    let line = "echo $$ > pids; setsid sh -c 'echo $$ >> pids; exec sleep 300' & wait";
    let dropped = timeout(Duration::from_millis(2500), sh(&workspace, line)).await;
    assert!(dropped.is_err(), "it was still running");
    assert_eq!(text(&workspace, "pids").await.lines().count(), 2, "both ran");
    eventually("the tree is gone", async || alive(&workspace, "pids").await.is_empty()).await;
}
