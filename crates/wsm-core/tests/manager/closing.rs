//! `close`, `close_all`, `destroy` and `shutdown`.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use wsm_core::{
    CloseOptions, Command, ErrorKind, OutcomeKind, WorkspaceExt, WorkspaceManager,
    memory::{Effect, Fault, Operation},
};

use crate::support::{beside, get, id, manager, manager_with, settings, settle, unavailable};

const FIVE: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn closing_keeps_the_files_and_an_unknown_id_is_fine() {
    let (manager, _) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    handle.write_bytes("f", "kept".into()).await.unwrap();
    drop(handle);
    manager.close(&id("w"), CloseOptions::default()).await.unwrap();
    manager.close(&id("w"), CloseOptions::default()).await.unwrap();
    manager.close(&id("never seen"), CloseOptions::default()).await.unwrap();
    assert_eq!(get(&manager, "w").await.unwrap().read_text("f", 10).await.unwrap(), "kept");
}

#[tokio::test(start_paused = true)]
async fn closing_what_is_in_use_waits_and_then_is_a_conflict() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    let before = Instant::now();
    let error = manager.close(&id("w"), CloseOptions::default().with_wait(FIVE)).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed()), (ErrorKind::Conflict, FIVE));
    assert!(handle.exec(Command::new("true")).await.unwrap().status.success(), "nothing happened to it");
    let closing = beside({
        let manager = manager.clone();
        async move { manager.close(&id("w"), CloseOptions::default().with_wait(FIVE)).await }
    });
    sleep(Duration::from_secs(1)).await;
    drop(handle);
    closing.await.unwrap().unwrap();
    assert_eq!((engine.suspensions(), before.elapsed()), (1, FIVE + Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn forcing_closes_it_under_its_user() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    manager.close(&id("w"), CloseOptions::default().with_wait(FIVE).with_force(true)).await.unwrap();
    assert_eq!(handle.exec(Command::new("true")).await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(engine.suspensions(), 1);
}

#[tokio::test(start_paused = true)]
async fn closing_during_the_opening_waits_for_it() {
    let (manager, engine) = manager().await;
    engine.plant(Fault::once(Operation::Open, Effect::Delay(Duration::from_secs(2))));
    let opening = beside({
        let manager = manager.clone();
        async move { get(&manager, "w").await.map(drop) }
    });
    settle().await;
    manager.close(&id("w"), CloseOptions::default().with_wait(FIVE)).await.unwrap();
    opening.await.unwrap().unwrap();
    assert_eq!((engine.running(), manager.cached().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn close_all_works_in_parallel_and_one_failure_stops_none() {
    let (manager, engine) = manager().await;
    for number in 0..100 {
        drop(get(&manager, &format!("w{number}")).await.unwrap());
    }
    engine.plant(Fault::once(Operation::Suspend, Effect::Fail(unavailable())));
    engine.plant(Fault::always(Operation::Suspend, Effect::Delay(Duration::from_secs(1))));
    let before = Instant::now();
    let report = manager.close_all(CloseOptions::default()).await;
    assert_eq!((report.closed, report.failed.len()), (99, 1));
    assert!(before.elapsed() <= Duration::from_secs(4), "{:?}", before.elapsed());
    get(&manager, "still usable").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn destroy_deletes_the_data_whoever_uses_it_and_an_unknown_id_is_fine() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "w").await.unwrap();
    handle.write_bytes("f", "x".into()).await.unwrap();
    manager.destroy(&id("w")).await.unwrap();
    manager.destroy(&id("w")).await.unwrap();
    assert_eq!(handle.stat("f").await.unwrap_err().kind(), ErrorKind::Gone);
    assert!(manager.find(&id("w")).await.unwrap().is_none());
    let again = get(&manager, "w").await.unwrap();
    assert_eq!(again.opening().outcome.kind, OutcomeKind::Created);
    assert_eq!(again.stat("f").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(engine.running(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_destroy_deletes_nothing() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    engine.plant(Fault::once(Operation::Destroy, Effect::Fail(unavailable())));
    assert_eq!(manager.destroy(&id("w")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(get(&manager, "w").await.unwrap().opening().outcome.kind, OutcomeKind::Reattached);
    manager.destroy(&id("w")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_get_during_the_destruction_waits_and_starts_from_nothing() {
    let (manager, engine) = manager().await;
    drop(get(&manager, "w").await.unwrap());
    engine.plant(Fault::once(Operation::Destroy, Effect::Delay(FIVE)));
    let destroying = beside({
        let manager = manager.clone();
        async move { manager.destroy(&id("w")).await }
    });
    settle().await;
    assert_eq!(get(&manager, "w").await.unwrap().opening().outcome.kind, OutcomeKind::Created);
    destroying.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_waits_for_uses_and_puts_everything_away() {
    let (manager, engine) = manager().await;
    let handle = get(&manager, "used").await.unwrap();
    drop(get(&manager, "idle").await.unwrap());
    let down = beside({
        let manager = manager.clone();
        async move { manager.shutdown(FIVE).await }
    });
    settle().await;
    assert_eq!(get(&manager, "idle").await.unwrap_err().kind(), ErrorKind::ShuttingDown);
    assert_eq!(get(&manager, "new").await.unwrap_err().kind(), ErrorKind::ShuttingDown);
    assert!(handle.exec(Command::new("sleep").arg("2")).await.unwrap().status.success());
    drop(handle);
    let report = down.await.unwrap();
    assert_eq!((report.closed, report.failed.len()), (2, 0));
    assert_eq!((engine.running(), engine.violations()), (0, vec![]));
    assert!(manager.cached().is_empty());
}

#[tokio::test(start_paused = true)]
async fn shutdown_forces_what_is_used_beyond_the_deadline() {
    let (manager, engine) = manager().await;
    let handles = [get(&manager, "a").await.unwrap(), get(&manager, "b").await.unwrap()];
    let before = Instant::now();
    let report = manager.shutdown(FIVE).await;
    assert_eq!((report.closed, before.elapsed()), (2, FIVE));
    assert_eq!(engine.running(), 0);
    drop(handles);
}

#[tokio::test(start_paused = true)]
async fn one_suspend_that_hangs_delays_the_shutdown_by_its_deadline_only() {
    let settings = settings().with_suspend_timeout(Duration::from_secs(10));
    let (manager, engine) = manager_with(settings).await;
    for number in 0..200 {
        drop(get(&manager, &format!("w{number}")).await.unwrap());
    }
    engine.plant(Fault::once(Operation::Suspend, Effect::Hang));
    engine.plant(Fault::once(Operation::Open, Effect::Hang));
    let stuck = beside({
        let manager = manager.clone();
        async move { get(&manager, "stuck").await }
    });
    settle().await;
    let before = Instant::now();
    let report = manager.shutdown(FIVE).await;
    assert!(before.elapsed() <= Duration::from_secs(16), "{:?}", before.elapsed());
    assert_eq!((report.closed, report.failed.len()), (200, 0), "{:?}", report.failed);
    assert_eq!(stuck.await.unwrap().unwrap_err().kind(), ErrorKind::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_in_time_whatever_the_engine_does_and_reports_what_is_left() {
    let settings = settings().with_suspend_timeout(Duration::from_secs(10));
    let (manager, engine) = manager_with(settings).await;
    for number in 0..200 {
        drop(get(&manager, &format!("w{number}")).await.unwrap());
    }
    engine.plant(Fault::always(Operation::Suspend, Effect::Hang));
    let before = Instant::now();
    let report = manager.shutdown(FIVE).await;
    assert!(before.elapsed() <= Duration::from_secs(65), "{:?}", before.elapsed());
    assert_eq!((report.closed, report.failed.len()), (0, 200));
}

#[tokio::test(start_paused = true)]
async fn to_wait_for_as_long_as_it_takes_is_a_wait_like_any_other() {
    let (manager, engine) = manager_with(settings().with_sweep_interval(Duration::MAX)).await;
    let handle = get(&manager, "w").await.unwrap();
    let closing = beside({
        let manager = manager.clone();
        async move { manager.close(&id("w"), CloseOptions::default().with_wait(Duration::MAX)).await }
    });
    sleep(Duration::from_secs(86_400)).await;
    drop(handle);
    closing.await.unwrap().unwrap();
    drop(get(&manager, "w").await.unwrap());
    let report = manager.shutdown(Duration::MAX).await;
    assert_eq!((report.closed, engine.running()), (1, 0));
}
