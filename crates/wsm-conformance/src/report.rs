//! What came of the cases.

use std::{collections::BTreeMap, io::ErrorKind};

use serde::Deserialize;

/// How one case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The rule is kept.
    Passed,
    /// The rule is broken, or the case did not come to its end.
    Failed(String),
    /// The case does not apply.
    Skipped(String),
}

/// One case and how it ended.
#[derive(Debug, Clone)]
pub struct CaseReport {
    /// The case's name, which begins with the number of the rule.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
}

/// What came of all cases.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order of the suite.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// The names of the cases that failed.
    pub fn failed(&self) -> Vec<&str> {
        let failed = self.cases.iter().filter(|case| matches!(case.verdict, Verdict::Failed(_)));
        failed.map(|case| case.name.as_str()).collect()
    }
}

/// The failures that a backend is known to have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedFile {
    #[serde(default)]
    case: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    name: String,
    reason: String,
}

/// Names of cases that are expected to fail, and why.
pub(crate) type ExpectedFailures = BTreeMap<String, String>;

/// Reads the file of expected failures. A missing file is an empty one.
pub(crate) fn expected_failures(path: &std::path::Path, known: &[String]) -> Result<ExpectedFailures, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // Somebody else's, where the suite runs as another user: nothing is expected to fail then.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(format!("`{}` can not be read: {error}", path.display())),
    };
    let file: ExpectedFile = toml::from_str(&text).map_err(|error| format!("`{}`: {error}", path.display()))?;
    for Expected { name, reason } in &file.case {
        if !known.contains(name) {
            return Err(format!("`{}` names `{name}`, which is no case of the suite", path.display()));
        }
        if reason.trim().is_empty() {
            return Err(format!("`{}` gives no reason for `{name}`", path.display()));
        }
    }
    Ok(file.case.into_iter().map(|Expected { name, reason }| (name, reason)).collect())
}

/// Compares a verdict with what was expected of the case.
pub(crate) fn judge(expected: Option<&String>, verdict: Verdict) -> Result<(), String> {
    match (expected, verdict) {
        (None, Verdict::Passed) => Ok(()),
        (None, Verdict::Failed(why)) => Err(why),
        (Some(reason), Verdict::Passed) => {
            Err(format!("it passes, but is listed as an expected failure ({reason}): remove it from the list"))
        }
        (Some(_), Verdict::Failed(_)) | (_, Verdict::Skipped(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_expected_failures_is_strict() {
        let reason = "upstream".to_owned();
        assert!(judge(Some(&reason), Verdict::Failed("x".into())).is_ok());
        assert!(judge(Some(&reason), Verdict::Passed).unwrap_err().contains("remove it"));
        assert!(judge(None, Verdict::Failed("x".into())).is_err());
    }

    #[test]
    fn unknown_names_and_missing_reasons_are_refused() {
        let directory = std::env::temp_dir().join(format!("wsm-expected-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("expected-failures.toml");
        let known = ["E1_x".to_owned()];
        for (text, problem) in [
            ("[[case]]\nname = 'E2_y'\nreason = 'r'", "no case of the suite"),
            ("[[case]]\nname = 'E1_x'\nreason = ' '", "no reason"),
            ("[[case]]\nname = 'E1_x'", "reason"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = expected_failures(&file, &known).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(expected_failures(&file, &known).unwrap().is_empty());
    }
}
