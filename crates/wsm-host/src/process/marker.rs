//! Marks in the environment of commands, by which processes are found that no command waits for any more.
//!
//! A mark says which backend object of which process on which basedir started the command, for which workspace, and as
//! which of its commands. Children inherit it unless they clear their environment.

use std::{collections::HashSet, ffi::OsString, fs, io, os::unix::ffi::OsStringExt};

use rustix::process::{Pid, getpid};
use wsm_core::WorkspaceId;

use super::table::{ProcessId, ProcessTable};
use crate::Identity;

const INSTANCE: &str = "WSM_INSTANCE";
const WORKSPACE: &str = "WSM_WORKSPACE_ID";
const COMMAND: &str = "WSM_COMMAND";

/// One backend object: of which process, and on which basedir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    process: ProcessId,
    /// Tells apart the backend objects of one process.
    nonce: String,
    /// Which directory the basedir is, by whatever path.
    basedir: Identity,
}

impl Instance {
    /// A new instance of this process.
    pub(crate) fn new(basedir: Identity) -> io::Result<Self> {
        Ok(Self::of(ProcessId::of(getpid())?, basedir))
    }

    /// A new instance that works on no basedir, and whose processes nobody looks for after its own end. It does not need
    /// `/proc`.
    pub(crate) fn alone() -> Self {
        let pid = getpid();
        let process = ProcessId::of(pid).unwrap_or(ProcessId { pid, born: 0 });
        Self::of(process, Identity { dev: 0, ino: 0 })
    }

    fn of(process: ProcessId, basedir: Identity) -> Self {
        Self { process, nonce: uuid::Uuid::new_v4().simple().to_string(), basedir }
    }

    pub(crate) fn basedir(&self) -> Identity {
        self.basedir
    }

    /// The variables that mark a command.
    pub(crate) fn variables(&self, id: &WorkspaceId, command: u64) -> [(&'static str, String); 3] {
        [(INSTANCE, self.encode()), (WORKSPACE, id.as_str().to_owned()), (COMMAND, command.to_string())]
    }

    fn encode(&self) -> String {
        let Self { process, nonce, basedir } = self;
        format!("{}.{}.{nonce}.{:x}.{:x}", process.pid.as_raw_nonzero(), process.born, basedir.dev, basedir.ino)
    }

    fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('.').collect();
        let [pid, born, nonce, dev, ino] = fields[..] else { return None };
        let process = ProcessId { pid: Pid::from_raw(pid.parse().ok()?)?, born: born.parse().ok()? };
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Self { process, nonce: nonce.to_owned(), basedir: Identity { dev: hex(dev)?, ino: hex(ino)? } })
    }
}

/// What the environment of a process says.
#[derive(Debug)]
struct Mark {
    instance: Instance,
    workspace: OsString,
    command: Option<u64>,
}

impl Mark {
    fn of(process: ProcessId) -> Option<Self> {
        // Only the same user may read it, and only of those could we end one.
        Self::parse(&fs::read(format!("/proc/{}/environ", process.pid.as_raw_nonzero())).ok()?)
    }

    fn parse(environ: &[u8]) -> Option<Self> {
        let value = |name: &str| {
            environ
                .split(|&byte| byte == 0)
                .find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let text = |name| std::str::from_utf8(value(name)?).ok();
        Some(Self {
            instance: Instance::decode(text(INSTANCE)?)?,
            workspace: OsString::from_vec(value(WORKSPACE)?.to_vec()),
            command: text(COMMAND).and_then(|number| number.parse().ok()),
        })
    }
}

/// Which marked processes are looked for.
#[derive(Debug, Clone)]
pub(crate) enum Marked {
    /// Those of one command of an instance.
    Command(Instance, u64),
    /// Those of one workspace of an instance.
    Workspace(Instance, WorkspaceId),
    /// Those of one workspace on a basedir, whoever started them.
    AnyInstance(Identity, WorkspaceId),
    /// Those on a basedir whose instance ended without ending them.
    Strays(Identity),
}

impl Marked {
    /// Adds the marked processes to `found`.
    pub(crate) fn add_to(&self, table: &ProcessTable, found: &mut HashSet<ProcessId>) {
        let own_namespace = pid_namespace(getpid());
        for process in table.processes() {
            // This process may itself run in a workspace, and must not end itself.
            if process.pid == getpid() || !table.is_alive(process) || found.contains(&process) {
                continue;
            }
            // In another namespace, the process number in the mark means another process.
            if Mark::of(process).is_some_and(|mark| self.covers(&mark)) && pid_namespace(process.pid) == own_namespace {
                found.insert(process);
            }
        }
    }

    fn covers(&self, mark: &Mark) -> bool {
        let of_workspace = |id: &WorkspaceId| mark.workspace == *id.as_str();
        match self {
            Self::Command(instance, command) => mark.instance == *instance && mark.command == Some(*command),
            Self::Workspace(instance, id) => mark.instance == *instance && of_workspace(id),
            Self::AnyInstance(basedir, id) => mark.instance.basedir == *basedir && of_workspace(id),
            Self::Strays(basedir) => mark.instance.basedir == *basedir && !mark.instance.process.exists(),
        }
    }
}

fn pid_namespace(pid: Pid) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environ(variables: &[(&str, String)]) -> Vec<u8> {
        variables.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect()
    }

    #[test]
    fn a_mark_is_read_back_and_tells_commands_workspaces_and_instances_apart() {
        let basedir = Identity { dev: 0xfd01, ino: 42 };
        let (instance, other) = (Instance::new(basedir).unwrap(), Instance::new(basedir).unwrap());
        let (id, other_id) = (WorkspaceId::new("a.b=c").unwrap(), WorkspaceId::random());
        let mark = Mark::parse(&environ(&instance.variables(&id, 7))).unwrap();

        assert!(Marked::Command(instance.clone(), 7).covers(&mark));
        assert!(!Marked::Command(instance.clone(), 8).covers(&mark));
        assert!(Marked::Workspace(instance.clone(), id.clone()).covers(&mark));
        assert!(!Marked::Workspace(instance, other_id).covers(&mark));
        assert!(!Marked::Workspace(other, id.clone()).covers(&mark));
        assert!(Marked::AnyInstance(basedir, id.clone()).covers(&mark));
        assert!(!Marked::AnyInstance(Identity { ino: 43, ..basedir }, id).covers(&mark));
        assert!(!Marked::Strays(basedir).covers(&mark), "this process lives");
    }

    #[test]
    fn what_a_dead_process_started_is_astray() {
        let basedir = Identity { dev: 1, ino: 2 };
        let mut instance = Instance::new(basedir).unwrap();
        instance.process.born -= 1;
        let mark = Mark::parse(&environ(&instance.variables(&WorkspaceId::random(), 1))).unwrap();
        assert!(Marked::Strays(basedir).covers(&mark));
        assert!(!Marked::Strays(Identity { dev: 9, ..basedir }).covers(&mark));
    }

    #[test]
    fn foreign_and_damaged_environments_are_no_mark() {
        for environ in
            [&b""[..], b"PATH=/bin\0", b"WSM_INSTANCE=1.2\0WSM_WORKSPACE_ID=x\0", b"XWSM_INSTANCE=1.2.3.4.5\0"]
        {
            assert!(Mark::parse(environ).is_none());
        }
    }
}
