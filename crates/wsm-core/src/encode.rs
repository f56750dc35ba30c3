//! The one way in which an id becomes part of a path, a container name, a label or a URL.
//!
//! Ids are opaque text; the places they must be written to are not. Everything that writes one goes through
//! [`Encoding`], which never gives one name to two ids, whatever case, length or alphabet the target has.
//!
//! Safe characters stay, every other byte becomes an escape character and two hexadecimal digits, and a name that
//! would be too long keeps a readable beginning and ends in a hash of the whole id.

use blake2::{
    Blake2b,
    digest::{Digest, consts::U16},
};

/// The target that an id is encoded for: its alphabet and the longest name that it takes.
///
/// ```
/// use wsm_core::Encoding;
///
/// assert_eq!(Encoding::PATH_SEGMENT.encode("ann@example.org"), "ann=40example.org");
/// assert_eq!(Encoding::PATH_SEGMENT.encode("../../etc"), "=2E.=2F..=2Fetc");
/// assert_eq!(Encoding::DNS_LABEL.encode("Ann"), "x41nn");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Encoding {
    /// The longest name, in bytes.
    max_len: usize,
    /// Starts an escape; never stands for itself.
    escape: u8,
    /// Whether escapes are written `2F` or `2f`.
    upper_hex: bool,
    /// Whether a byte may stand for itself anywhere in the name.
    is_safe: fn(u8) -> bool,
    /// Whether a safe byte may also be the first or the last one.
    is_safe_at_ends: fn(u8) -> bool,
}

impl Encoding {
    /// One component of a path on a case-sensitive file system: at most 255 bytes, never `.` or `..`, never hidden.
    pub const PATH_SEGMENT: Self = Self {
        max_len: 255,
        escape: b'=',
        upper_hex: true,
        is_safe: |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
        is_safe_at_ends: |b| b != b'.' && b != b'-',
    };

    /// A container's name or the value of a label: at most 63 characters, letters and digits at both ends
    /// (Kubernetes' rule for label values, which Docker's rule for names contains).
    pub const LABEL: Self = Self {
        max_len: 63,
        escape: b'_',
        upper_hex: true,
        is_safe: |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'),
        is_safe_at_ends: |b| b.is_ascii_alphanumeric(),
    };

