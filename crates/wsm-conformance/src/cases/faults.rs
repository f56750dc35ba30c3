//! Engines that fail. The subject must be able to make its engine do so.

use wsm_core::{Command, ErrorKind, Health, Loss, OutcomeKind};

use crate::{
    cases::cases,
    context::{Context, open, request, text, write},
};

cases! {
    B4 an_unreachable_engine_is_an_error_and_never_an_empty_workspace [Faults Files];
    B9 the_generation_rises_exactly_when_files_are_lost [Faults Files];
    M3 a_dead_workspace_is_found_dead_and_comes_back_with_its_files [Faults Files];
}

async fn an_unreachable_engine_is_an_error_and_never_an_empty_workspace(context: Context) {
    let (id, unknown) = (context.id(), context.id());
    write(&context.open(&id).await.workspace, "f", "precious").await;
    let faults = context.faults();
    if !faults.set_unreachable(true) {
        return;
    }
    for id in [&id, &unknown] {
        let error = open(&*context.backend, request(id)).await.map(drop).expect_err("the engine is away");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
        let error = context.backend.find(id).await.expect_err("it can not be decided");
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error:?}");
        context.backend.destroy(id).await.expect_err("nothing can be destroyed");
    }
    faults.set_unreachable(false);
    assert_eq!(context.backend.find(&unknown).await.expect("it can be decided"), None);
    assert_eq!(text(&context.open(&id).await.workspace, "f").await, "precious");
}

async fn the_generation_rises_exactly_when_files_are_lost(context: Context) {
    let id = context.id();
    write(&context.open(&id).await.workspace, "f", "x").await;
    if !context.faults().lose_files(&id) {
        return;
    }
    let opened = context.open(&id).await;
    assert_eq!(opened.outcome.kind, OutcomeKind::Recreated);
    assert!(opened.outcome.lost.contains(&Loss::WorkspaceFiles), "{:?}", opened.outcome);
    assert_eq!(opened.workspace.info().generation, 1);
    assert_eq!(opened.workspace.list(".").await.expect("it can be listed"), []);
    let again = open(&*context.reconnect().await, request(&id)).await.expect("it opens");
    assert_ne!(again.outcome.kind, OutcomeKind::Recreated, "a loss is told once");
    assert_eq!(again.workspace.info().generation, 1, "and counted for ever");
}

async fn a_dead_workspace_is_found_dead_and_comes_back_with_its_files(context: Context) {
    let id = context.id();
    let workspace = context.open(&id).await.workspace;
    write(&workspace, "f", "kept").await;
    if !context.faults().kill(&id) {
        return;
    }
    let health = workspace.health().await.expect("it can be decided");
    assert!(matches!(health, Health::Dead(_)), "{health:?}");
    let error = workspace.exec(Command::new("true")).await.map(drop).expect_err("it is dead");
    assert_eq!(error.kind(), ErrorKind::Gone, "{error:?}");
    let opened = context.open(&id).await;
    assert!(opened.outcome.lost.contains(&Loss::Processes), "{:?}", opened.outcome);
    assert_eq!(text(&opened.workspace, "f").await, "kept");
}
