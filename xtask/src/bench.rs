//! Measures the service end to end and the manager at scale, or the gateway.
#![expect(clippy::disallowed_methods, reason = "a measurement wants the real clock")]

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    client::Client,
    docker, gateway,
    run::{command, run, run_command, target_directory},
};

/// What is measured.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Subject {
    /// The service end to end, and the manager at scale.
    Service,
    /// The gateway's static program over a socket pair, and its frames.
    Gateway,
    /// Sandboxes, beside a bare `bwrap`.
    Bubblewrap,
    /// Containers, beside the same ones without wsm.
    Docker,
    /// Cloud sandboxes, beside the bare round trips of a stand-in for the cloud.
    E2b,
}

pub(crate) fn bench(subject: Subject, duration: Duration) -> Result<()> {
    match subject {
        Subject::Service => service(duration),
        Subject::Gateway => gateway(),
        Subject::Bubblewrap => bubblewrap(),
        Subject::Docker => docker(),
        Subject::E2b => {
            println!("\n# Cloud sandboxes, over a stand-in for the cloud");
            run("cargo", &["bench", "--locked", "--package", "wsm-e2b", "--bench", "e2b"])
        }
    }
}

fn gateway() -> Result<()> {
    let program = gateway::gateway(false)?;
    println!("\n# The gateway, over a socket pair");
    let bench = ["bench", "--locked", "--package", "wsm-gateway", "--bench"];
    let whole = [&bench[..], &["gateway", "--features", "program"]].concat();
    run_command(command("cargo", &whole).env("WSM_GATEWAY", program))?;
    println!("\n# Its frames");
    run("cargo", &[&bench[..], &["frames", "--features", "testing", "--", "--quick"]].concat())
}

fn bubblewrap() -> Result<()> {
    let program = gateway::gateway(false)?;
    println!("\n# Sandboxes");
    let bench = ["bench", "--locked", "--package", "wsm-bubblewrap", "--bench", "sandbox"];
    run_command(command("cargo", &bench).env("WSM_GATEWAY", program))
}

fn docker() -> Result<()> {
    docker::setup()?;
    let program = gateway::gateway(false)?;
    println!("\n# Containers");
    let bench = ["bench", "--locked", "--package", "wsm-docker", "--bench", "container"];
    run_command(command("cargo", &bench).env("WSM_GATEWAY", program).env("DOCKER_HOST", docker::host()))
}

fn service(duration: Duration) -> Result<()> {
    run("cargo", &["build", "--release", "--locked", "--package", "wsm-app"])?;
    println!("\n# The service, with the local backend");
    let service = Service::start()?;
    exec(&service, duration)?;
    requests(&service, duration)?;
    drop(service);
    println!("\n# The manager");
    run("cargo", &["bench", "--locked", "--package", "wsm-core", "--bench", "scale"])?;
    println!("\n# MCP by the gateway");
    let gateway = ["--locked", "--package", "wsm-gateway", "--features", "program"];
    run("cargo", &[&["build", "--release"], &gateway[..], &["--example", "mcp_fixture"]].concat())?;
    run("cargo", &[&["bench"], &gateway[..], &["--bench", "mcp"]].concat())
}

/// `wsm serve` on a directory of its own, ended when dropped.
struct Service {
    process: Child,
    address: SocketAddr,
    directory: std::path::PathBuf,
}

impl Service {
    fn start() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("wsm-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let mut serve = Command::new(target_directory().join("release/wsm"));
        serve.args(["serve", "--backend", "local", "--listen", "127.0.0.1:0"]);
        serve.arg("--basedir").arg(directory.join("workspaces")).arg("--store").arg(directory.join("wsm.db"));
        serve.env("WSM_LOG", "error");
        let mut process = serve.stdout(Stdio::piped()).spawn().context("the service can not be started")?;
        let stdout = process.stdout.take().context("the service has a stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().rsplit("http://").next().unwrap_or_default();
        let address = address.parse().with_context(|| format!("an address in {line:?}"))?;
        let mut client = Client::connect(address)?;
        let session = client.request("POST", "/sessions", r#"{"agent_id":"a","session_id":"s"}"#);
        client.send(&session)?;
        Ok(Self { process, address, directory })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let pid = self.process.id().to_string();
        let _ = command("kill", &["-TERM", &pid]).status();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A warm exec of `true` through the service, side by side with a bare start of the same program.
fn exec(service: &Service, duration: Duration) -> Result<()> {
    let mut client = Client::connect(service.address)?;
    let request = client.request("POST", "/workspace/exec?agent_id=a&session_id=s", r#"{"command":["true"]}"#);
    let (mut bare, mut served) = (Vec::new(), Vec::new());
    let until = Instant::now() + duration;
    while Instant::now() < until {
        let before = Instant::now();
        Command::new("true").status()?;
        bare.push(before.elapsed());
        let before = Instant::now();
        client.send(&request)?;
        served.push(before.elapsed());
    }
    let (bare, served) = (middle(bare), middle(served));
    let allowed = bare.mul_f64(1.5) + Duration::from_micros(300);
    println!("bare fork+exec+wait of `true`:  {bare:>10.1?} (median)");
    println!(
        "POST /workspace/exec of `true`: {served:>10.1?} (median; 1.5x the bare one plus 0.3 ms is {allowed:.1?})"
    );
    Ok(())
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Requests that only read, over a few connections that are kept open.
fn requests(service: &Service, duration: Duration) -> Result<()> {
    for path in ["/workspace/status?agent_id=a&session_id=s", "/workspace/directories?agent_id=a&session_id=s&path=."] {
        for connections in [1, 4, 16] {
            let address = service.address;
            let workers: Vec<_> = (0..connections)
                .map(|_| {
                    thread::spawn(move || -> Result<u64> {
                        let mut client = Client::connect(address)?;
                        let request = client.request("GET", path, "");
                        let until = Instant::now() + duration;
                        let mut count = 0;
                        while Instant::now() < until {
                            client.send(&request)?;
                            count += 1;
                        }
                        Ok(count)
                    })
                })
                .collect();
            let mut total = 0;
            for worker in workers {
                total += worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            }
            let rate = total as f64 / duration.as_secs_f64();
            let shown = path.split('?').next().unwrap_or_default();
            println!("GET {shown:<24} {connections:>3} connections: {rate:>8.0} requests a second");
        }
    }
    Ok(())
}
