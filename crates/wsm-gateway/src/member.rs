//! Which members an archive may have.

use std::collections::{BTreeMap, VecDeque};

use wsm_core::{Error, Result};

const LONGEST_PATH: usize = 2048;
const LONGEST_NAME: usize = 255;
const LONGEST_TARGET: usize = 1024;
const DEEPEST: usize = 128;
/// How many bytes all paths and targets may have, which bounds the memory for them.
const MOST_NAMES: usize = 64 << 20;
/// How many links a path may lead through, as for the kernel.
const MOST_HOPS: usize = 40;
/// How many steps may be gone to see where all links lead.
const MOST_STEPS: usize = 2_000_000;

/// Must not be unpacked.
pub(crate) fn hostile(message: impl Into<String>) -> Error {
    Error::invalid("archive", message).with_code("unsafe_archive")
}

pub(crate) fn too_large(message: impl Into<String>) -> Error {
    Error::invalid("archive", message).with_code("too_large")
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
}

/// The members that were admitted so far.
#[derive(Debug)]
pub(crate) struct Members {
    admitted: BTreeMap<String, Member>,
    max_entries: u64,
    names: usize,
}

#[derive(Debug)]
struct Member {
    kind: Kind,
    /// Where a symbolic link leads.
    target: Option<String>,
}

impl Members {
    pub(crate) fn new(max_entries: u64) -> Self {
        Self { admitted: BTreeMap::new(), max_entries, names: 0 }
    }

    /// Admits a member, and gives its path below the directory that is unpacked into; none for that directory itself.
    ///
    /// # Errors
    ///
    /// `invalid_input` with code `unsafe_archive` for one that must not be there, `too_large` for one too many.
    pub(crate) fn admit(&mut self, name: &[u8], kind: Kind) -> Result<Option<String>> {
        let Some(path) = parse(name)? else {
            return if kind == Kind::Directory {
                Ok(None)
            } else {
                Err(hostile(format!("the member {} has no name", shown(name))))
            };
        };
        if name.ends_with(b"/") && kind != Kind::Directory {
            return Err(hostile(format!("the member {} is called like a directory, and is none", shown(name))));
        }
        for (slash, _) in path.match_indices('/') {
            let parent = &path[..slash];
            match self.admitted.get(parent).map(|member| member.kind) {
                None => self.insert(parent.to_owned(), Kind::Directory)?,
                Some(Kind::Directory) => {}
                Some(Kind::File | Kind::Symlink) => {
                    let message = format!("the member {} lies in `{parent}`, which is no directory", shown(name));
                    return Err(hostile(message));
                }
            }
        }
        match self.admitted.get(&path).map(|member| member.kind) {
            None => self.insert(path.clone(), kind)?,
            Some(Kind::Directory) if kind == Kind::Directory => {}
            Some(_) => return Err(hostile(format!("the member {} is there twice", shown(name)))),
        }
        Ok(Some(path))
    }

    /// Says where an admitted symbolic link leads.
    ///
    /// # Errors
    ///
    /// As for [`admit`](Self::admit). Whether it leads out is for [`check_links`](Self::check_links).
    pub(crate) fn set_target(&mut self, path: &str, target: &[u8]) -> Result<String> {
        let refused = |why: &str| Err(hostile(format!("the link `{path}` leads to {}, {why}", shown(target))));
        let Ok(text) = std::str::from_utf8(target) else { return refused("which is not UTF-8") };
        if text.is_empty() || text.len() > LONGEST_TARGET {
            return refused("which is no path");
        }
        if text.starts_with('/') || has_drive(text) {
            return refused("which is an absolute path");
        }
        if text.contains(['\\', '\0']) {
            return refused("which has a backslash or a NUL in it");
        }
        self.spend(text.len())?;
        if let Some(member) = self.admitted.get_mut(path) {
            member.target = Some(text.to_owned());
        }
        Ok(text.to_owned())
    }

    /// The path of an admitted file, which a hard link may be another name of.
    ///
    /// # Errors
    ///
    /// `invalid_input` with code `unsafe_archive` for anything else.
    pub(crate) fn file(&self, name: &[u8]) -> Result<String> {
        match parse(name)? {
            Some(path) if self.admitted.get(&path).is_some_and(|member| member.kind == Kind::File) => Ok(path),
            _ => Err(hostile(format!("a hard link leads to {}, which is no file before it", shown(name)))),
        }
    }

    /// Looks where all links lead, now that all are known.
    ///
    /// # Errors
    ///
    /// `invalid_input` with code `unsafe_archive` when one leads out, or in a circle.
    pub(crate) fn check_links(&self) -> Result<()> {
        let mut steps = 0;
        for (path, member) in &self.admitted {
            if let Some(target) = &member.target {
                self.follow(path, target, &mut steps)?;
            }
        }
        Ok(())
    }

