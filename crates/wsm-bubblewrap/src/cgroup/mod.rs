//! Limits for all processes of a sandbox together, where the host lets this process make control groups.

mod detect;
mod group;

pub(crate) use detect::{Cgroups, start_time};
pub(crate) use group::Group;

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Limits {
    /// Bytes.
    pub(crate) memory: Option<u64>,
    pub(crate) pids: Option<u32>,
    /// Processors' time.
    pub(crate) cpus: Option<f64>,
}

impl Limits {
    /// The options, by their names in the configuration, that set a limit.
    fn names(self) -> impl Iterator<Item = (&'static str, Controller)> {
        let Self { memory, pids, cpus } = self;
        [
            (memory.is_some(), ("memory", Controller::Memory)),
            (pids.is_some(), ("pids", Controller::Pids)),
            (cpus.is_some(), ("cpus", Controller::Cpu)),
        ]
        .into_iter()
        .filter_map(|(is_set, name)| is_set.then_some(name))
    }
}

/// What the kernel limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}
