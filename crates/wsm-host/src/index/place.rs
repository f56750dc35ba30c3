//! Which directory a workspace has, and how it gets and loses it.

use std::{ffi::CString, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, fstat, mkdirat, openat, renameat, unlinkat},
    io::Errno,
};
use wsm_core::{Encoding, Error, ErrorKind, Result, UserId, WorkspaceId};

use super::{Arrival, Index, Record};
use crate::{
    basedir::{Basedir, Identity, PLACES, PRIVATE_DIR, TRASH, WORKSPACES, open_directory, unique_name},
    error,
    tree::remove_tree,
};

/// A workspace that is to be opened.
#[derive(Debug)]
pub struct Wanted {
    /// Which one.
    pub id: WorkspaceId,
    /// Who wants it.
    pub owner: Option<UserId>,
    /// Where in the basedir a new one is put, as one encoded name or two with a slash between them, unless another id has
    /// that place, or it would lie in another one's or around it. Without it, or then, it gets a directory that is named after the id.
    pub preferred: Option<String>,
    /// Whether it may be somebody else's.
    pub allow_foreign_owner: bool,
    /// Which directory it was when it was last seen.
    pub known: Option<Identity>,
}

/// A workspace whose directory is there.
#[derive(Debug)]
pub struct Settled {
    /// What is written down of it.
    pub record: Record,
    /// Which directory it is.
    pub identity: Identity,
    /// Why the directory had to be made; none if it was there.
    pub arrival: Option<Arrival>,
}

/// See [`Basedir::settle`].
pub(crate) fn settle(base: &Basedir, wanted: Wanted) -> Result<Settled> {
    let Wanted { id, owner, preferred, allow_foreign_owner, known } = wanted;
    let directory = base.open()?;
    let _lock = base.lock(&directory)?;
    let index = Index::open(&directory)?;
    let (mut record, is_new) = match index.read(&id)? {
        Some(record) => (record, false),
        None => {
            let path = choose_path(&index, &directory, &id, preferred)?;
            (Record::new(id, path, owner.clone()), true)
        }
    };
    if !allow_foreign_owner && record.owner.is_some() && owner.is_some() && record.owner != owner {
        let message = "the workspace belongs to another user";
        return Err(Error::new(ErrorKind::PermissionDenied, message).with_code("foreign_owner"));
    }
    let is_claimed = record.owner.is_none() && owner.is_some();
    if is_claimed {
        record.owner = owner;
    }
    let found = look(&directory, &record.path)?;
    let is_another = known.is_some() && found.is_some() && known != found;
    let is_lost = !is_new && record.arriving.is_none() && (found.is_none() || is_another);
    if is_lost {
        record.generation += 1;
        record.arriving = Some(Arrival::Recreated);
    } else if is_new && found.is_none() {
        record.arriving = Some(Arrival::Created);
    }
    if is_new || is_claimed || is_lost {
        index.write(&record)?;
    }
    let identity = match found {
        Some(identity) => identity,
        None => make(&directory, &record.path)?,
    };
    let arrival = record.arriving.take();
    if arrival.is_some() {
        index.write(&record)?;
    }
    Ok(Settled { record, identity, arrival })
}

/// See [`Basedir::take_back`].
pub(crate) fn take_back(base: &Basedir, id: &WorkspaceId, arrival: Arrival) -> Result<()> {
    let directory = base.open()?;
    let _lock = base.lock(&directory)?;
    let index = Index::open(&directory)?;
    let Some(mut record) = index.read(id)? else { return Ok(()) };
    record.arriving = Some(arrival);
    index.write(&record)
}

/// See [`Basedir::vacate`].
pub(crate) fn vacate(base: &Basedir, id: &WorkspaceId) -> Result<()> {
    let directory = base.open()?;
    let lock = base.lock(&directory)?;
    let index = Index::open(&directory)?;
    let Some(record) = index.read(id)? else { return Ok(()) };
    let trash = unique_name();
    match renameat(&directory, record.path.as_str(), &index.trash, trash.as_str()) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
        Err(errno) => return Err(error::system("the workspace's directory could not be moved aside", errno)),
    }
    release_place(&directory, &record)?;
    index.remove(id)?;
    // Others need not wait while many files are deleted.
    drop(lock);
    remove_tree(&index.trash, trash.as_str()).map_err(|errno| {
        let message =
            format!("files of the workspace are left in `{TRASH}/{trash}` in the basedir: remove them by hand");
        error::system(&message, errno)
    })
}

