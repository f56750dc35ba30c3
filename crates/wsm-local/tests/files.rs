//! Files of a workspace.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod support;

use std::{
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use support::*;
use test_log::test;
use wsm_core::{
    ByteStream, Error, ErrorKind, FileKind, ReadOptions, RemoveOptions, Result, WorkspaceExt, WriteOptions, byte_stream,
};

const LIMIT: usize = 64 << 20;

impl Fixture {
    async fn write(&self, path: &str, text: &str) {
        self.workspace.write(path, byte_stream(text.to_owned()), WriteOptions::default()).await.unwrap();
    }

    async fn read(&self, path: &str) -> String {
        self.workspace.read_text(path, LIMIT).await.unwrap()
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let mut names: Vec<_> = self.workspace.list(path).await.unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }
}

fn error_of<T: std::fmt::Debug>(result: Result<T>) -> (ErrorKind, &'static str) {
    let error = result.unwrap_err();
    (error.kind(), error.code())
}

#[test(tokio::test)]
async fn what_was_written_is_read_back_exactly_whatever_its_size() {
    let fixture = Fixture::new().await;
    for size in [0, 1, 1000, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_000] {
        let content: Bytes = (0..size).map(|i: usize| (i % 251) as u8).collect();
        let pieces: Vec<_> = content.chunks(70_001).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let body = stream::iter(pieces).boxed();
        let metadata = fixture.workspace.write("a/b/file", body, WriteOptions::default()).await.unwrap();
        assert_eq!((metadata.kind, metadata.size), (FileKind::File, size as u64));
        assert!(fixture.workspace.read_bytes("a/b/file", LIMIT).await.unwrap() == content, "{size}");
        assert_eq!(fixture.workspace.stat("a/b/file").await.unwrap(), metadata);
    }
    assert_eq!(fixture.names("a/b").await, ["file"], "nothing else is left behind");
}

#[test(tokio::test)]
async fn a_range_gives_exactly_its_bytes() {
    let fixture = Fixture::new().await;
    fixture.write("file", "0123456789").await;
    for (offset, length, expected) in [
        (0, Some(3), "012"),
        (4, Some(3), "456"),
        (8, Some(9), "89"),
        (4, None, "456789"),
        (3, Some(0), ""),
        (10, None, ""),
        (99, Some(1), ""),
        (u64::MAX, Some(u64::MAX), ""),
    ] {
        let file = fixture.workspace.read("file", ReadOptions::range(offset, length)).await.unwrap();
        assert_eq!(file.metadata.size, 10);
        let bytes: Vec<Bytes> = file.body.map(Result::unwrap).collect().await;
        assert_eq!(bytes.concat(), expected.as_bytes(), "{offset} {length:?}");
    }
}

#[test(tokio::test)]
async fn an_error_in_the_body_leaves_everything_as_it_was() {
    let fixture = Fixture::new().await;
    fixture.write("old", "old").await;
    for path in ["old", "new"] {
        let pieces =
            [Ok(Bytes::from(vec![b'x'; 1 << 20])), Err(Error::new(ErrorKind::Timeout, "the client went away"))];
        let body: ByteStream = stream::iter(pieces).boxed();
        let result = fixture.workspace.write(path, body, WriteOptions::default()).await;
        assert_eq!(error_of(result), (ErrorKind::Timeout, "timeout"));
    }
    assert_eq!((fixture.read("old").await.as_str(), fixture.names(".").await), ("old", vec!["old".to_owned()]));
}

#[test(tokio::test)]
async fn a_dropped_write_leaves_everything_as_it_was() {
    let fixture = Fixture::new().await;
    fixture.write("old", "old").await;
    let body = stream::iter([Ok(Bytes::from(vec![b'x'; 1 << 20]))]).chain(stream::pending()).boxed();
    let write = fixture.workspace.write("old", body, WriteOptions::default());
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), write).await.is_err());
    assert_eq!((fixture.read("old").await.as_str(), fixture.names(".").await), ("old", vec!["old".to_owned()]));
}

