//! Commands as processes of this machine: started in their workspace, followed to their end, and ended whole.

mod child;
mod driver;
mod environment;
mod hunt;
mod image;
mod launcher;
mod marker;
mod output;
mod refusal;
mod stdin;
mod table;
mod vfork;

pub(crate) use environment::Environment;
pub(crate) use hunt::Hunt;
pub(crate) use launcher::{Host, Launch, Launcher, Stdin};
pub(crate) use marker::{Instance, Marked};
pub(crate) use vfork::keep_ends_of_children;
