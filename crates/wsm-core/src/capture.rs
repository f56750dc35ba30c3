//! Keeps the two ends of an output of any length in bounded memory.

use std::collections::VecDeque;

use crate::exec::Output;

/// Keeps the first and the last half of a limit and counts what is missing between them.
///
/// Pushing is linear in the bytes pushed, and memory never exceeds the limit.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    dropped: u64,
}

impl Capture {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let head_limit = limit.div_ceil(2);
        Self { head: Vec::new(), head_limit, tail: VecDeque::new(), tail_limit: limit - head_limit, dropped: 0 }
    }

    /// Takes the next bytes of the output.
    pub fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.tail_limit));
        let overflow = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..overflow);
        self.tail.extend(rest);
        self.dropped += (skipped.len() + overflow) as u64;
    }

    /// What was kept.
    pub fn finish(mut self) -> Output {
        let gap_at = self.head.len();
        let (first, second) = self.tail.as_slices();
        self.head.reserve_exact(first.len() + second.len());
        self.head.extend_from_slice(first);
        self.head.extend_from_slice(second);
        if self.dropped == 0 { Output::complete(self.head) } else { Output::with_gap(self.head, self.dropped, gap_at) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ends_survive_and_the_gap_is_told() {
        let mut capture = Capture::new(5);
        capture.push(b"abcdefghij");
        assert_eq!(capture.finish(), Output::with_gap(&b"abcij"[..], 5, 3));
    }

    #[test]
    fn a_limit_of_zero_keeps_nothing() {
        let mut capture = Capture::new(0);
        capture.push(b"abc");
        assert_eq!(capture.finish(), Output::with_gap(&b""[..], 3, 0));
    }

    proptest! {
        #[test]
        fn the_chunks_do_not_matter(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20), limit in 0usize..120) {
            let whole = chunks.concat();
            let mut capture = Capture::new(limit);
            for chunk in &chunks {
                capture.push(chunk);
                prop_assert!(capture.head.len() + capture.tail.len() <= limit);
            }
            let output = capture.finish();
            if whole.len() <= limit {
                prop_assert_eq!(output, Output::complete(whole));
            } else {
                let (head, tail) = (limit.div_ceil(2), limit / 2);
                let kept = [&whole[..head], &whole[whole.len() - tail..]].concat();
                prop_assert_eq!(output, Output::with_gap(kept, (whole.len() - limit) as u64, head));
            }
        }
    }
}
