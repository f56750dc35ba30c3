//! What `bwrap` reports on the file that `--json-status-fd` names: one JSON object a line.

use serde::Deserialize;

/// One report. Fields that nobody needs, such as the namespaces', are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Report {
    /// The number of the sandbox' first process, as the host sees it. Comes first, before anything is mounted.
    #[serde(default)]
    pub(crate) child_pid: Option<i32>,
    /// How the first process ended; 128 and the signal's number where one did it. Comes last, and not at all when no
    /// program was run.
    #[serde(default)]
    pub(crate) exit_code: Option<i32>,
}

impl Report {
    /// None for anything but a report.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_reports_are_understood() {
        let first = r#"{ "child-pid": 17041, "cgroup-namespace": 4026532185, "pid-namespace": 4026532184 }"#;
        assert_eq!(Report::parse(first), Some(Report { child_pid: Some(17041), exit_code: None }));
        let last = Report::parse(r#"{ "exit-code": 137 }"#);
        assert_eq!(last, Some(Report { child_pid: None, exit_code: Some(137) }));
        assert_eq!(Report::parse("bwrap: no report"), None);
        assert_eq!(Report::parse(""), None);
    }
}
