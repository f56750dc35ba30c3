//! What wsm runs and keeps inside a sandbox: a directory of its own beside the workspace, with a marker that tells whether the
//! files are as new as they should be. Scripts, and what they print. Pure.

use wsm_core::ExitStatus;

use crate::envd::Ran;

/// A variable that every command gets, with a value of its own: by it, all that a command has started is found.
pub(crate) const RUN: &str = "WSM_RUN";

/// Arguments: the owner that claims it or nothing, the marker to begin with or nothing.
///
/// The marker counts openings: one that is lower than it was is one of older files. Two that open at once may write the same
/// one; so each adds a letter of its own to `entered`, too, by which who makes a sandbox knows whether it is the only one. That
/// is never shortened, so that one who looks late is not deceived.
pub(crate) const PROBE: &str = r#"
umask 022
d=$HOME/.wsm w=$HOME/workspace
mkdir -p "$d/tmp" "$w" || exit 46
{ printf x >> "$d/entered"; } 2>/dev/null
[ -z "$1" ] || (set -C; printf %s "$1" > "$d/owner") 2>/dev/null
[ -z "$2" ] || (set -C; printf '%s\n' "$2" > "$d/marker") 2>/dev/null
owner=$(cat "$d/owner" 2>/dev/null)
marker=$(cat "$d/marker" 2>/dev/null)
session=$(command -v setsid 2>/dev/null)
now=$marker
set -- $marker
case $2 in
*[!0-9]*|'') ;;
*)
  next="$1 $(($2 + 1))"
  if { printf '%s\n' "$next" > "$d/marker.$$"; } 2>/dev/null && mv -f "$d/marker.$$" "$d/marker"; then now=$next
  else rm -f "$d/marker.$$"
  fi ;;
esac
printf 'wsm\n%s\n%s\n%s\n%s\n%s\n' "$w" "$owner" "$marker" "$session" "$now"
exit 0
"#;

/// What is in `entered` when a sandbox was opened once only.
pub(crate) const ENTERED_ONCE: &[u8] = b"x";

/// Arguments: our directory, the new marker.
pub(crate) const MARK: &str = r#"
umask 022
mkdir -p "$1" || exit 46
printf '%s\n' "$2" > "$1/marker.$$" && mv -f "$1/marker.$$" "$1/marker"
"#;

/// Ends processes: those with the text of the first argument in their environment, and the group of the second, if any. First
/// they are asked to, then they are not; the third says how many tenths of a second lie between.
pub(crate) const KILL: &str = r#"
mark=$1 group=$2 grace=$3
hunt() { grep -lF -- "$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
each() {
  [ -z "$group" ] || kill -s "$1" -- "-$group" 2>/dev/null
  for p in $(hunt); do kill -s "$1" "$p" 2>/dev/null; done
}
each TERM
i=0
while [ $i -lt "$grace" ] && [ -n "$(hunt)" ]; do sleep 0.1; i=$((i + 1)); done
each KILL
i=0
while [ $i -lt 20 ] && [ -n "$(hunt)" ]; do sleep 0.05; each KILL; i=$((i + 1)); done
"#;

/// What follows [`KILL`] before a pause. Further argument: our directory. Prints the new marker.
pub(crate) const PUT_AWAY: &str = r#"
d=$4
rm -rf "$d/tmp"; mkdir -p "$d/tmp"; chown --reference="$d" "$d/tmp" 2>/dev/null
set -- $(cat "$d/marker" 2>/dev/null)
case $2 in
*[!0-9]*|'') ;;
*)
  if { printf '%s %s\n' "$1" $(($2 + 1)) > "$d/marker.$$"; } 2>/dev/null && mv -f "$d/marker.$$" "$d/marker"; then cat "$d/marker"
  else rm -f "$d/marker.$$"
  fi ;;
esac
sync
exit 0
"#;

/// Sends a signal to the group of a process. Arguments: the signal, the group. One that has ended is fine.
pub(crate) const SIGNAL: &str = r#"kill -s "$1" -- "-$2" 2>/dev/null; exit 0"#;