#[test(tokio::test)]
async fn a_write_keeps_to_its_options() {
    let fixture = Fixture::new().await;
    let write = |path: &'static str, options: WriteOptions| fixture.workspace.write(path, byte_stream("new"), options);
    let options = WriteOptions::default;

    assert_eq!(write("file", options().with_mode(0o640)).await.unwrap().mode, Some(0o640));
    assert_eq!(write("file", options()).await.unwrap().mode, Some(0o640), "the mode of what is replaced is kept");
    assert_eq!(error_of(write("file", options().with_overwrite(false)).await), (ErrorKind::Conflict, "conflict"));
    assert_eq!(write("fresh", options().with_overwrite(false)).await.unwrap().size, 3);
    let without_parents = options().with_create_parents(false);
    assert_eq!(error_of(write("no/parent", without_parents).await), (ErrorKind::NotFound, "not_found"));
    assert_eq!(error_of(write("file/below", options()).await), (ErrorKind::Conflict, "conflict"));
    fixture.sh("mkdir dir; ln -s file link; ln -s nowhere dangling").await;
    for path in ["dir", "dir/", ".", "dir/..", "fresh/"] {
        assert_eq!(error_of(write(path, options()).await), (ErrorKind::InvalidInput, "is_a_directory"), "{path}");
    }
    // A link at the end is replaced, not followed.
    write("link", options()).await.unwrap();
    assert_eq!(fixture.workspace.stat("link").await.unwrap().kind, FileKind::File);
    assert_eq!(error_of(write("dangling", options().with_overwrite(false)).await), (ErrorKind::Conflict, "conflict"));
}

#[test(tokio::test)]
async fn concurrent_writes_leave_one_of_them_whole_and_concurrent_creations_exactly_one() {
    let fixture = Fixture::new().await;
    let texts: Vec<String> = (0..20).map(|i| format!("{i};").repeat(100_000)).collect();
    let write = |text: &String, options| fixture.workspace.write("a/b/c", byte_stream(text.clone()), options);
    let created =
        futures::future::join_all(texts.iter().map(|text| write(text, WriteOptions::default().with_overwrite(false))));
    assert_eq!(created.await.iter().filter(|result| result.is_ok()).count(), 1);
    let written = futures::future::join_all(texts.iter().map(|text| write(text, WriteOptions::default())));
    written.await.into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
    assert!(texts.contains(&fixture.read("a/b/c").await));
    assert_eq!(fixture.names("a/b").await, ["c"]);
}

#[test(tokio::test)]
async fn stat_tells_kind_size_mode_and_time_and_does_not_follow_links() {
    let fixture = Fixture::new().await;
    fixture
        .sh("printf 12345 > file; chmod 604 file; touch -d @86400 file; ln -s file link; mkdir dir; mkfifo pipe")
        .await;
    let stat = |path| fixture.workspace.stat(path);
    let file = stat("file").await.unwrap();
    let day_two = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
    assert_eq!((file.kind, file.size, file.mode, file.modified), (FileKind::File, 5, Some(0o604), Some(day_two)));
    for (path, kind) in [
        ("link", FileKind::Symlink),
        ("dir", FileKind::Directory),
        (".", FileKind::Directory),
        ("dir/..", FileKind::Directory),
        ("pipe", FileKind::Other),
    ] {
        let metadata = stat(path).await.unwrap();
        assert_eq!(metadata.kind, kind, "{path}");
        assert!(kind == FileKind::Directory || metadata.size == 0);
    }
    for path in ["missing", "missing/below", "file/below"] {
        assert_eq!(error_of(stat(path).await), (ErrorKind::NotFound, "not_found"), "{path}");
    }
    let long = "x".repeat(300);
    assert_eq!(stat(&long).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test(tokio::test)]
async fn list_gives_every_entry_once_also_those_with_strange_names() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir dir; touch dir/.hidden dir/plain 'dir/报告 ü.txt'; ln -s /etc dir/link").await;
    std::fs::write(fixture.host_path("dir").join(std::ffi::OsStr::from_bytes(b"bad\xff")), "").unwrap();
    let mut entries = fixture.workspace.list("dir").await.unwrap();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let found: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.escaped, e.metadata.kind)).collect();
    let file = FileKind::File;
    let expected = [
        (".hidden", false, file),
        (r"bad\xFF", true, file),
        ("link", false, FileKind::Symlink),
        ("plain", false, file),
        ("报告 ü.txt", false, file),
    ];
    assert_eq!(found, expected);
    assert_eq!(error_of(fixture.workspace.list("dir/plain").await), (ErrorKind::InvalidInput, "not_a_directory"));
    assert_eq!(error_of(fixture.workspace.list("missing").await), (ErrorKind::NotFound, "not_found"));
}

#[test(tokio::test(flavor = "multi_thread"))]
async fn make_dir_creates_parents_and_is_idempotent_from_many_callers() {
    let fixture = Fixture::new().await;
    let all = futures::future::join_all((0..32).map(|_| fixture.workspace.make_dir("a/./b/../b/c/")));
    all.await.into_iter().for_each(Result::unwrap);
    assert_eq!(fixture.workspace.stat("a/b/c").await.unwrap().kind, FileKind::Directory);
    fixture.workspace.make_dir(".").await.unwrap();
    fixture.sh("touch file; ln -s a link; ln -s nowhere dangling").await;
    for path in ["file", "file/below", "dangling", "dangling/below"] {
        assert_eq!(error_of(fixture.workspace.make_dir(path).await), (ErrorKind::Conflict, "conflict"), "{path}");
    }
    fixture.workspace.make_dir("link/x").await.unwrap();
    assert_eq!(fixture.names("a").await, ["b", "x"]);
}

