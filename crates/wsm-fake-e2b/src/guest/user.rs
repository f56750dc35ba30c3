//! The users of every sandbox.

use std::path::{Path, PathBuf};

/// A user, and the group of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: &'static str,
    pub(crate) id: u32,
    pub(crate) home: &'static str,
    shell: &'static str,
}

const USERS: [User; 3] = [
    User { name: "root", id: 0, home: "/root", shell: "/bin/bash" },
    User { name: "user", id: 1000, home: "/home/user", shell: "/bin/bash" },
    User { name: "nobody", id: 65534, home: "/", shell: "/usr/sbin/nologin" },
];

/// Who runs what does not say otherwise.
pub(crate) const DEFAULT_USER: User = USERS[1];

impl User {
    /// The user with a name; the default one for an empty name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if name.is_empty() { Some(DEFAULT_USER) } else { USERS.into_iter().find(|user| user.name == name) }
    }

    /// What a path of a request means to this user.
    pub(crate) fn resolve(self, path: &str) -> PathBuf {
        let home = Path::new(self.home);
        match path.strip_prefix('~') {
            Some("") => home.to_owned(),
            Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => home.join(path),
        }
    }
}

/// The name of a user with this number.
pub(crate) fn name_of(id: u32) -> String {
    USERS.iter().find(|user| user.id == id).map_or_else(|| id.to_string(), |user| user.name.to_owned())
}

pub(crate) fn passwd() -> String {
    let line = |user: &User| format!("{0}:x:{1}:{1}::{2}:{3}\n", user.name, user.id, user.home, user.shell);
    USERS.iter().map(line).collect()
}

pub(crate) fn group() -> String {
    USERS.iter().map(|user| format!("{}:x:{}:\n", user.name, user.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_or_below_the_home() {
        for (path, wanted) in [
            ("/a", "/a"),
            ("a/b", "/home/user/a/b"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("~a", "/home/user/~a"),
            ("", "/home/user/"),
        ] {
            assert_eq!(DEFAULT_USER.resolve(path), Path::new(wanted));
        }
        assert_eq!(User::named("nosuch"), None);
    }
}
