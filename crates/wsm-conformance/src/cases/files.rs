//! Files.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use wsm_core::{
    Error, ErrorKind, FileKind, ReadOptions, RemoveOptions, Result, WorkspaceExt, WriteOptions, byte_stream,
};

use crate::{
    cases::cases,
    context::{Context, exec, sh, text, write},
};

cases! {
    F1 what_was_written_is_read_back_exactly [Files];
    F1 any_name_can_be_written [Files];
    F2 a_failing_body_leaves_the_target_and_its_directory_as_they_were [Files];
    F2 a_write_that_is_dropped_leaves_the_target_as_it_was [Files];
    F2 a_write_tells_what_the_file_is_now [Files];
    F2 what_may_not_be_replaced_is_a_conflict [Files];
    F2 missing_parents_are_created_only_when_asked [Files];
    F2 the_mode_is_set_and_kept [Files];
    F3 a_range_gives_exactly_its_bytes [Files];
    F4 stat_tells_kind_and_size [Files];
    F4 a_missing_path_is_not_found [Files];
    F4 a_path_of_the_wrong_kind_is_told [Files];
    F4 links_are_told_and_not_followed [Files Shell];
    F5 list_gives_every_entry_once [Files];
    F5 names_that_are_not_text_are_escaped_and_flagged [Files Shell];
    F6 make_dir_creates_parents_and_is_idempotent [Files];
    F6 many_callers_make_one_tree_at_once [Files];
    F7 remove_refuses_a_directory_that_is_not_empty_unless_recursive [Files];
    F7 remove_never_follows_links [Files Shell];
    F7 the_workspace_directory_itself_stays [Files];
    F8 rename_moves_files_and_directories_and_replaces_a_file [Files];
    F8 rename_does_not_destroy_what_it_can_not_replace [Files];
    F8 rename_onto_or_into_itself_loses_nothing [Files];
    F9 relative_paths_start_where_commands_do [Files];
    F10 no_path_leads_out [ConfinedFiles];
    F10 no_link_leads_out [ConfinedFiles Shell];
    F11 concurrent_writes_leave_one_of_them_whole [Files];
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|number| (number % 253) as u8).collect()
}

fn failing_body() -> wsm_core::ByteStream {
    let pieces: Vec<Result<Bytes>> =
        vec![Ok("half of ".into()), Ok("it".into()), Err(Error::new(ErrorKind::Unavailable, "the body broke"))];
    stream::iter(pieces).boxed()
}

async fn what_was_written_is_read_back_exactly(context: Context) {
    let workspace = context.workspace().await;
    for size in [0, 1, 300 << 10, 5 << 20] {
        let content = pattern(size);
        let pieces: Vec<Result<Bytes>> = content.chunks(77_777).map(|piece| Ok(piece.to_vec().into())).collect();
        let body = stream::iter(pieces).boxed();
        workspace.write("f", body, WriteOptions::default()).await.expect("a file can be written");
        let read = workspace.read("f", ReadOptions::default()).await.expect("it can be read");
        assert_eq!(read.metadata.size, size as u64);
        let back: Vec<Bytes> = read.body.try_collect().await.expect("it can be read to its end");
        assert!(back.concat() == content, "{size} bytes came back differently");
    }
}

async fn any_name_can_be_written(context: Context) {
    let workspace = context.workspace().await;
    for name in ["报告 ü.txt", "-rf", "a b", "new\nline", "quote'\"", "$HOME", "`id`", "*", "back\\slash", "..."] {
        write(&workspace, name, name.to_owned()).await;
        assert_eq!(text(&workspace, name).await, name);
        assert_eq!(workspace.stat(name).await.expect("it is there").size, name.len() as u64);
    }
    let names = workspace.list(".").await.expect("the directory can be listed");
    assert_eq!(names.len(), 10, "{names:?}");
    for entry in names {
        workspace.remove(&entry.name, RemoveOptions::default()).await.expect("it can be removed");
    }
    for directory in ["new\n", "-rf", " "] {
        let path = format!("{directory}/f");
        write(&workspace, &path, "x").await;
        let there: Vec<_> = workspace.list(".").await.expect("it can be listed").into_iter().map(|e| e.name).collect();
        assert_eq!((text(&workspace, &path).await.as_str(), &there[..]), ("x", &[directory.to_owned()][..]));
        let recursive = RemoveOptions::default().with_recursive(true);
        workspace.remove(directory, recursive).await.expect("it can be removed");
    }
}

