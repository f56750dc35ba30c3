//! A line of a file as text that is not too long.

use std::ops::Range;

/// A line as text, and what was lost.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) lossy: bool,
    pub(super) cut: bool,
}

/// Makes text of at most about `most` bytes of a line, in which `hit` can be seen.
pub(super) fn text(line: &[u8], hit: Option<&Range<usize>>, most: usize) -> Text {
    let (start, end) = match hit {
        _ if line.len() <= most => (0, line.len()),
        // A quarter of the room is for what comes before.
        Some(hit) if hit.end > most => {
            let start = hit.start.saturating_sub(most / 4).min(line.len() - most);
            (start, start + most)
        }
        _ => (0, most),
    };
    let piece = &line[border(line, start)..border(line, end)];
    let text = String::from_utf8_lossy(piece);
    let lossy = matches!(text, std::borrow::Cow::Owned(_));
    Text { text: text.into_owned(), lossy, cut: end - start < line.len() }
}

/// The first byte at or after `at` that does not lie within a character.
fn border(line: &[u8], at: usize) -> usize {
    let within = line[at..].iter().take(4).take_while(|&byte| byte & 0xc0 == 0x80).count();
    // Bytes that are no text at all have no border.
    if at == 0 || within == 4 { at } else { at + within }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(line: &str, hit: Option<[usize; 2]>, most: usize) -> Text {
        text(line.as_bytes(), hit.map(|[start, end]| start..end).as_ref(), most)
    }

    #[test]
    fn a_short_line_is_whole_and_a_long_one_shows_its_hit() {
        assert_eq!(cut("short", None, 5), Text { text: "short".into(), lossy: false, cut: false });
        let long = format!("{}needle{}", "a".repeat(1000), "b".repeat(1000));
        let seen = cut(&long, Some([1000, 1006]), 40);
        assert!(seen.cut && seen.text.len() == 40 && seen.text.contains("needle"), "{seen:?}");
        let near = cut(&long, Some([3, 7]), 40);
        assert_eq!(near.text, "a".repeat(40));
        let last = cut(&long, Some([2005, 2006]), 40);
        assert_eq!(last.text, "b".repeat(40));
    }

    #[test]
    fn no_character_is_cut_in_two() {
        let line = "ü€𝄞".repeat(100);
        for most in 16..40 {
            for start in 0..100 {
                let seen = cut(&line, Some([start, start + 1]), most);
                assert!(!seen.lossy && seen.cut, "{most} {start} {seen:?}");
            }
        }
    }

    #[test]
    fn what_is_not_utf_8_is_flagged() {
        let seen = text(b"caf\xe9 needle", Some(&(5..11)), 100);
        assert_eq!(seen, Text { text: "caf\u{fffd} needle".into(), lossy: true, cut: false });
    }
}
