//! Where an archive is unpacked to, and what is there already.

use std::{
    collections::HashSet,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, openat, renameat, renameat_with, statat},
    io::Errno,
};
use wsm_core::{Error, ErrorKind, Result, validate_path};

use super::{
    stage::{Stage, TREE, open_below},
    system,
};
use crate::{
    Overwrite,
    member::{Kind, Members},
};

/// Within the stage: what was replaced.
const OLD: &str = "old";

/// The place of a directory.
#[derive(Debug)]
pub(super) struct Place {
    /// As the caller calls it.
    shown: String,
    parent: OwnedFd,
    /// Its name in `parent`; none when it is `parent` itself, into which members are moved one by one.
    name: Option<String>,
    /// Whether there is a directory.
    exists: bool,
    overwrite: Overwrite,
    made: MadeParents,
}

/// Directories that were made on the way, which go away unless they are needed.
#[derive(Debug, Default)]
struct MadeParents(Vec<PathBuf>);

impl Drop for MadeParents {
    fn drop(&mut self) {
        for made in self.0.iter().rev() {
            // Somebody else may have put something there.
            let _ = fs::remove_dir(made);
        }
    }
}

impl Place {
    /// Looks at the place, and makes its parents. What can be refused is refused here, before the archive is read.
    pub(super) fn prepare(workdir: &Path, path: &str, overwrite: Overwrite) -> Result<Self> {
        validate_path(path)?;
        let shown = path.to_owned();
        let failed = |cause: io::Error| {
            let what = format!("`{path}` can not be unpacked to");
            if cause.kind() == io::ErrorKind::NotADirectory { in_the_way(path) } else { system(what, cause) }
                .with_field("path")
        };
        let absolute = workdir.join(path);
        let found = match fs::symlink_metadata(&absolute) {
            Ok(found) => Some(found),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(failed(cause)),
        };
        let Some(found) = found else {
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name().and_then(|name| name.to_str()))
            else {
                return Err(Error::invalid("path", format!("`{path}` names no directory that could be made")));
            };
            let made = make_parents(parent).map_err(failed)?;
            let (parent, name) = (open(parent).map_err(failed)?, Some(name.to_owned()));
            return Ok(Self { shown, parent, name, exists: false, overwrite, made });
        };
        let leads = if overwrite == Overwrite::Merge { fs::metadata(&absolute).map_err(failed)? } else { found };
        if !leads.is_dir() {
            return Err(in_the_way(path));
        }
        if overwrite == Overwrite::Refuse && fs::read_dir(&absolute).map_err(failed)?.next().is_some() {
            let message = format!("`{path}` is not empty: choose `replace` or `merge`, or another directory");
            return Err(conflict(message));
        }
        let real = fs::canonicalize(&absolute).map_err(failed)?;
        let (parent, name) = match (overwrite, real.parent(), real.file_name().and_then(|name| name.to_str())) {
            (Overwrite::Merge, ..) => (real.as_path(), None),
            (_, Some(parent), Some(name)) => (parent, Some(name.to_owned())),
            _ => return Err(Error::invalid("path", format!("`{path}` can not be exchanged as a whole: use `merge`"))),
        };
        let parent = open(parent).map_err(failed)?;
        Ok(Self { shown, parent, name, exists: true, overwrite, made: MadeParents::default() })
    }

    /// Makes the directory to unpack into, on the same file system.
    pub(super) fn stage(&self) -> Result<Stage> {
        let parent = self.parent.try_clone().map_err(|cause| system("no directory can be opened", cause))?;
        Stage::new(parent)
    }

    /// Moves what is in the stage into place.
    pub(super) fn commit(mut self, stage: &mut Stage, members: &Members) -> Result<()> {
        stage.forget();
        let moved = match &self.name {
            None => self.merge(stage, members),
            Some(name) => self.rename(stage, name).map_err(|errno| self.refusal(errno)),
        };
        moved?;
        self.made.0.clear();
        Ok(())
    }

    fn rename(&self, stage: &Stage, name: &str) -> Result<(), Errno> {
        let (from, to) = (&stage.directory, &self.parent);
        if self.exists && self.overwrite == Overwrite::Replace {
            return match renameat_with(from, TREE, to, name, RenameFlags::EXCHANGE) {
                // Not every file system can exchange.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    renameat(to, name, from, OLD)?;
                    renameat(from, TREE, to, name).inspect_err(|_| {
                        let _ = renameat(from, OLD, to, name);
                    })
                }
                // It has gone meanwhile.
                Err(Errno::NOENT) => renameat(from, TREE, to, name),
                exchanged => exchanged,
            };
        }
        // A directory takes the place of nothing but an empty one.
        renameat(from, TREE, to, name)
    }

    fn refusal(&self, errno: Errno) -> Error {
        let path = &self.shown;
        match errno {
            Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR => {
                conflict(format!("something was put at `{path}` while the archive was unpacked"))
            }
            Errno::BUSY | Errno::XDEV => {
                conflict(format!("`{path}` is a mount point, which can not be exchanged: use `merge`"))
            }
            errno => system(format!("what was unpacked can not be moved to `{path}`"), errno.into()),
        }
        .with_source(errno)
    }

    /// Moves the members one by one, after looking at what is in their places.
    fn merge(&self, stage: &mut Stage, members: &Members) -> Result<()> {
        for (path, kind) in members.paths() {
            self.check_member(path, kind)?;
        }
        let mut moved: HashSet<&str> = HashSet::new();
        for (path, kind) in members.paths() {
            // What lies in a directory has been moved with it.
            if path.match_indices('/').any(|(slash, _)| moved.contains(&path[..slash])) {
                continue;
            }
            let mut step = || -> Result<bool, Errno> {
                let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
                let to = open_below(&self.parent, parent)?;
                if kind == Kind::Directory && is_dir(&to, name)? == Some(true) {
                    return Ok(false);
                }
                let (from, name) = stage.parent(path)?;
                renameat(from, name, &to, name)?;
                Ok(kind == Kind::Directory)
            };
            let failed =
                |errno: Errno| system(format!("the member `{path}` can not be moved into place"), errno.into());
            if step().map_err(failed)? {
                moved.insert(path);
            }
        }
        Ok(())
    }

    fn check_member(&self, path: &str, kind: Kind) -> Result<()> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let clash = || conflict(format!("the member `{path}` can not take the place of what is there: another kind"));
        let parent = match open_below(&self.parent, parent) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(conflict(format!("on the way to the member `{path}` there is a link or a file")));
            }
            Err(errno) => return Err(system(format!("the place of the member `{path}`"), errno.into())),
        };
        match is_dir(&parent, name) {
            Ok(None) => Ok(()),
            Ok(Some(is_dir)) if is_dir == (kind == Kind::Directory) => Ok(()),
            Ok(Some(_)) => Err(clash()),
            Err(errno) => Err(system(format!("the place of the member `{path}`"), errno.into())),
        }
    }
}

/// None when there is nothing.
fn is_dir(parent: impl AsFd, name: &str) -> Result<Option<bool>, Errno> {
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn make_parents(parent: &Path) -> io::Result<MadeParents> {
    let missing: Vec<&Path> = parent.ancestors().take_while(|path| fs::metadata(path).is_err()).collect();
    let mut made = MadeParents::default();
    for path in missing.into_iter().rev() {
        match fs::create_dir(path) {
            Ok(()) => made.0.push(path.to_owned()),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(made)
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn conflict(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message).with_field("path")
}

fn in_the_way(path: &str) -> Error {
    conflict(format!("at `{path}`, or on the way there, is something that is not a directory"))
}