async fn a_failing_body_leaves_the_target_and_its_directory_as_they_were(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "dir/f", "old").await;
    for path in ["dir/f", "dir/new"] {
        let error = workspace.write(path, failing_body(), WriteOptions::default()).await.expect_err("the body broke");
        assert_eq!(error.message(), "the body broke", "the body's own error comes through");
    }
    assert_eq!(text(&workspace, "dir/f").await, "old");
    crate::context::eventually("nothing is left of the write", async || {
        workspace.list("dir").await.expect("the directory can be listed").len() == 1
    })
    .await;
}

async fn a_write_that_is_dropped_leaves_the_target_as_it_was(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "dir/f", "old").await;
    let endless = stream::iter([Ok(Bytes::from_static(b"new"))]).chain(stream::pending()).boxed();
    let writing = workspace.write("dir/f", endless, WriteOptions::default());
    let dropped = tokio::time::timeout(std::time::Duration::from_millis(500), writing).await;
    assert!(dropped.is_err());
    assert_eq!(text(&workspace, "dir/f").await, "old");
    crate::context::eventually("nothing is left of the write", async || {
        workspace.list("dir").await.expect("the directory can be listed").len() == 1
    })
    .await;
}

async fn a_write_tells_what_the_file_is_now(context: Context) {
    let workspace = context.workspace().await;
    let told = workspace.write_bytes("f", "12345".into()).await.expect("a file can be written");
    let seen = workspace.stat("f").await.expect("it is there");
    assert_eq!((told.kind, told.size), (FileKind::File, 5));
    assert_eq!((told.size, told.modified, told.mode), (seen.size, seen.modified, seen.mode));
}

async fn what_may_not_be_replaced_is_a_conflict(context: Context) {
    let workspace = context.workspace().await;
    let once = WriteOptions::default().with_overwrite(false);
    workspace.write("f", byte_stream("first"), once.clone()).await.expect("it is new");
    let error = workspace.write("f", byte_stream("second"), once).await.expect_err("it is there");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    assert_eq!(text(&workspace, "f").await, "first");
}

async fn missing_parents_are_created_only_when_asked(context: Context) {
    let workspace = context.workspace().await;
    let bare = WriteOptions::default().with_create_parents(false);
    let error = workspace.write("a/b", byte_stream("x"), bare).await.expect_err("there is no `a`");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert_eq!(workspace.stat("a").await.expect_err("nothing was made").kind(), ErrorKind::NotFound);
    write(&workspace, "a/b", "x").await;
    assert_eq!(text(&workspace, "a/b").await, "x");
}

async fn the_mode_is_set_and_kept(context: Context) {
    let workspace = context.workspace().await;
    let options = WriteOptions::default().with_mode(0o740);
    let told = workspace.write("f", byte_stream("x"), options).await.expect("a file can be written");
    let Some(mode) = told.mode else { return };
    assert_eq!(mode & 0o7777, 0o740);
    write(&workspace, "f", "y").await;
    let kept = workspace.stat("f").await.expect("it is there").mode;
    assert_eq!(kept.map(|mode| mode & 0o7777), Some(0o740), "replacing a file keeps its mode");
}

async fn a_range_gives_exactly_its_bytes(context: Context) {
    let workspace = context.workspace().await;
    let content = pattern(200_000);
    write(&workspace, "f", content.clone()).await;
    for (offset, length) in [(0, Some(1)), (10, Some(100)), (65_535, Some(70_000)), (199_990, None), (0, None)] {
        let read = workspace.read("f", ReadOptions::range(offset, length)).await.expect("it can be read");
        let bytes: Vec<Bytes> = read.body.try_collect().await.expect("to its end");
        let from = offset as usize;
        let until = length.map_or(content.len(), |length| from + length as usize);
        assert!(bytes.concat() == content[from..until], "offset {offset}, length {length:?}");
    }
    for (offset, length) in [(200_000, None), (1 << 40, Some(5)), (5, Some(0)), (199_999, Some(u64::MAX))] {
        let read = workspace.read("f", ReadOptions::range(offset, length)).await.expect("past the end is no error");
        let bytes: Vec<Bytes> = read.body.try_collect().await.expect("to its end");
        assert_eq!(bytes.concat().len(), usize::from(offset == 199_999));
    }
}

