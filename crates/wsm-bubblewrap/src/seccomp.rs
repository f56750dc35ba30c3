//! The system calls that commands may not make.
//!
//! A list of what is refused, not of what is allowed: compilers, interpreters, debuggers and package managers all work
//! under it. What is on it lets a program look for holes in the kernel, reach what is not namespaced, or disturb the first
//! process, and is of no use to an ordinary one.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};
use wsm_core::{Error, ErrorKind, Result};

/// Refused with `EPERM`, whatever their arguments.
#[rustfmt::skip]
const FORBIDDEN: &[i64] = &[
    // Keys are of the user, not of the namespace.
    libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
    // Large and much attacked parts of the kernel.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd,
    // Mounts and namespaces.
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_setns, libc::SYS_unshare,
    libc::SYS_move_mount, libc::SYS_open_tree, libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount,
    libc::SYS_fspick, libc::SYS_mount_setattr, libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at,
    // The machine as a whole.
    libc::SYS_kexec_load, libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module, libc::SYS_reboot,
    libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_acct, libc::SYS_quotactl, libc::SYS_quotactl_fd, libc::SYS_syslog,
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex, libc::SYS_vhangup,
    libc::SYS_fanotify_init, libc::SYS_lookup_dcookie, libc::SYS_nfsservctl,
    // Where memory lies.
    libc::SYS_move_pages, libc::SYS_migrate_pages, libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy,
    // Other processes' files and memory.
    libc::SYS_pidfd_getfd, libc::SYS_kcmp, libc::SYS_process_vm_writev,
];

/// Those that only this architecture has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const FORBIDDEN_HERE: &[i64] = &[
    libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_uselib, libc::SYS__sysctl,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[i64] = &[];

/// Said not to exist. Programs know what to do without: the C library, for one, falls back from `clone3`, whose flags no
/// filter can read, to `clone`, but takes `EPERM` for a reason to give up.
const ABSENT: &[i64] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The first process of the sandbox.
const INIT: u64 = 1;

/// Calls that are on no list of the C library's: ids of kinds of targets, from the kernel's headers.
const IOPRIO_WHO_PROCESS: u64 = 1;
const PRIO_PROCESS: u64 = 0;
/// On x86-64, calls with this bit are those of the x32 ABI, which the lists above do not name.
const X32_BIT: u32 = 0x4000_0000;

/// The programs, each as the bytes that `bwrap --add-seccomp-fd` takes. The strictest verdict counts.
///
/// # Errors
///
/// `unsupported` on an architecture that filters can not be made for.
pub(crate) fn filters() -> Result<Vec<Vec<u8>>> {
    let refuse = |error: BackendError| {
        Error::new(ErrorKind::Unsupported, "system calls can not be filtered on this architecture").with_source(error)
    };
    let compile = || -> Result<Vec<BpfProgram>, BackendError> {
        let forbidden = FORBIDDEN.iter().chain(FORBIDDEN_HERE).map(|&call| (call, Vec::new()));
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = forbidden.collect();
        rules.extend(conditional()?);
        let absent = ABSENT.iter().map(|&call| (call, Vec::new())).collect();
        let mut programs = vec![compile(rules, libc::EPERM)?, compile(absent, libc::ENOSYS)?];
        if cfg!(target_arch = "x86_64") {
            programs.push(x32_is_absent());
        }
        Ok(programs)
    };
    let programs = compile().map_err(refuse)?;
    Ok(programs.iter().map(|program| program.iter().flat_map(bytes).collect()).collect())
}

