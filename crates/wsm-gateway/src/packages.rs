//! Python packages that a workspace is to have, in an environment of its own.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use wsm_core::{
    Command, Encoding, Error, ErrorKind, ExecResult, ReadOptions, RemoveOptions, Result, WriteOptions, byte_stream,
};

use crate::client::GatewayClient;

/// The environment, below the workdir.
const ENVIRONMENT: &str = ".wsm/venv";
/// Where its programs are.
pub(crate) const PROGRAMS: &str = ".wsm/venv/bin";
/// Says of which list it was made. Written last, so that half an environment has none.
const MARK: &str = ".wsm/venv/wsm-packages";
/// How long `pip` may take. Less than an opening may by default, so that it is this that is told.
const LIMIT: Duration = Duration::from_secs(8 * 60);
/// How much of what `pip` says is kept for an error, in bytes.
const SAID: usize = 4 << 10;

/// Makes the environment, unless there is one of the same list.
///
/// # Errors
///
/// `unavailable` with code `packages_failed` and the last words of what failed.
///
/// # Cancel safety
///
/// What a dropped call began is made anew by the next one.
pub(crate) async fn install(client: &GatewayClient, packages: &[String]) -> Result<()> {
    // No package has a line break in its name.
    let mark = Encoding::hash(&packages.join("\n"));
    if read_mark(client).await? == Some(Bytes::from(mark.clone())) {
        return Ok(());
    }
    tracing::info!(?packages, "installing Python packages into the workspace");
    client.remove(ENVIRONMENT, RemoveOptions::default().with_recursive(true).with_missing_ok(true)).await?;
    run(client, Command::from_argv(["python3", "-m", "venv", ENVIRONMENT])).await?;
    let python = format!("{PROGRAMS}/python");
    let pip = [&python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"];
    run(client, Command::from_argv(pip.into_iter().chain(packages.iter().map(String::as_str)))).await?;
    client.write(MARK, byte_stream(Bytes::from(mark)), &WriteOptions::default()).await?;
    Ok(())
}

async fn read_mark(client: &GatewayClient) -> Result<Option<Bytes>> {
    match client.read(MARK, ReadOptions::range(0, Some(64))).await {
        Ok(file) => Ok(Some(file.body.try_collect::<Vec<Bytes>>().await?.concat().into())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn run(client: &GatewayClient, command: Command) -> Result<()> {
    let command = command.with_timeout(LIMIT).with_output_limit(SAID);
    let shown = command.argv.join(" ");
    let failed = |how: &str| {
        let message = format!("the Python packages could not be installed: `{shown}` {how}");
        Error::new(ErrorKind::Unavailable, message).with_code("packages_failed")
    };
    let process = match client.spawn(&command).await {
        Ok(process) => process,
        Err(error) if error.code() == "program_not_found" => {
            return Err(failed("is not there: the sandbox needs `python3` with `venv` (Debian: python3-venv)"));
        }
        Err(error) => return Err(error),
    };
    let ExecResult { status, stdout, stderr, .. } = process.collect(Bytes::new(), command.output_limit).await;
    if status.success() {
        return Ok(());
    }
    // `venv` says what is missing on one stream, and `pip` on the other.
    let (said, also) = (stderr.to_text(), stdout.to_text());
    Err(failed(&format!("ended with {status}: {}", format!("{said}\n{also}").trim())))
}