/// Tells whether a program is there. Arguments: the program.
pub(crate) const RESOLVE: &str = r#"
case $1 in
*/*) if [ -e "$1" ]; then [ -f "$1" ] && [ -x "$1" ] || exit 126; exit 0; fi; exit 127 ;;
esac
IFS=: found=127
for d in $PATH; do
  [ -f "${d:-.}/$1" ] || continue
  [ -x "${d:-.}/$1" ] && exit 0
  found=126
done
exit $found
"#;

/// How often the files were lost, and how often the workspace has been opened and put away since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Marker {
    pub(crate) generation: u64,
    pub(crate) count: u64,
}

impl Marker {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (generation, count) = text.trim().split_once(' ')?;
        Some(Self { generation: generation.parse().ok()?, count: count.trim().parse().ok()? })
    }

    pub(crate) fn text(self) -> String {
        format!("{} {}", self.generation, self.count)
    }
}

/// What a probe tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probed {
    /// The workspace directory.
    pub(crate) workdir: String,
    /// Who has claimed it, hashed; empty for nobody.
    pub(crate) owner: String,
    /// None when there is none: the files are not those that were there.
    pub(crate) marker: Option<Marker>,
    /// As it is since: the next one, unless the disk is full.
    pub(crate) now: Option<Marker>,
    /// Whether commands can have a session of their own.
    pub(crate) has_setsid: bool,
}

impl Probed {
    /// Reads the output of [`PROBE`], or says why it is none.
    pub(crate) fn read(ran: &Ran) -> Result<Self, String> {
        let text = String::from_utf8_lossy(&ran.stdout);
        let lines: Vec<&str> = text.lines().collect();
        match (&ran.status, &lines[..]) {
            (ExitStatus::Exited { code: 0 }, ["wsm", workdir, owner, marker, session, now])
                if workdir.starts_with('/') =>
            {
                Ok(Self {
                    workdir: (*workdir).to_owned(),
                    owner: (*owner).to_owned(),
                    marker: Marker::read(marker),
                    now: Marker::read(now),
                    has_setsid: !session.is_empty(),
                })
            }
            (status, _) => {
                let stderr = String::from_utf8_lossy(&ran.stderr);
                Err(format!("{status}: {}", stderr.trim().chars().take(300).collect::<String>()))
            }
        }
    }

    /// Our directory, beside that of the workspace.
    pub(crate) fn home(workdir: &str) -> String {
        let home = workdir.strip_suffix("/workspace").unwrap_or_default();
        format!("{home}/.wsm")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_and_anything_else_is_none() {
        let ran = |code, stdout: &str| Ran {
            status: ExitStatus::Exited { code },
            stdout: stdout.into(),
            stderr: b"why".to_vec(),
        };
        let probed = Probed::read(&ran(0, "wsm\n/home/user/workspace\n\n3 9\n/usr/bin/setsid\n3 10\n")).unwrap();
        assert_eq!(probed.marker, Some(Marker { generation: 3, count: 9 }));
        assert_eq!(probed.now, Some(Marker { generation: 3, count: 10 }));
        assert!(probed.has_setsid && probed.owner.is_empty());
        let probed = Probed::read(&ran(0, "wsm\n/w/workspace\nabc\n\n\n\n")).unwrap();
        assert_eq!((probed.marker, probed.has_setsid, probed.owner.as_str()), (None, false, "abc"));
        assert!(Probed::read(&ran(46, "")).is_err() && Probed::read(&ran(0, "wsm\n")).is_err());
        assert_eq!(Probed::home("/home/user/workspace"), "/home/user/.wsm");
    }

    #[test]
    fn a_full_disk_is_no_older_disk() {
        let home = std::env::temp_dir().join(format!("wsm-probe-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&home).unwrap();
        let probe = |before: &str, begin: &str| {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-c", &format!("{before}{PROBE}"), "wsm", "", begin]).env("HOME", &home);
            let output = shell.output().unwrap();
            let status = ExitStatus::Exited { code: output.status.code().unwrap() };
            Probed::read(&Ran { status, stdout: output.stdout, stderr: output.stderr }).unwrap()
        };
        let marker = |count| Some(Marker { generation: 0, count });
        let first = probe("", "0 1");
        assert_eq!((first.marker, first.now), (marker(1), marker(2)));
        // No file can be written to.
        let full = probe("trap '' XFSZ; ulimit -f 0;", "");
        assert_eq!((full.marker, full.now), (marker(2), marker(2)), "it says what is there");
        let last = probe("", "");
        assert_eq!((last.marker, last.now), (marker(2), marker(3)));
        assert_eq!(std::fs::read_dir(home.join(".wsm")).unwrap().count(), 3, "the marker, `entered` and `tmp`");
        std::fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let marker = Marker { generation: 2, count: 40 };
        assert_eq!(Marker::read(&marker.text()), Some(marker));
        assert_eq!(Marker::read("2"), None);
        assert_eq!(Marker::read(""), None);
    }
}