async fn stat_tells_kind_and_size(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "dir/f", "12345").await;
    let file = workspace.stat("dir/f").await.expect("it is there");
    assert_eq!((file.kind, file.size), (FileKind::File, 5));
    for directory in ["dir", "dir/", ".", &workspace.info().workdir] {
        let found = workspace.stat(directory).await.expect("it is there");
        assert_eq!((found.kind, found.size), (FileKind::Directory, 0), "{directory}");
    }
}

async fn a_missing_path_is_not_found(context: Context) {
    let workspace = context.workspace().await;
    let errors = [
        workspace.stat("no").await.map(drop),
        workspace.read("no", ReadOptions::default()).await.map(drop),
        workspace.list("no").await.map(drop),
        workspace.remove("no", RemoveOptions::default()).await,
        workspace.rename("no", "other").await,
        workspace.stat("no/such/path").await.map(drop),
    ];
    for (number, result) in errors.into_iter().enumerate() {
        let error = result.expect_err("it is not there");
        assert_eq!(error.kind(), ErrorKind::NotFound, "call {number}: {error:?}");
    }
    let options = RemoveOptions::default().with_missing_ok(true);
    workspace.remove("no", options).await.expect("a missing path is fine when that is said");
}

async fn a_path_of_the_wrong_kind_is_told(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "dir/f", "x").await;
    let read = workspace.read("dir", ReadOptions::default()).await.map(drop).expect_err("it is a directory");
    let written = workspace.write_bytes("dir", "x".into()).await.expect_err("it is a directory");
    let listed = workspace.list("dir/f").await.expect_err("it is a file");
    assert_eq!([read.code(), written.code(), listed.code()], ["is_a_directory", "is_a_directory", "not_a_directory"]);
    assert_eq!(text(&workspace, "dir/f").await, "x");
}

async fn links_are_told_and_not_followed(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "target", "12345").await;
    sh(&workspace, "ln -s target link; ln -s nowhere dangling").await;
    for link in ["link", "dangling"] {
        assert_eq!(workspace.stat(link).await.expect("the link is there").kind, FileKind::Symlink);
    }
    assert_eq!(text(&workspace, "link").await, "12345", "a link that stays inside can be read through");
}

async fn list_gives_every_entry_once(context: Context) {
    let workspace = context.workspace().await;
    assert_eq!(workspace.list(".").await.expect("an empty workspace can be listed"), []);
    workspace.make_dir("many/sub").await.expect("a directory can be made");
    for number in 0..300 {
        write(&workspace, &format!("many/{number}"), "x".repeat(number % 7)).await;
    }
    write(&workspace, "many/.hidden", "x").await;
    write(&workspace, "many/sub/inner", "x").await;
    let mut entries = workspace.list("many").await.expect("it can be listed");
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let mut expected: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    expected.extend([".hidden".to_owned(), "sub".to_owned()]);
    expected.sort();
    assert!(entries.iter().map(|entry| &entry.name).eq(&expected), "{entries:?}");
    for entry in entries {
        let (kind, size) = match entry.name.parse::<usize>() {
            Ok(number) => (FileKind::File, number as u64 % 7),
            Err(_) if entry.name == "sub" => (FileKind::Directory, 0),
            Err(_) => (FileKind::File, 1),
        };
        assert_eq!((entry.metadata.kind, entry.metadata.size, entry.escaped), (kind, size, false), "{}", entry.name);
    }
}

async fn names_that_are_not_text_are_escaped_and_flagged(context: Context) {
    let workspace = context.workspace().await;
    sh(&workspace, "mkdir d; : > \"d/$(printf 'bad\\377name')\"").await;
    let entries = workspace.list("d").await.expect("it can be listed");
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.name.as_str(), entry.escaped), ("bad\\xFFname", true));
}

