//! Files: raw bytes, streamed both ways.

mod range;

use std::time::SystemTime;

use axum::{
    Json,
    body::Body,
    extract::{FromRequestParts, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use wsm_core::{
    AgentId, ByteStream, Error, ErrorKind, FileKind, Metadata, ReadFile, ReadOptions, RemoveOptions, SessionId,
    WorkspaceHandle, WriteOptions, validate_path,
};

use super::{
    FILE_MODE_HEADER, Problem,
    download::Download,
    error::ProblemBody,
    extract::{Caller, CallerSession, CallerWorkspace, Params, Started, announced_length},
    opening::tell_loss,
};
use range::Range;

/// Which file of which session, and how to read it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadParams {
    /// The agent of the session.
    #[param(value_type = String)]
    agent_id: AgentId,
    /// The session.
    #[param(value_type = String)]
    session_id: SessionId,
    /// The file's path; relative ones start at the workspace directory.
    path: String,
    /// Whether a browser is to save the file rather than show it.
    #[serde(default)]
    download: bool,
    /// A download token, in place of `X-User-ID`.
    #[serde(default)]
    token: Option<String>,
}

/// Which path of which session, and how to remove it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveParams {
    /// The path; relative ones start at the workspace directory.
    path: String,
    /// Whether a directory goes with all that it holds.
    #[serde(default)]
    recursive: bool,
}

/// Which path to write.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteParams {
    /// The file's path; relative ones start at the workspace directory. Missing directories are made.
    path: String,
    /// The file's permissions in octal digits, such as `755`; unless given, those of the file that is replaced.
    #[serde(default, deserialize_with = "permissions")]
    #[param(value_type = Option<String>)]
    mode: Option<u32>,
}

fn permissions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| digits && *mode <= 0o777);
    let refuse = || serde::de::Error::custom("allowed are octal digits up to `777`, such as `755`");
    mode.map(Some).ok_or_else(refuse)
}

/// A written file.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WrittenFile)]
pub(super) struct WrittenBody {
    /// Its path, as it was asked for.
    path: String,
    /// Its length.
    size_bytes: u64,
    /// When it was written, in seconds since 1970.
    updated_at: Option<f64>,
}

