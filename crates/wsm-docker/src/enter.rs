//! Runs a program of this machine in the network of a container.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Runs a program in the network that a process is in, if the process is the one that is meant: the engine may number
/// processes otherwise than this machine does. None where it is not. Blocks.
///
/// # Errors
///
/// What the system says, not to be allowed to among it.
pub(crate) fn run(
    pid: i64,
    is_meant: impl Fn(&[u8]) -> bool,
    program: &Path,
    args: &[&str],
) -> io::Result<Option<Output>> {
    // All by way of this descriptor, so that it is one process throughout.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let process = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty())?;
    let read = OFlags::RDONLY | OFlags::CLOEXEC;
    let network = openat(&process, "ns/net", read, Mode::empty())?;
    let own = openat(CWD, "/proc/self/ns/net", read, Mode::empty())?;
    let mut line = Vec::new();
    File::from(openat(&process, "cmdline", read, Mode::empty())?).read_to_end(&mut line)?;
    if !is_meant(&line) || fstat(&network)?.st_ino == fstat(&own)?.st_ino {
        return Ok(None);
    }
    // On a thread of its own, which ends with it: a network is a thread's, and what a thread starts is in it, too.
    let mut command = Command::new(program);
    command.args(args).env_clear().stdin(Stdio::null());
    let entered = move || enter(&network).and_then(|()| command.output());
    let entered = thread::Builder::new().name("wsm-enter".to_owned()).spawn(entered)?;
    entered.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))).map(Some)
}

fn enter(network: &OwnedFd) -> io::Result<()> {
    Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_this_process_is_never_entered_nor_that_of_another_one_than_is_meant() {
        let own = i64::from(std::process::id());
        let run = |is_meant: bool| run(own, |_| is_meant, Path::new("/bin/true"), &[]).unwrap();
        assert!(run(true).is_none(), "it has no other network");
        assert!(run(false).is_none());
        assert!(super::run(i64::MAX, |_| true, Path::new("/bin/true"), &[]).is_err());
    }
}
