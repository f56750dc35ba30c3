//! Feeds what reads bytes from outside with bytes that nobody has thought of.

use std::{ffi::OsString, fs, process::Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{command, is_installed, root, run_command};

/// What can be fuzzed. Each has a corpus of its name.
pub(crate) const TARGETS: [&str; 4] = ["frames", "messages", "members", "envelopes"];

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const TARGET_DIR: &str = "target/fuzz";
/// What tells the fuzzer which code a run has reached. The compiler has it in every edition.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Why fuzzing is not possible here, if it is not.
pub(crate) fn missing() -> Option<&'static str> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return Some("fuzzing is set up for Linux on x86_64 alone");
    }
    (!is_installed("g++")).then_some("g++ is not installed: apt-get install g++")
}

/// Builds the targets, and runs each for this many seconds. What is found on the way is added to a copy of the corpus.
pub(crate) fn fuzz(targets: &[String], seconds: u64) -> Result<()> {
    if let Some(why) = missing() {
        bail!(why);
    }
    if let Some(unknown) = targets.iter().find(|target| !TARGETS.contains(&target.as_str())) {
        bail!("there is no target `{unknown}`: {}", TARGETS.join(", "));
    }
    let build = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml"];
    let place = ["--target", TRIPLE, "--target-dir", TARGET_DIR];
    run_command(command("cargo", &[&build[..], &place[..]].concat()).env("RUSTFLAGS", FLAGS))?;
    for target in TARGETS.into_iter().filter(|target| targets.is_empty() || targets.iter().any(|name| name == target)) {
        run(target, seconds)?;
    }
    Ok(())
}

fn run(target: &str, seconds: u64) -> Result<()> {
    let directory = root().join(TARGET_DIR);
    let (found, artifacts) = (directory.join("corpus").join(target), directory.join("artifacts").join(target));
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&artifacts)?;
    let program = directory.join(TRIPLE).join("release").join(target);
    let mut prefix = OsString::from("-artifact_prefix=");
    prefix.push(artifacts.join(""));
    let mut fuzzer = command(&program.display().to_string(), &[&format!("-max_total_time={seconds}"), "-max_len=4096"]);
    fuzzer.args(["-rss_limit_mb=1024", "-timeout=5", "-print_final_stats=1"]).arg(prefix);
    // New ones go to the first directory.
    fuzzer.arg(&found).arg(root().join("fuzz/corpus").join(target));
    println!("\n== {target}, {seconds} s");
    let ran = fuzzer.stdin(Stdio::null()).output().with_context(|| format!("`{target}` can not be started"))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    let facts = said.lines().filter(|line| line.starts_with("stat::") || line.contains("DONE"));
    facts.for_each(|line| println!("{line}"));
    if !ran.status.success() {
        println!("{said}");
    }
    ensure!(ran.status.success(), "`{target}` has found something: see {}", artifacts.display());
    Ok(())
}
