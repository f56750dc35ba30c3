#![doc = include_str!("../README.md")]

mod basedir;
mod blocking;
mod error;
mod files;
mod index;
mod opening;
mod process;
mod tree;
mod workspace;

pub use basedir::{Basedir, Directory, Identity, require_openat2};
pub use blocking::blocking;
pub use files::Reach;
pub use index::{Arrival, Record, Settled, Wanted};
pub use opening::{Opening, Place};
pub use process::{Environment, Launcher};
pub use tree::remove_tree;
pub use workspace::HostWorkspace;
