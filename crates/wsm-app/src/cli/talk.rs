//! What the commands say to the person at the terminal, and to the program that reads their output.

use std::io::Write;

/// Says something that is not the output of the command.
#[expect(clippy::print_stderr, reason = "a message for the person at the terminal")]
pub(super) fn complain(message: &str) {
    eprintln!("wsm: {}", printable(message));
}

/// Writes a whole answer to standard output.
pub(super) fn print(text: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text)?;
    stdout.flush()
}

/// The text without characters that a terminal would obey.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_given_orders() {
        assert_eq!(printable("a\x1b[2Jb\r\nc\u{9b}"), "a\u{fffd}[2Jb\u{fffd}\nc\u{fffd}");
    }
}
