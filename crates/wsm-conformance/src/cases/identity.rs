//! Ids of every form, none of which may meet another.

use wsm_core::{Command, WorkspaceId};

use crate::{
    cases::cases,
    context::{Context, exec, text, write},
};

cases! {
    B12 ids_of_every_form_have_workspaces_of_their_own [Files];
}

async fn ids_of_every_form_have_workspaces_of_their_own(context: Context) {
    // Made unlike any other run's, and alike among themselves.
    let run = WorkspaceId::random();
    let long = "x".repeat(256 - run.as_str().len() - 1);
    let forms = [
        "a",
        "A",
        "a.b",
        "a-b",
        "a_b",
        "a/b",
        "a/",
        "a//b",
        "a/../b",
        "..",
        ".",
        "-a",
        "文",
        "🦀",
        "é",
        "e\u{301}",
        " ",
        "a b",
        "a=b",
        "=2F",
        "a::b",
        "%2F",
        "'",
        "\\",
        &format!("{long}y"),
        &format!("{long}z"),
    ];
    let ids: Vec<WorkspaceId> = forms
        .iter()
        .map(|form| context.use_id(WorkspaceId::new(format!("{run}{form}")).expect("a valid id")))
        .collect();
    for id in &ids {
        let opened = context.open(id).await;
        assert_eq!(opened.outcome.kind, wsm_core::OutcomeKind::Created, "`{id}`");
        assert_eq!(opened.workspace.list(".").await.expect("it can be listed"), [], "`{id}` is not empty");
        write(&opened.workspace, "name", id.to_string()).await;
        write(&opened.workspace, "b/name", id.to_string()).await;
    }
    for id in &ids {
        let workspace = context.open(id).await.workspace;
        assert_eq!(text(&workspace, "name").await, id.as_str());
        assert_eq!(workspace.list(".").await.expect("it can be listed").len(), 2, "`{id}` holds something of another");
        let seen = exec(&workspace, Command::from_argv(["cat", "b/name"])).await;
        assert_eq!(seen.stdout.to_text(), id.as_str());
        assert_eq!(workspace.info().id, *id);
    }
}
