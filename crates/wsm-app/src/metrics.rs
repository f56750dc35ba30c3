//! What is counted and measured, rendered for Prometheus.

use std::{fmt, time::Duration};

use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use wsm_core::{CachedState, Event, EventKind, EventListener, WorkspaceId, WorkspaceManager};

/// Upper bounds of the latency buckets, in seconds.
const BUCKETS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

static METADATA: Metadata<'static> = Metadata::new("wsm", Level::INFO, Some(module_path!()));

/// The metrics of one application. Nothing here is global, so two of them in one process do not mix.
///
/// As an [`EventListener`] it counts the hits of a manager; all else it learns by itself.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    hits: Counter,
    cached: [(CachedState, Gauge); 4],
    leases: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that are all zero.
    pub fn new() -> Self {
        let builder = PrometheusBuilder::new();
        // Refused only for an empty list of buckets.
        let builder = builder.set_buckets(&BUCKETS).unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        for (name, about) in [
            ("wsm_workspace_opened_total", "Openings of workspaces, by how they ended."),
            ("wsm_workspace_put_away_total", "Workspaces suspended or detached, by reason."),
            ("wsm_workspace_died_total", "Workspaces found dead, by cause."),
            ("wsm_workspace_destroyed_total", "Workspaces deleted with their data."),
            ("wsm_workspace_failed_total", "Failed operations of the manager."),
            ("wsm_workspace_hits_total", "Requests answered from the cache."),
        ] {
            recorder.describe_counter(KeyName::from_const_str(name), None, about.into());
        }
        for (name, about) in [
            ("wsm_workspace_cached", "Workspaces in the cache, by state."),
            ("wsm_workspace_leases", "Uses of workspaces that go on now."),
        ] {
            recorder.describe_gauge(KeyName::from_const_str(name), None, about.into());
        }
        for (name, about) in [
            ("wsm_workspace_open_duration_seconds", "How long opening a workspace took."),
            ("wsm_http_request_duration_seconds", "How long requests took until their answer began."),
        ] {
            recorder.describe_histogram(KeyName::from_const_str(name), Some(Unit::Seconds), about.into());
        }
        let gauge = |state, name| {
            let key = Key::from_parts("wsm_workspace_cached", vec![Label::from_static_parts("state", name)]);
            (state, recorder.register_gauge(&key, &METADATA))
        };
        Self {
            hits: recorder.register_counter(&Key::from_static_name("wsm_workspace_hits_total"), &METADATA),
            cached: [
                gauge(CachedState::Opening, "opening"),
                gauge(CachedState::Live, "live"),
                gauge(CachedState::Suspending, "suspending"),
                gauge(CachedState::Doubtful, "doubtful"),
            ],
            leases: recorder.register_gauge(&Key::from_static_name("wsm_workspace_leases"), &METADATA),
            handle: recorder.handle(),
            recorder,
        }
    }

    /// Counts what happened to a workspace.
    pub(crate) fn count(&self, event: &EventKind) {
        match event {
            EventKind::Opened { opening, duration } => {
                self.counter("wsm_workspace_opened_total", "kind", name_of(&opening.kind)).increment(1);
                let key = Key::from_static_name("wsm_workspace_open_duration_seconds");
                self.recorder.register_histogram(&key, &METADATA).record(duration.as_secs_f64());
            }
            EventKind::Suspended { reason } | EventKind::Detached { reason } => {
                self.counter("wsm_workspace_put_away_total", "reason", name_of(reason)).increment(1);
            }
            EventKind::Died { cause } => {
                self.counter("wsm_workspace_died_total", "cause", name_of(cause)).increment(1);
            }
            EventKind::Destroyed => {
                let key = Key::from_static_name("wsm_workspace_destroyed_total");
                self.recorder.register_counter(&key, &METADATA).increment(1);
            }
            EventKind::Failed { operation, error: _ } => {
                self.counter("wsm_workspace_failed_total", "operation", (*operation).to_owned()).increment(1);
            }
            _ => {}
        }
    }

    /// Measures a request.
    pub(crate) fn request(&self, method: &http::Method, route: &str, status: http::StatusCode, took: Duration) {
        let labels = vec![
            Label::new("method", method.as_str().to_owned()),
            Label::new("route", route.to_owned()),
            Label::new("status", status.as_str().to_owned()),
        ];
        let key = Key::from_parts("wsm_http_request_duration_seconds", labels);
        self.recorder.register_histogram(&key, &METADATA).record(took.as_secs_f64());
    }

    /// Everything in Prometheus' text format.
    pub(crate) fn render(&self, manager: &dyn WorkspaceManager) -> String {
        let cached = manager.cached();
        for (state, gauge) in &self.cached {
            gauge.set(cached.iter().filter(|it| it.state == *state).count() as f64);
        }
        self.leases.set(cached.iter().map(|it| it.leases as f64).sum::<f64>());
        self.handle.render()
    }

    /// Folds what was measured into its buckets; unless called now and then, memory grows.
    pub(crate) fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    fn counter(&self, name: &'static str, label: &'static str, value: String) -> Counter {
        let key = Key::from_parts(name, vec![Label::new(label, value)]);
        self.recorder.register_counter(&key, &METADATA)
    }
}

impl EventListener for Metrics {
    fn event(&self, _: &Event) {
        // Heard through the manager's subscription, which also custom managers have.
    }

    fn hit(&self, _: &WorkspaceId) {
        self.hits.increment(1);
    }
}

/// The name that serde gives to a unit variant.
pub(crate) fn name_of(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "unknown".to_owned(),
    }
}
