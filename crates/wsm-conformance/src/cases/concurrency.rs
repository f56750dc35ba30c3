//! Many at once, and callers that go away.

use std::time::Duration;

use futures::TryStreamExt;
use wsm_core::{Command, OutcomeKind};

use crate::{
    cases::cases,
    context::{Context, exec, open, request, text, write},
};

cases! {
    B2 openings_at_once_from_two_replicas_make_one_workspace [Files];
    B11 an_opening_that_is_dropped_leaves_nothing_that_is_not_found [];
    E12 commands_run_side_by_side [];
}

async fn openings_at_once_from_two_replicas_make_one_workspace(context: Context) {
    let other = context.reconnect().await;
    for _ in 0..5 {
        let id = context.id();
        let backends = [&context.backend, &other, &context.backend, &other, &context.backend, &other];
        let openings = backends.map(|backend| open(&**backend, request(&id)));
        let opened = futures::future::try_join_all(openings).await;
        let opened = opened.unwrap_or_else(|error| panic!("an opening failed: {}", error.report()));
        let created = opened.iter().filter(|opened| opened.outcome.kind == OutcomeKind::Created).count();
        assert_eq!(created, 1, "exactly one made it: {:?}", opened.iter().map(|o| o.outcome.kind).collect::<Vec<_>>());
        write(&opened[0].workspace, "f", "shared").await;
        for one in &opened {
            assert_eq!(text(&one.workspace, "f").await, "shared");
        }
        let listed: Vec<_> = context.backend.list().try_collect().await.expect("the list is complete");
        assert_eq!(listed.iter().filter(|found| found.id == id).count(), 1);
    }
}

async fn an_opening_that_is_dropped_leaves_nothing_that_is_not_found(context: Context) {
    for micros in [0, 50, 200, 1_000, 5_000, 20_000, 100_000] {
        let id = context.id();
        let _ = tokio::time::timeout(Duration::from_micros(micros), open(&*context.backend, request(&id))).await;
        let is_found = async || context.backend.find(&id).await.expect("it can be decided").is_some();
        // The opening may come to its end between two looks.
        let before = is_found().await;
        let listed: Vec<_> = context.backend.list().try_collect().await.expect("the list is complete");
        let is_listed = listed.iter().any(|listed| listed.id == id);
        assert!(is_listed == before || is_listed == is_found().await, "find and list agree");
        context.backend.destroy(&id).await.expect("it can be destroyed");
        assert_eq!(context.backend.find(&id).await.expect("it can be decided"), None);
        assert_eq!(context.open(&id).await.outcome.kind, OutcomeKind::Created);
    }
}

async fn commands_run_side_by_side(context: Context) {
    let workspace = context.workspace().await;
    let before = tokio::time::Instant::now();
    let results = futures::future::join_all((0..20).map(|number| {
        let workspace = &workspace;
        async move { exec(workspace, Command::shell(format!("sleep 1; echo {number}"))).await }
    }))
    .await;
    for (number, result) in results.into_iter().enumerate() {
        assert_eq!(result.stdout.to_text(), format!("{number}\n"));
    }
    assert!(before.elapsed() < Duration::from_secs(10), "twenty seconds' work took {:?}", before.elapsed());
}
