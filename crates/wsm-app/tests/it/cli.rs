//! The real command, with real sockets, signals and files.

mod bubblewrap;
mod copy;
mod crash;
mod docker;
mod doctor;
#[cfg(feature = "e2b")]
mod e2b;
mod exec;
mod help;
mod idle;
mod operator;
mod over_http;
mod places;
mod run;
mod serve;
mod sockets;
mod together;

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

/// How long anything may take before the test has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// The command in a directory of its own, without the variables of whoever runs the tests.
fn wsm(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wsm"));
    command.current_dir(dir).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", dir);
    command.env("LOGNAME", "tester").args(args).stdin(Stdio::null());
    command
}

/// Options, a command, and the exit code that `run` and `exec` alike must end with.
type ExitCase<'a> = (&'a [&'a str], Vec<&'a str>, i32);

/// The exit codes that `run` and `exec` have in common. `plain` is a file that can not be run.
fn exit_cases(plain: &str) -> Vec<ExitCase<'_>> {
    vec![
        (&[], vec!["true"], 0),
        (&[], vec!["sh", "-c", "exit 42"], 42),
        (&[], vec!["sh", "-c", "exit 255"], 255),
        (&[], vec!["sh", "-c", "kill -9 $$"], 137),
        (&["--timeout", "200ms"], vec!["sleep", "60"], 124),
        (&[], vec!["no-such-program"], 127),
        (&[], vec![plain], 126),
        (&["--timeout", "0s"], vec!["true"], 125),
        (&["--timeout=-1s"], vec!["true"], 125),
        (&["--no-such-flag"], vec!["true"], 125),
        (&["--user", ""], vec!["true"], 125),
    ]
}

fn output(dir: &Path, args: &[&str]) -> Output {
    wsm(dir, args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code, standard output and standard error, as texts.
fn told(output: impl std::borrow::Borrow<Output>) -> (i32, String, String) {
    let output = output.borrow();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Runs a command that reads `input`.
fn fed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that does not read to the end is what some tests are about.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    })
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits for a process to end, with a deadline.
fn wait(child: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the process did not end");
        }
        std::thread::yield_now();
    }
}

/// Whether a process lives.
fn alive(pid: &str) -> bool {
    // A process that ended and was not collected yet is dead for all that matters.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// A running service, which is killed when the test ends.
struct Service {
    child: Child,
    url: String,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Service {
    /// Starts a service on `dir`.
    fn start(dir: &Path, more: &[&str]) -> Self {
        let args = ["serve", "--basedir", "base", "--store", "wsm.db", "--listen", "127.0.0.1:0"];
        Self::start_command(wsm(dir, &[&args, more].concat()), dir)
    }

    /// Starts a service by a command of one's own. What it logs goes into `dir`.
    fn start_command(mut command: Command, dir: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url =
            line.trim().strip_prefix("wsm is listening on ").unwrap_or_else(|| panic!("{line:?}: {}", log_of(dir)));
        let url = url.to_owned();
        Self { child, url, stdout }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let client = crate::support::http();
        let mut request =
            client.request(method.parse().unwrap(), format!("{}{path}", self.url)).header("x-user-id", "ann");
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().await.unwrap();
        let status = reply.status().as_u16();
        (status, serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap_or_default())
    }

    async fn session(&self, id: &str) -> Value {
        let body = serde_json::json!({ "agent_id": "a", "session_id": id });
        let (status, session) = self.call("POST", "/sessions", Some(body)).await;
        assert!(status == 201 || status == 200, "{session}");
        session
    }

    async fn sh(&self, session: &str, line: &str) -> Value {
        let body = serde_json::json!({ "command": ["sh", "-c", line] });
        let (status, result) =
            self.call("POST", &format!("/workspace/exec?agent_id=a&session_id={session}"), Some(body)).await;
        assert_eq!(status, 200, "{result}");
        result
    }

    /// Asks the service to end, and checks that it does so with 0 and has said nothing more.
    fn stop(mut self) {
        signal(&self.child, rustix::process::Signal::TERM);
        assert_eq!(wait(&mut self.child).code(), Some(0));
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "one line is all that is printed");
    }

    /// The command against this service.
    fn wsm(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = wsm(dir, args);
        command.env("WSM_URL", &self.url).env("WSM_USER", "ann");
        command
    }

    /// Runs the command against this service, and gives its exit code, standard output and standard error.
    fn ask(&self, dir: &Path, args: &[&str]) -> (i32, String, String) {
        told(self.wsm(dir, args).output().unwrap())
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        wait(&mut self.child);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}
