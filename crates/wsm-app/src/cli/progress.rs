//! A bar on the terminal while an opening takes long.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use indicatif::{ProgressBar, ProgressStyle};
use wsm_core::{EventKind, EventStream, Step};

use super::talk::printable;

/// How often the bar shows that something goes on.
const TICK: Duration = Duration::from_millis(100);

/// Waits for `work`, and shows meanwhile what the events tell of its progress. Where there is no terminal, nothing is shown.
///
/// Cancel-safe if `work` is: the bar goes away with it.
pub(super) async fn show_while<T>(mut events: EventStream, work: impl Future<Output = T>) -> T {
    // Made by the first step, since most openings take no time.
    let mut bar: Option<Bar> = None;
    let mut work = std::pin::pin!(work.fuse());
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some(event) = events.next() => if let EventKind::Progress { step } = event.kind {
                bar.get_or_insert_with(Bar::new).show(&step);
            }
        }
    }
}

/// Cleared when it is dropped.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    fn show(&self, step: &Step) {
        if let Some((done, all)) = step.done {
            self.0.set_length(all);
            self.0.set_position(done);
        }
        self.0.set_style(style(self.0.length().is_some()));
        self.0.set_prefix(step.activity);
        self.0.set_message(printable(&step.detail));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

const KNOWN_LENGTH: &str = "{spinner} {prefix} [{bar:20}] {pos}/{len} {wide_msg}";
const UNKNOWN_LENGTH: &str = "{spinner} {prefix}: {wide_msg}";

fn style(has_length: bool) -> ProgressStyle {
    let template = if has_length { KNOWN_LENGTH } else { UNKNOWN_LENGTH };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::channel::mpsc;
    use wsm_core::{Event, WorkspaceId};

    use super::*;

    #[test]
    fn both_looks_can_be_shown() {
        for template in [KNOWN_LENGTH, UNKNOWN_LENGTH] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[tokio::test]
    async fn the_work_comes_to_its_end_whatever_the_events_do() {
        assert_eq!(show_while(futures::stream::empty().boxed(), async { 1 }).await, 1);
        let (sender, events) = mpsc::unbounded();
        let (done, waiting) = tokio::sync::oneshot::channel();
        let mut shown = pin!(show_while(events.boxed(), waiting));
        for step in [Step::new("building", "one"), Step::new("building", "two").with_done(1, 3)] {
            sender.unbounded_send(Event::now(WorkspaceId::random(), EventKind::Progress { step })).unwrap();
            assert!((&mut shown).now_or_never().is_none());
        }
        done.send(2).unwrap();
        assert_eq!(shown.await, Ok(2));
    }
}
