//! Starts a program without copying the page tables of this process.
//!
//! The standard library does so as well (`posix_spawn`), but not for a child that has to call anything of its own before
//! it becomes the program, as ours has: for that it forks. A fork takes time in proportion to the memory of the service,
//! milliseconds for some hundred megabytes, and makes every other thread fault its pages in again. So this is the same
//! thing that `posix_spawn` does: a child that runs on a stack of its own in the memory of its parent, while the thread
//! that started it stands still until the program is loaded.
#![expect(unsafe_code, reason = "the standard library offers no way to run code in a child without a fork")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

use rustix::process::Pid;
use tokio::io::{Interest, unix::AsyncFd};

/// Far more than the few calls of the child need.
const STACK_BYTES: usize = 64 << 10;
/// Signals have the numbers 1 to 64.
const LAST_SIGNAL: c_int = 64;
/// What the kernel takes for a set of signals, in bytes.
const SIGNAL_SET_BYTES: usize = 8;

/// A program with its arguments and variables.
#[derive(Debug)]
pub(super) struct Image {
    /// Where the program may be; the first that can be executed is taken, as `execvp` does.
    pub(super) candidates: Vec<CString>,
    pub(super) arguments: Vec<CString>,
    /// `NAME=value`.
    pub(super) variables: Vec<CString>,
}

/// The open files that a child starts with. The three streams have no number below 3.
#[derive(Debug)]
pub(super) struct Files<'fd> {
    pub(super) stdin: BorrowedFd<'fd>,
    pub(super) stdout: BorrowedFd<'fd>,
    pub(super) stderr: BorrowedFd<'fd>,
    /// The directory to start in.
    pub(super) directory: BorrowedFd<'fd>,
}

/// What the child reads and writes in its parent's memory.
struct Call<'c> {
    candidates: &'c [CString],
    arguments: &'c [*const c_char],
    variables: &'c [*const c_char],
    files: [c_int; 3],
    directory: c_int,
    /// Why the program could not be executed.
    errno: AtomicI32,
}

/// Starts a child that leads a session and adopts its orphans.
///
/// - A session of its own is a process group of its own, and has no terminal: a program that asks for a password there
///   fails at once instead of waiting for ever.
/// - A child subreaper becomes the parent of every descendant whose own parent ends. As long as the command lives,
///   everything that it started is found below it, also what left its session or forked twice. The setting survives exec
///   and is not inherited by children.
/// - Entering the directory by its descriptor leaves no moment in which another one could take its place.
///
/// Returns the child's number, and a descriptor that is readable once the child has ended. Nobody else reaps it.
///
/// # Errors
///
/// The kernel's reason why there is no child, or why it could not execute the program.
pub(super) fn spawn(image: &Image, files: &Files<'_>) -> io::Result<(Pid, OwnedFd)> {
    let Image { candidates, arguments, variables } = image;
    let terminated = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let Files { stdin, stdout, stderr, directory } = files;
    let call = Call {
        candidates,
        arguments: &terminated(arguments),
        variables: &terminated(variables),
        files: [stdin, stdout, stderr].map(AsRawFd::as_raw_fd),
        directory: directory.as_raw_fd(),
        errno: AtomicI32::new(0),
    };
    let mut stack: Vec<MaybeUninit<u8>> = Vec::with_capacity(STACK_BYTES);
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let aligned_top = top.wrapping_sub(top.addr() % 16);
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;

    let blocked = set_signal_mask(u64::MAX);
    // SAFETY: the child runs on `stack` and reads `call`, and both live on until it is done with them: this thread
    // stands still until then (`CLONE_VFORK`). What it does is described at `child`. `pidfd` is where `CLONE_PIDFD`
    // writes to.
    let (pid, error) = unsafe {
        let argument = ptr::from_ref(&call).cast_mut().cast::<c_void>();
        let pid = libc::clone(child, aligned_top.cast::<c_void>(), flags, argument, ptr::from_mut(&mut pidfd));
        (pid, io::Error::last_os_error())
    };
    set_signal_mask(blocked);

    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else { return Err(error) };
    // SAFETY: `clone` succeeded, so that this is a new descriptor which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    match call.errno.load(Ordering::Acquire) {
        0 => Ok((pid, pidfd)),
        errno => {
            // It has ended already; this only takes it away.
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Makes the kernel keep the ends of children until somebody asks for them: a process that was started with `SIGCHLD`
/// ignored would never hear of one.
pub fn keep_ends_of_children() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zero is a valid value of every field, and the signal is one that can be handled.
    unsafe {
        if libc::sigaction(libc::SIGCHLD, ptr::null(), action.as_mut_ptr()) != 0 {
            return;
        }
        let action = action.assume_init_mut();
        // Only then, so that no handler is lost that somebody sets at this moment.
        if action.sa_sigaction == libc::SIG_IGN || action.sa_flags & libc::SA_NOCLDWAIT != 0 {
            tracing::warn!("this process ignored the ends of its children, and does so no longer");
            if action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = libc::SIG_DFL;
            }
            action.sa_flags &= !libc::SA_NOCLDWAIT;
            libc::sigaction(libc::SIGCHLD, action, ptr::null_mut());
        }
    }
}

