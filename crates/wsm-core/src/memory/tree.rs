//! The files of one workspace.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, Result},
    files::{DirEntry, FileKind, Metadata},
};

/// The workspace directory, as commands see it.
pub(super) const WORKDIR: &str = "/workspace";

#[derive(Debug, Clone)]
enum Node {
    Directory,
    File { bytes: Bytes, mode: u32, modified: SystemTime },
}

/// The files of one workspace, by their path below the workspace directory.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    nodes: BTreeMap<String, Node>,
}

/// A path below the workspace directory, without `.` and `..`. The directory itself is the empty one.
pub(super) fn resolve(cwd: &str, path: &str) -> Result<String> {
    let whole = match path.strip_prefix('/') {
        Some(_) => path.strip_prefix(WORKDIR).filter(|rest| rest.is_empty() || rest.starts_with('/')),
        None => Some(path),
    };
    let outside = || {
        Error::new(ErrorKind::PermissionDenied, format!("`{path}` leads out of the workspace"))
            .with_code("path_outside")
            .with_field("path")
    };
    let base = if path.starts_with('/') { "" } else { cwd };
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in whole.ok_or_else(outside)?.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or_else(outside)?),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn not_found(path: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("`{path}` does not exist")).with_field("path")
}

fn in_the_way(path: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("`{path}` is in the way")).with_field("path")
}

impl Tree {
    fn metadata_of(node: &Node) -> Metadata {
        match node {
            Node::Directory => Metadata::new(FileKind::Directory, 0).with_mode(0o755),
            Node::File { bytes, mode, modified } => {
                Metadata::new(FileKind::File, bytes.len() as u64).with_mode(*mode).with_modified(*modified)
            }
        }
    }

    pub(super) fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || matches!(self.nodes.get(path), Some(Node::Directory))
    }

    pub(super) fn stat(&self, path: &str) -> Result<Metadata> {
        if path.is_empty() {
            return Ok(Self::metadata_of(&Node::Directory));
        }
        self.nodes.get(path).map(Self::metadata_of).ok_or_else(|| not_found(path))
    }

    pub(super) fn read(&self, path: &str) -> Result<(Metadata, Bytes)> {
        match self.nodes.get(path) {
            Some(node @ Node::File { bytes, .. }) => Ok((Self::metadata_of(node), bytes.clone())),
            _ if self.is_dir(path) => {
                Err(Error::invalid("path", format!("`{path}` is a directory")).with_code("is_a_directory"))
            }
            _ => Err(not_found(path)),
        }
    }

    pub(super) fn write(
        &mut self,
        path: &str,
        bytes: Bytes,
        mode: Option<u32>,
        create_parents: bool,
        overwrite: bool,
    ) -> Result<Metadata> {
        self.check_write(path, create_parents, overwrite)?;
        if create_parents {
            self.make_dir(parent(path))?;
        }
        let mode = mode.unwrap_or(match self.nodes.get(path) {
            Some(Node::File { mode, .. }) => *mode,
            _ => 0o644,
        });
        let node = Node::File { bytes, mode, modified: SystemTime::now() };
        let metadata = Self::metadata_of(&node);
        self.nodes.insert(path.to_owned(), node);
        Ok(metadata)
    }

    /// Whether a file could be written, so that a body is not read for nothing.
    pub(super) fn check_write(&self, path: &str, create_parents: bool, overwrite: bool) -> Result<()> {
        if self.is_dir(path) {
            return Err(Error::invalid("path", format!("`{path}` is a directory")).with_code("is_a_directory"));
        }
        if !overwrite && self.nodes.contains_key(path) {
            return Err(in_the_way(path));
        }
        if !create_parents && !self.is_dir(parent(path)) {
            return Err(not_found(parent(path)));
        }
        Ok(())
    }

    pub(super) fn append(&mut self, path: &str, more: &[u8]) -> Result<()> {
        let old = match self.nodes.get(path) {
            Some(Node::File { bytes, .. }) => bytes.clone(),
            _ => Bytes::new(),
        };
        self.write(path, [&old, more].concat().into(), None, false, true).map(drop)
    }

    pub(super) fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        if !self.is_dir(path) {
            self.stat(path)?;
            return Err(Error::invalid("path", format!("`{path}` is not a directory")).with_code("not_a_directory"));
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = self.nodes.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
        Ok(below
            .filter(|(name, _)| !name[prefix.len()..].contains('/'))
            .map(|(name, node)| DirEntry::new(&name.as_bytes()[prefix.len()..], Self::metadata_of(node)))
            .collect())
    }

    pub(super) fn make_dir(&mut self, path: &str) -> Result<()> {
        let mut whole = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !whole.is_empty() {
                whole.push('/');
            }
            whole.push_str(part);
            if let Node::File { .. } = self.nodes.entry(whole.clone()).or_insert(Node::Directory) {
                return Err(in_the_way(&whole));
            }
        }
        Ok(())
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = String> + 'a {
        let prefix = format!("{path}/");
        let end = prefix.clone();
        self.nodes.range(prefix..).map(|(name, _)| name.clone()).take_while(move |name| name.starts_with(&end))
    }

    pub(super) fn remove(&mut self, path: &str, recursive: bool, missing_ok: bool) -> Result<()> {
        if path.is_empty() {
            return Err(Error::invalid("path", "the workspace directory itself can not be removed"));
        }
        if !self.nodes.contains_key(path) {
            return if missing_ok { Ok(()) } else { Err(not_found(path)) };
        }
        let below: Vec<String> = self.below(path).collect();
        if !below.is_empty() && !recursive {
            return Err(Error::new(ErrorKind::Conflict, format!("the directory `{path}` is not empty"))
                .with_code("directory_not_empty")
                .with_field("path"));
        }
        self.nodes.remove(path);
        for name in below {
            self.nodes.remove(&name);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let node = self.nodes.get(from).cloned().ok_or_else(|| not_found(from))?;
        if !self.is_dir(parent(to)) {
            return Err(not_found(parent(to)));
        }
        let moves_dir = matches!(node, Node::Directory);
        if to.is_empty() || to.starts_with(&format!("{from}/")) {
            return Err(in_the_way(to));
        }
        if let Some(there) = self.nodes.get(to) {
            let is_dir = matches!(there, Node::Directory);
            if is_dir != moves_dir || (is_dir && from != to && self.below(to).next().is_some()) {
                return Err(in_the_way(to));
            }
        }
        let below: Vec<String> = self.below(from).collect();
        self.nodes.remove(from);
        self.nodes.insert(to.to_owned(), node);
        for name in below {
            if let Some(node) = self.nodes.remove(&name) {
                self.nodes.insert(format!("{to}{}", &name[from.len()..]), node);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_below_the_workspace_directory() {
        for (cwd, path, resolved) in [
            ("", "a/./b/../c", "a/c"),
            ("d", "a", "d/a"),
            ("d", "..", ""),
            ("d", "/workspace/a", "a"),
            ("d", "/workspace", ""),
        ] {
            assert_eq!(resolve(cwd, path).unwrap(), resolved);
        }
        for path in ["..", "a/../..", "/etc", "/workspaces", "/workspace/../etc"] {
            assert_eq!(resolve("", path).unwrap_err().code(), "path_outside", "{path}");
        }
    }
}