fn compile(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, BackendError> {
    let verdict = SeccompAction::Errno(errno.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, verdict, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Calls that are refused with some arguments only.
fn conditional() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let is = |argument, value| (argument, SeccompCmpOp::Eq, value);
    let is_not = |argument, value| (argument, SeccompCmpOp::Ne, value);
    let has = |argument, bit| (argument, SeccompCmpOp::MaskedEq(bit), bit);
    let namespaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        0x80, // CLONE_NEWTIME
    ];
    // Linux, BSD and no randomisation (for debuggers), and the question which one it is.
    let personalities = [0, 8, 0x2_0000, 0x2_0008, 0x4_0000, 0xFFFF_FFFF];
    // Others are not namespaced, or reach deep into the kernel. Netlink is how programs list their addresses.
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(|family| family as u64);
    let calls: [(i64, Vec<Vec<Test>>); 12] = [
        (libc::SYS_clone, namespaces.iter().map(|&flag| vec![has(0, u64::from(flag.unsigned_abs()))]).collect()),
        // Only the lower half counts for the kernel: a program may set the upper one to get past.
        (libc::SYS_ioctl, [libc::TIOCSTI, libc::TIOCLINUX].iter().map(|&request| vec![is(1, request)]).collect()),
        (libc::SYS_personality, vec![personalities.iter().map(|&value| is_not(0, value)).collect()]),
        (libc::SYS_socket, vec![families.iter().map(|&family| is_not(0, family)).collect()]),
        // Debuggers among commands work.
        (libc::SYS_ptrace, vec![vec![is_not(0, u64::from(libc::PTRACE_TRACEME)), is(1, INIT)]]),
        // Only for the caller itself, which is what `setrlimit` asks for: a process goes by the number of each of its threads
        // as well, and nobody knows those of the first one beforehand.
        (libc::SYS_prlimit64, vec![vec![is_not(0, 0), is_not(2, 0)]]),
        (libc::SYS_sched_setaffinity, vec![vec![is(0, INIT)]]),
        (libc::SYS_sched_setscheduler, vec![vec![is(0, INIT)]]),
        (libc::SYS_sched_setparam, vec![vec![is(0, INIT)]]),
        (libc::SYS_sched_setattr, vec![vec![is(0, INIT)]]),
        // All other kinds of targets mean several processes, the first one among them.
        (libc::SYS_setpriority, vec![vec![is_not(0, PRIO_PROCESS)], vec![is(1, INIT)]]),
        (libc::SYS_ioprio_set, vec![vec![is_not(0, IOPRIO_WHO_PROCESS)], vec![is(1, INIT)]]),
    ];
    let rules = calls.into_iter().map(|(call, rules)| {
        let rules = rules.into_iter().map(rule).collect::<Result<_, _>>()?;
        Ok((call, rules))
    });
    rules.collect()
}

/// An argument's place, and what it is compared to how.
type Test = (u8, SeccompCmpOp, u64);

/// A rule that fits when all tests do. The pointer of `prlimit64` is the one argument whose upper half counts.
fn rule(tests: Vec<Test>) -> Result<SeccompRule, BackendError> {
    let condition = |(argument, operator, value): Test| {
        let length = if argument == 2 { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
        SeccompCondition::new(argument, length, operator, value)
    };
    SeccompRule::new(tests.into_iter().map(condition).collect::<Result<_, _>>()?)
}

/// The library looks at the architecture alone, which is the same for the x32 ABI.
fn x32_is_absent() -> BpfProgram {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let at_least = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    vec![
        // The call's number stands at the beginning of what a filter can read.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        sock_filter { code: at_least as u16, jt: 0, jf: 1, k: X32_BIT },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

fn bytes(instruction: &sock_filter) -> [u8; 8] {
    let [code_0, code_1] = instruction.code.to_ne_bytes();
    let [k_0, k_1, k_2, k_3] = instruction.k.to_ne_bytes();
    [code_0, code_1, instruction.jt, instruction.jf, k_0, k_1, k_2, k_3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_whole_instructions_and_not_too_many() {
        let filters = filters().unwrap();
        assert_eq!(filters.len(), if cfg!(target_arch = "x86_64") { 3 } else { 2 });
        for filter in filters {
            assert!(!filter.is_empty() && filter.len() % 8 == 0 && filter.len() / 8 <= 4096, "{}", filter.len());
        }
    }
}
