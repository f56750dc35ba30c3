//! What a command in a sandbox can not do, tried from its inside.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{fs, net::TcpListener, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use common::{Sandboxed, inits, unique};
use rustix::process::geteuid;
use wsm_bubblewrap::{BubblewrapConfig, Network};
use wsm_core::{ErrorKind, ExitStatus, WorkspaceExt};

/// Makes a system call and tells what came of it: 0, or the number of the error. Perl is on every Debian.
fn call(number: u32, arguments: &str) -> String {
    // Perl wants texts that the call could write to.
    format!("perl -e '@a = ({arguments}); $r = syscall({number}, @a); print $r < 0 ? $! + 0 : 0'")
}

const EPERM: &str = "1";
const ENOSYS: &str = "38";

#[tokio::test(flavor = "multi_thread")]
async fn other_workspaces_and_the_hosts_files_are_not_there() {
    let Some(sandboxed) = Sandboxed::new(|config| config.with_network(Network::None)).await else { return };
    let (mine, other) = (sandboxed.open("mine").await, sandboxed.open("other").await);
    other.write_bytes("secret-of-another", "s3cret".into()).await.unwrap();
    let base = sandboxed.base.path().display();
    for hidden in ["/root", "/home", "/var", "/srv", "/opt", "/boot", "/sys", "/mnt", "/etc/shadow", "/etc/hostname"] {
        assert!(!mine.sh(&format!("ls {hidden}")).await.unwrap().status.success(), "{hidden}");
    }
    assert!(!mine.sh(&format!("ls {base}")).await.unwrap().status.success());
    let found = mine.sh("find / -name 'secret-of-another' -o -name '*.sock' -o -name .wsm -o -name index 2>/dev/null | grep -v ^/usr").await.unwrap();
    assert_eq!(found.stdout.to_text(), "");
    // Nor does a link lead there, for the gateway's own file operations neither.
    let root = "root";
    let places = format!("{base}/*/*/secret-of-another /proc/1/{root}/x /proc/1/cwd/x");
    mine.sh(&format!("for place in {places}; do ln -sf $place link-$(basename $(dirname $place)); done; ln -s / root"))
        .await
        .unwrap();
    assert!(!mine.sh("cat link-*").await.unwrap().status.success());
    for entry in mine.list(".").await.unwrap().iter().filter(|entry| entry.name.starts_with("link-")) {
        assert!(mine.read_bytes(&entry.name, 100).await.is_err(), "{}", entry.name);
    }
    assert!(mine.read_bytes("root/etc/shadow", 100).await.is_err());
    let passwd = mine.read_text("root/etc/passwd", 10_000).await.unwrap();
    assert!(passwd.contains("agent:x:1000") && passwd.lines().count() == 3, "{passwd}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_system_can_not_be_written() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let workspace = sandboxed.open("w").await;
    for place in ["/", "/usr", "/usr/bin", "/bin", "/etc", "/run", "/run/wsm", "/dev", "/proc", "/proc/sys", "/lib"] {
        assert!(!workspace.sh(&format!("echo x > {place}/intruder")).await.unwrap().status.success(), "{place}");
    }
    for file in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/run/wsm/init",
        "/etc/passwd",
        "/etc/ld.so.cache",
        "/usr/bin/env",
        "/proc/1/oom_score_adj",
    ] {
        let result = workspace.sh(&format!("echo x > {file}")).await.unwrap();
        assert!(!result.status.success(), "{file}");
        let result = workspace.sh(&format!("test -e {file} && (chmod 777 {file} || rm -f {file})")).await.unwrap();
        assert!(!result.status.success(), "{file}");
    }
    // What is private can be written.
    assert!(
        workspace
            .sh("echo x > /tmp/x && echo x > /dev/shm/x && echo x > x && echo x > /dev/null")
            .await
            .unwrap()
            .status
            .success()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_channel_of_the_gateway_can_not_be_taken() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let workspace = sandboxed.open("w").await;
    let run = async |line: &str| workspace.sh(line).await.unwrap().stdout.to_text();
    // A descriptor of the first process can be had, and not what is open there.
    let getfd = "perl -e '$p = syscall(434, 1, 0); $r = syscall(438, $p, 3, 0); print \"$p $r \", $! + 0'";
    let taken = run(getfd).await;
    assert!(taken.ends_with(" -1 1"), "{taken}");
    for (name, number, arguments) in [
        ("ptrace attach", 101, "16, 1, 0, 0"),
        ("ptrace seize", 101, "0x4206, 1, 0, 0"),
        ("prlimit", 302, "1, 7, \"\\1\\0\\0\\0\\0\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\", 0"),
        ("process_vm_writev", 311, "1, 0, 0, 0, 0, 0"),
        ("kcmp", 312, "1, 1, 0, 0, 0"),
        ("sched_setaffinity", 203, "1, 8, \"\\1\\0\\0\\0\\0\\0\\0\\0\""),
        ("setpriority", 141, "0, 1, 19"),
        ("setpriority of the user", 141, "2, 0, 19"),
        ("ioprio_set", 251, "1, 1, 16384"),
    ] {
        assert_eq!(run(&call(number, arguments)).await, EPERM, "{name}");
    }
    // A process has as many numbers as threads. It has one more than its first, for what blocks.
    workspace.stat(".").await.unwrap();
    let threads = "perl -e '$limit = pack(\"QQ\", 5, 5); for (glob \"/proc/1/task/*\") { s{.*/}{}; \
                   print syscall(302, $_ + 0, 7, $limit, 0) < 0 ? $! + 0 : 0, \" \" }'";
    let refused = run(threads).await;
    assert!(refused.split_whitespace().count() > 1, "{refused}");
    assert!(refused.split_whitespace().all(|errno| errno == EPERM), "prlimit of a thread: {refused}");
    assert_eq!(run("ulimit -n 100 && ulimit -n").await, "100\n", "a command limits itself");
    // Reading memory needs no filter: the process is closed to others.
    let read = "perl -e '$to = \"x\" x 8; $here = pack(\"PQ\", $to, 8); $there = pack(\"QQ\", 4096, 8); \
                $r = syscall(310, 1, $here, 1, $there, 1, 0); print $r < 0 ? $! + 0 : 0'";
    assert_eq!(run(read).await, EPERM, "process_vm_readv");
    for file in ["fd", "fd/3", "mem", "environ", "root", "cwd", "exe", "maps", "task/1/mem"] {
        let result = workspace.sh(&format!("ls -l /proc/1/{file}/ || cat /proc/1/{file}")).await.unwrap();
        assert!(!result.status.success(), "{file}");
    }
    for signal in ["KILL", "STOP", "TERM", "INT", "SEGV", "CHLD", "USR1"] {
        run(&format!("kill -{signal} 1")).await;
    }
    // A command has its own three files and no more.
    assert_eq!(run("ls /proc/self/fd | wc -l").await.trim(), "4", "three, and the directory that is listed");
    assert_eq!(run("echo lives").await, "lives\n");
    assert_eq!(run("grep -E 'TracerPid|State' /proc/1/status | tr -d '\\n'").await.matches("TracerPid:\t0").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernels_doors_are_shut() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let workspace = sandboxed.open("w").await;
    let run = async |line: &str| workspace.sh(line).await.unwrap().stdout.to_text();
    for (name, number, arguments, expected) in [
        ("mount", 165, "\"none\", \"/tmp\", \"tmpfs\", 0, 0", EPERM),
        ("umount", 166, "\"/workspace\", 2", EPERM),
        ("pivot_root", 155, "\"/tmp\", \"/tmp\"", EPERM),
        ("chroot", 161, "\"/tmp\"", EPERM),
        ("fsopen", 430, "\"tmpfs\", 0", EPERM),
        ("open_tree", 428, "-100, \"/\", 1", EPERM),
        ("unshare user", 272, "0x10000000", EPERM),
        ("unshare mount", 272, "0x20000", EPERM),
        ("clone user", 56, "0x10000011, 0, 0, 0, 0", EPERM),
        ("clone3", 435, "0, 0", ENOSYS),
        ("setns", 308, "0, 0", EPERM),
        ("keyctl", 250, "0, -3, 0, 0, 0", EPERM),
        ("bpf", 321, "0, 0, 0", EPERM),
        ("perf_event_open", 298, "0, 0, 0, 0, 0", EPERM),
        ("userfaultfd", 323, "1", EPERM),
        ("io_uring_setup", 425, "1, 0", ENOSYS),
        ("syslog", 103, "10, 0, 0", EPERM),
        ("open_by_handle_at", 304, "0, 0, 0", EPERM),
        ("personality", 135, "0x0800000", EPERM),
        ("vsock", 41, "40, 1, 0", EPERM),
        ("alg", 41, "38, 5, 0", EPERM),
        ("packet", 41, "17, 3, 0", EPERM),
        ("push a key into a terminal", 16, "0, 0x5412, 0", EPERM),
        ("the same past 32 bits", 16, "0, 0x100005412, 0", EPERM),
        ("x32", 0x4000_0027, "0", ENOSYS),
        ("mknod", 133, "\"device\", 0020666, 0x103", EPERM),
        ("sethostname", 170, "\"x\", 1", EPERM),
    ] {
        assert_eq!(run(&call(number, arguments)).await, expected, "{name}");
    }
    // Other file systems can not be linked into.
    assert!(run("ln /usr/bin/env hard 2>&1").await.contains("cross-device"));
    // A program that belongs to its user gives nobody else's rights, and nobody can become another user.
    assert!(run("cp /usr/bin/id . && chmod 6755 id && ./id -u").await.starts_with("1000"));
    assert!(
        run("grep -E '^(CapEff|CapPrm|CapBnd|CapAmb)' /proc/self/status")
            .await
            .lines()
            .all(|line| line.ends_with("0000000000000000"))
    );
    assert!(run("grep NoNewPrivs /proc/self/status").await.contains('1'));
    // What developers need works.
    assert_eq!(
        run("perl -e 'fork() or exit; wait; print \"ok\"' && (exec 3<>/dev/null) && sh -c 'sleep 0 & wait'").await,
        "ok"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_services_environment_comes_in() {
    let Some(sandboxed) = Sandboxed::new(|config| config.with_env("GIVEN", "by the operator")).await else { return };
    let workspace = sandboxed.open("w").await;
    let names = workspace.sh("env | sed 's/=.*//' | sort | tr '\\n' ' '").await.unwrap().stdout.to_text();
    let expected = "GIVEN HOME LANG LOGNAME PATH PWD SHELL TERM TMPDIR USER WSM_COMMAND WSM_INSTANCE WSM_WORKSPACE_ID ";
    assert_eq!(names, expected);
    let processes = workspace.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.unwrap().stdout.to_text();
    assert!(!processes.contains("bwrap") && !processes.contains(&sandboxed.base.path().display().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_network_nothing_is_reached_and_everything_works() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!(
        "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => \"127.0.0.1:{port}\", Timeout => 2) ? 1 : 0'"
    );
    let Some(sandboxed) = Sandboxed::new(|config| config.with_network(Network::None)).await else { return };
    let workspace = sandboxed.open("w").await;
    assert_eq!(workspace.sh(&connect).await.unwrap().stdout.to_text(), "0", "the host's loopback");
    let devices = workspace.sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n'").await.unwrap().stdout.to_text();
    assert_eq!(devices, "lo");
    for address in ["192.0.2.1:80", "169.254.169.254:80", "1.1.1.1:53"] {
        let other = connect.replace(&format!("127.0.0.1:{port}"), address);
        assert_eq!(workspace.sh(&other).await.unwrap().stdout.to_text(), "0", "{address}");
    }
    // Its own loopback is up.
    let own = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1:0\"); \
               print IO::Socket::INET->new(PeerAddr => \"127.0.0.1:\" . $l->sockport) ? 1 : 0'";
    assert_eq!(workspace.sh(own).await.unwrap().stdout.to_text(), "1");

    let Some(sandboxed) = Sandboxed::new(|config| config.with_network(Network::Host)).await else { return };
    let workspace = sandboxed.open("w").await;
    assert_eq!(workspace.sh(&connect).await.unwrap().stdout.to_text(), "1", "with the host's network");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_directories_that_are_named_are_shown_and_not_for_writing() {
    let tools = tempfile::tempdir().unwrap();
    fs::set_permissions(tools.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::write(tools.path().join("tool"), "useful").unwrap();
    // `/tmp` is the sandbox' own, so that what is shown must lie elsewhere.
    let place = Path::new("/opt").join(format!("wsm-test-{}", std::process::id()));
    if !geteuid().is_root() || std::os::unix::fs::symlink(tools.path(), &place).is_err() {
        println!("skipped: only root can make a directory below /opt");
        return;
    }
    let shown = place.clone();
    let sandboxed = Sandboxed::new(move |config| config.with_read_only(shown)).await;
    if let Some(sandboxed) = sandboxed {
        let workspace = sandboxed.open("w").await;
        let tool = place.join("tool").display().to_string();
        assert_eq!(workspace.sh(&format!("cat {tool}")).await.unwrap().stdout.to_text(), "useful");
        assert!(!workspace.sh(&format!("echo x > {tool}")).await.unwrap().status.success());
        assert_eq!(workspace.sh("ls /opt").await.unwrap().stdout.to_text().lines().count(), 1);
    }
    fs::remove_file(place).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_never_runs_as_root_and_each_has_its_own_user() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let (first, second) = (unique("one"), unique("two"));
    let (one, two) = (sandboxed.open(&first).await, sandboxed.open(&second).await);
    let uid_of = |id: &str| {
        let init = inits(id)[0].as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{init}/status")).unwrap();
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap().to_owned();
        let uids: Vec<u32> = uids.split_whitespace().map(|uid| uid.parse().unwrap()).collect();
        assert!(uids.iter().all(|&uid| uid == uids[0]) && uids[0] != 0, "{uids:?}");
        uids[0]
    };
    one.write_bytes("d/f", "x".into()).await.unwrap();
    one.sh("mkdir -p e; echo y > e/g; ln -s f l").await.unwrap();
    let files = sandboxed.directory(&first);
    assert_eq!(
        fs::read_to_string(files.join("d/f")).unwrap() + &fs::read_to_string(files.join("e/g")).unwrap(),
        "xy\n"
    );
    for path in ["", "d", "d/f", "e/g", "l"] {
        assert_eq!(fs::symlink_metadata(files.join(path)).unwrap().uid(), uid_of(&first), "{path}");
    }
    assert_eq!(fs::metadata(&files).unwrap().mode() & 0o777, 0o700);
    if geteuid().is_root() {
        assert_ne!(uid_of(&first), uid_of(&second));
        let before = uid_of(&second);
        two.suspend().await.unwrap();
        let again = sandboxed.open(&second).await;
        assert_eq!(uid_of(&second), before, "it keeps it");
        drop(again);
    } else {
        assert_eq!(uid_of(&first), geteuid().as_raw());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_another_backend_made_keeps_its_place_and_files() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let base = sandboxed.base.path();
    // As the local backend lays it out for an id that no policy assigns.
    let workspace = sandboxed.open("w").await;
    workspace.write_bytes("f", "kept".into()).await.unwrap();
    workspace.suspend().await.unwrap();
    let (directory, moved) = (sandboxed.directory("w"), base.join(".wsm/workspaces/w"));
    fs::rename(&directory, &moved).unwrap();
    let index = fs::read_dir(base.join(".wsm/index")).unwrap().next().unwrap().unwrap().path();
    let place = directory.strip_prefix(base).unwrap().display().to_string();
    fs::write(&index, fs::read_to_string(&index).unwrap().replace(&place, ".wsm/workspaces/w")).unwrap();
    if geteuid().is_root() {
        let chown = |path: &Path| std::os::unix::fs::chown(path, Some(0), Some(0)).unwrap();
        chown(&moved);
        chown(&moved.join("f"));
    }
    let workspace = sandboxed.open("w").await;
    assert_eq!(workspace.sh("cat f; echo more >> f; wc -l < f").await.unwrap().stdout.to_text(), "kept1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_everything_inside_ends_one_command_at_most() {
    let Some(sandboxed) = Sandboxed::new(|config| config).await else { return };
    let workspace = Arc::new(sandboxed.open("w").await);
    let victim = {
        let workspace = Arc::clone(&workspace);
        async move { workspace.sh("touch begun; sleep 60").await.unwrap() }
    };
    let killer = async {
        while workspace.stat("begun").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        workspace.sh("kill -9 -1").await.unwrap()
    };
    let (victim, _) = tokio::join!(victim, killer);
    assert!(matches!(victim.status, ExitStatus::Signaled { signal: 9, .. }), "{:?}", victim.status);
    assert_eq!(workspace.sh("echo lives").await.unwrap().stdout.to_text(), "lives\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_layer_it_says_what_is_missing() {
    let base = common::basedir();
    let backend = wsm_core::BackendConfig::build(BubblewrapConfig::new(base.path())).unwrap();
    let request = wsm_core::OpenRequest::new(wsm_core::WorkspaceId::new("w").unwrap());
    let error = wsm_core::Backend::open(&backend, request).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unsupported, "gateway_missing"));
}
