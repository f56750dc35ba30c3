//! What an opening that takes long tells while it does.

use std::{fmt, sync::Arc};

use serde::Serialize;

/// Where a backend tells how far an opening is. Cheap to clone; by default nobody listens.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(Step) + Send + Sync>>);

impl Progress {
    /// Calls `listener` with every step. It must not block.
    pub fn new(listener: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// Tells a step to whoever listens.
    pub fn report(&self, step: Step) {
        if let Some(listener) = &self.0 {
            listener(step);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.0.is_some()).finish()
    }
}

/// How far something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// What is being done, such as `building the image of workspaces`.
    pub activity: &'static str,
    /// The last that was said of it: a line of text.
    pub detail: String,
    /// How many parts of it are done, and how many there are, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<(u64, u64)>,
}

impl Step {
    /// A step of something whose end nobody knows.
    pub fn new(activity: &'static str, detail: impl Into<String>) -> Self {
        Self { activity, detail: detail.into(), done: None }
    }

    /// Sets how many of how many parts are done.
    #[must_use]
    pub fn with_done(mut self, done: u64, all: u64) -> Self {
        self.done = Some((done, all));
        self
    }
}