async fn make_dir_creates_parents_and_is_idempotent(context: Context) {
    let workspace = context.workspace().await;
    for _ in 0..2 {
        workspace.make_dir("a/b/c").await.expect("it is made, or there");
    }
    workspace.make_dir(".").await.expect("the workspace directory is there");
    write(&workspace, "f", "x").await;
    for path in ["f", "f/below"] {
        let error = workspace.make_dir(path).await.expect_err("a file is in the way");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{path}: {error:?}");
    }
}

async fn many_callers_make_one_tree_at_once(context: Context) {
    let workspace = context.workspace().await;
    let made = (0..12).map(|number| {
        let workspace = &workspace;
        async move {
            workspace.make_dir("a/b/c/d").await?;
            workspace.write_bytes(&format!("a/b/e/{number}"), "x".into()).await.map(drop)
        }
    });
    futures::future::try_join_all(made).await.expect("none is in the other's way");
    assert_eq!(workspace.list("a/b/e").await.expect("it can be listed").len(), 12);
}

async fn remove_refuses_a_directory_that_is_not_empty_unless_recursive(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "dir/sub/f", "x").await;
    workspace.make_dir("empty").await.expect("a directory can be made");
    workspace.remove("empty", RemoveOptions::default()).await.expect("an empty directory can be removed");
    let error = workspace.remove("dir", RemoveOptions::default()).await.expect_err("it is not empty");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Conflict, "directory_not_empty"), "{error:?}");
    assert_eq!(text(&workspace, "dir/sub/f").await, "x");
    workspace.remove("dir", RemoveOptions::default().with_recursive(true)).await.expect("it goes with all");
    assert_eq!(workspace.list(".").await.expect("it can be listed"), []);
}

async fn remove_never_follows_links(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "kept/f", "x").await;
    sh(&workspace, "mkdir gone; ln -s ../kept gone/link; ln -s kept direct").await;
    let options = RemoveOptions::default().with_recursive(true);
    workspace.remove("gone", options).await.expect("it can be removed");
    workspace.remove("direct", options).await.expect("it can be removed");
    assert_eq!(text(&workspace, "kept/f").await, "x");
}

async fn the_workspace_directory_itself_stays(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "f", "x").await;
    let options = RemoveOptions::default().with_recursive(true).with_missing_ok(true);
    for path in [".", "./", &workspace.info().workdir] {
        let error = workspace.remove(path, options).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path}: {error:?}");
    }
    assert_eq!(text(&workspace, "f").await, "x");
}

async fn rename_moves_files_and_directories_and_replaces_a_file(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "a/f", "moved").await;
    write(&workspace, "old", "replaced").await;
    workspace.rename("a", "b").await.expect("a directory can be moved");
    workspace.rename("b/f", "old").await.expect("a file can replace a file");
    assert_eq!(text(&workspace, "old").await, "moved");
    assert_eq!(workspace.list("b").await.expect("it is there"), []);
    assert_eq!(workspace.stat("a").await.expect_err("it has moved").kind(), ErrorKind::NotFound);
}

async fn rename_does_not_destroy_what_it_can_not_replace(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "full/f", "x").await;
    write(&workspace, "dir/g", "y").await;
    write(&workspace, "file", "z").await;
    for (from, to) in [("dir", "full"), ("file", "full"), ("dir", "file")] {
        let error = workspace.rename(from, to).await.expect_err("it can not be replaced");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{from} to {to}: {error:?}");
    }
    assert_eq!(text(&workspace, "full/f").await + &text(&workspace, "dir/g").await, "xy");
    assert_eq!(text(&workspace, "file").await, "z");
}

