//! The directory that workspaces are in.

use std::path::{Path, PathBuf};

use super::{
    super::check_basedir,
    report::{Check, Status},
};
use crate::config::Settings;

const NAME: &str = "basedir";

/// Below this much room there is a warning.
const LITTLE: u64 = 1 << 30;

pub(super) fn checks(settings: &Settings) -> Vec<Check> {
    let Some(basedir) = &settings.basedir else { return Vec::new() };
    if let Err(error) = check_basedir(settings) {
        let advice = "choose another place with `--basedir`, or give it to the user that wsm runs as";
        return vec![Check::new(Status::Failed, NAME, format!("{error:#}")).with_advice(advice)];
    }
    let basedir = std::path::absolute(basedir).unwrap_or_else(|_| basedir.clone());
    let exists = basedir.exists();
    // What does not exist yet will be where its parent is.
    let there = basedir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let there = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    let kind = file_system(&there).unwrap_or_else(|| "unknown".to_owned());
    let made = if exists { "can be written" } else { "can be made" };
    vec![
        Check::ok(NAME, format!("`{}` {made}, on a file system of type {kind}", basedir.display())),
        room(&basedir, &there),
    ]
}

fn room(basedir: &Path, there: &Path) -> Check {
    let room = match rustix::fs::statvfs(there) {
        Ok(room) => room,
        Err(error) => return Check::new(Status::Warning, NAME, format!("the free space is not known: {error}")),
    };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let detail = format!("{:.1} GiB are free", free as f64 / (1u64 << 30) as f64);
    // Some file systems have no limit of files, and say 0 of 0.
    let no_files = room.f_files > 0 && room.f_favail == 0;
    if free == 0 || no_files {
        let detail = if no_files { format!("{detail}, but no more files can be made") } else { detail };
        let advice = format!("make room where `{}` is, or choose another place with `--basedir`", basedir.display());
        return Check::new(Status::Failed, NAME, detail).with_advice(advice);
    }
    if free < LITTLE {
        return Check::new(Status::Warning, NAME, detail).with_advice("make room: a full disk ends commands half way");
    }
    Check::ok(NAME, detail)
}

/// The type of the file system that a path is on: that of the last mount whose place the path is below.
fn file_system(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        // id parent device root PLACE options … - TYPE source options
        let (place, kind) = line.split_once(" - ")?;
        let place = PathBuf::from(place.split(' ').nth(4)?.replace("\\040", " "));
        Some((place, kind.split(' ').next()?.to_owned()))
    };
    let below = mounts.lines().filter_map(mount).filter(|(place, _)| path.starts_with(place));
    below.max_by_key(|(place, _)| place.components().count()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_on_some_file_system() {
        assert_eq!(file_system(Path::new("/proc/self")).as_deref(), Some("proc"));
    }
}
