//! Archives, good and hostile, through a client.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod support;

use std::{
    fs,
    io::{Cursor, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

use futures::{StreamExt, stream};
use support::client;
use tar::{EntryType, Header};
use tempfile::TempDir;
use tokio::time::timeout;
use wsm_core::{ByteStream, Error, ErrorKind, Result, byte_stream};
use wsm_gateway::{ArchiveFormat, Overwrite, UnpackRequest, Unpacked};
use zip::{ZipWriter, write::SimpleFileOptions};

const PATIENCE: Duration = Duration::from_secs(20);

/// A member of a tar archive, with a name that nobody checks.
fn header(name: &[u8], kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header
}

fn seal(mut header: Header, content: &[u8]) -> Vec<u8> {
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    seal(header(name.as_bytes(), EntryType::Regular, content.len() as u64), content.as_bytes())
}

fn link(name: &str, kind: EntryType, target: &str) -> Vec<u8> {
    let mut header = header(name.as_bytes(), kind, 0);
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    seal(header, b"")
}

fn tar_of(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip_of(members: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in members {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// In pieces, as it would come.
fn body(bytes: &[u8]) -> ByteStream {
    let pieces: Vec<Result<bytes::Bytes>> = bytes.chunks(1000).map(|p| Ok(bytes::Bytes::copy_from_slice(p))).collect();
    stream::iter(pieces).boxed()
}

async fn unpack(directory: &Path, request: UnpackRequest, archive: &[u8]) -> Result<Unpacked> {
    let client = client(directory).await;
    timeout(PATIENCE, client.unpack(&request, body(archive))).await.unwrap()
}

/// Everything below, as paths with the contents of files and the targets of links.
fn seen(directory: &Path) -> Vec<String> {
    fn visit(directory: &Path, prefix: &str, seen: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                seen.push(format!("{path}/"));
                visit(&entry.path(), &format!("{path}/"), seen);
            } else if kind.is_symlink() {
                seen.push(format!("{path} -> {}", fs::read_link(entry.path()).unwrap().display()));
            } else {
                seen.push(format!("{path} = {}", fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    visit(directory, "", &mut found);
    found.sort();
    found
}

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn every_format_is_seen_and_unpacked() {
    let tar = tar_of(&[
        seal(header(b"./", EntryType::Directory, 0), b""),
        seal(header(b"./d/", EntryType::Directory, 0), b""),
        file("./d/f", "1"),
        file("g/h/i", "22"),
        link("d/l", EntryType::Symlink, "../g/h"),
        link("k", EntryType::Link, "d/f"),
    ]);
    let expected = ["out/", "out/d/", "out/d/f = 1", "out/d/l -> ../g/h", "out/g/", "out/g/h/", "out/g/h/i = 22"];
    for archive in [tar.clone(), gzip(&tar)] {
        let directory = scratch();
        let unpacked = unpack(directory.path(), UnpackRequest::new("out"), &archive).await.unwrap();
        assert_eq!((unpacked.files, unpacked.links, unpacked.directories, unpacked.bytes), (2, 2, 1, 3));
        let mut found = seen(directory.path());
        assert_eq!(found.pop().as_deref(), Some("out/k = 1"));
        assert_eq!(found, expected);
    }
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    writer.add_directory("d/", options).unwrap();
    writer.start_file("d/f", options.unix_permissions(0o4751)).unwrap();
    writer.write_all(b"1").unwrap();
    writer.add_symlink("d/l", "f", options).unwrap();
    writer.start_file("g/ü", options.compression_method(zip::CompressionMethod::Stored)).unwrap();
    writer.write_all(b"22").unwrap();
    let archive = writer.finish().unwrap().into_inner();
    let directory = scratch();
    let unpacked = unpack(directory.path(), UnpackRequest::new("deep/in/out"), &archive).await.unwrap();
    assert_eq!((unpacked.files, unpacked.links, unpacked.directories, unpacked.bytes), (2, 1, 1, 3));
    let out = directory.path().join("deep/in/out");
    assert_eq!(seen(&out), ["d/", "d/f = 1", "d/l -> f", "g/", "g/ü = 22"]);
    let mode = fs::metadata(out.join("d/f")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o751, "no more than to read, write and execute");
}

#[tokio::test]
async fn what_ordinary_tools_pack_is_unpacked() {
    let source = scratch();
    let long = format!("{}/{}", "long-name-".repeat(12), "another-".repeat(20));
    fs::create_dir_all(source.path().join(&long)).unwrap();
    fs::write(source.path().join(&long).join("file"), "x".repeat(100_000)).unwrap();
    fs::write(source.path().join("empty"), "").unwrap();
    fs::create_dir(source.path().join("bare")).unwrap();
    symlink(format!("{long}/file"), source.path().join("link")).unwrap();
    for line in [
        "tar -cf ../a --format=gnu .",
        "tar -cf ../a --format=posix .",
        "tar -czf ../a .",
        "tar -cf ../a --format=ustar bare empty",
        "zip -q -r -y ../a.zip . && mv ../a.zip ../a",
        // As a stream, sizes come after the content.
        "zip -q - */*/file | cat > ../a",
        "python3 -c \"import shutil; shutil.make_archive('../b', 'zip', '.')\" && mv ../b.zip ../a",
    ] {
        let place = scratch();
        let packed = std::process::Command::new("sh")
            .args(["-c", &line.replace("../", &format!("{}/", place.path().display()))])
            .current_dir(source.path())
            .status()
            .unwrap();
        if !packed.success() {
            // Not every machine has every one of them.
            continue;
        }
        let archive = fs::read(place.path().join("a")).unwrap();
        let unpacked = unpack(place.path(), UnpackRequest::new("out"), &archive).await;
        let unpacked = unpacked.unwrap_or_else(|error| panic!("{line}: {error:?}"));
        assert!(unpacked.files >= 1, "{line}");
        assert!(place.path().join("out/bare").is_dir() || line.contains("cat"), "{line}");
        if !line.contains("ustar") {
            let size = fs::metadata(place.path().join("out").join(&long).join("file")).unwrap().len();
            assert_eq!(size, 100_000, "{line}");
        }
    }
}

/// Cases E08 and the like: nothing of the archive is there afterwards, not even what came before the bad member.
#[tokio::test]
async fn an_archive_with_one_bad_member_is_refused_as_a_whole() {
    let sparse_name = b"18 GNU.sparse.x=1\n";
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("absolute", file("/etc/x", "")),
        ("parent", file("a/../../x", "")),
        ("backslash", file("..\\x", "")),
        ("drive", file("C:\\x", "")),
        ("drive with slash", file("c:/x", "")),
        ("not UTF-8", seal(header(b"a\xff", EntryType::Regular, 0), b"")),
        ("twice", [file("x", ""), file("./x", "")].concat()),
        ("below a file", [file("x", ""), file("x/y", "")].concat()),
        ("through a link", [link("l", EntryType::Symlink, "d"), file("l/x", "")].concat()),
        ("link out", link("l", EntryType::Symlink, "../x")),
        ("absolute link", link("l", EntryType::Symlink, "/etc/passwd")),
        (
            "links out together",
            [link("d/e", EntryType::Symlink, ".."), link("x", EntryType::Symlink, "d/e/../y")].concat(),
        ),
        ("hard link out", link("h", EntryType::Link, "../../etc/passwd")),
        ("hard link to nothing", link("h", EntryType::Link, "missing")),
        ("hard link to a link", [link("l", EntryType::Symlink, "good"), link("h", EntryType::Link, "l")].concat()),
        ("pipe", seal(header(b"p", EntryType::Fifo, 0), b"")),
        ("device", seal(header(b"p", EntryType::Char, 0), b"")),
        ("block device", seal(header(b"p", EntryType::Block, 0), b"")),
        ("sparse", seal(header(b"p", EntryType::GNUSparse, 0), b"")),
        ("sparse, told otherwise", seal(header(b"x", EntryType::XHeader, 18), sparse_name)),
        ("NUL", [seal(header(b"n", EntryType::GNULongName, 5), b"a\0b\0\0"), file("x", "")].concat()),
        ("two sizes", [seal(header(b"x", EntryType::XHeader, 9), b"9 size=7\n"), file("y", "")].concat()),
        ("a path for all", seal(header(b"g", EntryType::XGlobalHeader, 9), b"9 path=x\n")),
        ("endless name", seal(header(b"n", EntryType::GNULongName, 1 << 20), &vec![b'x'; 1 << 20])),
        ("unknown kind", seal(header(b"u", EntryType::new(b'Z'), 0), b"")),
    ];
    for (what, member) in bad {
        let directory = scratch();
        let archive = tar_of(&[file("good", "1"), member]);
        let error = unpack(directory.path(), UnpackRequest::new("new/out"), &archive).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "unsafe_archive"), "{what}: {error:?}");
        assert!(seen(directory.path()).is_empty(), "{what}: {:?}", seen(directory.path()));
    }
    for name in ["/etc/x", "../x", "a/../../x", "..\\x", "C:\\x", "a\0b"] {
        let directory = scratch();
        let archive = zip_of(&[("good", "1"), (name, "2")]);
        let error = unpack(directory.path(), UnpackRequest::new("out"), &archive).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, "unsafe_archive"), "{name}: {error:?}");
        assert!(seen(directory.path()).is_empty(), "{name}");
    }
    let directory = scratch();
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    writer.add_symlink("l", "../../etc", SimpleFileOptions::default()).unwrap();
    let archive = writer.finish().unwrap().into_inner();
    let error = unpack(directory.path(), UnpackRequest::new("out"), &archive).await.unwrap_err();
    assert_eq!(error.code(), "unsafe_archive");
    // Two members of one name, which most programs would never write.
    let mut twice = zip_of(&[("aa", "1"), ("ab", "2")]);
    for at in 0..twice.len() - 1 {
        if &twice[at..at + 2] == b"ab" {
            twice[at + 1] = b'a';
        }
    }
    let error = unpack(directory.path(), UnpackRequest::new("out"), &twice).await.unwrap_err();
    assert_eq!(error.code(), "unsafe_archive", "{error:?}");
    assert!(seen(directory.path()).is_empty());
}

/// Case E09: what counts is what really comes out.
#[tokio::test]
async fn what_grows_beyond_the_limits_is_stopped() {
    let zeros = "\0".repeat(30 << 20);
    let tar = tar_of(&[file("zeros", &zeros)]);
    let zip = zip_of(&[("zeros", &zeros)]);
    // The same, with the sizes that the archive itself tells set to ten bytes.
    let mut lying = zip.clone();
    let size = (30u32 << 20).to_le_bytes();
    for at in 0..lying.len() - 4 {
        if lying[at..at + 4] == size {
            lying[at..at + 4].copy_from_slice(&10u32.to_le_bytes());
        }
    }
    let many: Vec<Vec<u8>> = (0..50).map(|number| file(&format!("f{number}"), "")).collect();
    let names: Vec<String> = (0..50).map(|number| format!("f{number}")).collect();
    let many_zip = zip_of(&names.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
    let request = || UnpackRequest::new("out");
    for (what, request, archive, code) in [
        ("ratio, tar", request(), gzip(&tar), "too_large"),
        ("ratio, zip", request(), zip.clone(), "too_large"),
        ("bytes, tar", request().with_max_bytes(1 << 20), tar.clone(), "too_large"),
        ("bytes, compressed", request().with_max_ratio(100_000).with_max_bytes(1 << 20), gzip(&tar), "too_large"),
        ("bytes, zip", request().with_max_ratio(100_000).with_max_bytes(1 << 20), zip, "too_large"),
        ("entries, tar", request().with_max_entries(49), tar_of(&many), "too_large"),
        ("entries, zip", request().with_max_entries(49), many_zip.clone(), "too_large"),
        ("lies, zip", request(), lying, "bad_archive"),
        ("no archive", request(), b"hello, world".to_vec(), "bad_archive"),
        ("nothing", request(), Vec::new(), "bad_archive"),
        ("another format", request().with_format(ArchiveFormat::Zip), tar.clone(), "bad_archive"),
        ("cut tar", request(), tar[..tar.len() / 2].to_vec(), "bad_archive"),
        ("cut gzip", request().with_max_ratio(100_000), gzip(&tar)[..2000].to_vec(), "bad_archive"),
        ("cut zip", request(), many_zip[..many_zip.len() - 30].to_vec(), "bad_archive"),
    ] {
        let directory = scratch();
        let error = unpack(directory.path(), request, &archive).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidInput, code), "{what}: {error:?}");
        assert!(seen(directory.path()).is_empty(), "{what}");
    }
    let directory = scratch();
    unpack(directory.path(), request().with_max_entries(50), &many_zip).await.unwrap();
    let generous = request().with_max_ratio(100_000).with_overwrite(Overwrite::Replace);
    assert_eq!(unpack(directory.path(), generous, &gzip(&tar)).await.unwrap().bytes, 30 << 20);
}

#[tokio::test]
async fn what_is_there_already_is_kept_replaced_or_merged() {
    let directory = scratch();
    let archive = tar_of(&[file("a", "new"), file("d/b", "new"), file("e/f", "new")]);
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    // An empty directory is as good as none.
    unpack(directory.path(), UnpackRequest::new("out"), &archive).await.unwrap();
    fs::write(out.join("a"), "old").unwrap();
    fs::write(out.join("d/mine"), "old").unwrap();
    let before = seen(directory.path());
    let refused = unpack(directory.path(), UnpackRequest::new("out"), &archive).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Conflict, Some("path")), "{refused:?}");
    assert_eq!(seen(directory.path()), before);

    let merge = UnpackRequest::new("out").with_overwrite(Overwrite::Merge);
    unpack(directory.path(), merge.clone(), &archive).await.unwrap();
    assert_eq!(seen(&out), ["a = new", "d/", "d/b = new", "d/mine = old", "e/", "e/f = new"]);

    // Names that sort between a directory and what is in it.
    let close =
        tar_of(&[file("n/x", "1"), file("n-/x", "2"), file("n/y/z", "3"), file("n!", "4"), file("n-/y/z", "5")]);
    unpack(directory.path(), merge.clone(), &close).await.unwrap();
    for (path, content) in [("n/x", "1"), ("n-/x", "2"), ("n/y/z", "3"), ("n!", "4"), ("n-/y/z", "5")] {
        assert_eq!(fs::read_to_string(out.join(path)).unwrap(), content);
    }

    let clashing = tar_of(&[file("0", "new"), file("d", "new")]);
    let refused = unpack(directory.path(), merge.clone(), &clashing).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused:?}");
    assert!(!out.join("0").exists(), "what comes before the clash was not moved either");
    symlink("../..", out.join("away")).unwrap();
    let through = tar_of(&[file("away/x", "new")]);
    let refused = unpack(directory.path(), merge.clone(), &through).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused:?}");

    let replace = UnpackRequest::new("out").with_overwrite(Overwrite::Replace);
    fs::set_permissions(out.join("d"), fs::Permissions::from_mode(0o500)).unwrap();
    unpack(directory.path(), replace.clone(), &archive).await.unwrap();
    assert_eq!(seen(directory.path()), ["out/", "out/a = new", "out/d/", "out/d/b = new", "out/e/", "out/e/f = new"]);

    fs::write(directory.path().join("file"), "old").unwrap();
    symlink("out", directory.path().join("link")).unwrap();
    for path in ["file", "link", "file/x", "out/a/x/y"] {
        let mut request = replace.clone();
        request.path = path.to_owned();
        let refused = unpack(directory.path(), request, &archive).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{path}: {refused:?}");
    }
    let mut into_itself = merge;
    into_itself.path = ".".to_owned();
    unpack(directory.path(), into_itself, &archive).await.unwrap();
    assert_eq!(fs::read_to_string(directory.path().join("a")).unwrap(), "new");
    assert_eq!(fs::read_to_string(directory.path().join("file")).unwrap(), "old");
}

