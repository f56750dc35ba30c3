//! Ways into what is private, for fuzzing and measuring. No part of what this crate offers: it changes without notice.

use bytes::{Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    GlobEvent, GrepEvent,
    frame::{Frame, Kind},
    message::{End, Hello, Reply, Request, SignalRequest, WireEntry},
};

/// Writes frames of data.
pub fn encode(payload: usize, count: usize) -> BytesMut {
    let frame = Frame::new(Kind::Data, 7, vec![0; payload]);
    let mut wire = BytesMut::new();
    (0..count).for_each(|_| frame.write_to(&mut wire));
    wire
}

/// Reads frames, and gives how many bytes of data were in them.
pub fn decode(wire: &BytesMut) -> usize {
    let mut wire = wire.clone();
    let mut bytes = 0;
    while let Ok(Some(frame)) = Frame::read_from(&mut wire) {
        bytes += frame.payload.len();
    }
    bytes
}

/// Reads any bytes as frames: the same ones however they are cut, and such as can be written again.
///
/// # Panics
///
/// When that is not so.
pub fn frames(bytes: &[u8]) {
    let Some((&cut, wire)) = bytes.split_first() else { return };
    let (whole, rest) = read_frames([wire].into_iter());
    let (cut, _) = read_frames(wire.chunks(usize::from(cut).max(1)));
    assert_eq!(whole, cut);
    let mut again = BytesMut::new();
    whole.iter().for_each(|frame| frame.write_to(&mut again));
    assert_eq!(&again[..], &wire[..wire.len() - rest], "what was read is not what was there");
    for frame in whole {
        let _ = frame.clone().into_data();
        let _ = frame.into_credit();
    }
}

/// The frames, and how many bytes are left after the last one.
fn read_frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, usize) {
    let (mut frames, mut buffer, mut broken) = (Vec::new(), BytesMut::new(), false);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while !broken {
            match Frame::read_from(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => broken = true,
            }
        }
    }
    (frames, buffer.len())
}

/// Reads any bytes as every message: what can be read is the same after it was written again.
///
/// # Panics
///
/// When that is not so.
pub fn messages(bytes: &[u8]) {
    message::<Hello>(bytes);
    message::<Request>(bytes);
    message::<Reply>(bytes);
    message::<End>(bytes);
    message::<SignalRequest>(bytes);
    message::<Vec<WireEntry>>(bytes);
    message::<GlobEvent>(bytes);
    message::<GrepEvent>(bytes);
}

fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let frame = Frame::new(Kind::Open, 1, Bytes::copy_from_slice(bytes));
    let Ok(message) = frame.parse::<T>() else { return };
    let Ok(again) = Frame::json(Kind::Open, 1, &message) else { return };
    match again.parse::<T>() {
        Ok(again) => assert_eq!(again, message),
        Err(error) => panic!("{message:?} can not be read again: {error:?}"),
    }
}

/// Reads any bytes as the members of an archive: what is admitted lies below, and nothing that lies below leads out.
///
/// # Panics
///
/// When that is not so.
pub fn members(bytes: &[u8]) {
    crate::member::try_members(bytes);
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use crate::{GlobRequest, GrepRequest, UnpackRequest, WalkOptions, message::Request};

    /// What fuzzing has found once is looked at again.
    fn replay(corpus: &str, target: fn(&[u8])) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(corpus);
        let mut count = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            target(&fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "nothing in {}", directory.display());
    }

    #[test]
    fn the_corpus_of_frames_holds() {
        replay("frames", super::frames);
    }

    #[test]
    fn the_corpus_of_messages_holds() {
        replay("messages", super::messages);
    }

    #[test]
    fn the_corpus_of_members_holds() {
        replay("members", super::members);
    }

    proptest! {
        #[test]
        fn any_bytes_hold(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            super::frames(&bytes);
            super::messages(&bytes);
            super::members(&bytes);
        }

        #[test]
        fn requests_are_the_same_on_the_other_side(text in ".*", number in any::<u64>(), yes: bool, globs: Vec<String>) {
            let walk = WalkOptions::default().with_path(text.as_str()).with_hidden(yes).with_max_entries(number);
            let grep = GrepRequest::new(text.as_str()).with_globs(globs).with_multiline(yes).with_max_bytes(number);
            for request in [
                Request::Glob(GlobRequest::new(text.as_str()).with_walk(walk.clone()).with_case_insensitive(yes)),
                Request::Grep(grep.with_walk(walk)),
                Request::Unpack(UnpackRequest::new(text.as_str()).with_max_bytes(number)),
            ] {
                let wire = serde_json::to_vec(&request).unwrap();
                prop_assert_eq!(serde_json::from_slice::<Request>(&wire).unwrap(), request);
            }
        }
    }
}
