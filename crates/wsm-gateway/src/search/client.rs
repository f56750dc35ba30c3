//! Searches, as a client asks for them.

use bytes::{Buf, BytesMut};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use serde::de::DeserializeOwned;
use wsm_core::{ByteStream, Error, ErrorKind, Result};

use super::{GlobEvent, GlobRequest, GlobResult, GrepEvent, GrepRequest, GrepResult};
use crate::{client::GatewayClient, message::Request};

/// The longest event. The parts of one that come from outside are bounded by the server far below.
const MAX_EVENT: usize = 4 << 20;

impl GatewayClient {
    /// Finds files by their paths.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `pattern`, `path` or `limit`; `not_found` when the path does not exist; `unsupported` when the
    /// gateway does not search; `unavailable` when the connection broke.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the search.
    pub async fn glob(&self, request: &GlobRequest) -> Result<GlobResult> {
        let mut result = GlobResult::default();
        let mut events = self.glob_events(request).await?;
        while let Some(event) = events.try_next().await? {
            match event {
                GlobEvent::Entry(entry) => result.entries.push(entry),
                GlobEvent::Problem(problem) => result.problems.push(problem),
                GlobEvent::End(end) => result.end = end,
            }
        }
        Ok(result)
    }

    /// As [`glob`](Self::glob), one by one. A reader that stops stops the search.
    ///
    /// # Errors
    ///
    /// As for [`glob`](Self::glob), before the first event or in its place.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the search.
    pub async fn glob_events(&self, request: &GlobRequest) -> Result<BoxStream<'static, Result<GlobEvent>>> {
        Ok(events(self.body_of(&Request::Glob(request.clone())).await?))
    }

    /// Finds lines of text files.
    ///
    /// # Errors
    ///
    /// As for [`glob`](Self::glob), also about `globs`, `types` and the other limits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the search.
    pub async fn grep(&self, request: &GrepRequest) -> Result<GrepResult> {
        let mut result = GrepResult::default();
        let mut events = self.grep_events(request).await?;
        while let Some(event) = events.try_next().await? {
            match event {
                GrepEvent::Line(line) => result.lines.push(line),
                GrepEvent::File(file) => result.files.push(file),
                GrepEvent::Binary(binary) => result.binaries.push(binary),
                GrepEvent::Problem(problem) => result.problems.push(problem),
                GrepEvent::End(end) => result.end = end,
            }
        }
        Ok(result)
    }

    /// As [`grep`](Self::grep), one by one. A reader that stops stops the search.
    ///
    /// # Errors
    ///
    /// As for [`grep`](Self::grep), before the first event or in its place.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the search.
    pub async fn grep_events(&self, request: &GrepRequest) -> Result<BoxStream<'static, Result<GrepEvent>>> {
        Ok(events(self.body_of(&Request::Grep(request.clone())).await?))
    }
}

/// Reads events from lines of JSON.
fn events<T: DeserializeOwned + Send + 'static>(body: ByteStream) -> BoxStream<'static, Result<T>> {
    let unreadable = |message: &str| Error::new(ErrorKind::Backend, message);
    stream::try_unfold((body, BytesMut::new()), move |(mut body, mut buffer)| async move {
        let mut searched = 0;
        loop {
            if let Some(end) = buffer.iter().skip(searched).position(|&byte| byte == b'\n') {
                let line = buffer.split_to(searched + end);
                buffer.advance(1);
                let event = serde_json::from_slice(&line)
                    .map_err(|cause| unreadable("what was found can not be read").with_source(cause))?;
                return Ok(Some((event, (body, buffer))));
            }
            searched = buffer.len();
            if searched > MAX_EVENT {
                return Err(unreadable("what was found has no end"));
            }
            match body.try_next().await? {
                Some(piece) => buffer.extend_from_slice(&piece),
                None if buffer.is_empty() => return Ok(None),
                None => return Err(unreadable("what was found broke off")),
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::search::{GrepLine, SearchEnd};

    fn read(pieces: Vec<&[u8]>) -> Result<Vec<GrepEvent>> {
        let pieces: Vec<Result<Bytes>> = pieces.into_iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        futures::executor::block_on(events(stream::iter(pieces).boxed()).try_collect())
    }

    #[test]
    fn what_breaks_off_or_is_no_json_is_an_error() {
        for wire in [&b"{"[..], b"{}\n", b"\n", b"{\"type\":\"end\",\"entries\":1,\"matches\":0}"] {
            assert_eq!(read(vec![wire]).unwrap_err().kind(), ErrorKind::Backend, "{wire:?}");
        }
        let endless = vec![b'x'; 1 << 20];
        assert!(read(vec![&endless[..]; 6]).unwrap_err().message().contains("no end"));
    }

    proptest! {
        #[test]
        fn events_survive_however_the_bytes_are_cut(texts in prop::collection::vec(".*", 0..8), cut in 1usize..30) {
            let mut sent: Vec<GrepEvent> =
                texts.into_iter().map(|text| GrepEvent::Line(GrepLine::new("a/b", 7, text, true))).collect();
            sent.push(GrepEvent::End(SearchEnd::default()));
            let mut wire = Vec::new();
            for event in &sent {
                serde_json::to_writer(&mut wire, event).unwrap();
                wire.push(b'\n');
            }
            prop_assert_eq!(read(wire.chunks(cut).collect()).unwrap(), sent);
        }
    }
}
