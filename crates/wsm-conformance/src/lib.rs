#![doc = include_str!("../README.md")]
#![expect(clippy::expect_used, clippy::panic, reason = "a failing case panics")]

mod cases;
mod context;
mod layered;
pub mod measure;
mod report;
mod runner;
mod subject;

pub use layered::Layered;
pub use report::{CaseReport, Report, Verdict};
pub use runner::{run, run_all};
pub use subject::{Faults, Subject, Unavailable};

/// Makes the `main` of a backend's `tests/conformance.rs`, a test target with `harness = false`.
///
/// Takes the name of an `async fn() -> Result<Subject, Unavailable>`.
#[macro_export]
macro_rules! main {
    ($subject:path) => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(::std::path::Path::new(env!("CARGO_MANIFEST_DIR")), $subject)
        }
    };
}
