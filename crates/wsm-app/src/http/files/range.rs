//! The one range of bytes that a request may ask for.

use http::{HeaderMap, header};
use wsm_core::ReadOptions;

/// A range as it is asked for ([RFC 9110, section 14.1.2](https://www.rfc-editor.org/rfc/rfc9110#section-14.1.2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    /// From here to the end.
    From(u64),
    /// From the first to the second, both included.
    FromTo(u64, u64),
    /// The last so many bytes.
    Last(u64),
}

impl Range {
    /// The range of a request. Several ranges, and what is no range at all, count as none, as the standard allows; so
    /// does a range on a condition, since no answer of ours names a state that it could be about.
    pub(super) fn asked_for(headers: &HeaderMap) -> Option<Self> {
        if headers.contains_key(header::IF_RANGE) {
            return None;
        }
        Self::parse(headers.get(header::RANGE)?.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (unit, range) = text.split_once('=')?;
        let (start, end) = range.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
        let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        match (start, end) {
            ("", end) => number(end).map(Self::Last),
            (start, "") => number(start).map(Self::From),
            (start, end) => Some(Self::FromTo(number(start)?, number(end)?)).filter(|_| number(start) <= number(end)),
        }
    }

    /// What to read before the size is known.
    pub(super) fn first_guess(self) -> ReadOptions {
        match self {
            Self::FromTo(start, end) => ReadOptions::range(start, (end - start).checked_add(1)),
            Self::From(start) => ReadOptions::range(start, None),
            Self::Last(_) => ReadOptions::range(0, Some(0)),
        }
    }

    /// Start and length in a file of this size; none when there is nothing of it.
    pub(super) fn within(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Self::From(start) => (start, size),
            Self::FromTo(start, end) => (start, size.min(end.saturating_add(1))),
            Self::Last(length) => (size.saturating_sub(length), size),
        };
        (start < end).then(|| (start, end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_read_and_all_else_ignored() {
        assert_eq!(Range::parse("bytes=0-9"), Some(Range::FromTo(0, 9)));
        assert_eq!(Range::parse("Bytes=5-"), Some(Range::From(5)));
        assert_eq!(Range::parse("bytes=-5"), Some(Range::Last(5)));
        for text in ["bytes=0-1,3-4", "bytes=9-0", "bytes=", "bytes=-", "lines=0-1", "bytes=a-b", "bytes=+1-2", "0-1"] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_end_with_the_file() {
        assert_eq!(Range::FromTo(2, 100).within(10), Some((2, 8)));
        assert_eq!(Range::FromTo(2, u64::MAX).within(10), Some((2, 8)));
        assert_eq!(Range::From(9).within(10), Some((9, 1)));
        assert_eq!(Range::From(10).within(10), None);
        assert_eq!(Range::Last(100).within(10), Some((0, 10)));
        assert_eq!(Range::Last(0).within(10), None);
        assert_eq!(Range::Last(5).within(0), None);
    }
}
