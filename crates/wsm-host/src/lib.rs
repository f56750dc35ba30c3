#![doc = include_str!("../README.md")]

mod basedir;
mod blocking;
mod error;
mod files;
pub mod handshake;
mod index;
mod opening;
pub mod options;
mod process;
mod registry;
mod sandbox;
mod survey;
mod tree;
mod workspace;

pub use basedir::{Basedir, Directory, Identity, require_openat2};
pub use blocking::blocking;
pub use files::Reach;
pub use index::{Arrival, Record, Settled, Wanted};
pub use opening::{Opening, Place};
pub use process::{Environment, Launcher, keep_ends_of_children};
pub use registry::{Registry, Turn};
pub use sandbox::{Sandbox, SandboxWorkspace, gateway_missing};
pub use survey::probe_basedir;
pub use tree::remove_tree;
pub use workspace::HostWorkspace;
