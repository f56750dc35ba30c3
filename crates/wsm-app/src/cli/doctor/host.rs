//! The limits of this process, which are those that a service started here would have.

use rustix::process::{Resource, getrlimit};

use super::report::{Check, Status};

/// Open files that a service needs beside those of commands and connections.
const BASE: u64 = 64;

/// Open files for a running command: its pipes, its connection, and what watches over it.
const PER_COMMAND: u64 = 8;

/// Below this many commands at once there is a warning.
const FEW: u64 = 100;

pub(super) fn checks() -> [Check; 1] {
    [open_files(getrlimit(Resource::Nofile).current)]
}

fn open_files(limit: Option<u64>) -> Check {
    let name = "open files";
    let Some(limit) = limit else { return Check::ok(name, "there is no limit") };
    let commands = limit.saturating_sub(BASE) / PER_COMMAND;
    let detail = format!("at most {limit}: enough for about {commands} commands at once");
    if commands < FEW {
        return Check::new(Status::Warning, name, detail)
            .with_advice("raise it before the start, with `ulimit -n 65536`");
    }
    Check::ok(name, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_is_a_warning() {
        assert!(format!("{:?}", open_files(Some(256))).contains("Warning"));
        for limit in [Some(1024), Some(1 << 20), None] {
            assert!(format!("{:?}", open_files(limit)).contains("Ok"), "{limit:?}");
        }
    }
}
