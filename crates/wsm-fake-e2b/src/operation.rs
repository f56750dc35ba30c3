//! Which call a request is, as faults and the log name it.

use http::Method;
use serde::{Deserialize, Serialize};

/// A call of the control plane or of the daemon inside of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// `POST /v2/sandboxes`
    Create,
    /// `POST /sandboxes`
    CreateV1,
    /// `GET /v2/sandboxes`
    List,
    /// `GET /sandboxes`
    ListV1,
    /// `GET /sandboxes/{id}`
    Get,
    /// `DELETE /sandboxes/{id}`
    Kill,
    /// `POST /sandboxes/{id}/pause`
    Pause,
    /// `POST /v2/sandboxes/{id}/connect`
    Connect,
    /// `POST /sandboxes/{id}/connect`
    ConnectV1,
    /// `POST /sandboxes/{id}/resume`
    Resume,
    /// `POST /sandboxes/{id}/timeout`
    SetTimeout,
    /// `POST /sandboxes/{id}/refreshes`
    Refresh,
    /// `PUT /sandboxes/{id}/network`
    Network,
    /// `GET /sandboxes/{id}/metrics`
    Metrics,
    /// `GET /sandboxes/metrics`
    MetricsOfMany,
    /// `GET /v2/sandboxes/{id}/logs`
    Logs,
    /// `POST /sandboxes/{id}/snapshots`
    Snapshot,
    /// `GET /snapshots`
    ListSnapshots,
    /// `DELETE /templates/{id}`
    DeleteTemplate,
    /// `POST /sandboxes/{id}/fork`
    Fork,
    /// `GET /health` of the control plane
    ApiHealth,
    /// What the control plane does not know.
    UnknownApi,

    /// `GET /health` of the daemon
    Health,
    /// `GET /metrics` of the daemon
    EnvdMetrics,
    /// `GET /envs`
    Envs,
    /// `GET /files`
    Download,
    /// `POST /files`
    Upload,
    /// `POST /files/compose`
    Compose,
    /// `process.Process/Start`
    Start,
    /// `process.Process/Connect`
    ProcessConnect,
    /// `process.Process/List`
    ProcessList,
    /// `process.Process/SendInput`
    SendInput,
    /// `process.Process/StreamInput`
    StreamInput,
    /// `process.Process/CloseStdin`
    CloseStdin,
    /// `process.Process/SendSignal`
    SendSignal,
    /// `process.Process/Update`
    Update,
    /// `filesystem.Filesystem/Stat`
    Stat,
    /// `filesystem.Filesystem/ListDir`
    ListDir,
    /// `filesystem.Filesystem/MakeDir`
    MakeDir,
    /// `filesystem.Filesystem/Move`
    Move,
    /// `filesystem.Filesystem/Remove`
    Remove,
    /// `filesystem.Filesystem/WatchDir`
    WatchDir,
    /// `filesystem.Filesystem/CreateWatcher`
    CreateWatcher,
    /// `filesystem.Filesystem/GetWatcherEvents`
    GetWatcherEvents,
    /// `filesystem.Filesystem/RemoveWatcher`
    RemoveWatcher,
    /// What the daemon does not know.
    UnknownEnvd,
}

impl Operation {
    /// Whether the daemon inside of a sandbox answers it.
    #[must_use]
    pub fn is_envd(self) -> bool {
        use Operation as O;
        let is_plain = matches!(self, O::Health | O::EnvdMetrics | O::Envs | O::Download | O::Upload | O::Compose);
        let is_about_processes = matches!(
            self,
            O::Start | O::ProcessConnect | O::ProcessList | O::SendInput | O::StreamInput | O::CloseStdin
        ) || matches!(self, O::SendSignal | O::Update);
        let is_about_files = matches!(self, O::Stat | O::ListDir | O::MakeDir | O::Move | O::Remove)
            || matches!(self, O::WatchDir | O::CreateWatcher | O::GetWatcherEvents | O::RemoveWatcher);
        is_plain || is_about_processes || is_about_files || self == O::UnknownEnvd
    }

