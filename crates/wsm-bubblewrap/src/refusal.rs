//! What it means, and what to do, when `bwrap` can not make a sandbox.
//!
//! Its messages are matched by how they begin: distributions change the rest, and the error number at the end may be of
//! another call.

use std::{fs, path::Path};

use wsm_core::{Error, ErrorKind};

const USER_NAMESPACES: &str = "userns_refused";
const APPARMOR: &str = "apparmor_userns";
const CONTAINER: &str = "container_refuses";

/// What of the machine decides whether user namespaces are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Circumstances {
    /// `user.max_user_namespaces` is 0.
    none_allowed: bool,
    /// `kernel.unprivileged_userns_clone` is 0 (Debian's kernels).
    not_for_users: bool,
    /// `kernel.apparmor_restrict_unprivileged_userns` is 1 (Ubuntu from 23.10 on).
    restricted_by_apparmor: bool,
    /// This is a container, or this process' system calls are filtered.
    in_container: bool,
}

impl Circumstances {
    /// Looks at this machine. Blocks.
    pub(crate) fn detect() -> Self {
        let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let is = |path: &str, value: &str| setting(path).is_some_and(|found| found == value);
        let filtered = setting("/proc/self/status")
            .is_some_and(|status| status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])));
        let marked = ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| Path::new(mark).exists());
        Self {
            none_allowed: is("/proc/sys/user/max_user_namespaces", "0"),
            not_for_users: is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            restricted_by_apparmor: is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            in_container: filtered || marked,
        }
    }
}

/// There is no `bwrap`.
pub(crate) fn missing(program: &Path) -> Error {
    let message = format!(
        "`{}` is not installed: `apt-get install bubblewrap`, `dnf install bubblewrap`, or give its path as `bwrap`",
        program.display()
    );
    Error::new(ErrorKind::Unavailable, message).with_code("bwrap_missing")
}

/// Explains what `bwrap` said before it gave up.
pub(crate) fn explain(stderr: &str, circumstances: Circumstances) -> Error {
    let said = stderr.lines().rev().find_map(|line| line.trim().strip_prefix("bwrap: "));
    let Some(said) = said else {
        let message = match stderr.trim() {
            "" => "the sandbox ended before it was ready, without a word".to_owned(),
            said => format!("the sandbox ended before it was ready: {said}"),
        };
        return Error::new(ErrorKind::Backend, message).with_code("sandbox_failed");
    };
    let (code, advice) = advise(said, circumstances);
    let advice = advice.map_or_else(String::new, |advice| format!(". {advice}"));
    Error::new(ErrorKind::Unavailable, format!("bwrap can not make a sandbox: {said}{advice}")).with_code(code)
}

fn advise(said: &str, circumstances: Circumstances) -> (&'static str, Option<&'static str>) {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| said.starts_with(beginning));
    if begins(&["setting up uid map: Permission denied"]) || begins(&["loopback: Failed RTM_NEWADDR"]) {
        return if circumstances.restricted_by_apparmor {
            (APPARMOR, Some(APPARMOR_ADVICE))
        } else {
            (USER_NAMESPACES, Some(WITHOUT_RIGHTS_ADVICE))
        };
    }
    if begins(&["No permissions to creat", "Creating new namespace failed", "unshare user ns"]) {
        return (USER_NAMESPACES, Some(namespaces_advice(said, circumstances)));
    }
    if begins(&["Can't mount proc on", "Failed to make / slave", "pivot_root", "Failed to mount tmpfs: Permission"]) {
        return (CONTAINER, Some(CONTAINER_ADVICE));
    }
    if begins(&["cannot open /proc/sys/user/max_user_namespaces"]) {
        return (
            APPARMOR,
            Some("An AppArmor profile forbids it: allow `bwrap` to write there, or take it out of the profile"),
        );
    }
    if begins(&["Unexpected capabilities"]) {
        let advice = "This process has capabilities that `bwrap` does not expect: start wsm without ambient capabilities \
                      (`AmbientCapabilities=` in a unit, `setcap` on the program)";
        return ("unexpected_capabilities", Some(advice));
    }
    if begins(&["Can't find source path"]) && said.ends_with("Permission denied") {
        let advice = "The user that sandboxes run as can not get there: every directory above must be enterable (`chmod \
                      o+x`), or move it elsewhere";
        return ("path_not_enterable", Some(advice));
    }
    if begins(&["Failed to mount tmpfs: No such file"]) {
        return ("no_tmp", Some("`bwrap` needs the host's /tmp as a place to start from: make the directory"));
    }
    if begins(&["Unknown option"]) {
        return ("bwrap_too_old", Some("Version 0.8 or newer is needed"));
    }
    ("sandbox_failed", None)
}

