//! Searches and unpacks for whoever runs the program, without a connection.

use std::{
    env, fmt,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::Serialize;
use wsm_core::{ByteStream, Error, ErrorKind, Result};
use wsm_gateway::{FileTools, GlobEvent, GrepEvent, GrepLine, HostFileTools, Problem, SearchEnd};
use wsm_host::blocking;

use crate::file_args::FileAction;

/// How much of an archive is read at once.
const PIECE: usize = 64 << 10;

/// Does it, from the current directory, and prints what comes of it.
///
/// # Errors
///
/// What the request can not be done for.
pub(crate) fn run(action: FileAction, json: bool) -> Result<()> {
    let workdir = env::current_dir()
        .map_err(|cause| Error::new(ErrorKind::NotFound, "there is no current directory").with_source(cause))?;
    let tools = HostFileTools::new(workdir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        match action {
            FileAction::Glob(request) => print(tools.glob(request).await?, json, show_glob).await,
            FileAction::Grep(request) => print(tools.grep(request).await?, json, show_grep).await,
            FileAction::Unpack(request, file) => {
                let unpacked = tools.unpack(request, archive(file.as_deref())?).await?;
                let once = stream::iter([Ok(unpacked)]);
                print(once, json, |unpacked| {
                    let (files, directories) = (unpacked.files, unpacked.directories);
                    let (links, bytes) = (unpacked.links, unpacked.bytes);
                    Shown::Out(format!("{files} files, {directories} directories, {links} links, {bytes} bytes"))
                })
                .await
            }
        }
    });
    // A read of stdin may still wait, which nobody needs any more.
    runtime.shutdown_background();
    done
}

/// Where something is printed.
enum Shown {
    Out(String),
    Err(String),
    Nothing,
}

async fn print<T: Serialize>(
    mut events: impl Stream<Item = Result<T>> + Unpin,
    json: bool,
    show: impl Fn(&T) -> Shown,
) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut write = |text: &dyn fmt::Display| writeln!(out, "{text}");
    while let Some(event) = events.try_next().await? {
        let written = if json {
            let line = serde_json::to_string(&event).map_err(|cause| {
                Error::new(ErrorKind::Backend, "what was found can not be written").with_source(cause)
            })?;
            write(&line)
        } else {
            match show(&event) {
                Shown::Out(line) => write(&line),
                Shown::Err(line) => writeln!(io::stderr(), "wsm-gateway: {line}"),
                Shown::Nothing => Ok(()),
            }
        };
        if is_over(written)? {
            return Ok(());
        }
    }
    is_over(out.flush()).map(drop)
}

/// Whether nobody reads any more, which is no error: `head` has enough.
fn is_over(written: io::Result<()>) -> Result<bool> {
    match written {
        Ok(()) => Ok(false),
        Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        Err(cause) => Err(Error::new(ErrorKind::Backend, "the answer can not be written").with_source(cause)),
    }
}

fn show_glob(event: &GlobEvent) -> Shown {
    match event {
        GlobEvent::Entry(entry) => Shown::Out(entry.path.clone()),
        GlobEvent::Problem(problem) => show_problem(problem),
        GlobEvent::End(end) => show_end(*end),
        _ => Shown::Nothing,
    }
}

fn show_grep(event: &GrepEvent) -> Shown {
    match event {
        GrepEvent::Line(GrepLine { path, line, text, is_match, .. }) => {
            let mark = if *is_match { ':' } else { '-' };
            Shown::Out(format!("{path}{mark}{line}{mark}{text}"))
        }
        GrepEvent::File(file) => match file.count {
            Some(count) => Shown::Out(format!("{}:{count}", file.path)),
            None => Shown::Out(file.path.clone()),
        },
        GrepEvent::Binary(binary) => Shown::Err(format!("{}: no text from byte {} on", binary.path, binary.offset)),
        GrepEvent::Problem(problem) => show_problem(problem),
        GrepEvent::End(end) => show_end(*end),
        _ => Shown::Nothing,
    }
}

fn show_problem(Problem { path, message, .. }: &Problem) -> Shown {
    Shown::Err(if path.is_empty() { message.clone() } else { format!("{path}: {message}") })
}

fn show_end(end: SearchEnd) -> Shown {
    match end.truncated {
        Some(why) => Shown::Err(format!("this is not all: the limit of `{why:?}` is reached").to_lowercase()),
        None => Shown::Nothing,
    }
}

/// Reads a file, or stdin, piece by piece.
fn archive(file: Option<&Path>) -> Result<ByteStream> {
    let source: Box<dyn Read + Send> = match file {
        Some(path) => Box::new(File::open(path).map_err(|cause| {
            Error::new(ErrorKind::NotFound, format!("`{}` can not be opened", path.display())).with_source(cause)
        })?),
        None => Box::new(io::stdin()),
    };
    let pieces = stream::try_unfold(source, |mut source| async move {
        let (source, piece) = blocking(move || {
            let mut piece = vec![0; PIECE];
            let length = source.read(&mut piece).map_err(|cause| {
                Error::new(ErrorKind::InvalidInput, "the archive can not be read").with_source(cause)
            })?;
            piece.truncate(length);
            Ok((source, piece))
        })
        .await?;
        Ok((!piece.is_empty()).then(|| (Bytes::from(piece), source)))
    });
    Ok(pieces.boxed())
}