/// See [`Basedir::sweep_trash`].
pub(crate) fn sweep_trash(base: &Basedir) -> Result<()> {
    let directory = base.open()?;
    let index = Index::open(&directory)?;
    let names = || -> Result<Vec<CString>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = Dir::new(openat(&index.trash, ".", flags, Mode::empty())?)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_owned()));
        names.filter(|name| !name.as_ref().is_ok_and(|name| name.to_bytes().starts_with(b"."))).collect()
    };
    let result = {
        // What somebody else writes or moves aside at this moment is theirs, and not yet trash.
        let _lock = base.lock(&directory)?;
        names()
    };
    let result = result.and_then(|names| names.iter().try_for_each(|name| remove_tree(&index.trash, name.as_c_str())));
    result.map_err(|errno| error::system("what an earlier crash left could not be deleted", errno))
}

/// The directory of a new id: the preferred one where nobody else has it, else one named by the id.
fn choose_path(index: &Index, base: &OwnedFd, id: &WorkspaceId, preferred: Option<String>) -> Result<String> {
    if let Some(path) = preferred
        && claim_place(index, base, &path, id)?
    {
        return Ok(path);
    }
    Ok(format!("{WORKSPACES}/{}", Encoding::PATH_SEGMENT.encode(id.as_str())))
}

/// Notes that a preferred place is given to `id`, unless another id has it.
fn claim_place(index: &Index, base: &OwnedFd, path: &str, id: &WorkspaceId) -> Result<bool> {
    let places = open_places(base)?;
    let holder = read_claim(&places, path)?;
    let overlaps = match path.split_once('/') {
        Some((parent, _)) => places_holder(index, &places, parent)?.is_some(),
        // What is there without being this id's may hold other places.
        None => holder.as_ref() != Some(id) && look(base, path)?.is_some(),
    };
    if overlaps {
        return Ok(false);
    }
    // A claim without a record was left by a crash.
    if places_holder(index, &places, path)?.is_some_and(|holder| holder != *id) {
        return Ok(false);
    }
    index
        .replace(&places, &place_name(path), id.as_str().as_bytes())
        .map_err(|cause| error::io("the agent's directory could not be claimed", cause))?;
    Ok(true)
}

/// Which workspace has a preferred place.
fn places_holder(index: &Index, places: &OwnedFd, path: &str) -> Result<Option<WorkspaceId>> {
    let Some(holder) = read_claim(places, path)? else { return Ok(None) };
    let has_it = index.read(&holder)?.is_some_and(|record| record.path == path);
    Ok(has_it.then_some(holder))
}

fn read_claim(places: &OwnedFd, path: &str) -> Result<Option<WorkspaceId>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(places, place_name(path).as_str(), flags, Mode::empty()) {
        Ok(file) => std::io::read_to_string(std::fs::File::from(file))
            .map(|holder| WorkspaceId::new(holder).ok())
            .map_err(|cause| error::io("who has a place could not be read", cause)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(error::system("who has a place could not be read", errno)),
    }
}

fn release_place(base: &OwnedFd, record: &Record) -> Result<()> {
    if record.path.starts_with(WORKSPACES) {
        return Ok(());
    }
    match unlinkat(&open_places(base)?, place_name(&record.path).as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(error::system("the agent's directory could not be given up", errno)),
    }
}

fn open_places(base: &OwnedFd) -> Result<OwnedFd> {
    open_directory(base, PLACES).map_err(|errno| error::system("the basedir has lost its list of places", errno))
}

/// The two parts of the path hold no slash, so that no two paths have one name.
fn place_name(path: &str) -> String {
    Encoding::PATH_SEGMENT.encode(path)
}

/// Which directory is at `path`, or none when nothing is there.
pub(crate) fn look(base: &OwnedFd, path: &str) -> Result<Option<Identity>> {
    match open_directory(base, path).and_then(fstat) {
        Ok(stat) => Ok(Some(Identity::from(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
            let message = format!("in the basedir, `{path}` is, or goes through, something that is not a directory");
            Err(Error::new(ErrorKind::Conflict, message).with_source(errno))
        }
        Err(errno) => Err(error::system("the workspace's directory could not be looked at", errno)),
    }
}

fn make(base: &OwnedFd, path: &str) -> Result<Identity> {
    let make = || -> Result<Identity, Errno> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            mkdirat(base, path, PRIVATE_DIR)?;
            return Ok(Identity::from(&fstat(open_directory(base, path)?)?));
        };
        match mkdirat(base, parent, PRIVATE_DIR) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        mkdirat(open_directory(base, parent)?, name, PRIVATE_DIR)?;
        Ok(Identity::from(&fstat(open_directory(base, path)?)?))
    };
    make().map_err(|errno| error::system("the workspace's directory could not be made", errno))
}
