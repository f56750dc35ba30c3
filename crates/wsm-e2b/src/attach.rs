//! Which of several sandboxes is a workspace's. Pure: every replica that sees the same ones decides alike.

use std::{cmp::Reverse, time::SystemTime};

use wsm_core::WorkspaceId;

use crate::{control::Listed, metadata::Read};

/// Sandboxes that were made so soon after the first one count as made at once with it: then the service's own clock decides,
/// since those who made them may have clocks that differ.
const AT_ONCE_MILLIS: u64 = 60_000;

/// What a list of sandboxes says about a workspace.
#[derive(Debug, PartialEq)]
pub(crate) enum Choice {
    /// There is none.
    None,
    /// One has its id, and belongs to another installation. Its id.
    Foreign(String),
    /// This one is it, and those are superfluous.
    This { chosen: Listed, losers: Vec<Listed> },
}

/// Chooses by the highest generation, then the oldest, then the smallest id. What one replica remembers does not count, or they
/// would not agree.
///
/// The start of a run changes with every resume; so the oldest is the one that was made first, and only among those made at
/// about the same time the one whose run began first.
pub(crate) fn choose(listed: Vec<Listed>, id: &WorkspaceId, installation: &str) -> Choice {
    // Two ids may look alike in an encoding that is not ours.
    let is_it = |sandbox: &Listed| Read(&sandbox.metadata).workspace().as_ref() == Some(id);
    let mut candidates: Vec<Listed> = listed.into_iter().filter(is_it).collect();
    // A page may be seen twice, when sandboxes change between two.
    candidates.sort_by(|one, other| one.id.cmp(&other.id));
    candidates.dedup_by(|one, other| one.id == other.id);
    let foreign = candidates.iter().find(|sandbox| Read(&sandbox.metadata).installation() != Some(installation));
    if let Some(foreign) = foreign {
        return Choice::Foreign(foreign.id.clone());
    }
    let generation = |sandbox: &Listed| Read(&sandbox.metadata).generation();
    let newest = candidates.iter().map(generation).max().unwrap_or(0);
    let created = |sandbox: &Listed| {
        let said = Read(&sandbox.metadata).created();
        said.or_else(|| sandbox.started_at.and_then(millis)).unwrap_or(u64::MAX)
    };
    // A span that begins with the first, not one of the calendar: two that were made at once are never told apart by its end.
    let first = candidates.iter().filter(|sandbox| generation(sandbox) == newest).map(created).min().unwrap_or(0);
    candidates.sort_by_key(|sandbox| {
        let is_later = created(sandbox).saturating_sub(first) > AT_ONCE_MILLIS;
        // One whose start is not known yet has begun just now.
        let started = (sandbox.started_at.is_none(), sandbox.started_at);
        (Reverse(generation(sandbox)), is_later, started, sandbox.id.clone())
    });
    let mut candidates = candidates.into_iter();
    match candidates.next() {
        None => Choice::None,
        Some(chosen) => Choice::This { chosen, losers: candidates.collect() },
    }
}

fn millis(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use proptest::prelude::*;
    use wsm_core::OpenRequest;

    use super::*;
    use crate::metadata::{Attempt, of};

    fn id() -> WorkspaceId {
        WorkspaceId::new("w").unwrap()
    }

    fn sandbox(name: &str, generation: u64, created_secs: u64, started_secs: u64) -> Listed {
        let attempt = Attempt { installation: "wsm", instance: "i", attempt: "a", generation };
        let mut metadata = of(&OpenRequest::new(id()), &attempt, &BTreeMap::new());
        metadata.insert("wsm.created".to_owned(), (created_secs * 1000).to_string());
        Listed {
            id: name.to_owned(),
            is_running: true,
            started_at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(started_secs)),
            end_at: None,
            metadata,
        }
    }

    fn chosen(listed: Vec<Listed>) -> String {
        match choose(listed, &id(), "wsm") {
            Choice::This { chosen, .. } => chosen.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_order_is_generation_then_age_then_id() {
        let two = |one, other| vec![one, other];
        assert_eq!(chosen(two(sandbox("a", 0, 0, 5), sandbox("b", 1, 0, 9))), "b", "the highest generation");
        assert_eq!(chosen(two(sandbox("b", 0, 1, 5), sandbox("a", 0, 2, 9))), "b", "the oldest start");
        assert_eq!(chosen(two(sandbox("b", 0, 1, 5), sandbox("a", 0, 1, 5))), "a", "the smallest id");
        // Clocks of two replicas differ, also about the end of a minute.
        assert_eq!(chosen(two(sandbox("b", 0, 60, 5), sandbox("a", 0, 59, 6))), "b", "made at once, begun earlier");
        // One that no list shows yet has begun last.
        let unlisted = Listed { started_at: None, ..sandbox("a", 0, 1, 0) };
        assert_eq!(chosen(two(unlisted, sandbox("b", 0, 1, 5))), "b");
        // A resume renews the start of the older one, which stays the older one.
        assert_eq!(chosen(two(sandbox("b", 0, 1, 9000), sandbox("a", 0, 600, 600))), "b");
    }

    #[test]
    fn a_foreign_one_is_told_and_other_ids_are_not_seen() {
        let mut foreign = sandbox("a", 9, 0, 0);
        foreign.metadata.insert("wsm.owner".to_owned(), "other".to_owned());
        let listed = vec![sandbox("b", 0, 1, 1), foreign];
        assert_eq!(choose(listed, &id(), "wsm"), Choice::Foreign("a".to_owned()));
        let other = WorkspaceId::new("v").unwrap();
        assert_eq!(choose(vec![sandbox("b", 0, 1, 1)], &other, "wsm"), Choice::None);
    }

    proptest! {
        #[test]
        fn the_order_of_a_list_does_not_matter(
            seeds in prop::collection::vec((0u64..3, 0u64..200, 0u64..4), 1..6),
            swap in any::<prop::sample::Index>(),
        ) {
            let all: Vec<Listed> = seeds
                .iter()
                .enumerate()
                .map(|(number, (generation, created, started))| sandbox(&number.to_string(), *generation, *created, *started))
                .collect();
            let mut turned = all.clone();
            turned.rotate_left(swap.index(all.len()));
            // Also when one is seen twice.
            turned.push(all[0].clone());
            prop_assert_eq!(choose(all, &id(), "wsm"), choose(turned, &id(), "wsm"));
        }
    }
}