    fn follow(&self, link: &str, target: &str, steps: &mut usize) -> Result<()> {
        let refused = |why: &str| Err(hostile(format!("the link `{link}` leads to `{target}`, {why}")));
        let mut place = parent(link).to_owned();
        let mut rest: VecDeque<&str> = target.split('/').collect();
        let mut hops = 0;
        while let Some(step) = rest.pop_front() {
            *steps += 1;
            if *steps > MOST_STEPS {
                return Err(hostile("the links of the archive lead through too many others"));
            }
            match step {
                "" | "." => continue,
                ".." if place.is_empty() => return refused("which is outside"),
                ".." => place.truncate(parent(&place).len()),
                name => {
                    let before = place.len();
                    if before > 0 {
                        place.push('/');
                    }
                    place.push_str(name);
                    if place.len() > 2 * LONGEST_PATH {
                        return refused("which is too long a path");
                    }
                    let inner = self.admitted.get(&place).and_then(|member| member.target.as_deref());
                    if let Some(inner) = inner {
                        hops += 1;
                        if hops > MOST_HOPS {
                            return refused("and on through too many links");
                        }
                        place.truncate(before);
                        inner.rsplit('/').for_each(|step| rest.push_front(step));
                    }
                }
            }
        }
        Ok(())
    }

    /// The admitted paths, each after the directory that it is in.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.admitted.iter().map(|(path, member)| (path.as_str(), member.kind))
    }

    fn insert(&mut self, path: String, kind: Kind) -> Result<()> {
        if self.admitted.len() as u64 >= self.max_entries {
            return Err(too_large(format!("the archive has more than {} members", self.max_entries)));
        }
        self.spend(path.len())?;
        self.admitted.insert(path, Member { kind, target: None });
        Ok(())
    }

    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.names += bytes;
        if self.names > MOST_NAMES {
            return Err(too_large(format!("the names of the members have more than {MOST_NAMES} bytes")));
        }
        Ok(())
    }
}

/// A name as a path below the directory that is unpacked into. None for that directory itself.
fn parse(name: &[u8]) -> Result<Option<String>> {
    let refused = |why: &str| Err(hostile(format!("the member {} {why}", shown(name))));
    let Ok(text) = std::str::from_utf8(name) else { return refused("is not UTF-8") };
    if text.starts_with('/') || has_drive(text) {
        return refused("has an absolute path");
    }
    if text.contains(['\\', '\0']) {
        return refused("has a backslash or a NUL in it");
    }
    if text.len() > LONGEST_PATH || text.split('/').any(|name| name.len() > LONGEST_NAME) {
        return refused("has too long a path");
    }
    let mut path = String::with_capacity(text.len());
    let mut depth = 0;
    for step in text.split('/') {
        match step {
            "" | "." => continue,
            ".." => return refused("has `..` in its path"),
            name => {
                if depth > 0 {
                    path.push('/');
                }
                path.push_str(name);
                depth += 1;
            }
        }
    }
    if depth > DEEPEST {
        return refused("lies in too many directories");
    }
    Ok((depth > 0).then_some(path))
}

