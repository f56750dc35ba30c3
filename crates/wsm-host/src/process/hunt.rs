//! Ends processes together with everything they started, politely first.

use std::{collections::HashSet, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, sleep};
use wsm_core::{Error, ErrorKind, Result};

use super::{
    marker::Marked,
    table::{ProcessId, ProcessTable},
};
use crate::blocking::blocking;

/// How long to wait for processes that do not even end by `SIGKILL`, such as one in a hung network file system.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// The pauses between two looks double up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A set of processes that must end. It grows as they start others.
#[derive(Debug)]
pub(crate) struct Hunt {
    /// A process whose number stays taken until we reap it. It is killed last: it adopts the orphans among its
    /// descendants, so that as long as it lives, all of them are found below it.
    root: Option<ProcessId>,
    known: HashSet<ProcessId>,
    marked: Marked,
}

impl Hunt {
    /// Ends the tree below `root`, which is a child of this process and not reaped before the hunt is over, and
    /// whatever else is marked.
    pub(crate) fn tree(root: ProcessId, marked: Marked) -> Self {
        Self { root: Some(root), known: HashSet::from([root]), marked }
    }

    /// Ends what is marked.
    pub(crate) fn marked(marked: Marked) -> Self {
        Self { root: None, known: HashSet::new(), marked }
    }

    /// `SIGTERM` for all that is there, `SIGKILL` for all that is left after `grace`. Returns how many it found.
    ///
    /// # Errors
    ///
    /// When `/proc` can not be read, or processes are left that nothing ends.
    ///
    /// # Cancel safety
    ///
    /// A dropped hunt leaves processes alive; it runs on tasks that are waited for.
    pub(crate) async fn run(self, grace: Duration) -> Result<usize> {
        let hunt = self.ask(grace).await?;
        hunt.kill().await
    }

    async fn ask(mut self, grace: Duration) -> Result<Self> {
        let asked = Instant::now();
        let mut pause = Duration::from_millis(1);
        // What starts after this may be somebody cleaning up: only those who were there are asked to end.
        let mut remaining = if grace.is_zero() {
            false
        } else {
            self = self
                .step(|hunt| {
                    let table = hunt.look(hunt.root.is_none())?;
                    // The command first: one that waits for its children would otherwise see them end, and end as if all
                    // were well, before it hears that it shall clean up.
                    hunt.root.iter().for_each(|root| root.signal(Signal::TERM));
                    let others = hunt.alive(&table).filter(|&process| hunt.root != Some(process));
                    others.for_each(|process| process.signal(Signal::TERM));
                    Ok(())
                })
                .await?
                .0;
            !self.known.is_empty()
        };
        while remaining && asked.elapsed() < grace {
            sleep(pause.min(grace.saturating_sub(asked.elapsed()))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            (self, remaining) = self
                .step(|hunt| {
                    let table = hunt.look(false)?;
                    Ok(hunt.alive(&table).next().is_some())
                })
                .await?;
        }
        Ok(self)
    }

    async fn kill(mut self) -> Result<usize> {
        if let Some(root) = self.root {
            // A stopped process starts nothing and does not end, so that no descendant slips away to another parent.
            root.signal(Signal::STOP);
        }
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let left;
            (self, left) = self
                .step(|hunt| {
                    let table = hunt.look(true)?;
                    let left: Vec<ProcessId> =
                        hunt.alive(&table).filter(|&process| hunt.root != Some(process)).collect();
                    left.iter().for_each(|process| process.signal(Signal::KILL));
                    Ok(left.len())
                })
                .await?;
            if left == 0 {
                break;
            }
            if begun.elapsed() > KILL_PATIENCE {
                if let Some(root) = self.root {
                    root.signal(Signal::KILL);
                }
                let message = format!("{left} processes do not end, not even by SIGKILL");
                return Err(Error::new(ErrorKind::Timeout, message));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if let Some(root) = self.root {
            root.signal(Signal::KILL);
        }
        Ok(self.known.len())
    }

    /// Runs one look at the processes on a thread that may block.
    async fn step<T: Send + 'static>(
        mut self,
        step: impl FnOnce(&mut Self) -> std::io::Result<T> + Send + 'static,
    ) -> Result<(Self, T)> {
        blocking(move || {
            let result = step(&mut self)
                .map_err(|error| Error::new(ErrorKind::Backend, "could not look for processes").with_source(error))?;
            Ok((self, result))
        })
        .await
    }

    /// Reads the process table and takes note of who is new.
    fn look(&mut self, marked_too: bool) -> std::io::Result<ProcessTable> {
        let table = ProcessTable::read()?;
        if marked_too {
            self.marked.add_to(&table, &mut self.known);
        }
        table.add_descendants(&mut self.known);
        Ok(table)
    }

    fn alive<'a>(&'a self, table: &'a ProcessTable) -> impl Iterator<Item = ProcessId> + 'a {
        self.known.iter().copied().filter(|&process| table.is_alive(process))
    }
}
