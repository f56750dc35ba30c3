//! What a manager tells about the life of its workspaces.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use futures::stream::BoxStream;
use serde::Serialize;

use crate::{backend::Outcome, id::WorkspaceId, progress::Step};

/// One step in a workspace's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// When it happened.
    #[serde(serialize_with = "unix_seconds")]
    pub at: SystemTime,
    /// Whose life.
    pub workspace_id: WorkspaceId,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

fn unix_seconds<S: serde::Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

impl Event {
    /// An event that happens now.
    pub fn now(workspace_id: WorkspaceId, kind: EventKind) -> Self {
        Self { at: SystemTime::now(), workspace_id, kind }
    }
}

/// What happened to a workspace. Hits are too many for events; [`EventListener::hit`] counts them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// It was opened: created, reattached, resumed or recreated.
    Opened {
        /// How the opening ended.
        opening: Outcome,
        /// How long it took.
        #[serde(rename = "duration_ms", serialize_with = "millis")]
        duration: Duration,
    },
    /// Its opening takes long, and is this far.
    Progress {
        /// How far.
        step: Step,
    },
    /// It was put away.
    Suspended {
        /// What made the manager do it.
        reason: EvictReason,
    },
    /// It was let go, and runs on for other replicas.
    Detached {
        /// What made the manager do it.
        reason: EvictReason,
    },
    /// It was found dead while it was cached.
    Died {
        /// Why.
        cause: crate::backend::Cause,
    },
    /// It was deleted with its data.
    Destroyed,
    /// An operation of the manager failed.
    Failed {
        /// Which one: `open`, `suspend`, `detach`, `health`, `keep_alive`, `renew` or `destroy`.
        operation: &'static str,
        /// What went wrong.
        error: String,
    },
}

fn millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// What made a manager put a workspace away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EvictReason {
    /// Nobody used it for `ttl`.
    Idle,
    /// Room was needed for another one.
    Capacity,
    /// `close` or `close_all`.
    Closed,
    /// `destroy`.
    Destroyed,
    /// `shutdown`.
    Shutdown,
    /// Its opening failed half way, or another replica took it over.
    Abandoned,
}

/// Hears what happens, at once and on the thread where it happens: it must not block. A panic in it is logged, and
/// changes nothing else.
pub trait EventListener: fmt::Debug + Send + Sync + 'static {
    /// A step in a workspace's life.
    fn event(&self, event: &Event);

    /// A `get_workspace` was answered from the cache. Called on the hit path: a counter at most.
    fn hit(&self, workspace_id: &WorkspaceId) {
        let _ = workspace_id;
    }
}

/// A subscription to a manager's events. Ends with the manager; a subscriber that lags far behind misses the oldest.
pub type EventStream = BoxStream<'static, Event>;
