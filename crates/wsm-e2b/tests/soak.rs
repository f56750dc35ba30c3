//! Workspaces that are written, put away, paused behind our back and brought back by turns of two replicas, under faults
//! drawn by lot, with every file looked at after every round.
//!
//! `WSM_SOAK_SECONDS` says how long (10), `WSM_SEED` which lots; a failure names the seed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where it stands")]

mod common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::time::{Instant, sleep};
use wsm_core::{Backend, ErrorKind, ManagedWorkspace, OutcomeKind, Result, WorkspaceExt};
use wsm_e2b::E2bBackend;
use wsm_fake_e2b::{Ending, Fault, Operation, Unreachable, What};

const WORKSPACES: usize = 4;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Something that goes wrong and that nobody may lose a file by.
fn fault(lots: &mut StdRng) -> Fault {
    let controls =
        [Operation::List, Operation::Connect, Operation::Pause, Operation::Get, Operation::Refresh, Operation::Create];
    let files = [Operation::Stat, Operation::Upload, Operation::Move, Operation::Download, Operation::ListDir];
    let control = *controls.choose(lots).unwrap();
    let file = *files.choose(lots).unwrap();
    let says = *[Unreachable::NotFound, Unreachable::PortClosed, Unreachable::Html, Unreachable::Transitioning]
        .choose(lots)
        .unwrap();
    let ending = *[Ending::Close, Ending::Reset, Ending::Eof].choose(lots).unwrap();
    match lots.random_range(0..12) {
        0 => Fault::answer(control, 503, "<html>busy</html>"),
        1 => Fault::answer(control, 429, r#"{"code":429,"message":"slow down"}"#),
        2 => Fault::answer(control, 502, ""),
        3 => Fault::lose_answer(control),
        4 => Fault::new(control, What::Lose { applied: false, ending }),
        5 => Fault::new(Operation::Connect, What::EnvdDown { times: lots.random_range(1..4), says }),
        6 => Fault::new(Operation::Connect, What::SlowStart { ms: 150, says }),
        7 => Fault::new(file, What::Lose { applied: lots.random(), ending }),
        8 => Fault::new(
            Operation::Download,
            What::TruncateBytes { after: lots.random_range(0..40), ending: Ending::Close },
        ),
        9 => Fault::new(Operation::Start, What::TruncateEvents { after: lots.random_range(0..4), ending }),
        10 => Fault::new(Operation::Pause, What::SlowPause { ms: 100 }),
        _ => Fault::new(control, What::DelayAnswer { ms: 100 }),
    }
}

/// What a file may hold: what was written, and what may have been written after it.
type Model = BTreeMap<String, Vec<String>>;

async fn open_anyhow(backend: &E2bBackend, name: &str, is_first: bool) -> Arc<dyn ManagedWorkspace> {
    let mut last = None;
    for _ in 0..12 {
        match backend.open(request(name)).await {
            Ok(opened) => {
                let kind = opened.outcome.kind;
                assert!(is_first || !matches!(kind, OutcomeKind::Created | OutcomeKind::Recreated), "{name}: {kind:?}");
                assert_eq!(opened.workspace.info().generation, 0, "{name}");
                return opened.workspace;
            }
            Err(error) => {
                let is_passing = matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Gone | ErrorKind::Conflict
                );
                assert!(is_passing, "{name}: {}", error.report());
                last = Some(error);
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    panic!("{name} can not be opened any more: {}", last.unwrap().report());
}

async fn check(workspace: &Arc<dyn ManagedWorkspace>, model: &Model) -> Result<()> {
    let mut names: Vec<String> = workspace.list(".").await?.into_iter().map(|entry| entry.name).collect();
    names.sort();
    let may_be: Vec<&String> = model.keys().collect();
    assert!(names.iter().all(|name| may_be.contains(&name)), "{names:?} beside {may_be:?}");
    for (name, contents) in model {
        let text = match workspace.read_text(name, 1 << 20).await {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        assert!(contents.contains(&text), "`{name}` holds {text:?}, and should be one of {contents:?}");
    }
    Ok(())
}

async fn live(fixture: &Fixture, replicas: &[Arc<E2bBackend>; 2], name: &str, seed: u64, until: Instant) -> u64 {
    let mut lots = StdRng::seed_from_u64(seed);
    let mut model = Model::new();
    let mut rounds = 0;
    while Instant::now() < until {
        for _ in 0..lots.random_range(0..3) {
            fixture.fake.faults().push(fault(&mut lots));
        }
        let replica = &replicas[lots.random_range(0..2)];
        let workspace = open_anyhow(replica, name, rounds == 0).await;
        for _ in 0..lots.random_range(1..4) {
            let (file, content) =
                (format!("f{}", lots.random_range(0..5)), format!("{rounds} {}", lots.random::<u64>()));
            let contents = model.entry(file.clone()).or_insert_with(|| vec![String::new()]);
            match workspace.write_bytes(&file, content.clone().into()).await {
                Ok(_) => *contents = vec![content],
                // It may have been carried out all the same.
                Err(_) => contents.push(content),
            }
        }
        let id = fixture.fake.sandboxes().all().into_iter().find(|it| it.metadata["agentscope.workspace.id"] == name);
        match lots.random_range(0..4) {
            0 => fixture.fake.sandboxes().pause(&id.unwrap().id).await.unwrap(),
            1 => workspace.detach().await.unwrap(),
            _ => drop(workspace.suspend().await),
        }
        let mut tries = 0;
        loop {
            let workspace = open_anyhow(&replicas[lots.random_range(0..2)], name, false).await;
            match check(&workspace, &model).await {
                Ok(()) => break,
                Err(error) => {
                    tries += 1;
                    assert!(tries < 12, "{name} can not be read any more: {}", error.report());
                }
            }
        }
        rounds += 1;
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_file_is_lost_over_many_pauses_under_faults() {
    let seconds = number("WSM_SOAK_SECONDS").unwrap_or(10);
    let seed = number("WSM_SEED").unwrap_or_else(rand::random);
    println!("WSM_SEED={seed}");
    let Some(fixture) = Fixture::new().await else { return };
    let replicas = [fixture.another(), fixture.another()];
    let until = Instant::now() + Duration::from_secs(seconds);
    let names: Vec<String> = (0..WORKSPACES).map(|number| format!("w{number}")).collect();
    let lives = names
        .iter()
        .enumerate()
        .map(|(index, name)| live(&fixture, &replicas, name, seed.wrapping_add(index as u64), until));
    let rounds: u64 = futures::future::join_all(lives).await.into_iter().sum();
    println!("{rounds} rounds");
    assert!(rounds >= WORKSPACES as u64);
    fixture.fake.faults().clear();
    for name in &names {
        let found = fixture.backend.find(&id(name)).await.unwrap();
        assert!(found.is_some(), "{name}");
        fixture.backend.destroy(&id(name)).await.unwrap();
    }
    assert!(fixture.fake.sandboxes().all().is_empty(), "nothing is left: {:?}", fixture.fake.sandboxes());
}