#[test(tokio::test)]
async fn remove_refuses_what_could_hurt_unless_told() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir -p full/inner empty keep; touch file keep/me; ln -s keep link; ln -s ../keep full/link").await;
    let remove = |path, options| fixture.workspace.remove(path, options);
    let plain = RemoveOptions::default;

    assert_eq!(error_of(remove("full", plain()).await), (ErrorKind::Conflict, "directory_not_empty"));
    assert_eq!(error_of(remove("missing", plain()).await), (ErrorKind::NotFound, "not_found"));
    for path in ["missing", "missing/below"] {
        remove(path, plain().with_missing_ok(true)).await.unwrap();
    }
    let workdir = fixture.workspace.info().workdir.clone();
    for path in [".", "./", "full/..", workdir.as_str()] {
        let result = remove(path, plain().with_recursive(true).with_missing_ok(true)).await;
        assert_eq!(error_of(result).0, ErrorKind::InvalidInput, "{path}");
    }
    for path in ["file", "empty/", "link"] {
        remove(path, plain()).await.unwrap();
    }
    remove("full", plain().with_recursive(true)).await.unwrap();
    assert_eq!(
        (fixture.names(".").await, fixture.names("keep").await),
        (vec!["keep".to_owned()], vec!["me".to_owned()])
    );
}

#[test(tokio::test)]
async fn rename_moves_files_and_directories_and_replaces_a_file() {
    let fixture = Fixture::new().await;
    fixture.sh("mkdir -p dir/inner full/x empty; echo a > a; echo b > b").await;
    let rename = |from, to| fixture.workspace.rename(from, to);
    rename("a", "b").await.unwrap();
    assert_eq!(fixture.read("b").await, "a\n");
    rename("dir", "empty").await.unwrap();
    assert_eq!(fixture.names("empty").await, ["inner"]);
    assert_eq!(error_of(rename("empty", "full").await), (ErrorKind::Conflict, "directory_not_empty"));
    assert_eq!(error_of(rename("b", "full").await), (ErrorKind::Conflict, "conflict"));
    assert_eq!(error_of(rename("full", "b").await), (ErrorKind::Conflict, "conflict"));
    assert_eq!(error_of(rename("missing", "c").await), (ErrorKind::NotFound, "not_found"));
    assert_eq!(error_of(rename("b", "missing/c").await), (ErrorKind::NotFound, "not_found"));
    assert_eq!(error_of(rename("full", "full/x/y").await).0, ErrorKind::InvalidInput);
    assert_eq!(error_of(rename(".", "c").await).0, ErrorKind::InvalidInput);
}

#[test(tokio::test)]
async fn reading_what_is_no_file_is_refused_and_does_not_hang() {
    let fixture = Fixture::new().await;
    fixture.sh("mkfifo pipe; mkdir dir; touch plain").await;
    let _socket = std::os::unix::net::UnixListener::bind(fixture.host_path("socket")).unwrap();
    for (path, expected) in [
        ("pipe", (ErrorKind::InvalidInput, "not_a_file")),
        ("socket", (ErrorKind::InvalidInput, "not_a_file")),
        ("dir", (ErrorKind::InvalidInput, "is_a_directory")),
        ("missing", (ErrorKind::NotFound, "not_found")),
    ] {
        let read = soon("it is refused", fixture.workspace.read(path, ReadOptions::default())).await;
        assert_eq!(error_of(read), expected, "{path}");
    }
}

/// Every operation with `path`, and what it says.
async fn try_everything(fixture: &Fixture, path: &str) -> Vec<(&'static str, Result<()>)> {
    let workspace = &fixture.workspace;
    let write = workspace.write(path, byte_stream("x"), WriteOptions::default()).await.map(drop);
    vec![
        ("read", workspace.read(path, ReadOptions::default()).await.map(drop)),
        ("write", write),
        ("list", workspace.list(path).await.map(drop)),
        ("make_dir", workspace.make_dir(path).await),
        ("remove", workspace.remove(path, RemoveOptions::default().with_recursive(true)).await),
        ("rename from", workspace.rename(path, "moved").await),
        ("rename to", workspace.rename("inside", path).await),
        ("stat", workspace.stat(path).await.map(drop)),
    ]
}

