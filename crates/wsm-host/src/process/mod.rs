//! Commands as processes of this machine: started in their workspace, followed to their end, and ended whole.

mod child;
mod driver;
mod environment;
mod hunt;
mod image;
mod launcher;
mod marker;
mod orphans;
mod output;
mod refusal;
mod stdin;
mod table;
mod vfork;

pub use environment::Environment;
pub use launcher::Launcher;
pub(crate) use launcher::{Host, Launch, Stdin};
pub use vfork::keep_ends_of_children;