fn has_drive(text: &str) -> bool {
    matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A name for a message.
fn shown(name: &[u8]) -> String {
    let start = &name[..name.len().min(200)];
    format!("{:?}", String::from_utf8_lossy(start))
}

/// Reads any bytes as members, a line each: `name`, `directory/`, `link>target` or `name=file`.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn try_members(bytes: &[u8]) {
    use std::path::{Component, Path};

    let mut members = Members::new(1_000);
    for line in bytes.split(|&byte| byte == b'\n') {
        if let Some(equals) = line.iter().position(|&byte| byte == b'=') {
            // Another name of a file, as it would be made.
            if members.file(&line[equals + 1..]).is_ok() {
                let _ = members.admit(&line[..equals], Kind::File);
            }
            continue;
        }
        let (name, target) = match line.iter().position(|&byte| byte == b'>') {
            Some(arrow) => (&line[..arrow], Some(&line[arrow + 1..])),
            None => (line, None),
        };
        let kind = match target {
            Some(_) => Kind::Symlink,
            None if name.ends_with(b"/") => Kind::Directory,
            None => Kind::File,
        };
        let Ok(Some(path)) = members.admit(name, kind) else { continue };
        assert!(Path::new(&path).components().all(|part| matches!(part, Component::Normal(_))), "{path}");
        if target.is_some_and(|target| members.set_target(&path, target).is_err()) {
            return;
        }
    }
    if members.check_links().is_err() {
        return;
    }
    let links = members.admitted.values().filter(|member| member.target.is_some()).count();
    for (path, kind) in members.paths() {
        for (slash, _) in path.match_indices('/') {
            assert_eq!(members.admitted[&path[..slash]].kind, Kind::Directory, "{path}");
        }
        let target = members.admitted[path].target.as_ref();
        assert!(target.is_none() || kind == Kind::Symlink, "{path}");
        // The only link leads through no other, so that its steps can be counted.
        let Some(target) = target.filter(|_| links == 1) else { continue };
        let mut depth = path.matches('/').count();
        for step in target.split('/') {
            match step {
                "" | "." => {}
                ".." => depth = depth.checked_sub(1).unwrap_or_else(|| panic!("{path} leads out to {target}")),
                _ => depth += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members() -> Members {
        Members::new(1000)
    }

    #[test]
    fn names_are_paths_below() {
        for (name, path) in [("a", Some("a")), ("./a//b/", Some("a/b")), ("./", None), ("", None), (".", None)] {
            let admitted = members().admit(name.as_bytes(), Kind::Directory).unwrap();
            assert_eq!(admitted.as_deref(), path, "{name}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (long, deep) = ("x".repeat(256), "d/".repeat(129));
        for name in
            ["/a", "..", "a/../b", "../a", "a\\b", "..\\a", "C:\\a", "c:a", "C:/a", "a\0b", "\0", &long, &deep, ""]
        {
            let error = members().admit(name.as_bytes(), Kind::File).unwrap_err();
            assert_eq!(error.code(), "unsafe_archive", "{name}");
        }
        assert_eq!(members().admit(b"a\xff", Kind::File).unwrap_err().code(), "unsafe_archive");
        assert_eq!(members().admit(b"a/", Kind::File).unwrap_err().code(), "unsafe_archive");
    }

    #[test]
    fn nothing_is_there_twice_or_within_a_file() {
        let mut members = members();
        members.admit(b"d/f", Kind::File).unwrap();
        members.admit(b"d", Kind::Directory).unwrap();
        members.admit(b"l", Kind::Symlink).unwrap();
        for (name, kind) in [
            (&b"d/f"[..], Kind::File),
            (b"./d//f", Kind::File),
            (b"d/f/g", Kind::File),
            (b"d", Kind::File),
            (b"l/x", Kind::File),
            (b"l", Kind::Directory),
        ] {
            assert_eq!(members.admit(name, kind).unwrap_err().code(), "unsafe_archive", "{name:?}");
        }
    }

    fn links(links: &[(&str, &str)]) -> Result<()> {
        let mut members = members();
        for (path, target) in links {
            members.admit(path.as_bytes(), Kind::Symlink)?;
            members.set_target(path, target.as_bytes())?;
        }
        members.check_links()
    }

    #[test]
    fn links_that_stay_inside_are_fine() {
        for inside in [
            &[("a", "b")][..],
            &[("d/a", "../b")],
            &[("d/a", "..")],
            &[("d/a", "./x/../../d/./b")],
            &[("a", "d/e"), ("d/e", "../f")],
        ] {
            links(inside).unwrap();
        }
    }

    #[test]
    fn links_that_lead_out_are_refused_also_through_others() {
        for outside in [
            &[("a", "..")][..],
            &[("a", "/etc")],
            &[("d/a", "../../x")],
            // Read alone, `d/e/..` is `d`.
            &[("d/e", ".."), ("x", "d/e/../y")],
            &[("a", "b"), ("b", "a")],
            &[("a", "a")],
            &[("a", "C:\\x")],
            &[("a", "b\\c")],
            &[("a", "")],
        ] {
            assert_eq!(links(outside).unwrap_err().code(), "unsafe_archive", "{outside:?}");
        }
    }

    #[test]
    fn directories_that_are_only_implied_count() {
        let mut members = Members::new(3);
        members.admit(b"a/b/c", Kind::File).unwrap();
        assert_eq!(members.admit(b"d", Kind::File).unwrap_err().code(), "too_large");
    }

    proptest! {
        #[test]
        fn what_is_admitted_stays_below(names in prop::collection::vec("[a./\\\\:]{0,12}", 0..20)) {
            let mut members = members();
            for name in names {
                if let Ok(Some(path)) = members.admit(name.as_bytes(), Kind::File) {
                    let mut parts = std::path::Path::new(&path).components();
                    let below = parts.all(|part| matches!(part, std::path::Component::Normal(_)));
                    prop_assert!(below && !path.is_empty(), "{name} {path}");
                }
            }
        }
    }
}