#[test(tokio::test)]
async fn no_path_leads_out() {
    let fixture = Fixture::new().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let other = open(&fixture.backend, "other").await.workspace.info().workdir.clone();
    fixture
        .sh(&format!("touch inside; ln -s {} link; ln -s ../../.. up; ln -s link chain", outside.path().display()))
        .await;
    let absolute = format!("{}/secret", outside.path().display());
    let through_workdir = format!("{}/../x", fixture.workspace.info().workdir);
    let paths = [
        "..",
        "../x",
        "a/../../x",
        "/",
        "/etc/passwd",
        &absolute,
        &other,
        &through_workdir,
        "link/secret",
        "up/x",
        "chain/secret",
    ];
    for path in paths {
        for (operation, result) in try_everything(&fixture, path).await {
            // A path through a directory that does not exist leads nowhere at all.
            if path.starts_with('a') && matches!(&result, Err(error) if error.kind() == ErrorKind::NotFound) {
                continue;
            }
            let error = result.expect_err(operation);
            let found = (error.kind(), error.code(), error.field());
            assert_eq!(
                found,
                (ErrorKind::PermissionDenied, "path_outside", Some("path")),
                "{operation} {path}: {error:?}"
            );
        }
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    // At its end, a link can be looked at and removed, but not followed.
    assert_eq!(error_of(fixture.workspace.list("link").await).1, "path_outside");
    assert_eq!(fixture.workspace.stat("link").await.unwrap().kind, FileKind::Symlink);
    fixture.workspace.remove("link", RemoveOptions::default().with_recursive(true)).await.unwrap();
    assert!(outside.path().join("secret").exists());
}

#[test(tokio::test)]
async fn an_absolute_path_inside_is_fine() {
    let fixture = Fixture::new().await;
    let path = format!("{}/a/file", fixture.workspace.info().workdir);
    fixture.write(&path, "x").await;
    assert_eq!((fixture.read("a/file").await, fixture.read(&path).await), ("x".to_owned(), "x".to_owned()));
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test(tokio::test(flavor = "multi_thread"))]
async fn a_link_that_is_swapped_in_meanwhile_leads_nowhere() {
    let fixture = Fixture::new().await;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), "outside").unwrap();
    fixture.sh("mkdir real; echo -n inside > real/file").await;
    let (workdir, target, stop) = (fixture.host_path(""), outside.path().to_owned(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // `swap` is now the directory, now a link out of the workspace, as fast as can be.
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::rename(workdir.join("real"), workdir.join("swap"));
                let _ = std::fs::rename(workdir.join("swap"), workdir.join("real"));
                let _ = std::os::unix::fs::symlink(&target, workdir.join("swap"));
                let _ = std::fs::remove_file(workdir.join("swap"));
            }
        });
        // Also when an assertion fails, or the scope would wait for ever.
        let _stopped = Stop(&stop);
        let attacked = async {
            let mut read = 0;
            for i in 0..3_000 {
                if let Ok(text) = fixture.workspace.read_text("swap/file", LIMIT).await {
                    assert_eq!(text, "inside");
                    read += 1;
                }
                if i % 10 == 0 {
                    let options = WriteOptions::default().with_create_parents(false);
                    let _ = fixture.workspace.write("swap/planted", byte_stream("x"), options).await;
                    let _ = fixture.workspace.remove("swap/file2", RemoveOptions::default()).await;
                }
            }
            read
        };
        let read = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(attacked));
        tracing::info!(read, "reads that met the directory");
    });
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was planted outside");
}

#[test(tokio::test)]
async fn a_directory_that_commands_see_is_the_one_that_files_see() {
    let fixture = Fixture::new().await;
    fixture.write("sub/file", "x").await;
    assert_eq!(fixture.sh("cat sub/file").await, "x");
    fixture.sh("printf y > sub/file").await;
    assert_eq!(fixture.read("sub/file").await, "y");
    let mode = std::fs::metadata(fixture.host_path("")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test(tokio::test)]
async fn a_program_that_was_just_written_can_be_executed() {
    let fixture = Fixture::new().await;
    let options = || WriteOptions::default().with_mode(0o755);
    for i in 0..50 {
        let path = format!("tool{i}");
        let body = byte_stream(std::fs::read("/bin/true").unwrap());
        fixture.workspace.write(&path, body, options()).await.unwrap();
        assert!(fixture.exec(wsm_core::Command::new(format!("./{path}"))).await.status.success());
    }
}

#[test(tokio::test)]
async fn after_suspend_every_file_operation_is_gone() {
    let fixture = Fixture::new().await;
    fixture.workspace.suspend().await.unwrap();
    for (operation, result) in try_everything(&fixture, "x").await {
        assert_eq!(error_of(result).0, ErrorKind::Gone, "{operation}");
    }
}
