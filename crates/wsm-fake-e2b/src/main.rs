//! Runs the fake by itself, for the drivers of the official SDKs and for trying things by hand.

#![expect(clippy::print_stdout, reason = "it tells the person who started it where it listens")]

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use wsm_fake_e2b::{API_KEY, Account, FakeE2b, Options};

/// A stand-in for the E2B cloud.
#[derive(Debug, Parser)]
#[command(name = "wsm-fake-e2b")]
struct Arguments {
    /// The port of the control plane. 0 is for any.
    #[arg(long, default_value_t = 3900)]
    port: u16,
    /// A port for sandboxes alone.
    #[arg(long)]
    sandbox_port: Option<u16>,
    /// A key that is known. Several may be given.
    #[arg(long = "api-key", default_value = API_KEY)]
    api_keys: Vec<String>,
    /// Where files are kept.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Leaves out what is called v2, as servers of one's own do.
    #[arg(long)]
    without_v2: bool,
    /// The largest page of a list.
    #[arg(long, default_value_t = 100)]
    max_page: usize,
    /// How long create, pause, and resume take.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut options = Options::default();
    options.port = arguments.port;
    options.sandbox_port = arguments.sandbox_port;
    options.accounts = arguments.api_keys.into_iter().map(Account::new).collect();
    options.directory = arguments.dir;
    options.v2 = !arguments.without_v2;
    options.max_page = arguments.max_page;
    options.latency = Duration::from_millis(arguments.latency_ms);
    let fake = FakeE2b::start(options).await?;
    println!("E2B_API_URL={}", fake.api_url());
    println!("E2B_SANDBOX_URL={}", fake.sandbox_url());
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
