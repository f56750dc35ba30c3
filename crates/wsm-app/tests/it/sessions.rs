//! Sessions: who gets which workspace, and for how long.

use serde_json::{Value, json};
use wsm_core::{
    IsolationPolicy, ManagerSettings, Prewarm, Scope,
    memory::{Effect, Fault, Operation},
};

use crate::support::{TestApp, app, app_under, app_with};

fn workspace_of(reply: &crate::support::Reply) -> String {
    reply.json()["workspace_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_new_session_holds_the_workspace_that_the_policy_assigns() {
    let app = app().await;
    let reply = app.user("ann").post("/sessions", &json!({ "agent_id": "coder", "name": "monday" })).await;
    assert_eq!(reply.status, 201);
    let session = reply.json();
    let scope = Scope::new("ann", "coder", session["session_id"].as_str().unwrap()).unwrap();
    assert_eq!(session["workspace_id"], IsolationPolicy::PerAgent.assign(&scope).as_str());
    assert_eq!((&session["agent_id"], &session["user_id"]), (&json!("coder"), &json!("ann")));
    assert!(session["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(app.engine.creations(), 0, "a session alone makes no workspace");
    let id = session["session_id"].as_str().unwrap();
    assert_eq!(app.user("ann").get(&format!("/sessions/{id}")).await.json(), session);
    assert_eq!(app.user("bob").get(&format!("/sessions/{id}")).await.problem(), (404, "session_not_found".into()));
}

#[tokio::test]
async fn an_explicit_workspace_wins_and_null_and_empty_mean_none() {
    let app = app().await;
    let ann = app.user("ann");
    let explicit = ann.post("/sessions", &json!({ "agent_id": "a", "workspace_id": "mine" })).await;
    assert_eq!(workspace_of(&explicit), "mine");
    let assigned = ann.post("/sessions", &json!({ "agent_id": "a" })).await;
    for none in [json!(null), json!("")] {
        let body = json!({ "agent_id": "a", "workspace_id": none, "session_id": none, "name": null });
        let reply = ann.post("/sessions", &body).await;
        assert_eq!((reply.status.as_u16(), workspace_of(&reply)), (201, workspace_of(&assigned)));
    }
}

#[tokio::test]
async fn nobody_takes_a_workspace_before_the_one_that_it_is_assigned_to() {
    let app = app().await;
    let (ann, bob) = (app.user("ann"), app.user("bob"));
    let hers = |agent: &str, session: &str| Scope::new("ann", agent, session).unwrap();
    for policy in IsolationPolicy::ALL {
        let id = policy.assign(&hers("coder", "s1"));
        let theft = bob.post("/sessions", &json!({ "agent_id": "a", "workspace_id": id })).await;
        assert_eq!(theft.problem(), (403, "workspace_id_reserved".into()), "{policy}");
        assert!(!theft.text().contains("ann"), "{}", theft.text());
    }
    assert_eq!(app.user("bob").get("/sessions").await.json()["items"], json!([]));
    let own = ann.post("/sessions", &json!({ "agent_id": "coder", "session_id": "s1" })).await;
    assert_eq!(own.status, 201, "the owner gets it");
    let leaders = workspace_of(&own);
    // A team shares its leader's workspace from the moment that the leader has a session, used or not.
    let shared = ann.post("/sessions", &json!({ "agent_id": "helper", "workspace_id": leaders })).await;
    assert_eq!((shared.status.as_u16(), workspace_of(&shared)), (201, leaders));
    // What a policy assigns may be named by the one that it is assigned to, whichever policy is in force.
    let user_wide = IsolationPolicy::PerUser.assign(&hers("x", "y"));
    let named = ann.post("/sessions", &json!({ "agent_id": "x", "workspace_id": user_wide })).await;
    assert_eq!(named.status, 201, "{}", named.text());
    // Ids of other forms are first come, first served.
    let uuid = bob.post("/sessions", &json!({ "agent_id": "a", "workspace_id": "0".repeat(32) })).await;
    assert_eq!(uuid.status, 201);
}

#[tokio::test]
async fn asking_again_gives_the_same_session_and_other_fields_clash() {
    let app = app().await;
    let ann = app.user("ann");
    let body = json!({ "agent_id": "a", "session_id": "s1", "name": "n" });
    let first = ann.post("/sessions", &body).await;
    let again = ann.post("/sessions", &body).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200));
    assert_eq!(first.json(), again.json());
    for other in [
        json!({ "agent_id": "b", "session_id": "s1", "name": "n" }),
        json!({ "agent_id": "a", "session_id": "s1" }),
        json!({ "agent_id": "a", "session_id": "s1", "name": "n", "workspace_id": "w" }),
    ] {
        assert_eq!(ann.post("/sessions", &other).await.problem(), (409, "session_exists".into()), "{other}");
    }
    assert_eq!(app.user("bob").post("/sessions", &body).await.status, 201, "ids belong to their user");
}

#[tokio::test]
async fn posts_at_once_end_with_one_record() {
    let app = app().await;
    let ann = app.user("ann");
    let body = json!({ "agent_id": "a", "session_id": "s1" });
    let replies = futures::future::join_all((0..16).map(|_| ann.post("/sessions", &body))).await;
    let made = replies.iter().filter(|reply| reply.status == 201).count();
    assert_eq!(made, 1);
    assert!(replies.iter().all(|reply| reply.json() == replies[0].json()));
    assert_eq!(ann.get("/sessions").await.json()["items"].as_array().unwrap().len(), 1);
    assert_eq!(records(&app).await.len(), 1);
}

async fn records(app: &TestApp) -> Vec<Value> {
    app.nobody().get("/admin/workspaces?all=true").await.json()["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn another_users_workspace_is_refused_without_a_word_of_its_owner() {
    let app = app().await;
    let session = app.user("ann-the-owner").post("/sessions", &json!({ "agent_id": "a" })).await;
    let workspace = workspace_of(&session);
    let before = records(&app).await;
    let theft = app.user("bob").post("/sessions", &json!({ "agent_id": "a", "workspace_id": workspace })).await;
    assert_eq!(theft.problem(), (403, "foreign_owner".into()));
    assert!(!theft.text().contains("ann"), "{}", theft.text());
    assert_eq!(records(&app).await, before, "nothing was made");
    assert_eq!(app.user("bob").get("/sessions").await.json()["items"], json!([]));
}

/// The store is new, but the backend still has the workspace and knows whose it is.
#[tokio::test]
async fn ownership_survives_the_loss_of_the_store() {
    let app = app().await;
    let ann = app.user("ann");
    let reply = ann.post("/sessions", &json!({ "agent_id": "a", "session_id": "s", "workspace_id": "w" })).await;
    assert_eq!(reply.status, 201);
    assert_eq!(ann.sh("agent_id=a&session_id=s", "true").await.status, 200);
    let second = wsm_app::create_app(app.manager.clone(), wsm_app::AppConfig::new(app.dir.path().join("other.db")));
    second.lifecycle.start().await.unwrap();
    let bob = crate::support::client(&second.router).header("x-user-id", "bob");
    let theft = bob.post("/sessions", &json!({ "agent_id": "a", "workspace_id": "w" })).await;
    assert_eq!(theft.problem(), (403, "foreign_owner".into()));
}

#[tokio::test]
async fn pages_are_complete_and_in_order() {
    let app = app().await;
    let ann = app.user("ann");
    for number in 0..7 {
        let agent = if number % 2 == 0 { "even" } else { "odd" };
        ann.post("/sessions", &json!({ "agent_id": agent, "session_id": format!("s{number}") })).await;
    }
    let mut seen = Vec::new();
    let mut uri = "/sessions?agent_id=even&limit=3".to_owned();
    loop {
        let page = ann.get(&uri).await.json();
        seen.extend(page["items"].as_array().unwrap().iter().map(|it| it["session_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        uri = format!("/sessions?agent_id=even&limit=3&after={next}");
    }
    assert_eq!(seen, ["s0", "s2", "s4", "s6"]);
    for (query, field) in [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("after=x", "after")] {
        let reply = ann.get(&format!("/sessions?{query}")).await;
        assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, field), "{query}");
    }
}

#[tokio::test]
async fn shared_workspaces_outlive_their_sessions() {
    for policy in [IsolationPolicy::PerAgent, IsolationPolicy::PerUser] {
        let app = app_under(policy).await;
        let ann = app.user("ann");
        let session = ann.session("a").await;
        ann.sh(&session, "echo kept > f").await;
        let id = session.rsplit('=').next().unwrap();
        assert_eq!(ann.delete(&format!("/sessions/{id}")).await.status, 204);
        assert_eq!(ann.delete(&format!("/sessions/{id}")).await.problem(), (404, "session_not_found".into()));
        assert_eq!(ann.sh(&session, "true").await.problem(), (404, "session_not_found".into()));
        let next = ann.session("a").await;
        assert_eq!(ann.sh(&next, "cat f").await.json()["stdout"], "kept\n", "{policy}");
    }
}

#[tokio::test]
async fn a_sessions_own_workspace_goes_with_the_last_session_that_names_it() {
    let app = app_under(IsolationPolicy::PerSession).await;
    let ann = app.user("ann");
    let leader = ann.post("/sessions", &json!({ "agent_id": "a", "session_id": "leader" })).await;
    let helper = json!({ "agent_id": "b", "session_id": "helper", "workspace_id": workspace_of(&leader) });
    assert_eq!(ann.post("/sessions", &helper).await.status, 201);
    ann.sh("agent_id=a&session_id=leader", "echo kept > f").await;

    assert_eq!(ann.delete("/sessions/leader").await.status, 204);
    let helped = ann.sh("agent_id=b&session_id=helper", "cat f").await.json();
    assert_eq!(helped["stdout"], "kept\n", "the helper still names it");
    let again = ann.post("/sessions", &json!({ "agent_id": "a", "session_id": "leader" })).await;
    assert_eq!(again.problem(), (409, "session_deleted".into()), "its files would be found by a stranger");

    assert_eq!(ann.delete("/sessions/helper").await.status, 204);
    assert_eq!((app.engine.running(), records(&app).await.len()), (0, 0));
    let again = ann.post("/sessions", &json!({ "agent_id": "a", "session_id": "leader" })).await;
    assert_eq!(again.status, 201);
    let files = ann.sh("agent_id=a&session_id=leader", "cat f").await.json();
    assert_ne!(files["exit_code"], 0);
}

#[tokio::test]
async fn a_destroy_that_fails_is_tried_again_with_the_session() {
    let app = app_under(IsolationPolicy::PerSession).await;
    let ann = app.user("ann");
    ann.post("/sessions", &json!({ "agent_id": "a", "session_id": "s" })).await;
    ann.sh("agent_id=a&session_id=s", "true").await;
    app.engine.plant(Fault::once(Operation::Destroy, Effect::unavailable()));
    let failed = ann.delete("/sessions/s").await;
    assert_eq!(failed.problem().0, 503);
    assert!(failed.headers.contains_key("retry-after"));
    assert_eq!(ann.get("/sessions/s").await.status, 404, "the session is gone all the same");
    let body = json!({ "agent_id": "a", "session_id": "s" });
    assert_eq!(ann.post("/sessions", &body).await.problem(), (409, "session_deleted".into()));
    assert_eq!(ann.delete("/sessions/s").await.status, 204);
    assert_eq!(ann.post("/sessions", &body).await.status, 201);
}

#[tokio::test]
async fn sessions_of_their_own_take_ready_workspaces() {
    let settings =
        ManagerSettings::default().with_isolation(IsolationPolicy::PerSession).with_prewarm(Some(Prewarm::new(2)));
    let app = app_with(settings, |mut config| {
        config.prewarmed = true;
        config
    })
    .await;
    let ann = app.user("ann");
    let body = json!({ "agent_id": "a", "session_id": "s" });
    let replies = futures::future::join_all((0..4).map(|_| ann.post("/sessions", &body))).await;
    assert!(replies.iter().all(|reply| reply.json() == replies[0].json()), "one session takes one workspace");
    let scope = Scope::new("ann", "a", "s").unwrap();
    assert_ne!(workspace_of(&replies[0]), IsolationPolicy::PerSession.assign(&scope).as_str());
    assert_eq!(ann.delete("/sessions/s").await.status, 204);
    assert_eq!(app.nobody().get(&format!("/admin/workspaces/{}", workspace_of(&replies[0]))).await.status, 404);
}

#[tokio::test]
async fn each_session_learns_of_lost_files_once() {
    let app = app().await;
    let ann = app.user("ann");
    let (first, second) = (ann.session("a").await, ann.session("a").await);
    for session in [&first, &second] {
        assert!(!ann.sh(session, "true").await.headers.contains_key("x-workspace-lost"));
    }
    let workspace = ann.get(&format!("/workspace/status?{first}")).await.json()["workspace_id"].clone();
    let id = wsm_core::WorkspaceId::new(workspace.as_str().unwrap()).unwrap();
    app.manager.close(&id, wsm_core::CloseOptions::default()).await.unwrap();
    app.engine.lose_files(&id);
    for session in [&first, &second] {
        let told = ann.get(&format!("/workspace/status?{session}")).await;
        let lost = told.headers["x-workspace-lost"].to_str().unwrap();
        assert!(lost.starts_with("workspace_files"), "{lost}");
        assert_eq!(told.json()["generation"], 1);
        assert_eq!(told.json()["opening"]["kind"], "recreated");
        assert!(!ann.sh(session, "true").await.headers.contains_key("x-workspace-lost"));
    }
    let third = ann.session("a").await;
    assert!(!ann.sh(&third, "true").await.headers.contains_key("x-workspace-lost"), "a newcomer lost nothing");
}
