//! Whose the directories of a workspace are: of the user whom its commands run as.

use std::{io::Read, path::PathBuf};

use bollard::query_parameters::DownloadFromContainerOptionsBuilder;
use futures::TryStreamExt;
use rustix::{
    fs::{AtFlags, CWD, Gid, Uid, chownat},
    io::Errno,
    process::geteuid,
};
use wsm_core::{Error, ErrorKind, Result};
use wsm_host::blocking;

use crate::client::{Engine, SHORT, if_found};

/// Longer lists of users are not read.
const MOST_BYTES: u64 = 1 << 20;

/// Gives directories to the user whom commands in a container run as, before it is started. They are the service's own until
/// then, and another user could neither write into a workspace nor make the gateway's socket.
///
/// # Errors
///
/// `invalid_input` about `user` when only root could do that; what [`Engine::call`] says.
///
/// # Cancel safety
///
/// A dropped call may have given them away or not. Call it again.
pub(crate) async fn hand_over(engine: &Engine, container: &str, user: &str, directories: Vec<PathBuf>) -> Result<()> {
    // Whom the image does not know, the engine refuses at the start.
    let Some((uid, gid)) = resolve(engine, container, user).await? else { return Ok(()) };
    if uid == geteuid().as_raw() {
        return Ok(());
    }
    if uid == 0 {
        // Root needs none of that, but others could never remove what it leaves. Without root, it is the service's own user.
        return match is_rootless(engine).await? {
            true => Ok(()),
            false => Err(Error::invalid(
                "user",
                format!(
                    "`user` is `{user}`, whose files this service could not remove: leave it out, or run it as root"
                ),
            )),
        };
    }
    let user = user.to_owned();
    blocking(move || {
        for directory in &directories {
            let gid = gid.map(Gid::from_raw);
            chownat(CWD, directory, Some(Uid::from_raw(uid)), gid, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| {
                match errno {
                    Errno::PERM => Error::invalid(
                        "user",
                        format!("`user` is `{user}`, and only root can give workspaces to somebody else: leave it out"),
                    ),
                    _ => Error::new(
                        ErrorKind::Backend,
                        format!("`{}` can not be given to `{user}`", directory.display()),
                    ),
                }
                .with_source(errno)
            })?;
        }
        Ok(())
    })
    .await
}

async fn is_rootless(engine: &Engine) -> Result<bool> {
    let info = engine.call("tell how it runs", SHORT, engine.docker()?.info()).await?;
    Ok(info.security_options.unwrap_or_default().iter().any(|option| option == "name=rootless"))
}

/// Numbers for `user`, `user:group`, or either as a number; none when the image does not know them.
async fn resolve(engine: &Engine, container: &str, user: &str) -> Result<Option<(u32, Option<u32>)>> {
    let (name, group) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user, None),
    };
    let (uid, gid) = match name.parse() {
        Ok(uid) => (uid, None),
        Err(_) => match find(&file(engine, container, "/etc/passwd").await?, name) {
            Some((uid, gid)) => (uid, gid),
            None => return Ok(None),
        },
    };
    let gid = match group {
        None => gid,
        Some(group) => match group.parse() {
            Ok(gid) => Some(gid),
            Err(_) => find(&file(engine, container, "/etc/group").await?, group).map(|(gid, _)| gid),
        },
    };
    Ok(Some((uid, gid)))
}

/// The first two numbers of a line that begins with a name.
fn find(lines: &str, name: &str) -> Option<(u32, Option<u32>)> {
    let fields = lines.lines().map(|line| line.split(':')).find_map(|mut fields| {
        let is_it = fields.next() == Some(name);
        is_it.then_some(fields)
    });
    // Between them is a password that is elsewhere.
    let mut numbers = fields?.skip(1);
    Some((numbers.next()?.parse().ok()?, numbers.next().and_then(|gid| gid.parse().ok())))
}

/// A file in a container, which need not run; empty when there is none.
async fn file(engine: &Engine, container: &str, path: &str) -> Result<String> {
    let options = DownloadFromContainerOptionsBuilder::default().path(path).build();
    let download = engine.docker()?.download_from_container(container, Some(options));
    let download = download.try_fold(Vec::new(), |mut archive, bytes| {
        archive.extend_from_slice(&bytes);
        std::future::ready(Ok(archive))
    });
    let archive = if_found(engine.call("look for the user", SHORT, download).await)?.unwrap_or_default();
    let mut content = String::new();
    if let Ok(mut entries) = tar::Archive::new(&archive[..]).entries()
        && let Some(Ok(entry)) = entries.next()
    {
        // What is not text names nobody.
        let _ = entry.take(MOST_BYTES).read_to_string(&mut content);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_the_image() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533:nobody:/:/usr/sbin/nologin\n";
        assert_eq!(find(passwd, "nobody"), Some((65534, Some(65533))));
        assert_eq!(find(passwd, "ann"), None);
        assert_eq!(find("staff:x:50:ann,bob\n", "staff"), Some((50, None)));
        assert_eq!(find("odd\n", "odd"), None);
    }
}
