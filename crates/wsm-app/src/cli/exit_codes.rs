//! What the commands exit with.

use wsm_core::ExitStatus;

use super::talk::complain;

/// What a wrong command line exits with, as with other commands.
pub(super) const USAGE: u8 = 2;

/// What any other command exits with when it failed.
pub(super) const FAILED: u8 = 1;

/// What `wsm run` and `wsm exec` exit with when wsm itself failed or nobody saw how the command ended, so that no exit
/// code of a command is mistaken for it.
pub(super) const COMMAND_FAILED: u8 = 125;

/// The time limit ended the command.
pub(super) const TIMED_OUT: u8 = 124;

/// The program is there, but can not be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;

/// There is no such program.
pub(super) const NOT_FOUND: u8 = 127;

/// What is added to the number of the signal that ended something.
const SIGNALED: u8 = 128;

/// Nobody reads what is printed: wsm ends as a program would that the signal ends.
pub(super) const BROKEN_PIPE: u8 = SIGNALED + 13;

/// The exit code of a command that could not start, by the code of the error.
pub(super) fn of_refusal(code: &str) -> Option<u8> {
    match code {
        "program_not_found" => Some(NOT_FOUND),
        "program_not_executable" => Some(NOT_EXECUTABLE),
        _ => None,
    }
}

/// The exit code for how a command ended, as shells give it.
pub(super) fn of_status(status: &ExitStatus) -> u8 {
    match status {
        // What no exit code can be is not passed on as another one.
        ExitStatus::Exited { code } => u8::try_from(*code).unwrap_or(COMMAND_FAILED),
        ExitStatus::Signaled { signal } => {
            u8::try_from(*signal).map_or(COMMAND_FAILED, |signal| SIGNALED.saturating_add(signal))
        }
        ExitStatus::TimedOut => TIMED_OUT,
        ExitStatus::Unknown { reason } => {
            complain(&format!("nobody saw how the command ended: {reason}"));
            COMMAND_FAILED
        }
        _ => COMMAND_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        for (status, code) in [
            (ExitStatus::Exited { code: 0 }, 0),
            (ExitStatus::Exited { code: 255 }, 255),
            (ExitStatus::Exited { code: 256 }, 125),
            (ExitStatus::Signaled { signal: 9 }, 137),
            (ExitStatus::TimedOut, 124),
            (ExitStatus::Unknown { reason: String::new() }, 125),
        ] {
            assert_eq!(of_status(&status), code, "{status:?}");
        }
    }
}
