//! Uploads.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, chown},
    path::{Path, PathBuf},
};

use axum::{
    body::Body,
    extract::{DefaultBodyLimit, FromRequest, Multipart},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::{
    Call, Failed,
    entry::{entry, set_metadata},
    error,
    files::NOT_BLOCKING,
    filesystem::{clean, make_all},
};
use crate::{
    envelope::gunzip,
    fault::{Hits, What},
    guest::user::User,
};

const METADATA: &str = "x-metadata-";
const LONGEST_KEY: usize = 246;
const MOST_METADATA: usize = 4096;

/// Why an upload was refused, or where it stopped.
enum Trouble {
    Refused(StatusCode, String),
    Failed(Failed),
}

impl From<Failed> for Trouble {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl Trouble {
    fn refused(status: u16, message: impl Into<String>) -> Self {
        Self::Refused(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), message.into())
    }

    fn io(error: &io::Error, attempted: usize) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => full(attempted),
            _ => Self::refused(500, format!("error writing file: {error}")),
        }
    }
}

fn full(attempted: usize) -> Trouble {
    Trouble::refused(507, format!("attempted to write {attempted} bytes: not enough disk space available"))
}

/// Takes one file, or several whose names are in the parts.
pub(super) async fn upload(
    call: Call,
    request: Request<Body>,
    path: Option<PathBuf>,
    user: User,
) -> Result<Response, Failed> {
    match store(&call, request, path, user).await {
        // As the real one does, which says nothing of what it is.
        Ok(written) => Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], written.to_string()).into_response()),
        Err(Trouble::Refused(status, message)) => Ok(error(status, message)),
        Err(Trouble::Failed(failed)) => Err(failed),
    }
}

async fn store(call: &Call, request: Request<Body>, path: Option<PathBuf>, user: User) -> Result<Value, Trouble> {
    let headers = request.headers().clone();
    let room = request.extensions().get::<Hits>().and_then(|hits| {
        hits.iter().find_map(|what| if let What::DiskFull { after } = what { Some(*after) } else { None })
    });
    let metadata = metadata(&headers)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_gzip = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip");
    let place = Place { call, user, metadata, room };
    match kind.split(';').next().unwrap_or_default().trim() {
        "application/octet-stream" => {
            let path = path.ok_or_else(|| Trouble::refused(400, "path is required"))?;
            let body = request.into_body();
            if is_gzip {
                let bytes = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
                let plain = gunzip(&bytes).map_err(|error| Trouble::refused(400, format!("gzip: {error}")))?;
                let pieces = futures::stream::iter([Ok::<_, axum::Error>(Bytes::from(plain))]);
                return Ok(json!([place.write(path, pieces).await?]));
            }
            Ok(json!([place.write(path, body.into_data_stream()).await?]))
        }
        "multipart/form-data" => {
            let mut request = if is_gzip { unpacked(request).await? } else { request };
            DefaultBodyLimit::disable().apply(&mut request);
            let parts = Multipart::from_request(request, &()).await;
            parts_to_files(&place, path, parts.map_err(|error| Trouble::refused(400, error.body_text()))?).await
        }
        other => Err(Trouble::refused(
            400,
            format!("unsupported content type: {other}, expected multipart/form-data or application/octet-stream"),
        )),
    }
}

fn broken(error: &axum::Error) -> Trouble {
    Trouble::refused(500, format!("error reading request: {error}"))
}

async fn unpacked(request: Request<Body>) -> Result<Request<Body>, Trouble> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
    let plain = gunzip(&bytes).map_err(|error| Trouble::refused(400, format!("gzip: {error}")))?;
    Ok(Request::from_parts(parts, Body::from(plain)))
}

async fn parts_to_files(place: &Place<'_>, path: Option<PathBuf>, mut parts: Multipart) -> Result<Value, Trouble> {
    let mut written = Vec::new();
    let mut paths: Vec<PathBuf> = Vec::new();
    let unreadable = |error: axum::extract::multipart::MultipartError| {
        Trouble::refused(500, format!("error parsing multipart form: {}", error.body_text()))
    };
    while let Some(part) = parts.next_field().await.map_err(unreadable)? {
        if part.name() != Some("file") {
            continue;
        }
        let target = match &path {
            Some(_) if !written.is_empty() => {
                return Err(Trouble::refused(400, "you cannot upload multiple files when a path is given"));
            }
            Some(path) => path.clone(),
            None => {
                let name = part.file_name().unwrap_or_default();
                if name.is_empty() {
                    return Err(Trouble::refused(400, "a part has no file name"));
                }
                clean(&place.user.resolve(name))
            }
        };
        if paths.contains(&target) {
            let message = format!("you cannot upload multiple files to the same path '{}'", target.display());
            return Err(Trouble::refused(400, message));
        }
        paths.push(target.clone());
        written.push(place.write(target, part.map(|piece| piece.map_err(axum::Error::new))).await?);
    }
    Ok(Value::Array(written))
}

