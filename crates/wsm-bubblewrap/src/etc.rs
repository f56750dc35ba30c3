//! The few files of `/etc` that programs need, and the parts of the host's tree that sandboxes see.

use std::{fs, path::Path};

use crate::{
    config::{Network, SYSTEM_TREES},
    spec::{HostTree, USER_ID, WORKDIR, Words},
};

/// The name of the user inside.
pub(crate) const USER: &str = "agent";

/// Files and directories that say nothing about the host that a command may not know, and that tools look for: the
/// loader's cache, the alternatives that `awk` and `cc` are, certificates, and lists of names.
const SHOWN: [&str; 12] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/mime.types",
    "/etc/pki",
    "/etc/protocols",
    "/etc/services",
    // Not all of it: keys may lie beside.
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// What is taken from the host's `/etc` by its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostEtc {
    /// Where `/etc/localtime` leads.
    pub(crate) localtime: Option<String>,
    pub(crate) hosts: Vec<u8>,
    /// By content, since it is often a link to a place that the sandbox does not have.
    pub(crate) resolv_conf: Vec<u8>,
}

impl HostTree {
    /// Looks at this machine. Blocks.
    pub(crate) fn detect() -> Self {
        let (mut directories, mut links) = (Vec::new(), Vec::new());
        for tree in SYSTEM_TREES {
            match fs::symlink_metadata(tree) {
                Ok(metadata) if metadata.is_dir() => directories.push(tree),
                Ok(metadata) if metadata.is_symlink() => {
                    if let Some(target) = link_target(tree) {
                        links.push((tree, target));
                    }
                }
                _ => {}
            }
        }
        Self { directories, links, etc: HostEtc::detect() }
    }
}

impl HostEtc {
    fn detect() -> Self {
        let content = |path| fs::read(path).unwrap_or_default();
        let localtime = link_target("/etc/localtime").filter(|target| Path::new(target).starts_with("/usr"));
        Self { localtime, hosts: content("/etc/hosts"), resolv_conf: content("/etc/resolv.conf") }
    }
}

fn link_target(path: &str) -> Option<String> {
    fs::read_link(path).ok()?.into_os_string().into_string().ok()
}

/// Puts `/etc` together.
pub(crate) fn mount(words: &mut Words, host: &HostEtc, network: Network, hostname: &str) {
    // Else it would only be for its owner, as parents of what is for him alone are.
    words.add(["--perms", "0755", "--dir", "/etc"]);
    for path in SHOWN {
        words.add(["--ro-bind-try", path, path]);
    }
    let passwd = format!(
        "root:x:0:0:root:/:/usr/sbin/nologin\n\
         {USER}:x:{USER_ID}:{USER_ID}:{USER}:{WORKDIR}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    );
    let group = format!("root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n");
    // The host's may name services that are not there.
    let nsswitch = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";
    let (hosts, resolv_conf) = match network {
        Network::Host => {
            ([&host.hosts, format!("127.0.1.1 {hostname}\n").as_bytes()].concat(), host.resolv_conf.clone())
        }
        Network::None => {
            (format!("127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost\n").into_bytes(), Vec::new())
        }
    };
    for (path, content) in [
        ("/etc/passwd", passwd.into_bytes()),
        ("/etc/group", group.into_bytes()),
        ("/etc/nsswitch.conf", nsswitch.into()),
        ("/etc/hosts", hosts),
        ("/etc/resolv.conf", resolv_conf),
    ] {
        words.add(["--perms", "0644", "--ro-bind-data"]).content(content).add([path]);
    }
    words.add(["--symlink", "/proc/self/mounts", "/etc/mtab"]);
    if let Some(localtime) = &host.localtime {
        words.add(["--symlink", localtime, "/etc/localtime"]);
    }
}
