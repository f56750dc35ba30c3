//! The session that a command is about.

use std::ffi::OsString;

use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::remote::{Client, Refusal};

/// The agent of a new session, unless another one is named.
const DEFAULT_AGENT: &str = "default";

/// What to do about a session that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Make it.
    Make,
    /// Say so.
    Refuse,
}

#[derive(Debug, Deserialize)]
struct Session {
    agent_id: String,
}

/// The agent of a session, which the routes of a workspace ask for.
pub(super) async fn agent_of(
    client: &Client,
    session: &str,
    agent: Option<&str>,
    missing: Missing,
) -> anyhow::Result<String> {
    let found = match find(client, session).await? {
        Some(found) => found,
        None if missing == Missing::Refuse => {
            anyhow::bail!("there is no session `{session}` of yours: `wsm exec --session {session}` makes it")
        }
        None => make(client, session, agent.unwrap_or(DEFAULT_AGENT)).await?,
    };
    match agent {
        Some(agent) if agent != found.agent_id => {
            anyhow::bail!("the session `{session}` is of the agent `{}`, not of `{agent}`", found.agent_id)
        }
        _ => Ok(found.agent_id),
    }
}

async fn find(client: &Client, session: &str) -> anyhow::Result<Option<Session>> {
    match client.json(client.request(Method::GET, &["sessions", session])?).await {
        Ok(answer) => Ok(Some(serde_json::from_slice(&answer)?)),
        Err(error) if is(&error, "session_not_found") => Ok(None),
        Err(error) => Err(error),
    }
}

async fn make(client: &Client, session: &str, agent: &str) -> anyhow::Result<Session> {
    let body = json!({ "agent_id": agent, "session_id": session });
    match client.json(client.request(Method::POST, &["sessions"])?.json(&body)).await {
        Ok(answer) => Ok(serde_json::from_slice(&answer)?),
        // Somebody else made it in between, with other fields.
        Err(error) if is(&error, "session_exists") => find(client, session).await?.ok_or(error),
        Err(error) => Err(error),
    }
}

/// Whether the service refused with this code.
pub(super) fn is(error: &anyhow::Error, code: &str) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code() == code)
}

/// The arguments of a command as the service takes them.
pub(super) fn texts(argv: Vec<OsString>) -> anyhow::Result<Vec<String>> {
    let text = |arg: OsString| arg.into_string().map_err(|arg| anyhow::anyhow!("`{}` is not UTF-8", arg.display()));
    argv.into_iter().map(text).collect()
}
