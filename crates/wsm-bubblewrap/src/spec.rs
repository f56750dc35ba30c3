//! What `bwrap` is told: a policy goes in, arguments come out. Nothing here looks at the machine.
//!
//! The options travel in a file (`--args`), so that `ps` shows the program alone. They refer to other open files by the
//! numbers below, which whoever starts `bwrap` must give it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use wsm_core::{Variables, WorkspaceId};

use crate::{
    config::Network,
    etc::{self, HostEtc},
};

/// The number of the door's inner end. With the next one all that the sandbox itself gets.
pub(crate) const DOOR: i32 = 3;
/// The lock that the first process holds as long as it lives. It knows nothing of it.
pub(crate) const LIFE: i32 = 4;
/// Where `bwrap` reports.
pub(crate) const STATUS: i32 = 5;
/// What it waits for before it runs the program.
pub(crate) const BLOCK: i32 = 6;
/// Where its options are.
pub(crate) const ARGS: i32 = 7;
/// The first of the files with content.
pub(crate) const FIRST_CONTENT: i32 = 8;

/// Where workspaces are inside.
pub(crate) const WORKDIR: &str = "/workspace";
/// Where the first process' program is inside.
pub(crate) const INIT: &str = "/run/wsm/init";
/// The user inside, whatever its number outside: ordinary, as most tools expect.
pub(crate) const USER_ID: u32 = 1000;
const HOSTNAME: &str = "workspace";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// `/run` and `/dev/shm` lie in memory as well. Little goes there.
const SMALL_TMPFS: u64 = 64 << 20;

/// What a sandbox is to be like.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub(crate) host: &'a HostTree,
    pub(crate) id: &'a WorkspaceId,
    /// The workspace's directory on the host.
    pub(crate) directory: &'a Path,
    pub(crate) program: Program<'a>,
    pub(crate) network: Network,
    pub(crate) env: &'a Variables,
    pub(crate) read_only: &'a [PathBuf],
    pub(crate) tmp_size: u64,
    /// The filters of system calls, compiled.
    pub(crate) filters: &'a [Vec<u8>],
}

/// What runs as the first process.
#[derive(Debug)]
pub(crate) enum Program<'a> {
    /// A program of the host's, with what follows it. It is told where the door is.
    Init { path: &'a Path, args: &'a [String], port: Option<u16> },
    /// A command of the sandbox' own, for a try.
    Command(&'a [&'a str]),
}

/// What the host's system looks like from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostTree {
    /// Directories at the root that are shown as they are, by name.
    pub(crate) directories: Vec<&'static str>,
    /// Links at the root, with where they lead.
    pub(crate) links: Vec<(&'static str, String)>,
    pub(crate) etc: HostEtc,
}

/// What `bwrap` is started with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Its command line, without its own name.
    pub(crate) command_line: Vec<OsString>,
    /// Its options, which it reads from [`ARGS`].
    pub(crate) options: Vec<OsString>,
    /// What it reads from the numbers from [`FIRST_CONTENT`] on.
    pub(crate) contents: Vec<Vec<u8>>,
}

/// The options in the form that `--args` takes.
pub(crate) fn terminated(options: &[OsString]) -> Vec<u8> {
    options.iter().flat_map(|option| option.as_encoded_bytes().iter().copied().chain([0])).collect()
}

