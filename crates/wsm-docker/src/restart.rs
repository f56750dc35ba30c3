//! Whether a container ended because its engine was restarted.
//!
//! An engine that is stopped ends its containers first, as `docker stop` would, and one that was killed ends them when it
//! is back. Nothing in what it says of a container tells that from any other end, but for the time.

use std::{
    fs, io,
    time::{Duration, SystemTime},
};

use rustix::param::clock_ticks_per_second;
use tokio::net::UnixStream;

/// How long before its own end an engine may end a container.
const BEFORE: Duration = Duration::from_secs(60);
/// How long after its start.
const AFTER: Duration = Duration::from_secs(20);

/// When the engine behind a local socket was started, if that can be found out: whoever listens there is the engine, or the
/// init system that has started it.
///
/// # Cancel safety
///
/// Changes nothing.
pub(crate) async fn started_at(host: &str) -> Option<SystemTime> {
    let socket = UnixStream::connect(host.strip_prefix("unix://")?).await.ok()?;
    let pid = socket.peer_cred().ok()?.pid()?;
    process_start(pid).ok()
}

/// Whether the restart of an engine that was started at `started` explains an end.
pub(crate) fn explains(started: SystemTime, ended: SystemTime) -> bool {
    ended + BEFORE >= started && ended <= started + AFTER
}

/// When a process was started, by the table in `proc_pid_stat(5)`. Blocks for as long as the kernel takes to print it.
fn process_start(pid: i32) -> io::Result<SystemTime> {
    let damaged = || io::Error::from(io::ErrorKind::InvalidData);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before may hold anything.
    let after_name = stat.rsplit_once(')').ok_or_else(damaged)?.1;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(19).and_then(|it| it.parse().ok()).ok_or_else(damaged)?;
    let system = fs::read_to_string("/proc/stat")?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok()).ok_or_else(damaged)?;
    let since_boot = Duration::from_millis(ticks * 1000 / clock_ticks_per_second());
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(booted) + since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_about_the_start_of_the_engine_is_its_restart() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (ended, explained) in [(930, false), (950, true), (1000, true), (1015, true), (1030, false)] {
            assert_eq!(explains(start, at(ended)), explained, "{ended}");
        }
    }

    #[tokio::test]
    async fn whoever_listens_on_a_socket_was_started_before_now() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        let started = started_at(&format!("unix://{}", path.display())).await.unwrap();
        let age = SystemTime::now().duration_since(started).unwrap();
        assert!(age < Duration::from_secs(600), "this process is young: {age:?}");
        assert_eq!(started_at("tcp://192.0.2.1:2375").await, None);
    }
}
