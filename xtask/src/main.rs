//! The project's own tasks: `cargo xtask <task>`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks talk to the person who started them")]

mod bench;
mod ci;
mod client;
mod docker;
mod e2b;
mod fuzz;
mod gateway;
mod it;
mod mcp;
mod packages;
mod run;
mod setup;
mod tidy;

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything that must hold before a change lands, on a fresh machine.
    Ci,
    /// Installs what the build and the tests need (Debian packages, as root).
    Setup {
        /// What else to install.
        what: Option<Extra>,
    },
    /// Checks what the compiler and the linter do not: which crate knows which, and how the tree is kept.
    Tidy,
    /// Measures the service end to end and the manager at scale, or the gateway.
    Bench {
        /// What to measure.
        #[arg(default_value = "service")]
        subject: bench::Subject,
        /// Seconds for each measurement of the service.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Tests against a real engine, in every way in which it can be run here.
    It {
        /// Which: `bubblewrap`, `docker`, or `e2b`, which is a stand-in for its cloud.
        engine: String,
    },
    /// Feeds what reads bytes from outside with bytes that nobody has thought of.
    Fuzz {
        /// What to feed: frames, messages, members, envelopes. All when none is named.
        targets: Vec<String>,
        /// Seconds for each.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Builds the program that runs inside of sandboxes: one static file.
    Gateway {
        /// Also reaches MCP servers behind `https`. A good megabyte more.
        #[arg(long)]
        tls: bool,
    },
    /// Rewrites the files that are made of code, such as the OpenAPI document.
    Codegen,
}

/// What only some tests need.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Extra {
    /// A Docker engine with the images that tests need, as root.
    Docker,
    /// The official SDKs of E2B, which the stand-in for its cloud is driven with.
    E2b,
    /// The MCP servers of others that the gateway is tested with.
    Mcp,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Ci => ci::ci(),
        Task::Setup { what: None } => setup::setup(),
        Task::Setup { what: Some(Extra::Mcp) } => mcp::setup(),
        Task::Setup { what: Some(Extra::E2b) } => e2b::setup(),
        Task::Setup { what: Some(Extra::Docker) } => docker::setup(),
        Task::Tidy => tidy::tidy(),
        Task::Bench { subject, seconds } => bench::bench(subject, std::time::Duration::from_secs(seconds)),
        Task::Fuzz { targets, seconds } => fuzz::fuzz(&targets, seconds),
        Task::It { engine } => it::it(&engine),
        Task::Gateway { tls } => gateway::gateway(tls).map(drop),
        Task::Codegen => ci::codegen(),
    }
}