/// Reads a file, or one range of it.
#[utoipa::path(
    get, path = "/workspace/files", operation_id = "read_file", tag = "workspace",
    params(
        ReadParams,
        ("X-User-ID" = Option<String>, Header, description = "Who asks, unless `token` says so."),
        ("Range" = Option<String>, Header, description = "One range of bytes; several are answered with the whole file."),
    ),
    responses(
        (status = 200, description = "The file.", body = [u8], content_type = "application/octet-stream"),
        (status = 206, description = "The range.", body = [u8], content_type = "application/octet-stream"),
        (status = 403, description = "The path leads out of the workspace: `path_outside`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 416, description = "The range starts past the end.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 422, description = "The path is no file: `is_a_directory`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn read(Started(app): Started, request: Request) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let Params(params) = Params::<ReadParams>::from_request_parts(&mut parts, &()).await?;
    let ReadParams { agent_id, session_id, path, download, token } = params;
    let user = match &token {
        Some(token) => app.downloads.check(token, Download { agent: &agent_id, session: &session_id, path: &path })?,
        None => Caller::from_request_parts(&mut parts, &()).await?.0,
    };
    validate_path(&path)?;
    let session = CallerSession::find(&app, &user, &agent_id, &session_id).await?;
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;

    let range = Range::asked_for(&parts.headers);
    let (range, file) = match range {
        None => (None, workspace.read(&path, ReadOptions::default()).await?),
        Some(range) => {
            let file = workspace.read(&path, range.first_guess()).await?;
            let size = file.metadata.size;
            let Some((start, length)) = range.within(size) else {
                let detail = format!("the range starts past the end of the file, which is {size} bytes long");
                return Err(Problem::new(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    "invalid_input",
                    "range_not_satisfiable",
                    detail,
                )
                .with_field("range")
                .with_header(header::CONTENT_RANGE, format!("bytes */{size}")));
            };
            // The size is known only now, and what was opened may start elsewhere.
            let options = ReadOptions::range(start, Some(length));
            let file = if options == range.first_guess() { file } else { workspace.read(&path, options).await? };
            (Some((start, length)), file)
        }
    };
    let opening = workspace.opening().clone();
    let mut response = answer(&path, file, range, download, workspace);
    tell_loss(response.headers_mut(), &opening, lost);
    Ok(response)
}

fn answer(
    path: &str,
    file: ReadFile,
    range: Option<(u64, u64)>,
    download: bool,
    workspace: WorkspaceHandle,
) -> Response {
    let ReadFile { metadata, body, .. } = file;
    // The handle goes with the body, so that the workspace stays for as long as the client reads.
    let body = body.map(move |chunk| {
        let _held = &workspace;
        chunk
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    let length = range.map_or(metadata.size, |(_, length)| length);
    // Devices and pipes have no length that could be told.
    if metadata.kind == FileKind::File {
        headers.insert(header::CONTENT_LENGTH, length.into());
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(path)));
    // What agents write is shown from the address of this service, and must not act in its name.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    if let Some(mode) = metadata.mode
        && let Ok(value) = HeaderValue::from_str(&format!("{:o}", mode & 0o777))
    {
        headers.insert(FILE_MODE_HEADER, value);
    }
    if let Some(modified) = metadata.modified
        && let Ok(value) = HeaderValue::from_str(&http_date(modified))
    {
        headers.insert(header::LAST_MODIFIED, value);
    }
    if download
        && let Ok(value) = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{}", percent(name(path))))
    {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    if let Some((start, length)) = range {
        let value = format!("bytes {start}-{}/{}", start + length - 1, metadata.size);
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// Writes a file as a whole: until the body has ended, the old one stays.
#[utoipa::path(
    put, path = "/workspace/files", operation_id = "write_file", tag = "workspace",
    params(super::extract::SessionParams, WriteParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The file was replaced.", body = WrittenBody),
        (status = 201, description = "The file is new.", body = WrittenBody),
        (status = 403, description = "The path leads out of the workspace: `path_outside`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 413, description = "The body is too long. Nothing was changed.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn write(
    Started(app): Started,
    session: CallerSession,
    Params(WriteParams { path, mode }): Params<WriteParams>,
    request: Request,
) -> Result<Response, Problem> {
    validate_path(&path)?;
    let limit = app.limits.max_upload_bytes;
    let (parts, body) = request.into_parts();
    if announced_length(&parts).is_some_and(|length| length > limit) {
        return Err(Problem::too_large(limit));
    }
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;
    let existed = match workspace.stat(&path).await {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error.into()),
    };
    let mut options = WriteOptions::default();
    options.mode = mode;
    let metadata = workspace.write(&path, limited(body, limit), options).await?;
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    let written = WrittenBody { path, size_bytes: metadata.size, updated_at: seconds(&metadata) };
    let mut response = (status, Json(written)).into_response();
    tell_loss(response.headers_mut(), workspace.opening(), lost);
    Ok(response)
}

/// The body as the workspace takes it, which ends in an error when it is longer than allowed or breaks off.
fn limited(body: Body, limit: u64) -> ByteStream {
    let mut room = limit;
    body.into_data_stream()
        .map_err(|error| Error::invalid("body", format!("the body broke off: {error}")).with_code("incomplete_body"))
        .and_then(move |chunk: Bytes| {
            let rest = room.checked_sub(chunk.len() as u64);
            room = rest.unwrap_or(0);
            let too_large = || {
                Error::invalid("body", format!("the body is longer than the limit of {limit} bytes"))
                    .with_code("too_large")
            };
            futures::future::ready(rest.map(|_| chunk).ok_or_else(too_large))
        })
        .boxed()
}

/// Removes a file, or a directory.
#[utoipa::path(
    delete, path = "/workspace/files", operation_id = "remove_file", tag = "workspace",
    params(super::extract::SessionParams, RemoveParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, body = ProblemBody<'_>, content_type = "application/problem+json"),
        (status = 409, description = "The directory is not empty: `directory_not_empty`.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn remove(
    Started(app): Started,
    session: CallerSession,
    Params(RemoveParams { path, recursive }): Params<RemoveParams>,
) -> Result<Response, Problem> {
    validate_path(&path)?;
    let CallerWorkspace { session: _, workspace, lost } = session.open(&app).await?;
    workspace.remove(&path, RemoveOptions::default().with_recursive(recursive)).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    tell_loss(response.headers_mut(), workspace.opening(), lost);
    Ok(response)
}

/// When something was last changed, in seconds since 1970.
pub(super) fn seconds(metadata: &Metadata) -> Option<f64> {
    let since = metadata.modified?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}

fn name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Percent-encodes all but the characters that [RFC 5987](https://www.rfc-editor.org/rfc/rfc5987) lets stand.
fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The type that a name's ending stands for. Text is taken for UTF-8.
fn content_type(path: &str) -> &'static str {
    let ending = name(path).rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_ascii_lowercase());
    match ending.as_str() {
        "txt" | "log" | "rs" | "py" | "sh" | "toml" | "yaml" | "yml" | "ini" | "c" | "h" | "go" | "java" => {
            "text/plain; charset=utf-8"
        }
        "md" => "text/markdown; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

/// A time as HTTP headers write it.
fn http_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    // `2026-11-30T06:51:25Z`
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let day = DAYS[usize::try_from(since / 86_400 % 7).unwrap_or(0)];
    let month = text[5..7].parse::<usize>().unwrap_or(1);
    format!("{day}, {} {} {} {} GMT", &text[8..10], MONTHS[(month - 1) % 12], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_alphabet_fit_into_a_header() {
        assert_eq!(percent(name("a/报告 ü.txt")), "%E6%8A%A5%E5%91%8A%20%C3%BC.txt");
        assert_eq!(percent("a\"b\r\n;"), "a%22b%0D%0A%3B");
    }

    #[test]
    fn endings_tell_types() {
        assert_eq!(content_type("a/b.JSON"), "application/json");
        assert_eq!(content_type("a.b/c"), "application/octet-stream");
    }

    #[test]
    fn dates_are_those_of_http() {
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777);
        assert_eq!(http_date(time), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
