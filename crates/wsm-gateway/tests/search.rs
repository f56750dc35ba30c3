//! Searches in real directories, through a client.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod support;

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, fs::symlink},
    path::Path,
    time::{Duration, SystemTime},
};

use futures::StreamExt;
use support::client;
use tempfile::TempDir;
use tokio::time::timeout;
use wsm_core::{ErrorKind, FileKind};
use wsm_gateway::{GlobKind, GlobRequest, GlobResult, GrepMode, GrepRequest, GrepResult, Truncated, WalkOptions};

/// Much longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory with these files, each a second younger than the one before.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (index, (path, content)) in files.iter().enumerate() {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + index as u64);
        File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
    }
    directory
}

async fn glob(directory: &Path, request: GlobRequest) -> GlobResult {
    client(directory).await.glob(&request).await.unwrap()
}

async fn grep(directory: &Path, request: GrepRequest) -> GrepResult {
    client(directory).await.grep(&request).await.unwrap()
}

fn paths(result: &GlobResult) -> Vec<&str> {
    result.entries.iter().map(|entry| entry.path.as_str()).collect()
}

/// What was found, as `path:line:text`, with `-` beside a hit.
fn lines(result: &GrepResult) -> Vec<String> {
    let shown = result.lines.iter().map(|line| {
        let mark = if line.is_match { ':' } else { '-' };
        format!("{}{mark}{}{mark}{}", line.path, line.line, line.text)
    });
    shown.collect()
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

#[tokio::test]
async fn glob_gives_the_newest_first_and_says_when_there_is_more() {
    let tree = tree(&[("src/a.rs", ""), ("src/deep/b.rs", ""), ("c.rs", ""), ("d.txt", "")]);
    let all = glob(tree.path(), GlobRequest::new("**/*.rs")).await;
    assert_eq!(paths(&all), ["c.rs", "src/deep/b.rs", "src/a.rs"]);
    assert_eq!((all.end.truncated, all.end.matches), (None, 3));
    let some = glob(tree.path(), GlobRequest::new("**/*.rs").with_limit(2)).await;
    assert_eq!(paths(&some), ["c.rs", "src/deep/b.rs"]);
    assert_eq!((some.end.truncated, some.end.matches), (Some(Truncated::Limit), 3));
    let exactly = glob(tree.path(), GlobRequest::new("**/*.rs").with_limit(3)).await;
    assert_eq!(exactly.end.truncated, None);
}

#[tokio::test]
async fn a_pattern_is_about_the_whole_path_below_the_start() {
    let tree = tree(&[("a.rs", ""), ("src/a.rs", ""), ("src/x/a.rs", ""), ("src/.env", ""), ("x{y}.rs", "")]);
    let absolute = tree.path().to_str().unwrap();
    for (pattern, walk, expected) in [
        ("*.rs", WalkOptions::default(), &["x{y}.rs", "a.rs"][..]),
        ("src/*.rs", WalkOptions::default(), &["src/a.rs"]),
        ("*/*.rs", WalkOptions::default(), &["src/a.rs"]),
        ("*.rs", WalkOptions::default().with_path("src"), &["src/a.rs"]),
        ("../*.rs", WalkOptions::default().with_path("src"), &["src/../x{y}.rs", "src/../a.rs"]),
        ("src/a.rs", WalkOptions::default(), &["src/a.rs"]),
        ("{src,none}/**/a.{rs,py}", WalkOptions::default(), &["src/x/a.rs", "src/a.rs"]),
        ("**/[b-z]/*", WalkOptions::default(), &["src/x/a.rs"]),
        ("x\\{y\\}.rs", WalkOptions::default(), &["x{y}.rs"]),
        ("**/.env", WalkOptions::default(), &["src/.env"]),
        ("**/*env", WalkOptions::default(), &[]),
        ("**/*env", WalkOptions::default().with_hidden(true), &["src/.env"]),
        ("no/such/*.rs", WalkOptions::default(), &[]),
        ("**/a.rs", WalkOptions::default().with_max_depth(1), &["a.rs"]),
    ] {
        let found = glob(tree.path(), GlobRequest::new(pattern).with_walk(walk)).await;
        assert_eq!(paths(&found), expected, "{pattern}");
    }
    let found = glob(tree.path(), GlobRequest::new(format!("{absolute}/src/**/*.rs"))).await;
    assert_eq!(paths(&found), [format!("{absolute}/src/x/a.rs"), format!("{absolute}/src/a.rs")]);
    let upper = GlobRequest::new("SRC/X/*.RS").with_case_insensitive(true);
    assert_eq!(glob(tree.path(), upper).await.entries.len(), 0, "the directory that a pattern names is exact");
    let upper = GlobRequest::new("*/*/*.RS").with_case_insensitive(true);
    assert_eq!(paths(&glob(tree.path(), upper).await), ["src/x/a.rs"]);
}

#[tokio::test]
async fn directories_links_and_odd_names_are_told_as_what_they_are() {
    let tree = tree(&[("d/f", "12345")]);
    symlink("f", tree.path().join("d/l")).unwrap();
    fs::write(tree.path().join(OsStr::from_bytes(b"bad\xffname")), "").unwrap();
    let found = glob(tree.path(), GlobRequest::new("**").with_kind(GlobKind::Any)).await;
    let mut seen: Vec<_> = found.entries.iter().map(|e| (e.path.as_str(), e.escaped, e.metadata.kind)).collect();
    seen.sort_by_key(|(path, ..)| *path);
    let expected = [
        ("bad\\xFFname", true, FileKind::File),
        ("d", false, FileKind::Directory),
        ("d/f", false, FileKind::File),
        ("d/l", false, FileKind::Symlink),
    ];
    assert_eq!(seen, expected);
    let size = found.entries.iter().find(|entry| entry.path == "d/f").map(|entry| entry.metadata.size);
    assert_eq!(size, Some(5));
    let found = glob(tree.path(), GlobRequest::new("*").with_kind(GlobKind::Directories)).await;
    assert_eq!(paths(&found), ["d"]);
}

#[tokio::test]
async fn links_are_followed_on_request_and_never_out() {
    let elsewhere = tree(&[("secret.txt", "secret")]);
    let tree = tree(&[("real/f.txt", "secret")]);
    symlink("real", tree.path().join("inside")).unwrap();
    symlink(elsewhere.path(), tree.path().join("outside")).unwrap();
    symlink("..", tree.path().join("real/loop")).unwrap();
    let plain = grep(tree.path(), GrepRequest::new("secret")).await;
    assert_eq!(lines(&plain), ["real/f.txt:1:secret"]);
    let follow = WalkOptions::default().with_follow_links(true);
    let followed = grep(tree.path(), GrepRequest::new("secret").with_walk(follow.clone())).await;
    assert_eq!(lines(&followed), ["inside/f.txt:1:secret", "real/f.txt:1:secret"]);
    let problems: Vec<_> = followed.problems.iter().map(|problem| problem.path.as_str()).collect();
    assert!(problems.contains(&"outside") && problems.contains(&"real/loop"), "{problems:?}");
    let found = glob(tree.path(), GlobRequest::new("**/*.txt").with_walk(follow)).await;
    assert_eq!(found.entries.len(), 2);
}

#[tokio::test]
async fn ignore_files_are_obeyed_unless_asked_otherwise() {
    let tree = tree(&[(".gitignore", "target/\n*.log\n"), ("target/x.rs", "hit"), ("a.log", "hit"), ("a.rs", "hit")]);
    assert_eq!(paths(&glob(tree.path(), GlobRequest::new("**/*")).await), ["a.rs"]);
    let all = WalkOptions::default().with_ignore_files(false);
    assert_eq!(glob(tree.path(), GlobRequest::new("**/*").with_walk(all.clone())).await.entries.len(), 3);
    assert_eq!(lines(&grep(tree.path(), GrepRequest::new("hit")).await), ["a.rs:1:hit"]);
    assert_eq!(grep(tree.path(), GrepRequest::new("hit").with_walk(all)).await.lines.len(), 3);
}

#[tokio::test]
async fn grep_gives_lines_with_their_neighbours() {
    let tree = tree(&[("a.txt", "one\ntwo\nthree\nfour\nfive\nsix\n"), ("b.txt", "no\r\nfour\r\n")]);
    let plain = grep(tree.path(), GrepRequest::new("f(our|ive)")).await;
    assert_eq!(lines(&plain), ["a.txt:4:four", "a.txt:5:five", "b.txt:2:four"]);
    assert_eq!(plain.lines.iter().map(|line| line.column).collect::<Vec<_>>(), [Some(1); 3]);
    let request = GrepRequest::new("four").with_context(1, 2).with_walk(WalkOptions::default().with_path("a.txt"));
    let with_context = grep(tree.path(), request).await;
    assert_eq!(lines(&with_context), ["a.txt-3-three", "a.txt:4:four", "a.txt-5-five", "a.txt-6-six"]);
    // The line before the one hit too many is not given.
    let limited = grep(tree.path(), GrepRequest::new("t(wo)|six").with_context(1, 0).with_limit(1)).await;
    assert_eq!(lines(&limited), ["a.txt-1-one", "a.txt:2:two"]);
    assert_eq!(limited.end.truncated, Some(Truncated::Limit));
}

#[tokio::test]
async fn grep_understands_its_options() {
    let tree = tree(&[("a.rs", "let Foo = foo(1);\nfood\n"), ("b.py", "foo\nfoo foo\n"), ("docs/c.md", "a.b\naxb\n")]);
    let request = GrepRequest::new;
    for (request, expected) in [
        (request("foo").with_word(true), &["a.rs:1:let Foo = foo(1);", "b.py:1:foo", "b.py:2:foo foo"][..]),
        (request("FOOD").with_case_insensitive(true), &["a.rs:2:food"]),
        (request("a.b").with_fixed_strings(true), &["docs/c.md:1:a.b"]),
        (request("foo(").with_fixed_strings(true), &["a.rs:1:let Foo = foo(1);"]),
        (request("a.b").with_globs(["*.md"]), &["docs/c.md:1:a.b", "docs/c.md:2:axb"]),
        (request("foo").with_globs(["!*.py", "!docs"]), &["a.rs:1:let Foo = foo(1);", "a.rs:2:food"]),
        (request("foo").with_types(["py", "md"]), &["b.py:1:foo", "b.py:2:foo foo"]),
        (request("1.*food").with_multiline(true), &["a.rs:1:let Foo = foo(1);", "a.rs:2:food"]),
        (request("nothing"), &[]),
    ] {
        assert_eq!(lines(&grep(tree.path(), request.clone()).await), expected, "{request:?}");
    }
    let files = grep(tree.path(), request("foo").with_mode(GrepMode::FilesWithMatches)).await;
    assert_eq!(files.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a.rs", "b.py"]);
    assert!(files.lines.is_empty());
    let counts = grep(tree.path(), request("foo").with_mode(GrepMode::Count)).await;
    assert_eq!(counts.files.iter().map(|file| file.count).collect::<Vec<_>>(), [Some(2), Some(2)]);
    assert_eq!(counts.end.matches, 4);
    let one = grep(tree.path(), request("foo").with_mode(GrepMode::FilesWithMatches).with_limit(1)).await;
    assert_eq!((one.files.len(), one.end.truncated), (1, Some(Truncated::Limit)));
}

#[tokio::test]
async fn files_that_are_no_text_are_reported_and_odd_bytes_lose_no_hit() {
    let tree = tree(&[("plain", "needle")]);
    fs::write(tree.path().join("binary"), b"needle\n\0\x01\x02needle\n").unwrap();
    fs::write(tree.path().join("latin"), b"caf\xe9 needle\n").unwrap();
    fs::write(tree.path().join("long"), format!("{}needle{}\n", "ü".repeat(5000), "x".repeat(90_000))).unwrap();
    let utf16: Vec<u8> = "\u{feff}needle\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(tree.path().join("utf16"), utf16).unwrap();
    fs::write(tree.path().join(OsStr::from_bytes(b"odd\xff")), "needle").unwrap();
    let found = grep(tree.path(), GrepRequest::new("needle").with_max_line_bytes(100)).await;
    let seen: Vec<_> =
        found.lines.iter().map(|line| (line.path.as_str(), line.lossy, line.cut, line.escaped)).collect();
    let expected = [
        ("latin", true, false, false),
        ("long", false, true, false),
        ("odd\\xFF", false, false, true),
        ("plain", false, false, false),
        ("utf16", false, false, false),
    ];
    assert_eq!(seen, expected);
    assert!(found.lines.iter().all(|line| line.text.contains("needle") && line.text.len() <= 110));
    assert_eq!(found.lines[1].column, Some(10_001));
    assert_eq!(found.binaries.iter().map(|b| (b.path.as_str(), b.offset)).collect::<Vec<_>>(), [("binary", 7)]);
}

#[tokio::test]
async fn what_can_not_be_read_is_told_beside_the_rest() {
    if is_root() {
        println!("skipped: every directory is open to root");
        return;
    }
    let tree = tree(&[("a", "hit"), ("shut/b", "hit"), ("c", "hit")]);
    for (name, mode) in [("shut", 0o000), ("c", 0o000)] {
        fs::set_permissions(tree.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let found = grep(tree.path(), GrepRequest::new("hit")).await;
    assert_eq!(lines(&found), ["a:1:hit"]);
    assert_eq!(found.problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["c", "shut"]);
    assert_eq!(found.end.problems, 2);
    fs::set_permissions(tree.path().join("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn pipes_and_devices_are_not_waited_for() {
    let tree = tree(&[("a", "hit")]);
    let made = std::process::Command::new("mkfifo").arg(tree.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let found = timeout(PATIENCE, grep(tree.path(), GrepRequest::new("hit"))).await.unwrap();
    assert_eq!(lines(&found), ["a:1:hit"]);
}

#[tokio::test]
async fn what_can_not_be_asked_is_said_to_be_so() {
    let tree = tree(&[("a", "")]);
    let client = client(tree.path()).await;
    let nested = "(".repeat(1000) + &")".repeat(1000);
    for (request, field) in [
        (GrepRequest::new("("), "pattern"),
        (GrepRequest::new(""), "pattern"),
        (GrepRequest::new("x".repeat(70_000)), "pattern"),
        // Would need gigabytes.
        (GrepRequest::new("((a{1000}){1000}){1000}"), "pattern"),
        (GrepRequest::new(nested), "pattern"),
        (GrepRequest::new("a\\nb"), "pattern"),
        (GrepRequest::new("a").with_limit(0), "limit"),
        (GrepRequest::new("a").with_max_line_bytes(1), "limit"),
        (GrepRequest::new("a").with_context(100_000, 0), "context"),
        (GrepRequest::new("a").with_globs(["["]), "globs"),
        (GrepRequest::new("a").with_types(["klingon"]), "types"),
    ] {
        let error = client.grep(&request).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error:?}");
    }
    for (request, field) in [
        (GlobRequest::new("["), "pattern"),
        (GlobRequest::new(""), "pattern"),
        (GlobRequest::new("{a,"), "pattern"),
        (GlobRequest::new("?".repeat(5000)), "pattern"),
        (GlobRequest::new("{".repeat(2000) + &"}".repeat(2000)), "pattern"),
        (GlobRequest::new("a").with_limit(1_000_000), "limit"),
    ] {
        let error = client.glob(&request).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error:?}");
    }
    let nowhere = WalkOptions::default().with_path("no/such");
    let error = client.glob(&GlobRequest::new("*").with_walk(nowhere.clone())).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("path")));
    assert_eq!(client.grep(&GrepRequest::new("a").with_walk(nowhere)).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn every_limit_ends_a_search_and_is_named() {
    let tree = tempfile::tempdir().unwrap();
    for number in 0..200 {
        fs::write(tree.path().join(format!("f{number:03}")), "hit\n".repeat(50)).unwrap();
    }
    let few = WalkOptions::default().with_max_entries(11);
    let found = grep(tree.path(), GrepRequest::new("hit").with_walk(few.clone())).await;
    assert_eq!((found.end.truncated, found.end.entries, found.lines.len()), (Some(Truncated::Entries), 11, 500));
    let found = glob(tree.path(), GlobRequest::new("*").with_walk(few)).await;
    assert_eq!((found.end.truncated, found.entries.len()), (Some(Truncated::Entries), 10));
    let found = grep(tree.path(), GrepRequest::new("hit").with_limit(10_000).with_max_bytes(700)).await;
    assert_eq!((found.end.truncated, found.lines.len()), (Some(Truncated::Bytes), 100));
    let at_once = WalkOptions::default().with_timeout(Duration::ZERO);
    let found = grep(tree.path(), GrepRequest::new("hit").with_walk(at_once)).await;
    assert_eq!((found.end.truncated, found.lines.len()), (Some(Truncated::Timeout), 0));
}

/// An endless file is read for as long as somebody wants to know.
#[tokio::test]
async fn a_dropped_search_ends_and_makes_room_for_others() {
    let tree = tree(&[("a", "hit")]);
    // So large that reading it takes minutes, without a byte on the disk; and text as far as anybody sees.
    let large = File::create(tree.path().join("huge")).unwrap();
    large.set_len(1 << 40).unwrap();
    fs::write(tree.path().join("many"), "hit\n".repeat(1_000_000)).unwrap();
    let client = client(tree.path()).await;
    for _ in 0..10 {
        // Nobody reads on, so that each holds its place until it is dropped.
        let mut events = client.grep_events(&GrepRequest::new("hit").with_limit(1_000_000)).await.unwrap();
        assert!(events.next().await.unwrap().is_ok());
    }
    let after = timeout(PATIENCE, client.glob(&GlobRequest::new("a"))).await.unwrap().unwrap();
    assert_eq!(paths(&after), ["a"]);
}

#[tokio::test]
async fn a_gateway_without_tools_says_so() {
    use std::sync::Arc;

    use futures::FutureExt;
    use tokio_util::task::TaskTracker;
    use wsm_core::{
        Backend, BackendConfig, OpenRequest, Workspace, WorkspaceId,
        memory::{MemoryConfig, MemoryEngine},
    };

    let backend = MemoryConfig::new(MemoryEngine::new()).build().unwrap();
    let opened = backend.open(OpenRequest::new(WorkspaceId::random())).await.unwrap();
    let (workspace, servers) = (opened.workspace as Arc<dyn Workspace>, TaskTracker::new());
    let connect = move || {
        let (near, far) = tokio::io::duplex(1024);
        servers.spawn(wsm_gateway::serve(wsm_gateway::Served::new(Arc::clone(&workspace)), far));
        async move { Ok(Box::new(near) as Box<dyn wsm_gateway::Io>) }.boxed()
    };
    let client = wsm_gateway::GatewayClient::new(connect).await.unwrap();
    assert_eq!(client.glob(&GlobRequest::new("*")).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.grep(&GrepRequest::new("x")).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let unpack = wsm_gateway::UnpackRequest::new("x");
    let refused = client.unpack(&unpack, wsm_core::byte_stream("")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
