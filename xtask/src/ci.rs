//! Everything that must hold before a change lands.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{
    fuzz, gateway, it, mcp,
    run::{command, is_installed, run, run_command},
    setup, tidy,
};

/// A step, what it is for, and whether its absence is worth a line in the summary rather than a failure.
type Step = (&'static str, fn() -> Result<Outcome>);

enum Outcome {
    Done,
    Skipped(&'static str),
}

/// Enough to see that the targets work. Looking for something takes hours.
const FUZZ_SECONDS: u64 = 10;

const STEPS: [Step; 17] = [
    ("setup", || setup::setup().map(|()| Outcome::Done)),
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("lint", || cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])),
    ("tidy", || tidy::tidy().map(|()| Outcome::Done)),
    // Before the tests, which drive sandboxes with it.
    ("gateway, as one static program", || gateway::gateway(false).map(|_| Outcome::Done)),
    ("test", || cargo(&["test", "--workspace", "--locked", "--no-fail-fast"])),
    ("setup of MCP servers", || mcp::setup().map(|()| Outcome::Done)),
    ("test with real sandboxes", || it::bubblewrap().map(|()| Outcome::Done)),
    ("test with real containers", || {
        if !it::is_root() {
            return Ok(Outcome::Skipped("only root can start an engine for tests"));
        }
        it::docker().map(|()| Outcome::Done)
    }),
    ("test with a stand-in for E2B", || {
        if !it::is_root() {
            return Ok(Outcome::Skipped("only root can enter the namespaces of its sandboxes"));
        }
        it::e2b().map(|()| Outcome::Done)
    }),
    ("test the gateway's program", || {
        // With all that it can be built with.
        let lint = ["clippy", "--package", "wsm-gateway", "--features", "tls", "--all-targets", "--locked"];
        cargo(&[&lint[..], &["--", "--deny", "warnings"]].concat())?;
        let program = ["test", "--package", "wsm-gateway", "--features", "program", "--locked"];
        let tests = ["--lib", "--bin", "wsm-gateway", "--test", "program", "--test", "search", "--test", "unpack"];
        cargo(&[&program[..], &tests, &["--test", "call"]].concat())
    }),
    ("fuzz", || {
        if let Some(why) = fuzz::missing() {
            return Ok(Outcome::Skipped(why));
        }
        fuzz::fuzz(&[], FUZZ_SECONDS).map(|()| Outcome::Done)
    }),
    ("test the gateway's MCP", || {
        let build = ["build", "--package", "wsm-gateway", "--features", "program", "--locked"];
        cargo(&[&build[..], &["--example", "mcp_fixture"]].concat())?;
        let tests = ["test", "--package", "wsm-gateway", "--features", "program", "--locked"];
        let mut tests = command("cargo", &[&tests[..], &["--test", "mcp", "--test", "mcp_program"]].concat());
        run_command(tests.env("WSM_REQUIRE", "mcp"))?;
        // The static program has no TLS by default, so that this runs with one that is not static.
        let tests = ["test", "--package", "wsm-gateway", "--features", "tls", "--locked", "--test", "mcp_program"];
        let mut tests = command("cargo", &[&tests[..], &["behind_https"]].concat());
        run_command(tests.env("WSM_REQUIRE", "tls").env("WSM_GATEWAY", ""))?;
        Ok(Outcome::Done)
    }),
    ("every backend alone", || {
        // Who wants one backend compiles neither the others nor the service.
        cargo(&["check", "--locked", "--package", "wsm-local", "--package", "wsm-core"])?;
        cargo(&["check", "--locked", "--package", "wsm-gateway"])?;
        cargo(&["check", "--locked", "--package", "wsm-bubblewrap"])?;
        cargo(&["check", "--locked", "--package", "wsm-docker"])?;
        cargo(&["check", "--locked", "--package", "wsm-e2b"])?;
        cargo(&["check", "--locked", "--package", "wsm-app", "--no-default-features", "--features", "e2b"])?;
        cargo(&["check", "--locked", "--package", "wsm-app", "--no-default-features"])
    }),
    ("examples", examples),
    ("documentation", || {
        let mut rustdoc = command("cargo", &["doc", "--workspace", "--no-deps", "--locked"]);
        run_command(rustdoc.env("RUSTDOCFLAGS", "--deny warnings"))?;
        Ok(Outcome::Done)
    }),
    ("licences and advisories", || {
        if !is_installed("cargo-deny") {
            return Ok(Outcome::Skipped("cargo-deny is not installed: cargo install --locked cargo-deny"));
        }
        // The advisories come over the network, which not every machine has.
        cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"])
    }),
];

pub(crate) fn ci() -> Result<()> {
    let mut summary = Vec::new();
    let mut failed = false;
    for (name, step) in STEPS {
        println!("\n== {name}");
        #[expect(clippy::disallowed_methods, reason = "nobody pauses the time of a build")]
        let before = Instant::now();
        let (verdict, why) = match step() {
            Ok(Outcome::Done) => ("ok", String::new()),
            Ok(Outcome::Skipped(why)) => ("SKIPPED", why.to_owned()),
            Err(error) => {
                failed = true;
                ("FAILED", format!("{error:#}"))
            }
        };
        summary.push((name, verdict, before.elapsed(), why));
    }
    print_summary(&summary);
    if failed {
        bail!("a step failed");
    }
    Ok(())
}

fn print_summary(summary: &[(&str, &str, Duration, String)]) {
    println!("\n== summary");
    for (name, verdict, duration, why) in summary {
        println!("{name:<26} {verdict:<8} {:>4} s  {why}", duration.as_secs());
    }
    println!(
        "\nbackends: `local`, `bubblewrap`, `docker` and the in-memory one ran the whole suite against this machine, `e2b` \
         against a stand-in for the cloud"
    );
}

fn cargo(args: &[&str]) -> Result<Outcome> {
    run("cargo", args).map(|()| Outcome::Done)
}

/// Runs the examples that end by themselves.
fn examples() -> Result<Outcome> {
    for example in ["example-quickstart", "example-custom-manager", "example-embed-axum"] {
        cargo(&["run", "--quiet", "--locked", "--package", example])?;
    }
    Ok(Outcome::Done)
}

/// Rewrites what is made of code. The tests compare the same files.
pub(crate) fn codegen() -> Result<()> {
    // The name that those tests end with.
    let mut tests = command("cargo", &["test", "--package", "wsm-app", "--quiet", "the_committed_one"]);
    run_command(tests.env("UPDATE_SNAPSHOTS", "1"))
}
