//! Random schedules of everything that can happen, under paused time, with what must always hold.
//!
//! Each schedule is made of one seed, which a failure prints. `WSM_SIM_SEED=<seed>` runs that one alone,
//! `WSM_SIM_SCHEDULES=<n>` another number of them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::TryStreamExt;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, sleep, timeout};
use wsm_core::{
    CachingManager, Cause, CloseOptions, Command, Error, ErrorKind, ExitStatus, FoundState, GetRequest,
    ManagerSettings, Prewarm, Scope, SweepTrigger, WorkspaceExt, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{Manager, beside, id, unavailable};

const SCHEDULES: u64 = 3000;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What the test itself knows.
#[derive(Debug, Default)]
struct Books {
    /// To which something happened that a user may notice: killed, lost, destroyed.
    disturbed: HashSet<&'static str>,
    destroyed: u64,
    /// How many openings may have worked without anybody being told.
    lost_answers: u64,
    /// How many `create_workspace` calls there were.
    fresh: u64,
}

#[derive(Debug, Clone)]
struct World {
    manager: Manager,
    engine: MemoryEngine,
    books: Arc<Mutex<Books>>,
    /// Whether the engine stops workspaces by itself.
    idle_stop: bool,
    prewarms: bool,
    /// Whether nothing is killed or destroyed.
    calm: bool,
}

fn millis(random: &mut SmallRng, most: u64) -> Duration {
    Duration::from_millis(random.random_range(0..=most))
}

fn pick(random: &mut SmallRng) -> &'static str {
    NAMES[random.random_range(0..NAMES.len())]
}

impl World {
    fn new(random: &mut SmallRng) -> Self {
        let engine = MemoryEngine::new();
        let mut config = MemoryConfig::new(engine.clone());
        let idle_stop = random.random_ratio(1, 4);
        if idle_stop {
            config = config.with_idle_stop(Duration::from_millis(random.random_range(200..2000)));
        }
        if random.random_ratio(1, 3) {
            config = config.with_sweep(SweepTrigger::Get);
        }
        let mut settings = ManagerSettings::default()
            .with_ttl(Duration::from_millis(random.random_range(1..3000)))
            .with_sweep_interval(Duration::from_millis(random.random_range(1..1000)))
            .with_max_provisioning(random.random_range(1..4))
            .with_max_suspending(random.random_range(1..4))
            .with_open_timeout(Duration::from_secs(3))
            .with_suspend_timeout(Duration::from_secs(2))
            .with_health_timeout(Duration::from_secs(1));
        if random.random_ratio(1, 3) {
            settings = settings.with_max_workspaces(Some(random.random_range(1..5)));
        }
        let prewarms = random.random_ratio(1, 6);
        if prewarms {
            settings = settings.with_prewarm(Some(Prewarm::new(2)));
        }
        let calm = random.random_ratio(1, 2);
        let manager = Arc::new(CachingManager::builder(config).settings(settings).build().unwrap());
        Self { manager, engine, books: Arc::default(), idle_stop, prewarms, calm }
    }

    fn disturb(&self, name: &'static str) {
        self.books.lock().disturbed.insert(name);
    }

    /// One user's visit: a get that may be given up, and then some work.
    async fn visit(&self, random: &mut SmallRng) {
        let name = pick(random);
        let request = GetRequest::new(Scope::new("ann", "coder", "s").unwrap()).with_workspace_id(id(name));
        let patience = if random.random_ratio(1, 5) { millis(random, 300) } else { Duration::from_secs(60) };
        let handle = match timeout(patience, self.manager.get_workspace(&request)).await {
            Err(_) => return,
            Ok(Err(error)) => return self.expect_excuse(&error),
            Ok(Ok(handle)) => handle,
        };
        assert_eq!(handle.id().as_str(), name);
        let workspace = handle.workspace();
        let held = if random.random_ratio(1, 2) {
            Some(handle)
        } else {
            drop(handle);
            None
        };
        for _ in 0..random.random_range(0..3) {
            sleep(if held.is_some() { millis(random, 1500) } else { Duration::ZERO }).await;
            let command = Command::new("sleep").arg(format!("0.{:03}", random.random_range(0..999)));
            let running = workspace.exec(command);
            if random.random_ratio(1, 6) {
                let _ = timeout(millis(random, 400), running).await;
                continue;
            }
            match running.await {
                Ok(result) if result.status.success() => {}
                Ok(result) => {
                    assert!(matches!(result.status, ExitStatus::Unknown { .. }), "{:?}", result.status);
                    assert!(self.was_disturbed(name), "a command in `{name}` was ended by nobody");
                }
                Err(error) if error.kind() == ErrorKind::Gone => {
                    let excused = held.is_none() || self.was_disturbed(name);
                    assert!(excused, "`{name}` was put away under a lease: {error}");
                }
                Err(error) => self.expect_excuse(&error),
            }
        }
        if random.random_ratio(1, 3) {
            let _ = workspace.write_bytes("file", name.into()).await;
        }
    }

    /// A workspace that was killed is noticed at its next use, which may be long after. So any disturbance excuses it;
    /// in half of the schedules there is none.
    fn was_disturbed(&self, name: &'static str) -> bool {
        self.idle_stop || self.books.lock().disturbed.contains(name)
    }

    fn expect_excuse(&self, error: &Error) {
        let excused = [
            ErrorKind::Unavailable,
            ErrorKind::Timeout,
            ErrorKind::Capacity,
            ErrorKind::Backend,
            ErrorKind::Gone,
            ErrorKind::ShuttingDown,
        ];
        assert!(excused.contains(&error.kind()), "unexpected: {error:?}");
    }

