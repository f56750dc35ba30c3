//! The directory below which everything lies: how it is laid out, and that it is still the same one.
//!
//! ```text
//! <basedir>/<a>/<b>, <basedir>/<a>     a workspace at a place that its backend prefers
//! <basedir>/.wsm/workspaces/<id>       every other workspace
//! <basedir>/.wsm/index/<id>.json       where the workspace of an id is, and whose
//! <basedir>/.wsm/places/<place>        which id a preferred place was given to
//! <basedir>/.wsm/trash/<random>        what is being deleted
//! <basedir>/.wsm/lock                  held while the index is changed
//! ```
//!
//! Preferred places have one or two parts, none of which begins with a dot, as encoded ids do not. So none is below `.wsm`. A
//! place that would lie in another or around it is not given, so that no workspace lies inside another.

use std::{
    fmt,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2, unlinkat},
    io::Errno,
};
use wsm_core::{Error, ErrorKind, Result, WorkspaceId};

use crate::{
    error,
    index::{self, Arrival, Index, Record, Settled, Wanted},
    opening::Place,
};

pub(crate) const INDEX: &str = ".wsm/index";
pub(crate) const PLACES: &str = ".wsm/places";
pub(crate) const TRASH: &str = ".wsm/trash";
pub(crate) const WORKSPACES: &str = ".wsm/workspaces";
const LOCK: &str = ".wsm/lock";

/// Only we look into a directory that we make.
pub(crate) const PRIVATE_DIR: Mode = Mode::RWXU;

/// Which file something is, by whatever path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// To be written down and compared.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.dev, self.ino)
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// A directory full of workspaces, as it was found when it was first used, with the index that remembers which directory an
/// id has.
///
/// Several processes may use one basedir. Everything here blocks.
#[derive(Debug)]
pub struct Basedir {
    /// Absolute and without links, so that it is also what a command in a workspace sees.
    path: String,
    identity: Identity,
}

