//! The processes of this machine, as `/proc` shows them.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One process for ever: its number may be given to another one, but not with the same time of birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: Pid,
    /// In clock ticks since the machine started.
    pub(crate) born: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
        match Entry::parse(&stat) {
            Some(entry) => Ok(Self { pid, born: entry.born }),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "`/proc/<pid>/stat` is not as it should be")),
        }
    }

    /// Whether it exists, if only as a zombie.
    pub(crate) fn exists(self) -> bool {
        Self::of(self.pid).is_ok_and(|now| now == self)
    }

    /// Sends a signal to exactly this process. One that is gone is left alone.
    pub(crate) fn signal(self, signal: Signal) {
        // The descriptor holds on to whatever has the number now; if that is the right one, it stays so.
        let Ok(process) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        if self.exists() {
            // It may have ended by now, or belong to another user: neither can be helped.
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    parent: i32,
    born: u64,
    dead: bool,
}

impl Entry {
    /// Reads `/proc/<pid>/stat`: the name of the program stands in brackets and may hold anything, so fields are
    /// counted from the last bracket on.
    fn parse(stat: &[u8]) -> Option<Self> {
        let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let (state, parent) = (*fields.first()?, fields.get(1)?.parse().ok()?);
        let (threads, born): (i64, u64) = (fields.get(17)?.parse().ok()?, fields.get(19)?.parse().ok()?);
        // A process whose first thread has ended looks like a zombie while its other threads run on.
        let dead = matches!(state, "Z" | "X" | "x") && threads <= 1;
        Some(Self { parent, born, dead })
    }
}

/// All processes at one moment, more or less: processes come and go while the table is read.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    entries: HashMap<Pid, Entry>,
    children: HashMap<i32, Vec<Pid>>,
}

impl ProcessTable {
    pub(crate) fn read() -> io::Result<Self> {
        let mut table = Self::default();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
            else {
                continue;
            };
            // What can not be read ended in the meantime.
            let Ok(stat) = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { continue };
            if let Some(entry) = Entry::parse(&stat) {
                table.entries.insert(pid, entry);
                table.children.entry(entry.parent).or_default().push(pid);
            }
        }
        Ok(table)
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.entries.iter().map(|(&pid, entry)| ProcessId { pid, born: entry.born })
    }

    /// Whether the process is there and not a zombie.
    pub(crate) fn is_alive(&self, process: ProcessId) -> bool {
        self.entries.get(&process.pid).is_some_and(|entry| entry.born == process.born && !entry.dead)
    }

    /// Adds all descendants of the processes in `known`.
    pub(crate) fn add_descendants(&self, known: &mut HashSet<ProcessId>) {
        let mut to_visit: Vec<ProcessId> = known
            .iter()
            .copied()
            .filter(|process| self.entries.get(&process.pid).is_some_and(|entry| entry.born == process.born))
            .collect();
        while let Some(parent) = to_visit.pop() {
            for &pid in self.children.get(&parent.pid.as_raw_nonzero().get()).into_iter().flatten() {
                let child = ProcessId { pid, born: self.entries[&pid].born };
                if known.insert(child) {
                    to_visit.push(child);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = b"42 (a) R 1 (b) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 12345 8 9";
        let entry = Entry::parse(line).unwrap();
        assert_eq!((entry.parent, entry.born, entry.dead), (7, 12345, false));
    }

    #[test]
    fn a_zombie_is_dead_unless_its_threads_run_on() {
        let line = |threads| format!("42 (x) Z 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 12345 8 9");
        assert!(Entry::parse(line(1).as_bytes()).unwrap().dead);
        assert!(!Entry::parse(line(2).as_bytes()).unwrap().dead);
    }

    #[test]
    fn another_process_with_the_same_number_is_not_the_same() {
        let own = ProcessId::of(rustix::process::getpid()).unwrap();
        assert!(own.exists());
        let earlier = ProcessId { born: own.born - 1, ..own };
        assert!(!earlier.exists());
        assert!(!ProcessTable::read().unwrap().is_alive(earlier));
        // Would end this very test if it did not look twice.
        earlier.signal(Signal::KILL);
    }
}