    /// The call of the control plane that a request is, and the sandbox that it names.
    pub(crate) fn of_api<'a>(method: &Method, path: &'a str) -> (Self, Option<&'a str>) {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (is_v2, parts) = match &parts[..] {
            ["v2", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let of = |operation, id: &&'a str| (operation, Some(*id));
        match (method.as_str(), is_v2, parts) {
            ("POST", true, ["sandboxes"]) => (Self::Create, None),
            ("POST", false, ["sandboxes"]) => (Self::CreateV1, None),
            ("GET", true, ["sandboxes"]) => (Self::List, None),
            ("GET", false, ["sandboxes"]) => (Self::ListV1, None),
            ("GET", false, ["sandboxes", "metrics"]) => (Self::MetricsOfMany, None),
            ("GET", false, ["sandboxes", id]) => of(Self::Get, id),
            ("DELETE", false, ["sandboxes", id]) => of(Self::Kill, id),
            ("POST", false, ["sandboxes", id, "pause"]) => of(Self::Pause, id),
            ("POST", true, ["sandboxes", id, "connect"]) => of(Self::Connect, id),
            ("POST", false, ["sandboxes", id, "connect"]) => of(Self::ConnectV1, id),
            ("POST", false, ["sandboxes", id, "resume"]) => of(Self::Resume, id),
            ("POST", false, ["sandboxes", id, "timeout"]) => of(Self::SetTimeout, id),
            ("POST", false, ["sandboxes", id, "refreshes"]) => of(Self::Refresh, id),
            ("PUT", false, ["sandboxes", id, "network"]) => of(Self::Network, id),
            ("GET", false, ["sandboxes", id, "metrics"]) => of(Self::Metrics, id),
            ("GET", _, ["sandboxes", id, "logs"]) => of(Self::Logs, id),
            ("POST", false, ["sandboxes", id, "snapshots"]) => of(Self::Snapshot, id),
            ("POST", false, ["sandboxes", id, "fork"]) => of(Self::Fork, id),
            ("GET", false, ["snapshots"]) => (Self::ListSnapshots, None),
            ("DELETE", false, ["templates", _]) => (Self::DeleteTemplate, None),
            ("GET", false, ["health"]) => (Self::ApiHealth, None),
            _ => (Self::UnknownApi, None),
        }
    }

    /// The call of the daemon that a request is.
    pub(crate) fn of_envd(method: &Method, path: &str) -> Self {
        match (method.as_str(), path) {
            ("GET", "/health") => Self::Health,
            ("GET", "/metrics") => Self::EnvdMetrics,
            ("GET", "/envs") => Self::Envs,
            ("POST", "/files") => Self::Upload,
            (_, "/files") => Self::Download,
            ("POST", "/files/compose") => Self::Compose,
            (_, path) => match path.strip_prefix("/process.Process/") {
                Some(name) => Self::of_process(name),
                None => Self::of_filesystem(path.strip_prefix("/filesystem.Filesystem/").unwrap_or_default()),
            },
        }
    }

    fn of_process(name: &str) -> Self {
        match name {
            "Start" => Self::Start,
            "Connect" => Self::ProcessConnect,
            "List" => Self::ProcessList,
            "SendInput" => Self::SendInput,
            "StreamInput" => Self::StreamInput,
            "CloseStdin" => Self::CloseStdin,
            "SendSignal" => Self::SendSignal,
            "Update" => Self::Update,
            _ => Self::UnknownEnvd,
        }
    }

    fn of_filesystem(name: &str) -> Self {
        match name {
            "Stat" => Self::Stat,
            "ListDir" => Self::ListDir,
            "MakeDir" => Self::MakeDir,
            "Move" => Self::Move,
            "Remove" => Self::Remove,
            "WatchDir" => Self::WatchDir,
            "CreateWatcher" => Self::CreateWatcher,
            "GetWatcherEvents" => Self::GetWatcherEvents,
            "RemoveWatcher" => Self::RemoveWatcher,
            _ => Self::UnknownEnvd,
        }
    }

    /// Whether it answers with envelopes.
    pub(crate) fn is_streaming(self) -> bool {
        matches!(self, Self::Start | Self::ProcessConnect | Self::StreamInput | Self::WatchDir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_operations_and_sandboxes() {
        let of = |method: &Method, path| Operation::of_api(method, path);
        assert_eq!(of(&Method::POST, "/v2/sandboxes/ia/connect"), (Operation::Connect, Some("ia")));
        assert_eq!(of(&Method::GET, "/sandboxes/metrics"), (Operation::MetricsOfMany, None));
        assert_eq!(of(&Method::DELETE, "/sandboxes/ia"), (Operation::Kill, Some("ia")));
        assert_eq!(of(&Method::DELETE, "/v2/sandboxes/ia"), (Operation::UnknownApi, None));
        assert_eq!(Operation::of_envd(&Method::POST, "/process.Process/Start"), Operation::Start);
        assert_eq!(Operation::of_envd(&Method::POST, "/filesystem.Filesystem/Stat"), Operation::Stat);
        assert!(Operation::Stat.is_envd() && !Operation::Kill.is_envd());
    }
}