    /// A DNS label ([RFC 1123](https://www.rfc-editor.org/rfc/rfc1123)): at most 63 of lower-case letters, digits and
    /// hyphens, a letter or digit at both ends.
    pub const DNS_LABEL: Self = Self {
        max_len: 63,
        escape: b'x',
        upper_hex: false,
        is_safe: |b| (b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') && b != b'x',
        is_safe_at_ends: |b| b != b'-',
    };

    /// The same target with less room, for names that carry a prefix.
    ///
    /// # Panics
    ///
    /// When fewer than 40 bytes remain: the hash of a long id needs 33.
    #[must_use]
    pub const fn with_prefix_of(mut self, prefix_len: usize) -> Self {
        assert!(self.max_len >= prefix_len + 40, "too little room for an encoded id");
        self.max_len -= prefix_len;
        self
    }

    /// Encodes `id`. Two different ids give two different names.
    ///
    /// An escape character is never written for itself and always followed by two hexadecimal digits, so two escape
    /// characters in a row occur only where they are put as a mark: after a leading `0` (the target does not let a name
    /// begin with the escape character) and before the hash of a shortened name.
    pub fn encode(&self, id: &str) -> String {
        let bytes = id.as_bytes();
        let last = bytes.len().saturating_sub(1);
        let escape = char::from(self.escape);
        let mut name = String::with_capacity(bytes.len() + 8);
        for (position, &byte) in bytes.iter().enumerate() {
            let at_end = position == 0 || position == last;
            if byte != self.escape && (self.is_safe)(byte) && (!at_end || (self.is_safe_at_ends)(byte)) {
                name.push(char::from(byte));
            } else {
                if position == 0 && !(self.is_safe_at_ends)(self.escape) {
                    name.extend(['0', escape]);
                }
                name.push(escape);
                self.push_hex(&mut name, byte);
            }
        }
        if name.len() > self.max_len {
            name.truncate(self.max_len - 34);
            name.extend([escape, escape]);
            name.push_str(&Self::hash(id));
        }
        name
    }

    /// Encodes `id` as 32 lower-case hexadecimal digits, for places where nothing of it should be read: the first 16 bytes of
    /// its BLAKE2b hash. Two different ids never meet in practice.
    ///
    /// ```
    /// use wsm_core::Encoding;
    ///
    /// assert_eq!(Encoding::hash("ann@example.org"), "b7b49ef60b118d378cfcb0b2a2e7d6de");
    /// ```
    pub fn hash(id: &str) -> String {
        hex::encode(Blake2b::<U16>::digest(id.as_bytes()))
    }

    fn push_hex(&self, name: &mut String, byte: u8) {
        let digits = if self.upper_hex { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
        name.push(char::from(digits[usize::from(byte >> 4)]));
        name.push(char::from(digits[usize::from(byte & 0xF)]));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const TARGETS: [(&str, Encoding); 4] = [
        ("path", Encoding::PATH_SEGMENT),
        ("label", Encoding::LABEL),
        ("dns", Encoding::DNS_LABEL),
        ("dns with prefix", Encoding::DNS_LABEL.with_prefix_of(23)),
    ];

    fn assert_fits(target: &str, encoding: &Encoding, name: &str) {
        assert!(!name.is_empty() && name.len() <= encoding.max_len, "{target}: {name}");
        assert!(name.bytes().all(|b| b == encoding.escape || (encoding.is_safe)(b)), "{target}: {name}");
        for end in [name.bytes().next().unwrap(), name.bytes().last().unwrap()] {
            assert!((encoding.is_safe_at_ends)(end), "{target}: {name}");
        }
    }

    #[test]
    fn ids_that_naive_encoders_confuse_stay_apart() {
        let long = "x".repeat(61);
        let ids = [
            "A_b",
            "a.b",
            "a-b",
            "A-b",
            "文",
            "",
            ".",
            "..",
            "/",
            "../../etc",
            "u1",
            "u1/x",
            "a",
            "a-",
            "a.",
            "-a",
            "=41",
            "A",
            "x41",
            "_41",
            "0__2E",
            "=2E",
            "a\0b",
            "x",
            "xx",
            "..=2F",
            &format!("{long}y"),
            &format!("{long}z"),
            &"x".repeat(255),
            &"x".repeat(256),
            &"y".repeat(10_000),
            &"é".repeat(128),
        ];
        for (target, encoding) in &TARGETS {
            let mut names = HashMap::new();
            for id in ids {
                if id.is_empty() {
                    continue;
                }
                let name = encoding.encode(id);
                assert_fits(target, encoding, &name);
                if let Some(other) = names.insert(name.clone(), id) {
                    panic!("{target}: {other:?} and {id:?} are both {name}");
                }
            }
        }
    }

    #[test]
    fn a_path_segment_is_never_a_way_out_nor_hidden() {
        for id in [".", "..", "...", "/", "a/b", ".ssh", "-rf", "a\0"] {
            let name = Encoding::PATH_SEGMENT.encode(id);
            assert!(!name.starts_with('.') && !name.starts_with('-') && !name.contains(['/', '\0']), "{name}");
        }
    }

    /// Names are found again after an upgrade only if they never change.
    #[test]
    fn golden_names() {
        let long = "user@".repeat(60);
        for (encoding, id, name) in [
            (Encoding::PATH_SEGMENT, "coder-1.2_x", "coder-1.2_x"),
            (Encoding::PATH_SEGMENT, "a=b", "a=3Db"),
            (Encoding::LABEL, "@ann", "0__40ann"),
            (Encoding::LABEL, "ann@", "ann_40"),
            (Encoding::DNS_LABEL, "x-Ray", "x78-x52ay"),
        ] {
            assert_eq!(encoding.encode(id), name);
        }
        let name = Encoding::DNS_LABEL.encode(&long);
        assert_eq!(name, "userx40userx40userx40userx40uxx6a90c0c241d2a6eefb9f203ed0aae8a7");
    }

    proptest! {
        #[test]
        fn distinct_ids_have_distinct_names_that_fit(
            ids in prop::collection::hash_set("\\PC{1,90}|[ax_=0-9.-]{1,70}", 1..40),
        ) {
            for (target, encoding) in &TARGETS {
                let mut names = std::collections::HashSet::new();
                for id in &ids {
                    let name = encoding.encode(id);
                    assert_fits(target, encoding, &name);
                    prop_assert!(names.insert(name));
                }
            }
        }
    }
}
