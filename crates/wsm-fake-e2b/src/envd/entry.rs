//! How the daemon describes a file. What is here must be called where paths are those of the sandbox.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use jiff::Timestamp;
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use serde_json::{Map, Value, json};

use crate::{guest::user::name_of, rpc::without_zeros};

/// Where metadata of files is kept.
const ATTRIBUTE: &str = "user.e2b.";
const MOST_METADATA: usize = 4096;

pub(super) fn entry(path: &Path) -> io::Result<Value> {
    let own = fs::symlink_metadata(path)?;
    let is_link = own.is_symlink();
    // What it leads to, if there is something.
    let target = is_link.then(|| fs::metadata(path).ok()).flatten();
    let seen = target.as_ref().unwrap_or(&own);
    let kind = match seen.file_type() {
        kind if kind.is_dir() => "FILE_TYPE_DIRECTORY",
        kind if kind.is_symlink() => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_FILE",
    };
    let name = path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned());
    let link_target = || {
        let resolved = fs::canonicalize(path).or_else(|_| fs::read_link(path));
        resolved.map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let mut entry = without_zeros(json!({
        "name": name,
        "type": kind,
        "path": path.to_string_lossy(),
        "size": own.len().to_string(),
        "mode": own.mode() & 0o777,
        "permissions": permissions(&own),
        "owner": name_of(own.uid()),
        "group": name_of(own.gid()),
        "modifiedTime": modified(&own),
        "symlinkTarget": if is_link { link_target() } else { String::new() },
    }));
    let metadata = metadata(path);
    if !metadata.is_empty() {
        entry["metadata"] = Value::Object(metadata);
    }
    Ok(entry)
}

fn modified(metadata: &Metadata) -> String {
    let nanos = i32::try_from(metadata.mtime_nsec()).unwrap_or_default();
    Timestamp::new(metadata.mtime(), nanos).map(|time| time.to_string()).unwrap_or_default()
}

/// As Go writes them: a letter for each kind, a dash for none.
fn permissions(metadata: &Metadata) -> String {
    let (kind, mode) = (metadata.file_type(), metadata.mode());
    let mut shown = String::new();
    for (is_so, letters) in [
        (kind.is_dir(), "d"),
        (kind.is_symlink(), "L"),
        (kind.is_block_device(), "D"),
        (kind.is_char_device(), "Dc"),
        (kind.is_fifo(), "p"),
        (kind.is_socket(), "S"),
        (mode & 0o4000 != 0, "u"),
        (mode & 0o2000 != 0, "g"),
        (mode & 0o1000 != 0, "t"),
    ] {
        if is_so {
            shown.push_str(letters);
        }
    }
    if shown.is_empty() {
        shown.push('-');
    }
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        shown.push(if mode & (0o400 >> index) != 0 { letter } else { '-' });
    }
    shown
}

/// What was said about a file when it was uploaded.
pub(super) fn metadata(path: &Path) -> Map<String, Value> {
    attributes(path)
        .into_iter()
        .filter_map(|attribute| {
            let mut value = vec![0; MOST_METADATA];
            let length = lgetxattr(path, &attribute, &mut value[..]).ok()?;
            let value = String::from_utf8_lossy(&value[..length]).into_owned();
            Some((attribute.strip_prefix(ATTRIBUTE)?.to_owned(), Value::String(value)))
        })
        .collect()
}

/// Replaces all that was said about a file.
pub(super) fn set_metadata(path: &Path, metadata: &[(String, String)]) -> io::Result<()> {
    for attribute in attributes(path) {
        lremovexattr(path, &attribute)?;
    }
    for (key, value) in metadata {
        lsetxattr(path, format!("{ATTRIBUTE}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

fn attributes(path: &Path) -> Vec<String> {
    let mut names = vec![0_u8; 64 << 10];
    let length = llistxattr(path, &mut names[..]).unwrap_or_default();
    let names = names[..length].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    names.filter(|name| name.starts_with(ATTRIBUTE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn entries_are_as_the_daemon_describes_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a b");
        fs::write(&file, "xyz").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let shown = entry(&file).unwrap();
        assert_eq!((&shown["name"], &shown["size"], &shown["mode"]), (&json!("a b"), &json!("3"), &json!(420)));
        assert_eq!((&shown["type"], &shown["permissions"]), (&json!("FILE_TYPE_FILE"), &json!("-rw-r--r--")));
        assert_eq!(shown.get("symlinkTarget"), None);
        fs::write(&file, "").unwrap();
        assert_eq!(entry(&file).unwrap().get("size"), None);

        let link = directory.path().join("link");
        symlink(&file, &link).unwrap();
        let shown = entry(&link).unwrap();
        assert_eq!((&shown["type"], &shown["permissions"]), (&json!("FILE_TYPE_FILE"), &json!("Lrwxrwxrwx")));
        assert!(shown["symlinkTarget"].as_str().unwrap().ends_with("/a b"));
        fs::remove_file(&file).unwrap();
        assert_eq!(entry(&link).unwrap()["type"], "FILE_TYPE_SYMLINK");
        assert!(entry(&file).is_err());
        assert!(entry(directory.path()).unwrap()["permissions"].as_str().unwrap().starts_with("drwx"));
    }
}
