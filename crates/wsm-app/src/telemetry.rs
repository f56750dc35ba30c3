//! Log lines on stderr.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt};

use crate::config::LogFormat;

/// Starts logging to stderr what `filter` lets through, such as `info` or `warn,wsm_core=debug`; of a filter that is
/// none, what can be understood. Does nothing when the process logs already.
pub fn init(filter: &str, format: LogFormat) {
    let builder = fmt().with_env_filter(EnvFilter::new(filter)).with_writer(std::io::stderr);
    // A second subscriber in one process is refused, which is what is wanted.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => builder.json().finish().try_init(),
    };
}
