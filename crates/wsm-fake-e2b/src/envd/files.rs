//! Files by plain HTTP: who may, and downloads.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use async_stream::try_stream;
use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::{Call, Failed, error, filesystem::clean, upload};
use crate::guest::user::User;

/// What opening waits for nobody with.
pub(super) const NOT_BLOCKING: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
const PIECE: usize = 64 << 10;

/// What the query of a request says.
pub(super) struct Query {
    path: String,
    username: String,
    signature: Option<String>,
    expiration: Option<String>,
}

impl Query {
    fn read(query: &str) -> Self {
        let mut pairs: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Self {
            path: pairs.remove("path").unwrap_or_default(),
            username: pairs.remove("username").unwrap_or_default(),
            signature: pairs.remove("signature"),
            expiration: pairs.remove("signature_expiration"),
        }
    }
}

pub(super) async fn answer(call: Call, request: Request<Body>) -> Result<Response, Failed> {
    let query = Query::read(request.uri().query().unwrap_or_default());
    let is_write = match *request.method() {
        Method::GET => false,
        Method::POST => true,
        _ => return Ok((StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST")]).into_response()),
    };
    if let Err(why) = may(&call, request.headers(), &query, is_write) {
        return Ok(error(StatusCode::UNAUTHORIZED, why));
    }
    let Some(user) = User::named(&query.username) else {
        let name = &query.username;
        let message = format!("error looking up user '{name}': user: unknown user {name}");
        return Ok(error(StatusCode::UNAUTHORIZED, message));
    };
    if query.path.contains('\0') {
        return Ok(error(StatusCode::BAD_REQUEST, "error resolving path: a path with a NUL"));
    }
    let path = (!query.path.is_empty()).then(|| clean(&user.resolve(&query.path)));
    if is_write {
        return upload::upload(call, request, path, user).await;
    }
    let path = path.unwrap_or_else(|| PathBuf::from(user.home));
    download(&call, request.headers(), path).await
}

/// Whether the token or a signature allows it.
fn may(call: &Call, headers: &HeaderMap, query: &Query, is_write: bool) -> Result<(), &'static str> {
    let Some(wanted) = &call.sandbox.token else { return Ok(()) };
    let token = headers.get("x-access-token").and_then(|token| token.to_str().ok());
    match token {
        Some(token) if token == wanted => return Ok(()),
        Some(_) => return Err("access token present in header but does not match"),
        None => {}
    }
    let given = query.signature.as_deref().ok_or("missing signature query parameter")?;
    let operation = if is_write { "write" } else { "read" };
    if given != signature(&query.path, operation, &query.username, wanted, query.expiration.as_deref()) {
        return Err("invalid signature");
    }
    let now = call.fake.clock.now().as_second();
    let is_over = |expiration: &str| expiration.parse::<i64>().is_ok_and(|expiration| expiration < now);
    if query.expiration.as_deref().is_some_and(is_over) {
        return Err("signature is already expired");
    }
    Ok(())
}

fn signature(path: &str, operation: &str, user: &str, token: &str, expiration: Option<&str>) -> String {
    let mut raw = format!("{path}:{operation}:{user}:{token}");
    if let Some(expiration) = expiration {
        raw.push(':');
        raw.push_str(expiration);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(raw)))
}

async fn download(call: &Call, headers: &HeaderMap, path: PathBuf) -> Result<Response, Failed> {
    let opened = path.clone();
    let open = move || -> io::Result<(File, std::fs::Metadata)> {
        // A pipe would let all other files wait.
        let file = File::options().read(true).custom_flags(NOT_BLOCKING).open(&opened)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    let shown = path.display();
    let (file, metadata) = match call.run.machine.with_files(open).await? {
        Ok(opened) => opened,
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(error(StatusCode::NOT_FOUND, format!("path '{shown}' does not exist")));
        }
        Err(cause) => {
            return Ok(error(StatusCode::INTERNAL_SERVER_ERROR, format!("error opening file '{shown}': {cause}")));
        }
    };
    if metadata.is_dir() {
        return Ok(error(StatusCode::BAD_REQUEST, format!("path '{shown}' is a directory")));
    }
    let encodings = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let length = metadata.len();
    let mut response = if accepts(encodings, "gzip") {
        let mut response = Body::from_stream(compressed(file)).into_response();
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else if !accepts(encodings, "identity") {
        return Ok(error(StatusCode::NOT_ACCEPTABLE, "no acceptable encoding"));
    } else {
        match range(headers, length) {
            Ok(range) => part(file, range, length).await,
            Err(()) => {
                let headers = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
                return Ok((StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response());
            }
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&path));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Some(modified) = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()) {
        let modified = modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        headers.extend(HeaderValue::from_str(&modified).map(|modified| (header::LAST_MODIFIED, modified)));
    }
    Ok(response)
}

/// Whether an encoding is acceptable. Files as they are, unless that is ruled out.
fn accepts(encodings: &str, wanted: &str) -> bool {
    for encoding in encodings.split(',') {
        let (name, quality) = encoding.split_once(';').unwrap_or((encoding, ""));
        if name.trim().eq_ignore_ascii_case(wanted) {
            return quality.replace(' ', "") != "q=0";
        }
    }
    wanted == "identity"
}

/// The part that is asked for: from, and how many bytes. None for all. An error when there is none.
fn range(headers: &HeaderMap, length: u64) -> Result<Option<(u64, u64)>, ()> {
    let header = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let Some((from, to)) = header.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return Ok(None);
    };
    // Several parts at once are more than anybody asks for here.
    if to.contains(',') {
        return Ok(None);
    }
    let (from, last) = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) if to >= from => (from, to),
        (Ok(from), Err(_)) if to.is_empty() => (from, u64::MAX),
        (Err(_), Ok(count)) if from.is_empty() => (length.saturating_sub(count), u64::MAX),
        _ => return Err(()),
    };
    if from >= length {
        return Err(());
    }
    Ok(Some((from, last.min(length - 1) - from + 1)))
}

