//! Log lines on stderr.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

use crate::config::LogFormat;

/// Starts logging to stderr. Does nothing when the process logs already.
///
/// # Errors
///
/// The filter, when it is none.
pub fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        anyhow::anyhow!("`log`: `{filter}` is not allowed: {error}; allowed is such as `info` or `wsm_core=debug`")
    })?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber in one process is refused, which tests rely on.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => builder.json().finish().try_init(),
    };
    Ok(())
}
