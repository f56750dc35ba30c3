//! What the compiler and the linter do not check: which crate knows which, and how the tree is kept.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{output, root};

/// The crates that are backends, or will be.
const BACKENDS: [&str; 7] =
    ["wsm-local", "wsm-bubblewrap", "wsm-docker", "wsm-k8s", "wsm-e2b", "wsm-daytona", "wsm-opensandbox"];

/// Stands in for a vendor's cloud in tests. Nothing that is used knows it.
const ONLY_FOR_TESTS: &str = "wsm-fake-e2b";

/// What must not be below the core: HTTP, SQL, TLS, and every vendor's client.
const NOT_BELOW_CORE: [&str; 14] = [
    "axum",
    "bollard",
    "h2",
    "http",
    "hyper",
    "k8s-openapi",
    "kube",
    "libsqlite3-sys",
    "native-tls",
    "openssl",
    "reqwest",
    "rustls",
    "sqlx",
    "tonic",
];

pub(crate) fn tidy() -> Result<()> {
    let mut faults = Vec::new();
    check_arrows(&mut faults)?;
    check_core_tree(&mut faults)?;
    check_sources(&mut faults)?;
    check_crates(&mut faults)?;
    if faults.is_empty() {
        println!("tidy");
        return Ok(());
    }
    faults.iter().for_each(|fault| eprintln!("untidy: {fault}"));
    bail!("{} things are untidy", faults.len());
}

/// A backend depends on the core, and on what backends of one machine share; the core on nothing of ours; and only the app
/// on backends.
fn check_arrows(faults: &mut Vec<String>) -> Result<()> {
    let metadata = output("cargo", &["metadata", "--format-version", "1", "--no-deps", "--offline"])?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo's metadata")?;
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let ours: BTreeSet<&str> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["kind"].is_null())
            // The gateway's program is of this machine, its library is not: who uses that compiles no host.
            .filter(|dependency| {
                name != "wsm-gateway" || dependency["name"] != "wsm-host" || dependency["optional"] != true
            })
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|dependency| dependency.starts_with("wsm-"))
            .collect();
        if ours.contains(ONLY_FOR_TESTS) {
            faults.push(format!("{name} must not depend on {ONLY_FOR_TESTS}, but in tests"));
        }
        let allowed: &[&str] = match name {
            ONLY_FOR_TESTS => &[],
            "wsm-core" => &[],
            "wsm-conformance" | "wsm-host" | "wsm-gateway" => &["wsm-core"],
            "wsm-toolkit" => &["wsm-core", "wsm-gateway"],
            "wsm-local" | "wsm-bubblewrap" | "wsm-docker" => &["wsm-core", "wsm-host"],
            name if BACKENDS.contains(&name) => &["wsm-core"],
            _ => continue,
        };
        for dependency in ours.into_iter().filter(|dependency| !allowed.contains(dependency)) {
            faults.push(format!("{name} must not depend on {dependency}"));
        }
    }
    Ok(())
}

fn check_core_tree(faults: &mut Vec<String>) -> Result<()> {
    let args =
        ["tree", "--package", "wsm-core", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--offline"];
    for line in output("cargo", &args)?.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if NOT_BELOW_CORE.contains(&name) {
            faults.push(format!("wsm-core must not have {name} below it"));
        }
    }
    Ok(())
}

fn check_sources(faults: &mut Vec<String>) -> Result<()> {
    // Spelled so that this file does not find itself.
    let machine_paths = [concat!("/", "work/"), concat!("/", "root/")];
    for path in output("git", &["ls-files"])?.lines() {
        let Ok(text) = fs::read_to_string(root().join(path)) else { continue };
        for machine_path in machine_paths {
            if text.contains(machine_path) {
                faults.push(format!("{path} names a path of one machine: {machine_path}"));
            }
        }
        if !path.ends_with(".rs") {
            continue;
        }
        if text.contains(concat!("#[", "ignore]")) {
            faults.push(format!("{path} ignores a test without saying what it needs"));
        }
        let lines = text.lines().count();
        if lines > 800 {
            faults.push(format!("{path} has {lines} lines: what a file holds should have a short name"));
        }
        if !text.starts_with("//!") && !text.starts_with("#![doc") && !text.starts_with("#!") {
            faults.push(format!("{path} does not begin by saying what it holds"));
        }
        let names_backends = path.starts_with("crates/wsm-app/src/") && path != "crates/wsm-app/src/assemble.rs";
        let in_core = path.starts_with("crates/wsm-core/src/");
        for backend in BACKENDS.map(|name| name.replace('-', "_")) {
            if (names_backends || in_core) && text.contains(&format!("{backend}::")) {
                faults.push(format!("{path} names {backend}: only assemble.rs knows the backends"));
            }
        }
    }
    Ok(())
}

fn check_crates(faults: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root().join("crates"))? {
        let directory = entry?.path();
        let shown = directory.strip_prefix(root()).unwrap_or(&directory).display().to_string();
        if !directory.join("Cargo.toml").is_file() {
            continue;
        }
        if !directory.join("README.md").is_file() {
            faults.push(format!("{shown} has no README.md"));
        }
        check_manifest(&directory.join("Cargo.toml"), &shown, faults)?;
    }
    Ok(())
}

/// Versions and lints stand at the root.
fn check_manifest(manifest: &Path, shown: &str, faults: &mut Vec<String>) -> Result<()> {
    let text = fs::read_to_string(manifest)?;
    if !text.contains("[lints]\nworkspace = true") {
        faults.push(format!("{shown} does not take the workspace's lints"));
    }
    let mut section = "";
    for line in text.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies") && (line.contains("version =") || line.contains("= \"")) {
            faults.push(format!("{shown} gives a version of its own: {line}"));
        }
    }
    Ok(())
}
