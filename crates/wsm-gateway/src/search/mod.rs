//! Looking for files and for text inside of a workspace: what is asked, what is found, and how both travel.

mod client;
mod found;
mod request;
mod server;

pub use found::{GlobEntry, GlobEvent, GlobResult, GrepBinary, GrepEvent, GrepFile, GrepLine, GrepResult, Problem};
pub use found::{SearchEnd, Truncated};
pub use request::{GlobKind, GlobRequest, GrepMode, GrepRequest, WalkOptions};