async fn rename_onto_or_into_itself_loses_nothing(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "file", "x").await;
    write(&workspace, "full/f", "y").await;
    for directory in ["empty", "outer/inner"] {
        workspace.make_dir(directory).await.expect("a directory can be made");
    }
    for path in ["file", "full", "empty"] {
        workspace.rename(path, path).await.unwrap_or_else(|error| panic!("`{path}` onto itself: {error:?}"));
    }
    workspace.rename("outer", "outer/inner").await.expect_err("it would be inside of itself");
    workspace.rename("outer", "outer/new").await.expect_err("it would be inside of itself");
    assert_eq!(text(&workspace, "file").await + &text(&workspace, "full/f").await, "xy");
    for directory in ["empty", "outer/inner"] {
        assert!(workspace.stat(directory).await.is_ok_and(|found| found.is_dir()), "`{directory}` is still there");
    }
    assert_eq!(workspace.list("outer").await.expect("it can be listed").len(), 1);
}

async fn relative_paths_start_where_commands_do(context: Context) {
    let workspace = context.workspace().await;
    write(&workspace, "f", "from the files").await;
    let seen = exec(&workspace, wsm_core::Command::from_argv(["cat", "f"])).await;
    assert_eq!(seen.stdout.to_text(), "from the files");
    sh(&workspace, "echo from the command > g").await;
    assert_eq!(text(&workspace, &format!("{}/g", workspace.info().workdir)).await, "from the command\n");
}

/// Tries every file operation on a path that leads out.
async fn assert_outside(workspace: &std::sync::Arc<dyn wsm_core::ManagedWorkspace>, path: &str) {
    write(workspace, "inside", "x").await;
    let recursive = RemoveOptions::default().with_recursive(true);
    let results = [
        ("stat", workspace.stat(path).await.map(drop)),
        ("read", workspace.read(path, ReadOptions::default()).await.map(drop)),
        ("write", workspace.write_bytes(path, "x".into()).await.map(drop)),
        ("list", workspace.list(path).await.map(drop)),
        ("make_dir", workspace.make_dir(path).await),
        ("remove", workspace.remove(path, recursive).await),
        ("rename from", workspace.rename(path, "here").await),
        ("rename to", workspace.rename("inside", path).await),
    ];
    for (operation, result) in results {
        let Err(error) = result else { panic!("{operation} of `{path}` went out") };
        let told = (error.kind(), error.code());
        assert_eq!(told, (ErrorKind::PermissionDenied, "path_outside"), "{operation} of `{path}`: {error:?}");
    }
    assert_eq!(text(workspace, "inside").await, "x");
}

async fn no_path_leads_out(context: Context) {
    let workspace = context.workspace().await;
    workspace.make_dir("a").await.expect("a directory can be made");
    let sibling = format!("{}x/f", workspace.info().workdir);
    let up = format!("{}/../f", workspace.info().workdir);
    for path in ["../wsm-outside", "/wsm-outside", "a/../../wsm-outside", "/proc/self/wsm", &sibling, &up] {
        assert_outside(&workspace, path).await;
    }
}

async fn no_link_leads_out(context: Context) {
    let workspace = context.workspace().await;
    sh(&workspace, "ln -s / root; ln -s .. up; mkdir d; ln -s ../.. d/far; ln -s root/tmp chain").await;
    for path in ["root/wsm-outside", "up/wsm-outside", "d/far/wsm-outside", "chain/wsm-outside"] {
        assert_outside(&workspace, path).await;
    }
    for link in ["root", "up", "chain"] {
        let error = workspace.list(link).await.expect_err("the link leads out");
        assert_eq!(error.code(), "path_outside", "{link}: {error:?}");
    }
    sh(&workspace, "ln -s /etc/passwd file").await;
    let error = workspace.read("file", ReadOptions::default()).await.map(drop).expect_err("the link leads out");
    assert_eq!(error.code(), "path_outside", "{error:?}");
}

async fn concurrent_writes_leave_one_of_them_whole(context: Context) {
    let workspace = context.workspace().await;
    let writes = (0..12u8).map(|number| workspace.write_bytes("f", vec![number; 200_000].into()));
    futures::future::try_join_all(writes).await.expect("all succeed");
    let bytes = workspace.read_bytes("f", 1 << 20).await.expect("it can be read");
    assert_eq!(bytes.len(), 200_000);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "two writes are mixed");
    assert_eq!(workspace.list(".").await.expect("it can be listed").len(), 1);
}
