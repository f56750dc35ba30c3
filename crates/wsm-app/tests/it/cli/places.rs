//! Which directory an id has, whoever opens it first after a restart.

use serde_json::{Value, json};

use super::Service;

async fn session(service: &Service, agent: &str, id: &str, workspace: Option<&Value>) -> Value {
    let body = json!({ "agent_id": agent, "session_id": id, "workspace_id": workspace });
    let (status, session) = service.call("POST", "/sessions", Some(body)).await;
    assert!(status == 201 || status == 200, "{session}");
    session
}

async fn pwd(service: &Service, agent: &str, id: &str) -> String {
    let body = json!({ "command": ["pwd"] });
    let path = format!("/workspace/exec?agent_id={agent}&session_id={id}");
    let (status, result) = service.call("POST", &path, Some(body)).await;
    assert_eq!(status, 200, "{result}");
    result["stdout"].as_str().unwrap().trim_end().to_owned()
}

#[tokio::test]
async fn an_id_keeps_its_directory_whoever_opens_it_first() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), &[]);
    let leader = session(&service, "leader", "s", None).await;
    let id = &leader["workspace_id"];
    let place = pwd(&service, "leader", "s").await;
    assert_eq!(place, dir.path().canonicalize().unwrap().join("base/ann/leader").to_str().unwrap());
    service.stop();
    for (policy, agent, name, workspace) in [
        ("per_agent", "helper", "sub-agent", Some(id)),
        ("per_agent", "leader", "another session", None),
        ("per_session", "helper", "another policy", Some(id)),
        ("per_user", "leader", "one more policy", Some(id)),
        ("per_session", "leader", "s", None),
    ] {
        let service = Service::start(dir.path(), &["--isolation", policy]);
        let made = session(&service, agent, name, workspace).await;
        assert_eq!(made["workspace_id"], *id, "{policy} {name}");
        assert_eq!(pwd(&service, agent, &name.replace(' ', "%20")).await, place, "{policy} {name}");
        service.stop();
    }
}

#[tokio::test]
async fn a_new_session_follows_the_new_policy_and_an_old_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap().join("base");
    let service = Service::start(dir.path(), &[]);
    let old = session(&service, "a", "old", None).await;
    let place = pwd(&service, "a", "old").await;
    service.stop();
    let mut seen = vec![old["workspace_id"].clone()];
    for policy in ["per_session", "per_user"] {
        let service = Service::start(dir.path(), &["--isolation", policy]);
        assert_eq!(session(&service, "a", "old", None).await, old);
        assert_eq!(pwd(&service, "a", "old").await, place);
        let new = session(&service, "a", policy, None).await;
        assert!(!seen.contains(&new["workspace_id"]));
        let new_place = pwd(&service, "a", policy).await;
        assert!(new_place.starts_with(base.join(".wsm/workspaces").to_str().unwrap()), "{new_place}");
        let twin = session(&service, "b", &format!("{policy} twin"), None).await;
        assert_eq!(twin["workspace_id"] == new["workspace_id"], policy == "per_user", "{policy}");
        seen.push(new["workspace_id"].clone());
        service.stop();
    }
}
