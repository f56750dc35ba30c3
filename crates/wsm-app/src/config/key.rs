//! Every key of the configuration, and what each may hold.

use std::{net::SocketAddr, time::Duration};

use toml::Value;
use tracing_subscriber::EnvFilter;
use wsm_core::IsolationPolicy;

use super::{ConfigError, tree::Leaf};

/// What a key may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text but the empty one.
    Text,
    /// What to log.
    Filter,
    /// A text that is never shown.
    Secret,
    /// A table of secrets under names of the user's choice.
    Secrets,
    /// A path.
    Path,
    /// An address and a port.
    Address,
    /// A time above zero.
    Duration,
    /// A whole number, at least this one.
    Count(u64),
    /// A number of bytes above zero.
    Size,
    /// True or false.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// A key: its path, what it may hold, and what it is for.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static [&'static str],
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
}

const fn key(path: &'static [&'static str], kind: Kind, about: &'static str) -> Key {
    Key { path, kind, about }
}

/// The keys of the service and the command.
pub(crate) const APP_KEYS: &[Key] = &[
    key(&["backend"], Kind::Text, "the kind of place that workspaces live in"),
    key(&["basedir"], Kind::Path, "where the workspaces of backends with directories are"),
    key(&["store"], Kind::Path, "the file that sessions and workspace records are in"),
    key(&["listen"], Kind::Address, "the address that the service listens on; port 0 is any free one"),
    key(&["node"], Kind::Text, "the name of this machine in workspace records"),
    key(&["log"], Kind::Filter, "what is logged, such as `info` or `wsm_core=debug`"),
    key(&["log_format"], Kind::Choice(&["text", "json"]), "how log lines are written"),
    key(&["shutdown_timeout"], Kind::Duration, "how long a stop waits for requests and for workspaces"),
    key(&["exec_timeout"], Kind::Duration, "the time limit of a command that names none"),
    key(&["max_exec_timeout"], Kind::Duration, "the longest time limit that a command may name"),
    key(&["exec_output_limit"], Kind::Size, "how much of each stream is kept when a command names no limit"),
    key(&["max_exec_output_limit"], Kind::Size, "the highest output limit that a command may name"),
    key(&["max_request_bytes"], Kind::Size, "the longest JSON body"),
    key(&["max_upload_bytes"], Kind::Size, "the longest file that is uploaded"),
    key(&["max_body_pause"], Kind::Duration, "for how long a client may send nothing of a body that it has begun"),
    key(&["head_timeout"], Kind::Duration, "how long the head of a request may take, and a connection be without one"),
    key(&["auth", "token"], Kind::Secret, "the token of a trusted front, which says who the user is"),
    key(&["auth", "tokens"], Kind::Secrets, "tokens of single users: `\"user\" = \"token\"`"),
];

/// The options of every manager. They stand at the top level or in a backend's table.
pub(crate) const MANAGER_KEYS: &[Key] = &[
    key(&["isolation"], Kind::Choice(&POLICIES), "which scopes share a workspace"),
    key(&["ttl"], Kind::Duration, "after how long without use a workspace is put away"),
    key(&["sweep_interval"], Kind::Duration, "how often idle workspaces are looked for"),
    key(&["max_workspaces"], Kind::Count(1), "how many workspaces are kept open at most"),
    key(&["max_provisioning"], Kind::Count(1), "how many workspaces are opened at once at most"),
    key(&["max_suspending"], Kind::Count(1), "how many workspaces are put away at once at most"),
    key(&["open_timeout"], Kind::Duration, "how long opening a workspace may take"),
    key(&["suspend_timeout"], Kind::Duration, "how long putting a workspace away may take"),
    key(&["health_timeout"], Kind::Duration, "how long asking a workspace whether it lives may take"),
    key(&["prewarm", "size"], Kind::Count(0), "how many fresh workspaces are kept ready"),
    key(&["prewarm", "max_creating"], Kind::Count(1), "how many of them are made at once at most"),
    key(&["allow_foreign_owner"], Kind::Switch, "whether a user may open another user's workspace by its id"),
    key(&["housekeeping"], Kind::Switch, "whether what earlier services left is taken over or removed"),
];

