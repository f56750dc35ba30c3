//! From a path in a workspace to what it names, without ever leaving the workspace.
//!
//! The kernel does the confinement (`openat2` with `RESOLVE_BENEATH`): it resolves the path and refuses to leave in one
//! step, so that nothing that is swapped in meanwhile can lead out. What changes a directory is done to the opened
//! parent and the last name, never to a path that would be resolved again.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};
use wsm_core::{Error, Metadata, Result};

use super::{make_dir::make_dirs, metadata};
use crate::error;

/// How often the kernel is asked again when something was moved while it looked.
const TRIES: usize = 128;

/// How far the paths of file operations reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reach {
    /// Nowhere but into the workspace directory, and what lies below. An absolute path is accepted when it lies inside;
    /// a symbolic link with an absolute target is refused even then.
    Workdir,
    /// Wherever this process can reach, as it sees it. For the inside of a sandbox.
    Everything,
}

/// The opened directory of a workspace.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    /// The absolute path of the directory.
    workdir: String,
    reach: Reach,
}

/// The last step of a path, and the opened directory that it starts from.
#[derive(Debug)]
pub(super) struct Target<'p> {
    pub(super) parent: OwnedFd,
    pub(super) name: &'p str,
}

impl Root {
    pub(crate) fn new(directory: OwnedFd, workdir: impl Into<String>, reach: Reach) -> Self {
        Self { directory, workdir: workdir.into(), reach }
    }

    /// The path below the workspace directory. An absolute one inside is taken relative to it; one outside stays as it is
    /// where everything can be reached.
    ///
    /// # Errors
    ///
    /// `permission_denied` with code `path_outside` for an absolute path that does not lie inside.
    pub(super) fn relative<'p>(&self, path: &'p str) -> Result<&'p str> {
        if !path.starts_with('/') {
            return Ok(path);
        }
        let mut rest = path;
        for step in self.workdir.split('/').filter(|step| !step.is_empty()) {
            let inner = trim_start(rest);
            rest = match inner.strip_prefix(step) {
                Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
                _ if self.reach == Reach::Everything => return Ok(path),
                _ => return Err(error::outside(path)),
            };
        }
        let rest = trim_start(rest);
        Ok(if rest.is_empty() { "." } else { rest })
    }

    /// Opens what `path` names.
    pub(super) fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        self.try_open(self.relative(path)?, flags).map_err(|errno| refusal(path, errno))
    }

    /// Opens what [`relative`](Self::relative) gave, or a part of it.
    pub(super) fn try_open(&self, relative: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = match self.reach {
            Reach::Workdir => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            // Nobody gets at the open files of this process, whatever the reach.
            Reach::Everything => ResolveFlags::NO_MAGICLINKS,
        };
        for _ in 0..TRIES {
            match openat2(&self.directory, relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // Something was renamed while the kernel looked for a way out through `..`.
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
        }
        Err(Errno::BUSY)
    }

    /// Opens a directory to run in.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `cwd`; `permission_denied` about `cwd` for one that lies outside.
    pub(crate) fn open_cwd(self, cwd: Option<&str>) -> Result<OwnedFd> {
        let Some(cwd) = cwd else { return Ok(self.directory) };
        let opened = self.relative(cwd).and_then(|relative| {
            self.try_open(relative, OFlags::PATH | OFlags::DIRECTORY).map_err(|errno| refusal(cwd, errno))
        });
        opened.map_err(|error| {
            if error.code() == error::PATH_OUTSIDE {
                return error.with_field("cwd");
            }
            Error::invalid("cwd", format!("`cwd` is not a directory of the workspace: `{cwd}`")).with_source(error)
        })
    }

    /// Opens the parent of what `path` names. None when the path does not end in a name: it is the workspace directory,
    /// or ends in `..`.
    pub(super) fn target<'p>(&self, path: &'p str, create_parents: bool) -> Result<Option<Target<'p>>> {
        let relative = self.relative(path)?;
        let (parent, name) = split(relative);
        if matches!(name, "" | "." | "..") {
            // Perhaps it is not even a path of the workspace.
            self.open(path, OFlags::PATH)?;
            return Ok(None);
        }
        let parent = if create_parents { make_dirs(self, path, parent)? } else { self.parent(path, parent)? };
        Ok(Some(Target { parent, name }))
    }

    fn parent(&self, path: &str, parent: &str) -> Result<OwnedFd> {
        self.try_open(parent, OFlags::PATH | OFlags::DIRECTORY).map_err(|errno| refusal(path, errno))
    }
}

/// What `path` is. A link at its end is told, not followed.
pub(crate) fn stat(root: &Root, path: &str) -> Result<Metadata> {
    let found = root.open(path, OFlags::PATH | OFlags::NOFOLLOW)?;
    fstat(found).map(|stat| metadata(&stat)).map_err(|errno| error::file(path, errno))
}

/// Why the kernel did not open `path`.
pub(super) fn refusal(path: &str, errno: Errno) -> Error {
    match errno {
        Errno::XDEV => error::outside(path),
        errno => error::file(path, errno),
    }
}

/// Splits off the last step; a slash at the end does not count.
fn split(relative: &str) -> (&str, &str) {
    let trimmed = relative.trim_end_matches('/');
    match trimmed.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => (".", trimmed),
    }
}

/// Without the slashes, and steps to the same place, at the beginning.
fn trim_start(mut path: &str) -> &str {
    loop {
        let trimmed = path.trim_start_matches('/');
        path = match trimmed.strip_prefix("./") {
            Some(rest) => rest,
            None if trimmed == "." => return "",
            None => return trimmed,
        };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, openat};

    use super::*;

    fn root(workdir: &str) -> Root {
        Root::new(openat(CWD, "/", OFlags::PATH, Mode::empty()).unwrap(), workdir, Reach::Workdir)
    }

    #[test]
    fn where_everything_is_reached_only_paths_inside_become_relative() {
        let root = Root { reach: Reach::Everything, ..root("/base/w") };
        for (path, relative) in [("a", "a"), ("/base/w/a", "a"), ("/base/w", "."), ("/base/x", "/base/x"), ("/", "/")] {
            assert_eq!(root.relative(path).unwrap(), relative, "{path}");
        }
    }

    #[test]
    fn an_absolute_path_inside_is_taken_relative_to_the_workdir() {
        let root = root("/base/ann/coder");
        for (path, relative) in [
            ("a", "a"),
            ("../a", "../a"),
            ("/base/ann/coder", "."),
            ("/base/ann/coder/", "."),
            ("//base/./ann//coder/./a//b/", "a//b/"),
            ("/base/ann/coder/../x", "../x"),
        ] {
            assert_eq!(root.relative(path).unwrap(), relative, "{path}");
        }
    }

    #[test]
    fn any_other_absolute_path_is_outside() {
        let root = root("/base/ann/coder");
        for path in ["/", "/base/ann", "/base/ann/coder2", "/base/ann/coder2/x", "/etc/passwd", "/x/../base/ann/coder"]
        {
            let error = root.relative(path).unwrap_err();
            assert_eq!((error.code(), error.field()), ("path_outside", Some("path")), "{path}");
        }
    }

    #[test]
    fn the_last_step_is_split_off() {
        for (path, parts) in [
            ("a", (".", "a")),
            ("a/b", ("a", "b")),
            ("a//b//", ("a/", "b")),
            (".", (".", ".")),
            ("a/..", ("a", "..")),
            ("/a", ("/", "a")),
        ] {
            assert_eq!(split(path), parts, "{path}");
        }
    }
}