#[tokio::test]
async fn a_body_that_breaks_off_or_is_abandoned_leaves_nothing() {
    let directory = scratch();
    let client = client(directory.path()).await;
    let whole = tar_of(&[file("a", "1")]);
    for cut in [0, 100, 512, 1024, whole.len()] {
        let pieces = vec![Ok(whole[..cut].to_vec().into()), Err(Error::new(ErrorKind::Backend, "the source failed"))];
        let request = UnpackRequest::new("new/out");
        let unpacked = client.unpack(&request, stream::iter(pieces).boxed());
        let error = timeout(PATIENCE, unpacked).await.unwrap().unwrap_err();
        assert_eq!(error.message(), "the source failed", "{cut}");
    }
    {
        let pieces = stream::iter([Ok(whole[..600].to_vec().into())]).chain(stream::pending());
        let request = UnpackRequest::new("new/out");
        let unpacking = client.unpack(&request, pieces.boxed());
        let looking = async {
            while seen(directory.path()).len() < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            unpacked = unpacking => panic!("{unpacked:?}"),
            looked = timeout(PATIENCE, looking) => looked.unwrap(),
        }
    }
    let gone = async {
        while !seen(directory.path()).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
    // A bad archive is refused at once, though its end never comes.
    let bad = stream::iter([Ok(vec![b'x'; 1000].into())]).chain(stream::pending()).boxed();
    let error = timeout(PATIENCE, client.unpack(&UnpackRequest::new("out"), bad)).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "bad_archive");
    assert!(seen(directory.path()).is_empty());
    client.unpack(&UnpackRequest::new("out"), byte_stream(whole)).await.unwrap();
}
