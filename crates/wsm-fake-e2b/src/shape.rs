//! Bodies that do not come as they should.

use std::{io, pin::Pin};

use async_stream::stream;
use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::{Value, json};

use crate::{
    envelope::{self, Encoder},
    fault::{Ending, Hits, What},
    operation::Operation,
    serve::Connection,
};

type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Does to a body what shall happen to it.
pub(crate) async fn shape(response: Response, operation: Operation, hits: &Hits, connection: &Connection) -> Response {
    let sets: Vec<_> = hits
        .iter()
        .filter_map(|what| if let What::Set { field, value } = what { Some((field, value)) } else { None })
        .collect();
    let response = if sets.is_empty() { response } else { set(response, &sets).await };
    let is_about_body = |what: &What| {
        let on_any = matches!(what, What::TruncateBytes { .. } | What::Pieces { .. });
        let on_streams = matches!(
            what,
            What::TruncateEvents { .. }
                | What::EndWithError { .. }
                | What::WithoutEnd
                | What::WithoutExitCode
                | What::AtOnce
                | What::Keepalives { .. }
                | What::UnknownEvent
                | What::Gzip
        );
        on_any || (on_streams && operation.is_streaming())
    };
    if !hits.iter().any(is_about_body) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // Known before, and promised all the same.
    if let Some(length) = body.size_hint().exact().filter(|_| !operation.is_streaming()) {
        parts.headers.entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    if operation.is_streaming() {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let mut pieces: Pieces = Box::pin(body.into_data_stream().map(|piece| piece.map_err(io::Error::other)));
    if operation.is_streaming() {
        pieces = Box::pin(shape_messages(pieces, hits.clone(), connection.clone()));
    }
    for what in hits.iter() {
        match what {
            What::Pieces { bytes } => pieces = Box::pin(cut(pieces, (*bytes).max(1))),
            What::TruncateBytes { after, ending } => {
                let is_streaming = operation.is_streaming();
                // There is no proper end before the length that was promised.
                let is_promised = parts.headers.contains_key(header::CONTENT_LENGTH);
                let ending = if is_promised && *ending == Ending::Eof { &Ending::Close } else { ending };
                pieces = Box::pin(truncate(pieces, *after, *ending, is_streaming, connection.clone()));
            }
            _ => {}
        }
    }
    Response::from_parts(parts, Body::from_stream(pieces))
}

async fn set(response: Response, sets: &[(&String, &Value)]) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Ok(mut object) = serde_json::from_slice::<Value>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    if let Some(fields) = object.as_object_mut() {
        for (field, value) in sets {
            if value.is_null() {
                fields.remove(*field);
            } else {
                fields.insert((*field).clone(), (*value).clone());
            }
        }
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(object.to_string()))
}

/// Every piece that comes is one envelope.
fn shape_messages(mut frames: Pieces, hits: Hits, connection: Connection) -> impl Stream<Item = io::Result<Bytes>> {
    stream! {
        let encoder = Encoder { gzip: hits.has(&What::Gzip) };
        let at_once = hits.has(&What::AtOnce);
        let mut held = BytesMut::new();
        let mut count = 0;
        loop {
            for what in hits.iter() {
                match what {
                    What::TruncateEvents { after, ending } if *after == count => {
                        if !held.is_empty() {
                            yield Ok(held.split().freeze());
                        }
                        for piece in end(*ending, &connection, true).await {
                            yield piece;
                        }
                        return;
                    }
                    What::EndWithError { after, code, message } if *after == count => {
                        yield Ok(held.split().freeze());
                        let error = json!({ "error": { "code": code, "message": message } });
                        yield Ok(encoder.end_with(&error));
                        return;
                    }
                    _ => {}
                }
            }
            let frame = match frames.next().await {
                Some(Ok(frame)) => frame,
                Some(error) => {
                    yield error;
                    return;
                }
                None => break,
            };
            for frame in around(&hits, encoder, frame, count) {
                match at_once {
                    true => held.extend_from_slice(&frame),
                    false => yield Ok(frame),
                }
            }
            count += 1;
        }
        if !held.is_empty() {
            yield Ok(held.freeze());
        }
    }
}

/// What comes in place of one envelope.
fn around(hits: &Hits, encoder: Encoder, frame: Bytes, count: usize) -> Vec<Bytes> {
    let Some((is_end, mut message)) = envelope::open(&frame) else { return vec![frame] };
    let mut frames = Vec::new();
    let event = |name: &str, value: &Value| encoder.message(&json!({ "event": { name: value } }));
    let mut left_out = false;
    let mut changed = encoder.gzip;
    for what in hits.iter() {
        match what {
            What::Keepalives { count: keepalives } if count > 0 => {
                frames.extend((0..*keepalives).map(|_| event("keepalive", &json!({}))));
            }
            What::UnknownEvent if count == 1 => frames.push(event("metrics", &json!({ "cpu": 1 }))),
            What::WithoutEnd => left_out |= message["event"]["end"].is_object(),
            What::WithoutExitCode => {
                if let Some(end) = message["event"]["end"].as_object_mut() {
                    end.remove("exitCode");
                    changed = true;
                }
            }
            _ => {}
        }
    }
    match (left_out, changed) {
        (true, _) => {}
        (false, false) => frames.push(frame),
        (false, true) if is_end => frames.push(encoder.end_with(&message)),
        (false, true) => frames.push(encoder.message(&message)),
    }
    frames
}

/// How a body ends too early.
pub(crate) async fn end(ending: Ending, connection: &Connection, is_streaming: bool) -> Vec<io::Result<Bytes>> {
    match ending {
        Ending::Eof => Vec::new(),
        Ending::Canceled if is_streaming => {
            let canceled = crate::rpc::RpcError::canceled();
            vec![Ok(Encoder::default().end(Some(&canceled)))]
        }
        Ending::Close | Ending::Reset | Ending::Canceled => {
            // What was said before is sent before.
            tokio::task::yield_now().await;
            vec![Err(connection.broken(ending))]
        }
        Ending::Hang => std::future::pending().await,
    }
}

fn cut(mut pieces: Pieces, size: usize) -> impl Stream<Item = io::Result<Bytes>> {
    stream! {
        while let Some(piece) = pieces.next().await {
            let mut piece = match piece {
                Ok(piece) => piece,
                error => {
                    yield error;
                    return;
                }
            };
            while !piece.is_empty() {
                yield Ok(piece.split_to(size.min(piece.len())));
                // Sent on its own.
                tokio::task::yield_now().await;
            }
        }
    }
}

fn truncate(
    mut pieces: Pieces,
    after: u64,
    ending: Ending,
    is_streaming: bool,
    connection: Connection,
) -> impl Stream<Item = io::Result<Bytes>> {
    stream! {
        let mut left = usize::try_from(after).unwrap_or(usize::MAX);
        while left > 0 {
            match pieces.next().await {
                Some(Ok(mut piece)) => {
                    let piece = piece.split_to(left.min(piece.len()));
                    left -= piece.len();
                    yield Ok(piece);
                }
                Some(error) => {
                    yield error;
                    return;
                }
                None => return,
            }
        }
        for piece in end(ending, &connection, is_streaming).await {
            yield piece;
        }
    }
}
