//! The in-memory backend passes all of it, and each mistake that it can be built with is noticed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a test binary reports")]

use std::{process::ExitCode, sync::Arc};

use wsm_conformance::{Faults, Subject, Unavailable, Verdict, run_all};
use wsm_core::{
    BackendConfig, Cause, WorkspaceId,
    memory::{Defect, Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

/// Makes the in-memory engine fail.
#[derive(Debug)]
struct MemoryFaults(MemoryEngine);

impl Faults for MemoryFaults {
    fn set_unreachable(&self, unreachable: bool) -> bool {
        if unreachable {
            for operation in [Operation::Open, Operation::Find, Operation::List, Operation::Destroy] {
                self.0.plant(Fault::always(operation, Effect::unavailable()));
            }
        } else {
            self.0.clear_faults();
        }
        true
    }

    fn kill(&self, id: &WorkspaceId) -> bool {
        self.0.kill(id, Cause::Killed);
        true
    }

    fn lose_files(&self, id: &WorkspaceId) -> bool {
        self.0.lose_files(id);
        true
    }
}

fn subject_over(engine: MemoryEngine) -> Subject {
    let faults = MemoryFaults(engine.clone());
    Subject::new(move || Ok(Arc::new(MemoryConfig::new(engine.clone()).build()?))).with_faults(faults)
}

async fn subject() -> Result<Subject, Unavailable> {
    Ok(subject_over(MemoryEngine::new()))
}

/// Every mistake, and the rule whose case must notice it.
const DEFECTS: [(Defect, &str); 21] = [
    (Defect::ExitCodeLost, "E3"),
    (Defect::StreamsMerged, "E2"),
    (Defect::OutputNotBinary, "E2"),
    (Defect::TimeoutIgnored, "E5"),
    (Defect::DropsNotCounted, "E6"),
    (Defect::EnvIgnored, "E8"),
    (Defect::StdinLost, "E7"),
    (Defect::MissingProgramIsAResult, "E9"),
    (Defect::WriteNotAtomic, "F2"),
    (Defect::RangeIgnored, "F3"),
    (Defect::OpenNotIdempotent, "B2"),
    (Defect::CreatesWhenUnreachable, "B4"),
    (Defect::OwnerIgnored, "B5"),
    (Defect::SuspendLosesFiles, "B3"),
    (Defect::GenerationStuck, "B9"),
    (Defect::DestroyKeepsFiles, "B8"),
    (Defect::ListForgetsSuspended, "B7"),
    (Defect::DeadIsAlive, "M3"),
    (Defect::SuspendedStillWorks, "M1"),
    (Defect::PathsEscape, "F10"),
    (Defect::DroppedOutputRunsOn, "S2"),
];

fn every_defect_is_noticed() -> bool {
    // Side by side, since most of a suite's time is waiting.
    let reports: Vec<_> = std::thread::scope(|scope| {
        let run = |defect| {
            move || {
                let engine = MemoryEngine::new();
                engine.add_defect(defect);
                run_all(&subject_over(engine))
            }
        };
        let threads: Vec<_> = DEFECTS.iter().map(|(defect, _)| scope.spawn(run(*defect))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all_noticed = true;
    for ((defect, rule), report) in DEFECTS.iter().zip(reports) {
        let failed = report.failed();
        let noticed = failed.iter().any(|name| name.starts_with(&format!("{rule}_")));
        println!("{defect:?}: {}, failed: {}", if noticed { "noticed" } else { "NOT NOTICED" }, failed.join(", "));
        all_noticed &= noticed;
    }
    all_noticed
}

fn main() -> ExitCode {
    // The verdicts carry the messages; a backtrace of every planted mistake would bury them.
    std::panic::set_hook(Box::new(|_| {}));
    let plain = run_all(&subject_over(MemoryEngine::new()));
    let skipped = plain.cases.iter().filter(|case| matches!(case.verdict, Verdict::Skipped(_))).count();
    println!("{} cases, {skipped} of them skipped", plain.cases.len());
    if std::env::args().len() == 1 && !every_defect_is_noticed() {
        println!("a planted mistake was not noticed");
        return ExitCode::FAILURE;
    }
    wsm_conformance::run(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), subject)
}
