//! The official SDKs against the fake: what they are happy with, a client of ours may rely on.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "what is not as expected fails the test")]

mod support;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use wsm_fake_e2b::{API_KEY, FakeE2b, Options};

/// Where `cargo xtask setup e2b` puts the SDKs.
fn installed() -> Option<PathBuf> {
    let directory = std::env::var_os("WSM_E2B_SDK")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/e2b-sdk"), PathBuf::from);
    if directory.join("installed").is_file() {
        return directory.canonicalize().ok();
    }
    support::skipped("the SDKs are not installed: cargo xtask setup e2b");
    None
}

fn drive(program: &Path, driver: &str) {
    let Some(sdk) = installed() else { return };
    let Some(runtime) = support::runtime() else { return };
    // One listener, and two of them.
    for sandbox_port in [None, Some(0)] {
        let mut options = Options::default();
        options.sandbox_port = sandbox_port;
        let fake = runtime.block_on(FakeE2b::start(options)).unwrap();
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(driver);
        let mut command = Command::new(sdk.join(program));
        command.arg(driver).env("E2B_SDK", &sdk).env("E2B_API_KEY", API_KEY);
        command.env("E2B_API_URL", fake.api_url()).env("E2B_SANDBOX_URL", fake.sandbox_url());
        // What somebody set for the real one is not for this one.
        command.env_remove("E2B_DOMAIN").env_remove("E2B_DEBUG");
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{out}");
        assert!(output.status.success(), "{}\n{err}", output.status);
        let last = out.lines().last().unwrap_or_default();
        assert!(last.starts_with("end: ") && last.ends_with(" 0 failed"), "it did not come to its end: {last}");
        assert_eq!(fake.sandboxes().all().len(), 0);
    }
}

#[test]
fn the_python_sdk_is_happy() {
    drive(Path::new("python/bin/python"), "driver.py");
}

#[test]
fn the_javascript_sdk_is_happy() {
    let node = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join("node"))
        .find(|node| node.is_file());
    match node {
        Some(node) => drive(&node, "driver.mjs"),
        None => support::skipped("`node` is not installed"),
    }
}
