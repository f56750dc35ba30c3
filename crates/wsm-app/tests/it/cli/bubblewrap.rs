//! The command and the service with sandboxes.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use super::{DEADLINE, Service, exit_cases, told};

/// The static program, as `cargo xtask gateway` leaves it.
const BUILT: &str = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";

/// The gateway, where this machine can make sandboxes. `WSM_REQUIRE=bubblewrap` makes its absence a failure.
fn gateway() -> Option<PathBuf> {
    let named = std::env::var_os("WSM_GATEWAY").map(PathBuf::from);
    let gateway = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(BUILT));
    let has_bwrap = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_ok();
    if gateway.is_file() && has_bwrap {
        return Some(gateway);
    }
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    assert!(!required.contains("bubblewrap"), "`cargo xtask setup` and `cargo xtask gateway` bring what is missing");
    #[expect(clippy::print_stdout, reason = "a skipped test says why")]
    {
        println!("skipped: needs `bwrap` and the gateway: `cargo xtask setup`, `cargo xtask gateway`");
    }
    None
}

/// A configuration that differs from one for `local` by one line.
fn place(gateway: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wsm.toml"), "backend = \"bubblewrap\"\nbasedir = \"base\"\nstore = \"wsm.db\"\n")
        .unwrap();
    // Beside the command in an installation; here tests of several kinds share a directory.
    std::fs::write(dir.path().join("gateway"), gateway.display().to_string()).unwrap();
    dir
}

fn wsm(dir: &Path, args: &[&str]) -> Command {
    let mut command = super::wsm(dir, args);
    command.env("WSM_GATEWAY", std::fs::read_to_string(dir.join("gateway")).unwrap());
    command
}

fn output(dir: &Path, args: &[&str]) -> Output {
    wsm(dir, args).output().unwrap()
}

#[test]
fn one_line_puts_commands_into_a_sandbox() {
    let Some(gateway) = gateway() else { return };
    let dir = place(&gateway);
    let (code, out, errors) = told(output(dir.path(), &["run", "--", "sh", "-c", "id -un; pwd; echo kept > f"]));
    assert_eq!((code, out.as_str()), (0, "agent\n/workspace\n"), "{errors}");
    let (code, out, errors) =
        told(output(dir.path(), &["run", "--", "sh", "-c", "cat f; ls /home || cat /etc/shadow"]));
    assert_eq!(out, "kept\n", "{errors}");
    assert_ne!(code, 0);
    std::fs::write(dir.path().join("plain"), "").unwrap();
    // A file of the sandbox, where that of the host is not.
    assert_eq!(told(output(dir.path(), &["run", "--", "sh", "-c", "echo > plain"])).0, 0);
    for (options, command, code) in exit_cases("./plain") {
        let output = output(dir.path(), &[&["run"], options, &["--"], &command].concat());
        assert_eq!(output.status.code(), Some(code), "{options:?} {command:?}: {}", super::stderr(&output));
    }
}

#[test]
fn doctor_tells_what_sandboxes_are_made_with_and_what_is_missing() {
    let Some(gateway) = gateway() else { return };
    let dir = place(&gateway);
    let (code, text, errors) = told(output(dir.path(), &["doctor", "--url", "http://127.0.0.1:1"]));
    assert_eq!(code, 0, "{text}{errors}");
    for told in ["bubblewrap 0.", "a sandboxed `true` ran", "sandboxes run as", "network"] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(!dir.path().join("base").exists(), "nothing was made");
    let (code, text, _) = told(output(dir.path(), &["doctor", "--set", "bubblewrap.bwrap=/nowhere/bwrap"]));
    assert!(code == 1 && text.contains("apt-get install bubblewrap"), "{text}");
    let mut lonely = super::wsm(dir.path(), &["run", "--", "true"]);
    let (code, _, errors) = told(lonely.env("WSM_GATEWAY", "/nowhere/wsm-gateway").output().unwrap());
    assert!(code == 125 && errors.contains("cargo xtask gateway"), "{errors}");
    assert!(!dir.path().join("base").exists(), "and never without a sandbox");
}

#[test]
fn options_of_the_backends_table_reach_it_from_every_source() {
    let Some(gateway) = gateway() else { return };
    let dir = place(&gateway);
    let file = std::fs::read_to_string(dir.path().join("wsm.toml")).unwrap();
    let table =
        "[bubblewrap]\nnetwork = \"none\"\nmemory = \"256MiB\"\ncpus = 1.5\nuids = { first = 1900000000, count = 9 }\n";
    std::fs::write(dir.path().join("wsm.toml"), format!("{file}{table}[bubblewrap.env]\nA = \"b\"\n")).unwrap();
    let line = "echo $A $B; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
    let args = ["run", "--set", "bubblewrap.env.B=c", "--set", "bubblewrap.pids=200", "--", "sh", "-c", line];
    let (code, out, errors) = told(output(dir.path(), &args));
    assert_eq!((code, out.as_str()), (0, "b c\nlo\n"), "{errors}");
    for (set, named) in [
        ("bubblewrap.network=some", "network"),
        ("bubblewrap.memory=1", "memory"),
        ("bubblewrap.gateway_port=9000", "gateway_port"),
        ("bubblewrap.netwrk=none", "did you mean `network`"),
    ] {
        let (code, _, errors) = told(output(dir.path(), &["run", "--set", set, "--", "true"]));
        assert!(code == 125 && errors.contains(named), "{set}: {errors}");
    }
}

#[tokio::test]
async fn a_service_with_sandboxes_is_used_killed_and_started_again() {
    let Some(gateway) = gateway() else { return };
    let dir = place(&gateway);
    let start = || Service::start_command(wsm(dir.path(), &["serve", "--listen", "127.0.0.1:0"]), dir.path());
    let service = start();
    service.session("s").await;
    assert_eq!(service.sh("s", "id -un; echo kept > f; (sleep 600 &) > /dev/null 2>&1").await["stdout"], "agent\n");
    let (status, _) = service.call("GET", "/readyz", None).await;
    assert_eq!(status, 200);
    let pattern = format!("/run/wsm/init\0serve\0--door\x003\0--id\0{}", {
        let (_, workspaces) = service.call("GET", "/admin/workspaces", None).await;
        workspaces["items"][0]["workspace_id"].as_str().unwrap().to_owned()
    });
    let runs = || {
        let lines = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines.filter(|line| String::from_utf8_lossy(line).starts_with(&pattern)).count()
    };
    assert_eq!(runs(), 1);
    service.kill();
    let begun = tokio::time::Instant::now();
    while runs() > 0 {
        assert!(begun.elapsed() < DEADLINE, "the sandbox ends with its service");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let service = start();
    assert_eq!(service.sh("s", "cat f; ps ax | grep -c '[s]leep 600'").await["stdout"], "kept\n0\n");
    service.stop();
    assert_eq!(runs(), 0);
}
