//! Reads a [`text/event-stream`](https://html.spec.whatwg.org/multipage/server-sent-events.html).

use std::time::Duration;

use reqwest::Response;

/// How long the service may be silent. It gives a sign of life four times as often.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The longest event that is taken.
const MAX_EVENT_BYTES: usize = 256 << 20;

/// An event: its name, and its data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
}

/// The events of an answer, as they come.
pub(crate) struct Events {
    response: Response,
    parser: Parser,
}

impl Events {
    pub(crate) fn new(response: Response) -> Self {
        Self { response, parser: Parser::default() }
    }

    /// The next event; none when the service ended the stream.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let chunk = tokio::time::timeout(MAX_SILENCE, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| anyhow::anyhow!("the service fell silent"))?;
            match chunk.map_err(reqwest::Error::without_url)? {
                Some(bytes) => self.parser.push(&bytes)?,
                None => return Ok(None),
            }
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    bytes: Vec<u8>,
    /// Where the next line starts, and up to where no end of it was found.
    line: usize,
    searched: usize,
    name: Vec<u8>,
    data: Vec<u8>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.bytes.drain(..self.line);
        self.searched -= self.line;
        self.line = 0;
        self.bytes.extend_from_slice(bytes);
        anyhow::ensure!(self.bytes.len() + self.data.len() <= MAX_EVENT_BYTES, "an event of the service is too long");
        Ok(())
    }

    fn next(&mut self) -> Option<Event> {
        while let Some(end) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + end;
            let line = &self.bytes[self.line..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
                (self.line, self.searched) = (end + 1, end + 1);
                if !data.is_empty() {
                    return Some(Event { name: String::from_utf8_lossy(&name).into_owned(), data });
                }
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default();
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &line[..colon] {
                b"event" => self.name = value.to_vec(),
                b"data" => {
                    if !self.data.is_empty() {
                        self.data.push(b'\n');
                    }
                    self.data.extend_from_slice(value);
                }
                // A comment is a sign of life, and other fields are for browsers.
                _ => {}
            }
            (self.line, self.searched) = (end + 1, end + 1);
        }
        self.searched = self.bytes.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_however_the_bytes_are_cut() {
        let text =
            b": alive\n\nevent: stdout\r\ndata: {\"a\":\r\ndata:1}\r\n\r\nid: 7\nevent: end\ndata: {}\n\ndata: half";
        let expected = [("stdout", &b"{\"a\":\n1}"[..]), ("end", b"{}")];
        for size in 1..text.len() {
            let (mut parser, mut events) = (Parser::default(), Vec::new());
            for piece in text.chunks(size) {
                parser.push(piece).unwrap();
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let got: Vec<_> = events.iter().map(|event| (&*event.name, &*event.data)).collect();
            assert_eq!(got, expected, "in pieces of {size}");
        }
    }
}
