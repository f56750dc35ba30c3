//! Keeps a server's stdout to messages of a bounded length.
//!
//! What is no message is taken out, and so is a message that is too long. A caller that waits for the answer in it is told
//! so at once: in its place stands an error with the same id.

use serde_json::json;

use super::whole::{MOST_WRAPPING, wrapped};

/// The longest id or key that is looked at.
const MAX_TOKEN: usize = 24;
/// The JSON-RPC code of the error that stands for a message that was too long. Servers may use this range for their own.
pub(super) const TOO_LONG: i64 = -32_050;

/// Looks at what a server writes, piece by piece.
#[derive(Debug)]
pub(super) struct Lines {
    /// How many bytes a line may have, without its end.
    limit: usize,
    line: Line,
}

#[derive(Debug)]
enum Line {
    /// Nothing but blanks was seen.
    Blank,
    Message(Vec<u8>),
    /// A message whose text was let go.
    TooLong(usize, Scan),
    Stray,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, line: Line::Blank }
    }

    /// What the reader of messages must at least be able to take as one line.
    pub(super) fn reader_limit(&self) -> usize {
        self.limit + MOST_WRAPPING
    }

    /// Takes what the server wrote; gives `pass` what is to be read as messages, and `stray` what is none.
    pub(super) fn filter(&mut self, bytes: &[u8], pass: &mut Vec<u8>, mut stray: impl FnMut(&[u8])) {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (content, is_ended) = match line.split_last() {
                Some((b'\n', content)) => (content, true),
                _ => (line, false),
            };
            self.content(content, &mut stray);
            if is_ended {
                self.end(pass, &mut stray);
            }
        }
    }

    fn content(&mut self, mut content: &[u8], stray: &mut impl FnMut(&[u8])) {
        if let Line::Blank = self.line {
            content = content.trim_ascii_start();
            self.line = match content.first() {
                None => return,
                // The first byte of a byte order mark is allowed before JSON.
                Some(b'{' | b'[' | 0xEF) => Line::Message(Vec::new()),
                Some(_) => Line::Stray,
            };
        }
        match &mut self.line {
            Line::Blank => {}
            Line::Stray => stray(content),
            Line::Message(text) if text.len() + content.len() <= self.limit => text.extend_from_slice(content),
            Line::Message(text) => {
                let (length, mut scan) = (text.len() + content.len(), Scan::default());
                scan.push(text);
                scan.push(content);
                self.line = Line::TooLong(length, scan);
            }
            Line::TooLong(length, scan) => {
                *length += content.len();
                scan.push(content);
            }
        }
    }

    fn end(&mut self, pass: &mut Vec<u8>, stray: &mut impl FnMut(&[u8])) {
        match std::mem::replace(&mut self.line, Line::Blank) {
            Line::Blank => return,
            Line::Stray => return stray(b"\n"),
            Line::Message(text) => match wrapped(&text) {
                Some(wrapped) => pass.extend_from_slice(wrapped.as_bytes()),
                None => pass.extend_from_slice(&text),
            },
            Line::TooLong(length, scan) => {
                // Nobody waits for anything else.
                let Some(id) = scan.response_id() else { return };
                let message = format!("the answer is {length} bytes long; at most {} are taken", self.limit);
                let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": TOO_LONG, "message": message}});
                pass.extend_from_slice(error.to_string().as_bytes());
            }
        }
        pass.push(b'\n');
    }
}

/// Finds the id of a response in its text, wherever it stands in it, without keeping the text.
#[derive(Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Whether the next string at the top is a key.
    expects_key: bool,
    /// The key or the number that is being read at the top.
    token: Vec<u8>,
    /// Whether the value that is being read at the top is the id's.
    reads_id: bool,
    id: Option<i64>,
    is_request: bool,
}