async fn part(file: File, range: Option<(u64, u64)>, length: u64) -> Response {
    let (from, count) = range.unwrap_or((0, length));
    let body = Body::from_stream(
        try_stream! {
            let mut file = tokio::fs::File::from_std(file);
            file.seek(SeekFrom::Start(from)).await?;
            let mut file = file.take(count);
            loop {
                let mut buffer = BytesMut::with_capacity(PIECE);
                if file.read_buf(&mut buffer).await? == 0 {
                    break;
                }
                yield buffer.freeze();
            }
        }
        .boxed_io(),
    );
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(count));
    if range.is_some() {
        let shown = format!("bytes {from}-{}/{length}", from + count - 1);
        headers.extend(HeaderValue::from_str(&shown).map(|shown| (header::CONTENT_RANGE, shown)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// Says what a stream's errors are, where nothing else does.
trait BoxedIo {
    fn boxed_io(self) -> std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>> + Send>>;
}

impl<S: futures::Stream<Item = io::Result<Bytes>> + Send + 'static> BoxedIo for S {
    fn boxed_io(self) -> std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>> + Send>> {
        Box::pin(self)
    }
}

fn compressed(file: File) -> std::pin::Pin<Box<dyn futures::Stream<Item = io::Result<Bytes>> + Send>> {
    try_stream! {
        let mut state = Some((file, GzEncoder::new(Vec::new(), Compression::fast())));
        while let Some((mut file, mut encoder)) = state.take() {
            let work = move || -> io::Result<_> {
                let mut buffer = vec![0; PIECE];
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    return Ok((encoder.finish()?, None));
                }
                encoder.write_all(&buffer[..read])?;
                let ready = std::mem::take(encoder.get_mut());
                Ok((ready, Some((file, encoder))))
            };
            let (ready, next) = tokio::task::spawn_blocking(work).await.map_err(io::Error::other)??;
            state = next;
            if !ready.is_empty() {
                yield Bytes::from(ready);
            }
        }
    }
    .boxed_io()
}

fn disposition(path: &Path) -> HeaderValue {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = name.chars().all(|character| (' '..='~').contains(&character) && !matches!(character, '"' | '\\'));
    let shown = if plain {
        format!("inline; filename=\"{name}\"")
    } else {
        let encoded = percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
        format!("inline; filename*=utf-8''{encoded}")
    };
    HeaderValue::from_str(&shown).unwrap_or(HeaderValue::from_static("inline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_http_has_them() {
        let range = |text: &str| range(&[(header::RANGE, text.parse().unwrap())].into_iter().collect(), 10);
        assert_eq!(range("bytes=2-4"), Ok(Some((2, 3))));
        assert_eq!(range("bytes=2-"), Ok(Some((2, 8))));
        assert_eq!(range("bytes=-3"), Ok(Some((7, 3))));
        assert_eq!(range("bytes=5-99"), Ok(Some((5, 5))));
        assert_eq!(range("bytes=10-"), Err(()));
        assert_eq!(range("lines=1-2"), Ok(None));
    }

    #[test]
    fn files_come_as_they_are_unless_asked_otherwise() {
        assert!(!accepts("", "gzip") && accepts("", "identity"));
        assert!(accepts("gzip, deflate", "gzip"));
        assert!(!accepts("gzip;q=0", "gzip"));
        assert!(!accepts("identity;q=0, br", "identity"));
    }

    #[test]
    fn signatures_are_as_documented() {
        let of = |raw: &str| format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(raw)));
        assert_eq!(signature("/a", "read", "", "t", None), of("/a:read::t"));
        assert_eq!(signature("/a", "write", "root", "t", Some("9")), of("/a:write:root:t:9"));
    }
}