impl Basedir {
    /// Makes the basedir and its layout, where they do not exist, and checks that they can be used.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `basedir` for anything but a directory that can be written; `unsupported` when the kernel
    /// lacks `openat2`.
    pub fn prepare(basedir: &Path) -> Result<Self> {
        require_openat2()?;
        std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIR.as_raw_mode()).create(basedir).map_err(
            |cause| {
                let problem = match cause.kind() {
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                        "is, or lies below, something that is not a directory: give a directory"
                    }
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        "can not be made: make it yourself, and give it to the user that wsm runs as"
                    }
                    _ => "can not be made",
                };
                error::basedir(basedir, problem).with_source(cause)
            },
        )?;
        let path = std::fs::canonicalize(basedir)
            .map_err(|cause| error::basedir(basedir, "can not be entered").with_source(cause))?;
        let metadata =
            path.metadata().map_err(|cause| error::basedir(basedir, "can not be looked at").with_source(cause))?;
        if !metadata.is_dir() {
            return Err(error::basedir(basedir, "is not a directory: give a directory"));
        }
        let Ok(path) = path.into_os_string().into_string() else {
            return Err(error::basedir(basedir, "is not UTF-8: give a directory whose path is"));
        };
        let base = Self { path, identity: Identity { dev: metadata.dev(), ino: metadata.ino() } };
        base.make_layout().map_err(|errno| {
            let problem = match errno {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    "can not be written: give it to the user that wsm runs as, or give another directory"
                }
                _ => "can not be set up",
            };
            error::basedir(basedir, problem).with_source(errno)
        })?;
        Ok(base)
    }

    fn make_layout(&self) -> Result<(), Errno> {
        let base = openat(CWD, self.path.as_str(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for directory in [".wsm", INDEX, PLACES, TRASH, WORKSPACES] {
            match mkdirat(&base, directory, PRIVATE_DIR) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        // Existing directories may still be read-only.
        let probe = format!("{TRASH}/{}", uuid::Uuid::new_v4().simple());
        mkdirat(&base, probe.as_str(), PRIVATE_DIR)?;
        match unlinkat(&base, probe.as_str(), AtFlags::REMOVEDIR) {
            // Another process that starts at the same moment has emptied the trash.
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Which directory it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its path, absolute and without links.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The absolute path of the directory that a record names.
    pub fn path_of(&self, record: &Record) -> String {
        format!("{}/{}", self.path.trim_end_matches('/'), record.path)
    }

    /// Finds the directory of a workspace, or makes it. Its record is written before.
    ///
    /// # Errors
    ///
    /// `permission_denied` with code `foreign_owner`, in which case nothing is changed; `backend` with code
    /// `index_damaged`; `conflict` when something else is in the place of the directory; `unavailable`.
    pub fn settle(&self, wanted: Wanted) -> Result<Settled> {
        index::settle(self, wanted)
    }

    /// Says of a settled workspace that its arrival could not be told to anybody, since what else it takes could not be
    /// made. The next one to settle it learns of it.
    ///
    /// # Errors
    ///
    /// As for [`find`](Self::find).
    pub fn take_back(&self, id: &WorkspaceId, arrival: Arrival) -> Result<()> {
        index::take_back(self, id, arrival)
    }

    /// The directory of a settled workspace, to be opened for as long as it is the same one.
    pub fn directory(self: &Arc<Self>, settled: &Settled) -> Directory {
        Directory { path: self.path_of(&settled.record), identity: settled.identity, base: Arc::clone(self) }
    }

    /// The record of an id and whether its directory is there, or none when there definitely is no such workspace.
    ///
    /// # Errors
    ///
    /// `backend` with code `index_damaged`, naming the file; `unavailable`.
    pub fn find(&self, id: &WorkspaceId) -> Result<Option<(Record, bool)>> {
        let directory = self.open()?;
        let Some(record) = Index::open(&directory)?.read(id)? else { return Ok(None) };
        let exists = index::look(&directory, &record.path)?.is_some();
        Ok(Some((record, exists)))
    }

    /// The record of an id, or none when there definitely is no such workspace.
    ///
    /// # Errors
    ///
    /// As for [`find`](Self::find).
    pub fn read(&self, id: &WorkspaceId) -> Result<Option<Record>> {
        Index::open(&self.open()?)?.read(id)
    }

    /// The names of all records, for [`read_listed`](Self::read_listed).
    ///
    /// # Errors
    ///
    /// `unavailable`; what the system says of a directory that can not be listed.
    pub fn list(&self) -> Result<Vec<String>> {
        Index::open(&self.open()?)?.files()
    }

    /// Reads some records that were listed, and whether their directories are there. One that can not be read is told in
    /// its place, one that was removed in the meantime is left out.
    ///
    /// # Errors
    ///
    /// `unavailable`.
    pub fn read_listed(&self, names: &[String]) -> Result<Vec<Result<(Record, bool)>>> {
        let directory = self.open()?;
        let index = Index::open(&directory)?;
        let read = |name: &String| -> Result<Option<(Record, bool)>> {
            let Some(record) = index.read_listed(name)? else { return Ok(None) };
            let exists = index::look(&directory, &record.path)?.is_some();
            Ok(Some((record, exists)))
        };
        Ok(names.iter().filter_map(|name| read(name).transpose()).collect())
    }

    /// Takes a workspace's directory away and forgets it, so that the id is free, and deletes the files.
    ///
    /// The directory is moved aside first: nobody ever finds one that is half deleted, and what a crash leaves is swept by
    /// [`sweep_trash`](Self::sweep_trash).
    ///
    /// # Errors
    ///
    /// `backend` with code `index_damaged`; `unavailable`; what the system says of files that can not be deleted.
    pub fn vacate(&self, id: &WorkspaceId) -> Result<()> {
        index::vacate(self, id)
    }

    /// Deletes what crashes left half written or half deleted.
    ///
    /// # Errors
    ///
    /// `unavailable`; what the system says of files that can not be deleted.
    pub fn sweep_trash(&self) -> Result<()> {
        index::sweep_trash(self)
    }

    /// Opens the basedir itself.
    ///
    /// # Errors
    ///
    /// `unavailable` when it is not the directory that it was: below an empty mount point, every workspace would look
    /// as if it did not exist.
    pub(crate) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (base, stat) = openat(CWD, self.path.as_str(), flags, Mode::empty())
            .and_then(|base| fstat(&base).map(|stat| (base, stat)))
            .map_err(|errno| self.unavailable("can not be opened").with_source(errno))?;
        if Identity::from(&stat) != self.identity {
            return Err(self.unavailable("is not the directory that it was at the start: was something mounted there?"));
        }
        Ok(base)
    }

    fn unavailable(&self, problem: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("`basedir` {} {problem}", self.path))
    }

    /// Waits until nobody else changes the index, in this process or another one.
    pub(crate) fn lock(&self, base: &OwnedFd) -> Result<Lock> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(base, LOCK, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        let file = file.map_err(|errno| error::system("the lock of the index could not be opened", errno))?;
        file.lock().map_err(|cause| error::io("the index could not be locked", cause))?;
        Ok(Lock { _file: file })
    }
}

/// The directory of a workspace in a [`Basedir`]. It holds no file open, so that an idle workspace costs memory alone.
#[derive(Debug)]
pub struct Directory {
    path: String,
    identity: Identity,
    base: Arc<Basedir>,
}

impl Directory {
    /// Which directory it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

impl Place for Directory {
    fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, self.path.as_str(), flags, Mode::empty())
            .and_then(|directory| fstat(&directory).map(|stat| (directory, Identity::from(&stat))));
        match opened {
            Ok((directory, identity)) if identity == self.identity => Ok(directory),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                // Unless the whole basedir is gone, which says nothing about the workspace.
                self.base.open()?;
                Err(error::directory_gone())
            }
            Err(errno) => {
                Err(Error::new(ErrorKind::Unavailable, "the workspace's directory can not be opened")
                    .with_source(errno))
            }
        }
    }
}

/// The right to change the index, until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    /// Closing the file gives the lock up; so does the death of the process.
    _file: File,
}

/// Opens a directory of the layout, without following any link on the way.
pub(crate) fn open_directory(base: impl AsFd, path: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(base, path.as_ref(), flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Whether the kernel can keep a path from leading out.
///
/// # Errors
///
/// `unsupported` with code `openat2_missing`.
pub fn require_openat2() -> Result<()> {
    match openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        Ok(_) => Ok(()),
        Err(errno) => {
            let message = "the kernel does not offer `openat2`, without which files can not be confined to a \
                           workspace: Linux 5.6 or newer is needed, and a seccomp filter must allow it";
            Err(Error::new(ErrorKind::Unsupported, message).with_code("openat2_missing").with_source(errno))
        }
    }
}

/// The name of a new file or directory that nobody else makes.
pub(crate) fn unique_name() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
