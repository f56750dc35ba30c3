//! What a command's process does to itself between fork and exec.
#![expect(unsafe_code, reason = "the standard library offers no safe way to run code between fork and exec")]

use std::{
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::Command,
};

use rustix::process::{fchdir, getpid, set_child_subreaper, setsid};

/// Makes the command a session of its own that adopts its orphans, and lets it start in `directory`.
///
/// - A session of its own is a process group of its own, and has no terminal: a program that asks for a password there
///   fails at once instead of waiting for ever.
/// - A child subreaper becomes the parent of every descendant whose own parent ends. As long as the command lives,
///   everything that it started is found below it, also what left its session or forked twice. The setting survives
///   exec and is not inherited by children.
/// - Entering the directory by its descriptor leaves no moment in which another one could take its place.
pub(super) fn prepare(command: &mut Command, directory: OwnedFd) {
    let before_exec = move || {
        setsid()?;
        set_child_subreaper(Some(getpid()))?;
        fchdir(&directory)?;
        Ok(())
    };
    // SAFETY: between fork and exec, only what is safe in a signal handler may be called. These are bare system calls;
    // nothing allocates or locks, not even in the case of an error, which is made of its number alone.
    unsafe { command.pre_exec(before_exec) };
}
