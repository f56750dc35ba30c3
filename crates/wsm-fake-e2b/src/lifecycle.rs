//! What becomes of sandboxes: made, paused, woken, expired, killed.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    clock::after,
    fault::{Ending, Hits, What},
    state::{Down, Fake, Phase, Sandbox},
};

/// How often it is looked whether one has expired. Every request looks too.
const TICK: Duration = Duration::from_millis(50);
/// What a sandbox gets at least that traffic woke.
const WOKEN: Duration = Duration::from_secs(300);

/// Lets sandboxes expire until the fake ends.
pub(crate) fn watch(fake: &Arc<Fake>) {
    let (stopped, watched) = (fake.stopped.clone(), Arc::downgrade(fake));
    fake.tasks.spawn(async move {
        while let Some(fake) = Weak::upgrade(&watched) {
            expire_due(&fake).await;
            drop(fake);
            tokio::select! {
                () = stopped.cancelled() => return,
                () = sleep(TICK) => {}
            }
        }
    });
}

/// Kills or pauses all whose time is over.
pub(crate) async fn expire_due(fake: &Arc<Fake>) {
    for sandbox in fake.all() {
        if is_due(fake, &sandbox) {
            let _turn = sandbox.turn.lock().await;
            if is_due(fake, &sandbox) {
                expire(fake, &sandbox).await;
            }
        }
    }
}

fn is_due(fake: &Fake, sandbox: &Sandbox) -> bool {
    let live = sandbox.live.lock();
    live.phase == Phase::Running && live.end_at <= fake.clock.now()
}

async fn expire(fake: &Arc<Fake>, sandbox: &Arc<Sandbox>) {
    if sandbox.auto_pause {
        pause(fake, sandbox, sandbox.auto_pause_memory, &Hits::default()).await;
    } else if let Some(sandbox) = fake.remove(&sandbox.id) {
        destroy(&sandbox, Ending::Reset).await;
    }
}

/// Pauses a running one. Who calls has its turn.
pub(crate) async fn pause(fake: &Fake, sandbox: &Sandbox, memory: bool, hits: &Hits) {
    sandbox.set_phase(Phase::Pausing);
    sleep(fake.options.latency).await;
    for what in hits.iter() {
        if let What::SlowPause { ms } = what {
            sleep(Duration::from_millis(*ms)).await;
        }
    }
    sandbox.guest.cut_streams(hits.open_streams().unwrap_or(Ending::Canceled));
    if memory {
        sandbox.guest.freeze().await;
    } else {
        sandbox.guest.halt();
    }
    let mut live = sandbox.live.lock();
    live.phase = Phase::Paused;
    live.disk_only = !memory;
    live.end_at = fake.clock.now();
}

/// Wakes a paused one. Who calls has its turn.
pub(crate) async fn resume(
    fake: &Fake,
    sandbox: &Sandbox,
    timeout: Duration,
    memory: bool,
    hits: &Hits,
) -> io::Result<()> {
    sandbox.set_phase(Phase::Resuming);
    sleep(fake.options.latency).await;
    if !memory || hits.has(&What::LoseProcesses) {
        sandbox.guest.halt();
    }
    let rolled_back = if hits.has(&What::RollBack) { sandbox.guest.roll_back() } else { Ok(()) };
    let woken = match rolled_back {
        Ok(()) if sandbox.guest.has_processes() => {
            sandbox.guest.thaw().await;
            Ok(())
        }
        Ok(()) => sandbox.guest.boot().await,
        Err(error) => Err(error),
    };
    if let Err(error) = woken {
        sandbox.set_phase(Phase::Paused);
        return Err(error);
    }
    let now = fake.clock.now();
    let mut live = sandbox.live.lock();
    live.phase = Phase::Running;
    live.started_at = now;
    live.end_at = after(now, timeout);
    live.crashed &= memory;
    live.disk_only = false;
    drop(live);
    take_down(sandbox, hits);
    Ok(())
}

/// Traffic came to a paused one that wakes by that.
pub(crate) async fn wake(fake: &Fake, sandbox: &Sandbox) -> io::Result<()> {
    let _turn = sandbox.turn.lock().await;
    if sandbox.phase() != Phase::Paused {
        return Ok(());
    }
    let timeout = sandbox.timeout.max(WOKEN).min(fake.options.max_timeout);
    let memory = !sandbox.live.lock().disk_only;
    resume(fake, sandbox, timeout, memory, &Hits::default()).await
}

/// Makes its daemon unreachable for a while, if that shall be.
pub(crate) fn take_down(sandbox: &Sandbox, hits: &Hits) {
    for what in hits.iter() {
        let down = match what {
            What::EnvdDown { times, says } => Down { times: *times, until: None, says: *says },
            What::SlowStart { ms, says } => {
                Down { times: 0, until: Some(Instant::now() + Duration::from_millis(*ms)), says: *says }
            }
            _ => continue,
        };
        sandbox.live.lock().down = Some(down);
    }
}

/// Ends one that is in no list any more.
pub(crate) async fn destroy(sandbox: &Sandbox, ending: Ending) {
    sandbox.guest.cut_streams(ending);
    sandbox.guest.destroy().await;
}

/// Ends all processes of a sandbox, and its daemon, which nothing starts again.
pub(crate) fn crash(sandbox: &Sandbox) {
    sandbox.live.lock().crashed = true;
    sandbox.guest.cut_streams(Ending::Close);
    sandbox.guest.halt();
}