/// A child that has ended, if there is one. It is not reaped, and shown again until it is.
pub(super) fn ended_child() -> Option<Pid> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: zero is a valid value of every field. The kernel fills in the number when it finds a child, and leaves zero
    // otherwise.
    let pid = unsafe {
        match libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) {
            0 => info.assume_init_ref().si_pid(),
            // There is no child at all. A call that does not wait is not interrupted.
            _ => 0,
        }
    };
    Pid::from_raw(pid)
}

/// Waits for the descriptor of a child without blocking.
pub(super) fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same, for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?)
}

/// What the child does until it is another program.
///
/// It shares the memory of its parent, of which all threads but one run on, perhaps inside of the allocator. So it calls
/// nothing but the kernel: it neither allocates, nor locks, nor panics. It has its own table of files and signal
/// handlers, so that what it changes there does not touch its parent. All signals are blocked on entry.
extern "C" fn child(call: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a `Call` that outlives the child's use of it.
    let call = unsafe { &*call.cast::<Call<'_>>() };
    let errno = become_program(call);
    call.errno.store(errno, Ordering::Release);
    // SAFETY: ends the child at once, without running what its parent has registered for its own end.
    unsafe { libc::_exit(127) }
}

/// Returns only if it fails, with the reason.
fn become_program(call: &Call<'_>) -> c_int {
    // SAFETY: bare system calls with numbers and with pointers to what `call` owns; each string and each list of them
    // ends in zero.
    unsafe {
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 {
            return errno();
        }
        // Before the streams, which may take the directory's number.
        if libc::fchdir(call.directory) < 0 {
            return errno();
        }
        for (&file, number) in call.files.iter().zip(0..) {
            // The copy stays open when the program is executed.
            if libc::dup2(file, number) < 0 {
                return errno();
            }
        }
        // Everything else closes then, also what the service was started with or what a library opened carelessly. Where
        // the kernel does not know the call (before Linux 5.11), all that Rust has opened closes by itself.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        reset_signal_handlers();
        set_signal_mask(0);
        execute(call)
    }
}

/// Tries the candidates one after the other.
///
/// # Safety
///
/// As for [`become_program`].
unsafe fn execute(call: &Call<'_>) -> c_int {
    let mut result = libc::ENOENT;
    for candidate in call.candidates {
        let candidate: &CStr = candidate;
        // SAFETY: see above.
        unsafe { libc::execve(candidate.as_ptr(), call.arguments.as_ptr(), call.variables.as_ptr()) };
        match errno() {
            // Not here; perhaps in the next place.
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            libc::EACCES => result = libc::EACCES,
            other => return other,
        }
    }
    result
}

/// Handlers of the service must not run in the child, and what the service ignores the program shall not: the runtime of
/// Rust ignores `SIGPIPE`, on which pipelines of a shell depend, and a service that a shell put into the background
/// ignores `SIGINT`, which would then never reach a command.
fn reset_signal_handlers() {
    for signal in 1..=LAST_SIGNAL {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zero is a valid value of every field; for signals that can not be handled, nothing is done.
        unsafe {
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0 {
                let action = action.assume_init_mut();
                if action.sa_sigaction != libc::SIG_DFL {
                    action.sa_sigaction = libc::SIG_DFL;
                    action.sa_flags = 0;
                    libc::sigaction(signal, action, ptr::null_mut());
                }
            }
        }
    }
}

/// Blocks exactly the signals in `mask`, and returns those that were blocked before.
///
/// Asks the kernel directly: the C library does not let its own two signals be blocked.
fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both sets live on the stack and have the size that is told. With a right size, this can not fail.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            ptr::from_ref(&mask),
            ptr::from_mut(&mut before),
            SIGNAL_SET_BYTES,
        );
    }
    before
}

fn errno() -> c_int {
    // SAFETY: the C library keeps it where this points to. The child shares it with the thread that stands still.
    unsafe { *libc::__errno_location() }
}