/// Puts a policy in words. Mounts are in the order in which they happen, and later ones cover earlier ones.
pub(crate) fn plan(policy: &Policy<'_>) -> Plan {
    let mut words = Words::default();
    namespaces(&mut words, policy);
    system(&mut words, policy);
    etc::mount(&mut words, &policy.host.etc, policy.network, HOSTNAME);
    own_places(&mut words, policy);
    words.add(["--bind"]).path(policy.directory).add([WORKDIR]);
    // The root is a file system in memory, and `/dev` another one: nobody shall fill them.
    words.add(["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKDIR]);
    environment(&mut words, policy);
    for filter in policy.filters {
        words.add(["--add-seccomp-fd"]).content(filter.clone());
    }
    words.add(["--json-status-fd", &STATUS.to_string()]);

    let mut command_line: Vec<OsString> = vec!["--args".into(), ARGS.to_string().into(), "--".into()];
    match policy.program {
        Program::Init { args, port, .. } => {
            words.add(["--block-fd", &BLOCK.to_string()]);
            command_line.push(INIT.into());
            command_line.extend(args.iter().map(OsString::from));
            let own = ["--door", &DOOR.to_string(), "--id", policy.id.as_str(), "--workdir", WORKDIR];
            command_line.extend(own.map(OsString::from));
            if let Some(port) = port {
                command_line.extend(["--port".into(), port.to_string().into()]);
            }
        }
        Program::Command(command) => command_line.extend(command.iter().map(OsString::from)),
    }
    let Words { options, contents } = words;
    Plan { command_line, options, contents }
}

fn namespaces(words: &mut Words, policy: &Policy<'_>) {
    // `--disable-userns` wants to read `--unshare-user` literally, and only so is a missing namespace an error.
    words.add(["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
    words.add(["--unshare-cgroup-try"]);
    if policy.network == Network::None {
        words.add(["--unshare-net"]);
    }
    words.add(["--hostname", HOSTNAME, "--uid", &USER_ID.to_string(), "--gid", &USER_ID.to_string()]);
    // Not `--die-with-parent`: that is the death of a thread, and the closing of the door says the same.
    words.add(["--as-pid-1", "--new-session", "--cap-drop", "ALL"]);
}

fn system(words: &mut Words, policy: &Policy<'_>) {
    for directory in &policy.host.directories {
        words.add(["--ro-bind", directory, directory]);
    }
    for (link, target) in &policy.host.links {
        words.add(["--symlink", target, link]);
    }
    for directory in policy.read_only {
        words.add(["--ro-bind"]).path(directory).path(directory);
    }
}

fn own_places(words: &mut Words, policy: &Policy<'_>) {
    let small = SMALL_TMPFS.to_string();
    words.add(["--perms", "1777", "--size", &policy.tmp_size.to_string(), "--tmpfs", "/tmp"]);
    words.add(["--perms", "0755", "--size", &small, "--tmpfs", "/run"]);
    if let Program::Init { path, .. } = policy.program {
        words.add(["--ro-bind"]).path(path).add([INIT]);
    }
    // `/run` itself holds nothing that a command could need to change.
    words.add(["--remount-ro", "/run"]);
    words.add(["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]);
    words.add(["--dev", "/dev", "--perms", "1777", "--size", &small, "--tmpfs", "/dev/shm"]);
}

fn environment(words: &mut Words, policy: &Policy<'_>) {
    let own = [
        ("PATH", PATH),
        ("HOME", WORKDIR),
        ("USER", etc::USER),
        ("LOGNAME", etc::USER),
        ("SHELL", "/bin/sh"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
    ];
    words.add(["--clearenv"]);
    let mut env: BTreeMap<&str, &str> = own.into_iter().collect();
    env.extend(policy.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    for (name, value) in env {
        words.add(["--setenv", name, value]);
    }
}

/// Options as they are put together.
#[derive(Debug, Default)]
pub(crate) struct Words {
    options: Vec<OsString>,
    contents: Vec<Vec<u8>>,
}

impl Words {
    pub(crate) fn add<const N: usize>(&mut self, words: [&str; N]) -> &mut Self {
        self.options.extend(words.map(OsString::from));
        self
    }

    fn path(&mut self, path: &Path) -> &mut Self {
        self.options.push(path.into());
        self
    }

    /// Adds the number of a file that will hold this.
    pub(crate) fn content(&mut self, content: Vec<u8>) -> &mut Self {
        let number = FIRST_CONTENT + i32::try_from(self.contents.len()).unwrap_or(i32::MAX);
        self.options.push(number.to_string().into());
        self.contents.push(content);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostTree {
        HostTree {
            directories: vec!["/usr", "/lib32"],
            links: vec![("/bin", "usr/bin".to_owned()), ("/lib64", "usr/lib64".to_owned())],
            etc: HostEtc {
                localtime: Some("/usr/share/zoneinfo/Europe/Berlin".to_owned()),
                hosts: b"127.0.0.1 localhost\n".to_vec(),
                resolv_conf: b"nameserver 192.0.2.1\n".to_vec(),
            },
        }
    }

    fn lines(plan: &Plan) -> String {
        let words = plan.options.iter().map(|word| word.to_str().unwrap());
        words.fold(String::new(), |text, word| {
            let separator = if text.is_empty() {
                ""
            } else if word.starts_with("--") {
                "\n"
            } else {
                " "
            };
            text + separator + word
        })
    }

    #[test]
    fn the_options_of_a_sandbox_without_network() {
        let (host, id) = (host(), WorkspaceId::new("w1").unwrap());
        let env =
            Variables::from_iter([("EDITOR".to_owned(), "ed".to_owned()), ("HOME".to_owned(), "/tmp".to_owned())]);
        let plan = plan(&Policy {
            host: &host,
            id: &id,
            directory: Path::new("/srv/ws/a/b"),
            program: Program::Init {
                path: Path::new("/srv/ws/.sandbox/feed"),
                args: &["serve".to_owned()],
                port: Some(9000),
            },
            network: Network::None,
            env: &env,
            read_only: &[PathBuf::from("/opt/tools")],
            tmp_size: 1000,
            filters: &[vec![1; 8], vec![2; 8]],
        });
        assert_eq!(
            plan.command_line,
            [
                "--args",
                "7",
                "--",
                INIT,
                "serve",
                "--door",
                "3",
                "--id",
                "w1",
                "--workdir",
                "/workspace",
                "--port",
                "9000"
            ]
        );
        assert_eq!(lines(&plan), include_str!("../tests/golden/without-network.txt").trim_end());
        let contents: Vec<_> = plan.contents.iter().map(|content| String::from_utf8_lossy(content)).collect();
        assert_eq!(
            contents,
            [
                "root:x:0:0:root:/:/usr/sbin/nologin\n\
                 agent:x:1000:1000:agent:/workspace:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
                "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
                "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
                "127.0.0.1 localhost workspace\n::1 localhost ip6-localhost\n",
                "",
                "\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}",
                "\u{2}\u{2}\u{2}\u{2}\u{2}\u{2}\u{2}\u{2}",
            ]
        );
    }

    #[test]
    fn the_options_of_a_try_with_the_hosts_network() {
        let (mut host, id) = (host(), WorkspaceId::new("w1").unwrap());
        host.etc.localtime = None;
        let plan = plan(&Policy {
            host: &host,
            id: &id,
            directory: Path::new("/srv/ws/a/b"),
            program: Program::Command(&["true"]),
            network: Network::Host,
            env: &Variables::default(),
            read_only: &[],
            tmp_size: 1000,
            filters: &[],
        });
        assert_eq!(plan.command_line, ["--args", "7", "--", "true"]);
        assert_eq!(lines(&plan), include_str!("../tests/golden/with-network.txt").trim_end());
        assert_eq!(plan.contents[3], b"127.0.0.1 localhost\n127.0.1.1 workspace\n");
        assert_eq!(plan.contents[4], b"nameserver 192.0.2.1\n");
    }

    #[test]
    fn options_are_ended_by_zero_bytes() {
        assert_eq!(terminated(&["--bind".into(), "a b".into()]), b"--bind\0a b\0");
    }
}
