//! An open file that this process was started with.
#![expect(unsafe_code, reason = "no safe call makes an owned descriptor of a number")]

use std::{
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_setfd};

/// Takes an inherited descriptor over, and keeps it from every command.
///
/// To be called once for a number, and before this process opens anything itself, so that nobody else owns it.
///
/// # Errors
///
/// When nothing is open under that number.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: borrowed for one call, which says so if the number is not open.
    fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and this process has opened nothing yet that could own it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
