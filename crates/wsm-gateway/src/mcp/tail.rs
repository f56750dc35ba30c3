//! What is kept of what a server says besides its messages.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// How much of stderr is kept.
const TAIL_BYTES: usize = 4 << 10;
/// How much of what is no message is kept.
const STRAY_BYTES: usize = 200;

/// The end of a stream of any length.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    total: u64,
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        let overflow = (self.bytes.len() + kept.len()).saturating_sub(TAIL_BYTES);
        self.bytes.drain(..overflow);
        self.bytes.extend(kept);
    }

    /// How much there was in all.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The end, from the beginning of a line on where something is missing before it.
    pub(super) fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        let whole = [front, back].concat();
        let first_line = match self.total > whole.len() as u64 {
            true => whole.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1),
            false => 0,
        };
        String::from_utf8_lossy(&whole[first_line..]).trim_end().to_owned()
    }
}

/// What is known of a server since it was started last.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    stderr: Tail,
    stray: Vec<u8>,
    problem: Option<String>,
}

impl Log {
    /// Forgets everything: the server is started anew.
    pub(super) fn clear(&self) {
        *self.0.lock() = Notes::default();
    }

    pub(super) fn stderr(&self, bytes: &[u8]) {
        self.0.lock().stderr.push(bytes);
    }

    /// The end of stderr, and how much there was in all.
    pub(super) fn stderr_tail(&self) -> (String, u64) {
        let notes = self.0.lock();
        (notes.stderr.text(), notes.stderr.total())
    }

    /// Keeps the beginning of what came over stdout without being a message.
    pub(super) fn stray(&self, bytes: &[u8]) {
        let stray = &mut self.0.lock().stray;
        let room = STRAY_BYTES.saturating_sub(stray.len());
        stray.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    pub(super) fn problem(&self, problem: impl Into<String>) {
        self.0.lock().problem = Some(problem.into());
    }

    pub(super) fn last_problem(&self) -> Option<String> {
        let notes = self.0.lock();
        notes.problem.clone().or_else(|| {
            let stray = String::from_utf8_lossy(&notes.stray);
            (!stray.is_empty()).then(|| format!("its stdout holds what is no MCP message: {:?}", stray.trim_end()))
        })
    }

    /// What may explain a failure, to stand behind its description.
    pub(super) fn explanation(&self) -> String {
        let notes = self.0.lock();
        let mut text = String::new();
        if !notes.stray.is_empty() {
            let stray = String::from_utf8_lossy(&notes.stray);
            text.push_str(&format!("; its stdout holds what is no MCP message: {:?}", stray.trim_end()));
        }
        let stderr = notes.stderr.text();
        if !stderr.is_empty() {
            text.push_str(&format!("; the end of its stderr: {stderr}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_its_last_lines() {
        let mut tail = Tail::default();
        for number in 0..100_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() <= TAIL_BYTES && text.starts_with("line ") && text.ends_with("line 99999"), "{text}");
        assert_eq!(tail.total(), (0..100_000).map(|number| format!("line {number}\n").len() as u64).sum::<u64>());
        tail.push(&vec![b'x'; 10 * TAIL_BYTES]);
        assert_eq!(tail.text().len(), TAIL_BYTES);
    }

    #[test]
    fn what_explains_a_failure_is_bounded() {
        let log = Log::default();
        assert_eq!((log.explanation().as_str(), log.last_problem()), ("", None));
        log.stray(&[b'g'; 5000]);
        log.stderr(b"cannot find module\n");
        let explanation = log.explanation();
        assert!(explanation.contains("cannot find module") && explanation.len() < 400, "{explanation}");
        log.clear();
        assert_eq!(log.explanation(), "");
    }
}