const POLICIES: [&str; 3] =
    [IsolationPolicy::PerAgent.as_str(), IsolationPolicy::PerSession.as_str(), IsolationPolicy::PerUser.as_str()];

impl Kind {
    /// Checks a value and gives it in the one form in which it is passed on.
    pub(crate) fn check(self, key: &str, leaf: &Leaf) -> Result<Value, ConfigError> {
        let refuse = |allowed: &str| {
            let secret = matches!(self, Self::Secret | Self::Secrets);
            let shown = if secret { "what it holds".to_owned() } else { format!("`{}`", leaf.shown()) };
            ConfigError::new(key, &leaf.origin, format!("{shown} is not allowed: allowed is {allowed}"))
        };
        match self {
            Self::Text | Self::Filter | Self::Secret | Self::Path | Self::Address => {
                let text = leaf.text().filter(|text| !text.is_empty() && !text.contains('\0'));
                let text = text.ok_or_else(|| refuse("a text that is not empty"))?;
                // No header can hold it, so that nobody could ever give it.
                if self == Self::Secret && (text.trim() != text || text.contains(char::is_control)) {
                    return Err(refuse("a text without control characters, and without spaces around it"));
                }
                if self == Self::Address && address(&text).is_none() {
                    return Err(refuse("an address and a port, such as `127.0.0.1:8080`"));
                }
                if self == Self::Filter && EnvFilter::try_new(&text).is_err() {
                    return Err(refuse("a level, or levels by module, such as `info` or `warn,wsm_core=debug`"));
                }
                Ok(Value::String(text))
            }
            Self::Duration => {
                let duration = leaf.text().as_deref().and_then(duration);
                let allowed = "a time above zero with its unit, such as `300ms`, `5m` or `3600s`, at most `100years`";
                duration
                    .map(|it| Value::String(humantime::format_duration(it).to_string()))
                    .ok_or_else(|| refuse(allowed))
            }
            Self::Count(least) => {
                let number = leaf.value.as_integer().filter(|number| u64::try_from(*number).is_ok_and(|n| n >= least));
                number.map(Value::Integer).ok_or_else(|| refuse(&format!("a whole number of at least {least}")))
            }
            Self::Size => {
                let number = leaf.text().as_deref().and_then(size);
                number
                    .map(Value::Integer)
                    .ok_or_else(|| refuse("a number of bytes above zero, such as `65536` or `16MiB`"))
            }
            Self::Switch => leaf.value.as_bool().map(Value::Boolean).ok_or_else(|| refuse("`true` or `false`")),
            Self::Choice(words) => {
                let word = leaf.text().filter(|text| words.contains(&text.as_str()));
                let allowed = || words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
                word.map(Value::String).ok_or_else(|| refuse(&allowed()))
            }
            Self::Secrets => Err(refuse("a table of tokens: `\"user\" = \"token\"`")),
        }
    }
}

/// The longest time that is accepted, so that now and a time always have a sum: 100 years.
const LONGEST: Duration = Duration::from_secs(100 * 31_557_600);

/// Reads a time above zero, and not above the longest.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|duration| !duration.is_zero() && *duration <= LONGEST)
}

/// Reads an address; `localhost` is the one name that needs no look-up.
pub(crate) fn address(text: &str) -> Option<SocketAddr> {
    text.strip_prefix("localhost:").map_or(text.to_owned(), |port| format!("127.0.0.1:{port}")).parse().ok()
}

fn size(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.trim().parse::<i64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_carry_units_and_are_above_zero() {
        assert_eq!(duration("300ms"), Some(Duration::from_millis(300)));
        assert_eq!(duration("1h 30m"), Some(Duration::from_secs(5400)));
        assert!(duration("100years").is_some());
        for text in ["0s", "-5s", "5", "", "soon", "0ms", "101years", "18446744073709551615s"] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!((size("65536"), size("16MiB")), (Some(65536), Some(16 << 20)));
        for text in ["0", "-1", "16MB", "", "9223372036854775807GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_are_numbers_or_localhost() {
        assert_eq!(address("localhost:0").unwrap().to_string(), "127.0.0.1:0");
        assert!(address("[::1]:80").is_some());
        assert!(address("example.org:80").is_none() && address("127.0.0.1").is_none());
    }
}
