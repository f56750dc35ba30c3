//! One request in one run of the program, for backends that have an `exec` and no `connect`.
//!
//! What goes in is a line of JSON, the protocol's number and the request, and then the request's body up to the end of the
//! input. What comes out is what the server says, in the protocol's own frames, so that nothing needs to be escaped. There
//! are no credits: pipes have their own backpressure, and `relay` turns one into the other.

mod bridge;
#[cfg(feature = "program")]
mod relay;

use serde::{Deserialize, Serialize};

use crate::message::Request;

pub use bridge::ExecCalls;
#[cfg(feature = "program")]
pub use relay::relay_call;

/// The line that a call begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    protocol: u32,
    request: Request,
}
