//! One record of the index, as it is written.

use std::{
    path::{Component, Path},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use wsm_core::{Error, ErrorKind, Result, UserId, WorkspaceId};

const VERSION: u32 = 1;

/// What is known of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    version: u32,
    /// The workspace's id.
    pub id: WorkspaceId,
    /// Where its directory is, below the basedir.
    pub path: String,
    /// Whose it is; none until somebody with a name opens it.
    pub owner: Option<UserId>,
    /// How often its files were lost.
    pub generation: u64,
    /// When it was first opened.
    #[serde(with = "rfc3339")]
    pub created_at: SystemTime,
    /// Set while the directory is being made. If it is still set at an opening, the one before did not get to tell how
    /// it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arriving: Option<Arrival>,
}

/// Why a directory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// The id is new.
    Created,
    /// The directory had been there, and is gone.
    Recreated,
}

impl Record {
    pub(crate) fn new(id: WorkspaceId, path: String, owner: Option<UserId>) -> Self {
        Self { version: VERSION, id, path, owner, generation: 0, created_at: SystemTime::now(), arriving: None }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }

        let Versioned { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(format!("it is of version {version}, and this wsm knows version {VERSION}").into());
        }
        let record: Self = serde_json::from_str(text)?;
        let mut components = Path::new(&record.path).components();
        if record.path.is_empty() || !components.all(|part| matches!(part, Component::Normal(_))) {
            return Err(format!("its path {:?} is not one below the basedir", record.path).into());
        }
        Ok(record)
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|cause| {
            Error::new(ErrorKind::Backend, "a record of the index could not be put in words").with_source(cause)
        })
    }
}

/// Points in time as people write them.
mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record() -> Record {
        let owner = UserId::new("ann@example.org").unwrap();
        let mut record = Record::new(WorkspaceId::new("w\"1").unwrap(), "ann=40example.org/coder".into(), Some(owner));
        record.created_at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        record
    }

    #[test]
    fn a_record_is_read_back() {
        for arriving in [None, Some(Arrival::Created), Some(Arrival::Recreated)] {
            let record = Record { arriving, ..record() };
            assert_eq!(Record::parse(&record.to_text().unwrap()).unwrap(), record);
        }
    }

    /// Records outlive the version that wrote them.
    #[test]
    fn the_first_version_stays_readable() {
        let text = r#"{"version":1,"id":"w\"1","path":"ann=40example.org/coder","owner":"ann@example.org",
            "generation":0,"created_at":"2023-11-14T22:13:20.123456Z"}"#;
        assert_eq!(Record::parse(text).unwrap(), record());
    }

    #[test]
    fn a_record_that_leads_out_or_is_from_the_future_is_damaged() {
        for path in ["", "/etc", "../x", "a/../../x", "./a"] {
            let text = Record { path: path.to_owned(), ..record() }.to_text().unwrap();
            assert!(Record::parse(&text).is_err(), "{path:?}");
        }
        let text = Record { version: 2, ..record() }.to_text().unwrap();
        assert!(Record::parse(&text).unwrap_err().to_string().contains("version 2"));
        assert!(Record::parse("").is_err());
        assert!(Record::parse("{}").is_err());
    }
}
