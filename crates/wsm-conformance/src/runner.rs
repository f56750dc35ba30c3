//! Runs the cases, as a test binary or for a program.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

use crate::{
    cases::{self, Case},
    context::Context,
    report::{CaseReport, Report, Verdict, expected_failures, judge},
    subject::{Subject, Unavailable},
};

/// How long one case may take.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Runs the suite as a test binary, with the arguments and the output of one. See [`main!`](crate::main).
pub fn run<F>(crate_directory: &Path, subject: impl FnOnce() -> F) -> ExitCode
where
    F: Future<Output = Result<Subject, Unavailable>>,
{
    let arguments = Arguments::from_args();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => return complain(&format!("no runtime: {error}")),
    };
    let subject = match runtime.block_on(subject()) {
        Ok(subject) => subject,
        Err(Unavailable { kind, reason }) => return unavailable(kind, &reason),
    };
    let cases = cases::all();
    let names: Vec<String> = cases.iter().map(Case::name).collect();
    let expected = match expected_failures(&crate_directory.join("tests/expected-failures.toml"), &names) {
        Ok(expected) => expected,
        Err(error) => return complain(&error),
    };
    let capabilities = match subject.connect() {
        Ok(backend) => backend.capabilities(),
        Err(error) => return complain(&format!("the backend can not be made: {}", error.report())),
    };
    let mut trials = Vec::new();
    for case in cases {
        let (name, reason) = (case.name(), case.reason_to_skip(&capabilities, &subject));
        if let Some(reason) = &reason {
            say(&format!("skipped {name}: {reason}"));
        }
        let (runtime, subject, expected) = (Arc::clone(&runtime), subject.clone(), expected.get(&name).cloned());
        let trial = Trial::test(name, move || Ok(judge(expected.as_ref(), run_case(&runtime, &case, &subject))?));
        trials.push(trial.with_ignored_flag(reason.is_some()));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs every case that applies and reports on all. For programs; test binaries use [`run`].
///
/// # Panics
///
/// When no runtime can be made.
pub fn run_all(subject: &Subject) -> Report {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let capabilities = subject.connect().expect("the backend can be made").capabilities();
    let verdict = |case: &Case| match case.reason_to_skip(&capabilities, subject) {
        Some(reason) => Verdict::Skipped(reason),
        None => run_case(&runtime, case, subject),
    };
    let cases = cases::all();
    Report { cases: cases.iter().map(|case| CaseReport { name: case.name(), verdict: verdict(case) }).collect() }
}

fn run_case(runtime: &Runtime, case: &Case, subject: &Subject) -> Verdict {
    let (subject, body, alone) = (subject.clone(), case.body, case.makes_the_engine_fail());
    let work = async move {
        let engine = Arc::clone(&subject.engine);
        let (_alone, _shared) = match alone {
            true => (Some(engine.write_owned().await), None),
            false => (None, Some(engine.read_owned().await)),
        };
        let context = Context::new(subject)?;
        // A task of its own, so that a panic is a verdict and what was opened is destroyed all the same.
        #[expect(clippy::disallowed_methods, reason = "it is awaited, and ended at the limit, right here")]
        let mut running = tokio::spawn(body(context.clone()));
        let verdict = match tokio::time::timeout(CASE_LIMIT, &mut running).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(panic)) => Err(describe_panic(panic)),
            Err(_) => {
                running.abort();
                Err(format!("it took longer than {CASE_LIMIT:?}"))
            }
        };
        let cleaned = context.clean_up().await;
        verdict.and(cleaned)
    };
    match runtime.block_on(work) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn describe_panic(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (None, Some(text)) => (*text).to_owned(),
        (None, None) => "it panicked".to_owned(),
    }
}

fn unavailable(kind: &str, reason: &str) -> ExitCode {
    let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
    if required.split(',').any(|required| required.trim() == kind) {
        return complain(&format!("`{kind}` is required by WSM_REQUIRE, but can not be tested: {reason}"));
    }
    say(&format!("skipped all cases: `{kind}` can not be tested here: {reason}"));
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "a test binary reports on stdout")]
fn say(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "a test binary complains on stderr")]
fn complain(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::FAILURE
}
