//! The engine behind a backend.

use std::time::Duration;

use wsm_core::Probe;

use super::report::{Check, Status};
use crate::{assemble, config::Settings};

/// How long an engine has to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn checks(settings: &Settings) -> Vec<Check> {
    let name = format!("backend {}", settings.backend.name);
    let failed = |detail: String| vec![Check::new(Status::Failed, &name, detail)];
    let manager = match assemble::manager(settings, None) {
        Ok(manager) => manager,
        Err(error) => return failed(error.report().to_string()),
    };
    match tokio::time::timeout(TIMEOUT, manager.probe()).await {
        Err(_) => failed(format!("the engine does not answer within {} s", TIMEOUT.as_secs())),
        Ok(Err(error)) => failed(error.report().to_string()),
        Ok(Ok(Probe { engine, facts, warnings, .. })) => {
            let facts = facts.into_iter().map(|fact| Check::ok(&name, fact));
            let warnings = warnings.into_iter().map(|warning| Check::new(Status::Warning, &name, warning));
            std::iter::once(Check::ok(&name, engine)).chain(facts).chain(warnings).collect()
        }
    }
}
