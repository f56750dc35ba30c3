//! Searches, as a server answers them.

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use serde::Serialize;
use wsm_core::{Error, ErrorKind, Result};

use crate::{
    frame::{Channel, Frame, Kind},
    message::{End, Reply},
    server::Task,
};

/// How many events that are there already travel together.
const TOGETHER: usize = 64;

impl Task {
    /// Sends events as lines of JSON.
    pub(crate) async fn send_events<T: Serialize>(self, found: Result<BoxStream<'static, Result<T>>>) {
        let mut events = match found {
            Ok(events) => events.ready_chunks(TOGETHER),
            Err(error) => return self.reply(&Reply::Failed((&error).into())),
        };
        self.reply(&Reply::Done);
        while let Some(ready) = events.next().await {
            let mut lines = Vec::new();
            for event in ready {
                if let Err(error) = event.and_then(|event| write_line(&mut lines, &event)) {
                    return self.send(Kind::End, &End::Failed((&error).into()));
                }
            }
            if self.window.send(&self.frames, self.stream, Channel::Body, &lines).await.is_err() {
                return;
            }
        }
        self.frames.send(Frame::new(Kind::Finish, self.stream, Bytes::new()));
    }
}

fn write_line(lines: &mut Vec<u8>, event: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *lines, event)
        .map_err(|cause| Error::new(ErrorKind::Backend, "what was found can not be written").with_source(cause))?;
    lines.push(b'\n');
    Ok(())
}
