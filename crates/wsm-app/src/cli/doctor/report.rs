//! What was found.

use serde::Serialize;

use super::super::talk::printable;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// As it should be.
    Ok,
    /// wsm works, but somebody should know.
    Warning,
    /// wsm does not work.
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    name: String,
    status: Status,
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    pub(super) fn new(status: Status, name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status, detail: detail.into(), advice: None }
    }

    pub(super) fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Status::Ok, name, detail)
    }

    pub(super) fn at_most_a_warning(mut self) -> Self {
        if self.status == Status::Failed {
            self.status = Status::Warning;
        }
        self
    }

    pub(super) fn with_advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// Everything that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
}

impl Report {
    pub(super) fn failed(&self) -> bool {
        self.checks.iter().any(|check| check.status == Status::Failed)
    }

    /// One line a check, and one more for what to do.
    pub(super) fn text(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Check { name, status, detail, advice } in &self.checks {
            let word = match status {
                Status::Ok => "ok",
                Status::Warning => "warning",
                Status::Failed => "failed",
            };
            text += &format!("{word:8} {name:width$}  {}\n", printable(detail));
            if let Some(advice) = advice {
                text += &format!("{:8} {:width$}  -> {}\n", "", "", printable(advice));
            }
        }
        text
    }
}