impl Scan {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                self.string(byte);
            } else {
                self.outside(byte);
            }
        }
    }

    fn string(&mut self, byte: u8) {
        if self.is_escaped {
            self.is_escaped = false;
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
            if self.depth == 1 && self.expects_key {
                self.is_request |= self.token == b"method";
            }
        } else if self.depth == 1 && self.expects_key && self.token.len() < MAX_TOKEN {
            self.token.push(byte);
        }
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 && self.expects_key {
                    self.token.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.expects_key = self.depth == 1;
            }
            b':' if self.depth == 1 => {
                self.expects_key = false;
                self.reads_id = self.token == b"id";
                self.token.clear();
            }
            b',' if self.depth == 1 => {
                self.end_value();
                self.expects_key = true;
            }
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_value();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b'-' | b'0'..=b'9' if self.depth == 1 && self.reads_id && self.token.len() < MAX_TOKEN => {
                self.token.push(byte);
            }
            _ => {}
        }
    }

    fn end_value(&mut self) {
        if std::mem::take(&mut self.reads_id) {
            self.id = std::str::from_utf8(&self.token).ok().and_then(|digits| digits.parse().ok());
        }
    }

    fn response_id(&self) -> Option<i64> {
        self.id.filter(|_| !self.is_request)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(limit: usize, pieces: &[&[u8]]) -> (String, String) {
        let (mut lines, mut pass, mut stray) = (Lines::new(limit), Vec::new(), Vec::new());
        pieces.iter().for_each(|piece| lines.filter(piece, &mut pass, |bytes| stray.extend_from_slice(bytes)));
        (String::from_utf8(pass).unwrap(), String::from_utf8_lossy(&stray).into_owned())
    }

    #[test]
    fn what_is_no_message_is_taken_out() {
        let (pass, stray) = filter(100, &[b"hello\n{\"a\":1}\n\n  \n [1]\nbye {\"b\":2}\n{\"c", b"\":3}\n"]);
        assert_eq!(pass, "{\"a\":1}\n[1]\n{\"c\":3}\n");
        assert_eq!(stray, "hello\nbye {\"b\":2}\n");
    }

    #[test]
    fn a_long_answer_becomes_an_error_with_its_id_wherever_that_stands() {
        let big = "x".repeat(500);
        for (line, id) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"id":1,"t":"{big}"}}}}"#), Some(7)),
            (format!(r#"{{"result":{{"id":1,"t":"\"id\":9,{big}"}},"jsonrpc":"2.0", "id" : 42 }}"#), Some(42)),
            (format!(r#"{{"result":"{big}","id":3}}"#), Some(3)),
            (format!(r#"{{"method":"sampling/createMessage","id":3,"params":"{big}"}}"#), None),
            (format!(r#"{{"method":"notifications/message","params":{{"id":3,"t":"{big}"}}}}"#), None),
            (format!(r#"{{"result":"{big}","id":"text"}}"#), None),
        ] {
            let (pass, _) = filter(100, &[line.as_bytes(), b"\n{}\n"]);
            let read: Vec<&str> = pass.lines().collect();
            match id {
                Some(id) => {
                    let error: serde_json::Value = serde_json::from_str(read[0]).unwrap();
                    assert_eq!((error["id"].as_i64(), error["error"]["code"].as_i64()), (Some(id), Some(TOO_LONG)));
                    assert_eq!(read[1..], ["{}"]);
                }
                None => assert_eq!(read, ["{}"], "{line}"),
            }
        }
    }

    #[test]
    fn a_line_of_exactly_the_limit_passes() {
        let line = format!(r#"{{"id":1,"result":"{}"}}"#, "x".repeat(79));
        assert_eq!(filter(line.len(), &[line.as_bytes(), b"\n"]).0, format!("{line}\n"));
        let (pass, _) = filter(line.len() - 1, &[line.as_bytes(), b"\n"]);
        assert!(pass.contains("at most") && pass.lines().count() == 1, "{pass}");
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_changes_nothing(
            lines in prop::collection::vec(prop::sample::select(vec![
                r#"{"id":5,"result":{"a":"\\\"}"}}"#, "garbage", "", r#"{"result":[1,{}],"id":-1}"#,
            ]), 0..6),
            cut in 1usize..9, limit in 1usize..40,
        ) {
            let wire: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let pieces: Vec<&[u8]> = wire.chunks(cut).collect();
            prop_assert_eq!(filter(limit, &pieces), filter(limit, &[&wire]));
        }

        #[test]
        fn any_bytes_pass_bounded(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let (mut lines, mut pass) = (Lines::new(10), Vec::new());
            lines.filter(&bytes, &mut pass, |_| {});
            for line in pass.split(|&byte| byte == b'\n') {
                prop_assert!(line.len() <= 10 || serde_json::from_slice::<serde_json::Value>(line).is_ok());
            }
        }
    }
}