    fn plant(&self, random: &mut SmallRng) {
        let operation = [Operation::Open, Operation::Suspend, Operation::Health, Operation::Exec, Operation::Destroy]
            [random.random_range(0..5)];
        let effect = match random.random_range(0..8) {
            0 => Effect::Hang,
            1 | 2 => Effect::Fail(unavailable()),
            3 => Effect::FailAfter(unavailable()),
            4 if operation != Operation::Exec => Effect::Panic,
            _ => Effect::Delay(millis(random, 1500)),
        };
        // A command that hangs for ever is no fault of the manager's, and would never let the test end.
        if !(operation == Operation::Exec && matches!(effect, Effect::Hang)) {
            let loses = operation == Operation::Open && matches!(effect, Effect::FailAfter(_));
            self.books.lock().lost_answers += u64::from(loses);
            self.engine.plant(Fault::once(operation, effect));
        }
    }

    async fn step(&self, random: &mut SmallRng) {
        match random.random_range(0..30) {
            0 | 1 => self.plant(random),
            2..=4 if self.calm => sleep(millis(random, 2000)).await,
            2 => {
                let name = pick(random);
                self.disturb(name);
                self.engine.kill(&id(name), Cause::Killed);
            }
            3 => {
                let name = pick(random);
                self.disturb(name);
                self.engine.lose_files(&id(name));
            }
            4 => {
                let name = pick(random);
                self.disturb(name);
                self.books.lock().destroyed += 1;
                let patience = millis(random, 2000);
                let _ = timeout(patience, self.manager.destroy(&id(name))).await;
            }
            5 | 6 => {
                let options = CloseOptions::default().with_wait(millis(random, 500));
                let (target, patience) = (id(pick(random)), millis(random, 2000));
                let _ = timeout(patience, self.manager.close(&target, options)).await;
            }
            7 => drop(self.manager.close_all(CloseOptions::default()).await),
            8 => self.manager.sweep().await,
            9 => {
                self.books.lock().fresh += 1;
                let scope = Scope::new("ann", "coder", "s").unwrap();
                match timeout(millis(random, 3000), self.manager.create_workspace(&scope)).await {
                    Ok(Err(error)) => self.expect_excuse(&error),
                    Ok(Ok(handle)) => drop(handle.exec(Command::new("true")).await),
                    Err(_) => {}
                }
            }
            10..13 => sleep(millis(random, 2000)).await,
            _ => self.visit(random).await,
        }
    }
}

async fn run_schedule(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let world = World::new(&mut random);
    let users: Vec<_> = (0..random.random_range(1..6))
        .map(|_| {
            let (world, seed) = (world.clone(), random.random());
            beside(async move {
                let mut random = SmallRng::seed_from_u64(seed);
                for _ in 0..random.random_range(3..15) {
                    world.step(&mut random).await;
                }
            })
        })
        .collect();
    let mut forced = false;
    if random.random_ratio(1, 5) {
        // A shutdown in the middle of it all, which ends what is still used.
        sleep(millis(&mut random, 5000)).await;
        NAMES.into_iter().for_each(|name| world.disturb(name));
        forced = true;
        let _ = timeout(millis(&mut random, 4000), world.manager.shutdown(Duration::from_secs(2))).await;
    }
    for user in users {
        user.await.unwrap();
    }
    world.engine.clear_faults();

    let leases: u64 = world.manager.cached().iter().map(|cached| cached.leases).sum();
    let spare = world.manager.cached().len() as u64;
    assert!(leases <= spare.min(2), "leases that nobody holds: {:?}", world.manager.cached());

    let before = Instant::now();
    let report = world.manager.shutdown(Duration::from_secs(1)).await;
    assert!(before.elapsed() < Duration::from_secs(10), "the shutdown took {:?}", before.elapsed());
    assert!(report.failed.is_empty(), "not put away: {:?}", report.failed);
    let (running, lost) = (world.engine.running() as u64, world.books.lock().lost_answers);
    assert!(running <= lost, "{running} left running, {lost} answers lost; the report says {report:?}");
    let found: Vec<_> = world.manager.list().try_collect().await.unwrap();
    let found = found.iter().filter(|found| found.state == FoundState::Running).count() as u64;
    assert_eq!(found, running, "what nobody was told of is still found");
    if !forced {
        // A destruction that failed has closed the workspace under its users all the same.
        let excused =
            |text: &String| world.books.lock().disturbed.iter().any(|name| text.contains(&format!("`{name}`")));
        let violations = world.engine.violations();
        assert!(violations.iter().all(excused), "{violations:?}");
    }
    let books = world.books.lock();
    if !world.prewarms && books.fresh == 0 {
        let most = NAMES.len() as u64 + books.destroyed;
        assert!(world.engine.creations() <= most, "{} made, {most} asked for", world.engine.creations());
    }
}

#[test]
fn whatever_happens_in_whatever_order_the_invariants_hold() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("WSM_SIM_SEED") {
        Some(seed) => {
            let _ = tracing_subscriber::fmt().with_test_writer().try_init();
            seed..seed + 1
        }
        None => 0..number("WSM_SIM_SCHEDULES").unwrap_or(SCHEDULES),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                timeout(Duration::from_secs(3600), run_schedule(seed)).await.expect("the schedule came to an end");
            });
        }));
        if let Err(panic) = result {
            eprintln!("schedule failed: run it alone with WSM_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