fn namespaces_advice(said: &str, circumstances: Circumstances) -> &'static str {
    let Circumstances { none_allowed, not_for_users, restricted_by_apparmor, in_container } = circumstances;
    if none_allowed || said.contains("nesting depth") {
        "User namespaces are used up or switched off: raise `user.max_user_namespaces` (`sysctl -w \
         user.max_user_namespaces=65536`)"
    } else if not_for_users {
        "User namespaces are only for root here: `sysctl -w kernel.unprivileged_userns_clone=1`"
    } else if restricted_by_apparmor {
        APPARMOR_ADVICE
    } else if in_container {
        CONTAINER_ADVICE
    } else if said.contains("does not support user namespaces") {
        "The kernel was built without user namespaces (CONFIG_USER_NS): use another kernel, or another backend"
    } else {
        WITHOUT_RIGHTS_ADVICE
    }
}

const APPARMOR_ADVICE: &str = "AppArmor lets only known programs make user namespaces here (Ubuntu 23.10 and newer): install \
    `apparmor-profiles`, copy /usr/share/apparmor/extra-profiles/bwrap-userns-restrict into /etc/apparmor.d, and load it \
    with `apparmor_parser -r`";
const CONTAINER_ADVICE: &str = "The container that wsm runs in forbids it. With Docker, start it with `--security-opt \
    seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`; with Podman, with \
    `--security-opt unmask=ALL`; or use the docker backend";
const WITHOUT_RIGHTS_ADVICE: &str = "The kernel does not let this process make the namespaces that a sandbox is made of: a \
    seccomp filter, a chroot or a security module is in the way";

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact words of bwrap 0.8 on Debian and of newer versions, and what should come of them.
    #[test]
    fn every_known_refusal_says_what_to_do() {
        let nothing = Circumstances::default();
        let ubuntu = Circumstances { restricted_by_apparmor: true, ..nothing };
        let docker = Circumstances { in_container: true, ..nothing };
        let off = Circumstances { none_allowed: true, ..nothing };
        let old_debian = Circumstances { not_for_users: true, ..nothing };
        let refused = "bwrap: No permissions to create new namespace, likely because the kernel does not allow \
                       non-privileged user namespaces. See <https://deb.li/bubblewrap>.";
        let upstream = "bwrap: No permissions to creating new namespace, likely because the kernel does not allow it";
        for (said, circumstances, code, advice) in [
            (refused, docker, "userns_refused", "--security-opt"),
            (refused, old_debian, "userns_refused", "kernel.unprivileged_userns_clone=1"),
            (upstream, ubuntu, "userns_refused", "apparmor_parser"),
            (upstream, nothing, "userns_refused", "seccomp filter, a chroot"),
            ("bwrap: Creating new namespace failed: Operation not permitted", docker, "userns_refused", "Docker"),
            (
                "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
                off,
                "userns_refused",
                "user.max_user_namespaces",
            ),
            (
                "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  \
                 bwrap must be installed setuid on such systems.",
                nothing,
                "userns_refused",
                "CONFIG_USER_NS",
            ),
            ("bwrap: setting up uid map: Permission denied", ubuntu, "apparmor_userns", "bwrap-userns-restrict"),
            (
                "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
                ubuntu,
                "apparmor_userns",
                "apparmor_parser",
            ),
            ("bwrap: loopback: Failed RTM_NEWADDR: No child processes", nothing, "userns_refused", "does not let"),
            (
                "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
                docker,
                "container_refuses",
                "unmask",
            ),
            ("bwrap: Failed to make / slave: Permission denied", docker, "container_refuses", "docker backend"),
            ("bwrap: pivot_root: Operation not permitted", docker, "container_refuses", "Docker"),
            ("bwrap: Failed to mount tmpfs: Permission denied", docker, "container_refuses", "Docker"),
            ("bwrap: Failed to mount tmpfs: No such file or directory", nothing, "no_tmp", "/tmp"),
            (
                "bwrap: cannot open /proc/sys/user/max_user_namespaces: Permission denied",
                nothing,
                "apparmor_userns",
                "profile",
            ),
            ("bwrap: unshare user ns: Operation not permitted", docker, "userns_refused", "Docker"),
            (
                "bwrap: Unexpected capabilities but not setuid, old file caps config?",
                nothing,
                "unexpected_capabilities",
                "AmbientCapabilities=",
            ),
            ("bwrap: Can't find source path /home/x/y: Permission denied", nothing, "path_not_enterable", "chmod o+x"),
            ("bwrap: Unknown option --disable-userns", nothing, "bwrap_too_old", "0.8"),
        ] {
            let error = explain(&format!("{said}\n"), circumstances);
            assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, code), "{said}");
            let text = error.to_string();
            assert!(text.contains(advice), "{said}: {text}");
            assert!(text.contains(said.trim_start_matches("bwrap: ")), "{said}: {text}");
        }
    }

    #[test]
    fn an_unknown_end_is_shown_as_it_is() {
        let error = explain("wsm-gateway: something else\n", Circumstances::default());
        assert_eq!((error.kind(), error.code()), (ErrorKind::Backend, "sandbox_failed"));
        assert!(error.to_string().contains("something else"), "{error}");
        assert!(explain("", Circumstances::default()).to_string().contains("without a word"));
    }

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        assert!(missing(Path::new("bwrap")).to_string().contains("apt-get install bubblewrap"));
    }
}