fn metadata(headers: &HeaderMap) -> Result<Vec<(String, String)>, Trouble> {
    let mut metadata = Vec::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA) else { continue };
        let is_printable = value.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte));
        if key.is_empty() || key.len() > LONGEST_KEY || !is_printable {
            return Err(Trouble::refused(400, format!("invalid metadata '{key}'")));
        }
        total += key.len() + value.len();
        metadata.push((key.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    }
    if total > MOST_METADATA {
        return Err(Trouble::refused(400, format!("metadata of {total} bytes: at most {MOST_METADATA}")));
    }
    Ok(metadata)
}

/// Where uploads of one request go.
struct Place<'a> {
    call: &'a Call,
    user: User,
    metadata: Vec<(String, String)>,
    /// How many bytes there is room for, when there is not enough.
    room: Option<usize>,
}

impl Place<'_> {
    /// Writes in place: who breaks off leaves what has come so far.
    async fn write(
        &self,
        path: PathBuf,
        pieces: impl Stream<Item = Result<Bytes, axum::Error>>,
    ) -> Result<Value, Trouble> {
        let (target, user) = (path.clone(), self.user);
        let open = move || open(&target, user);
        let mut file = self.call.run.machine.with_files(open).await.map_err(Failed::from)??;
        let mut pieces = std::pin::pin!(pieces);
        let mut total = 0;
        while let Some(piece) = pieces.next().await {
            let mut piece = piece.map_err(|error| broken(&error))?;
            let attempted = total + piece.len();
            let is_full = self.room.is_some_and(|room| attempted > room);
            if let Some(room) = self.room.filter(|_| is_full) {
                piece.truncate(room - total);
            }
            total += piece.len();
            let write = move || file.write_all(&piece).map(|()| file);
            let written = tokio::task::spawn_blocking(write).await;
            file = written
                .map_err(|error| Trouble::refused(500, error.to_string()))?
                .map_err(|error| Trouble::io(&error, attempted))?;
            if is_full {
                return Err(full(attempted));
            }
        }
        if self.room == Some(0) {
            return Err(full(total));
        }
        drop(file);
        let (target, metadata) = (path.clone(), self.metadata.clone());
        let describe = move || set_metadata(&target, &metadata);
        let described = self.call.run.machine.with_files(describe).await.map_err(Failed::from)?;
        if !self.metadata.is_empty() {
            described.map_err(|error| Trouble::refused(500, format!("error writing metadata: {error}")))?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut written = json!({ "name": name, "path": path.to_string_lossy(), "type": "file" });
        if !self.metadata.is_empty() {
            written["metadata"] = self.metadata.iter().cloned().collect();
        }
        Ok(written)
    }
}

fn open(path: &Path, user: User) -> Result<File, Trouble> {
    if path.is_dir() {
        return Err(Trouble::refused(400, format!("path is a directory: {}", path.display())));
    }
    if let Some(parent) = path.parent() {
        make_all(parent, user)
            .map_err(|error| Trouble::refused(500, format!("error ensuring directories: {error}")))?;
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(NOT_BLOCKING).open(path);
    let opened = opened.and_then(|file| {
        chown(path, Some(user.id), Some(user.id))?;
        Ok(file)
    });
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull => full(0),
        _ => Trouble::refused(500, format!("error opening file: {error}")),
    })
}

/// Makes one file of several, which are gone then.
pub(super) async fn compose(call: Call, request: Request<Body>) -> Result<Response, Failed> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return Ok(error(StatusCode::BAD_REQUEST, "invalid request body"));
    };
    let Some(user) = User::named(body["username"].as_str().unwrap_or_default()) else {
        return Ok(error(StatusCode::UNAUTHORIZED, "unknown user"));
    };
    let resolve = |path: &Value| path.as_str().map(|path| clean(&user.resolve(path)));
    let sources: Option<Vec<PathBuf>> = body["source_paths"].as_array().into_iter().flatten().map(resolve).collect();
    let (Some(sources), Some(destination)) = (sources, resolve(&body["destination"])) else {
        return Ok(error(StatusCode::BAD_REQUEST, "source_paths and destination are required"));
    };
    let work = move || -> Result<Value, Trouble> {
        let failed = |error: io::Error| Trouble::io(&error, 0);
        let mut target = open(&destination, user)?;
        for source in &sources {
            let missing = |error| Trouble::refused(404, format!("path '{}': {error}", source.display()));
            let mut source = File::open(source).map_err(missing)?;
            io::copy(&mut source, &mut target).map_err(failed)?;
        }
        for source in &sources {
            std::fs::remove_file(source).map_err(failed)?;
        }
        entry(&destination).map_err(failed)
    };
    match call.run.machine.with_files(work).await? {
        Ok(entry) => Ok(axum::Json(entry).into_response()),
        Err(Trouble::Refused(status, message)) => Ok(error(status, message)),
        Err(Trouble::Failed(failed)) => Err(failed),
    }
}
