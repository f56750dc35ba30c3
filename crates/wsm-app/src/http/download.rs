//! Tokens that let a browser download one file without headers.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use axum::Json;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use blake2::{
    Blake2bMac,
    digest::{KeyInit, Mac, consts::U32},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use wsm_core::{AgentId, SessionId, UserId, validate_path};

use super::{
    Problem,
    error::ProblemBody,
    extract::{Caller, CallerSession, Params, Started},
};
use crate::auth::unauthenticated;

/// How long a token is valid.
const LIFETIME: Duration = Duration::from_secs(60);

/// Makes and checks download tokens: `<expiry>.<user>.<mac>`, the last two in Base64.
///
/// The code is keyed BLAKE2b over the expiry, the user, the agent, the session and the path, each preceded by its
/// length. The key is this process's own, so a restart ends all tokens.
pub(crate) struct DownloadTokens {
    key: [u8; 32],
}

impl fmt::Debug for DownloadTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadTokens").finish_non_exhaustive()
    }
}

/// The file that a token is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Download<'a> {
    pub(super) agent: &'a AgentId,
    pub(super) session: &'a SessionId,
    pub(super) path: &'a str,
}

impl DownloadTokens {
    pub(crate) fn new() -> Self {
        Self { key: rand::random() }
    }

    fn mac(&self, expires: u64, user: &UserId, file: Download<'_>) -> Option<Blake2bMac<U32>> {
        let mut mac = Blake2bMac::<U32>::new_from_slice(&self.key).ok()?;
        let expires = expires.to_string();
        let Download { agent, session, path } = file;
        for field in ["wsm/download/v1", &expires, user.as_str(), agent.as_str(), session.as_str(), path] {
            mac.update(&(field.len() as u64).to_le_bytes());
            mac.update(field.as_bytes());
        }
        Some(mac)
    }

    fn issue(&self, user: &UserId, file: Download<'_>, now: u64) -> Option<(String, u64)> {
        let expires = now + LIFETIME.as_secs();
        let mac = self.mac(expires, user, file)?.finalize().into_bytes();
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        Some((format!("{expires}.{}.{}", encode(user.as_str().as_bytes()), encode(&mac)), expires))
    }

    /// Whose token it is, if it is good for this file now.
    pub(super) fn check(&self, token: &str, file: Download<'_>) -> Result<UserId, Problem> {
        self.check_at(token, file, unix_seconds())
    }

    fn check_at(&self, token: &str, file: Download<'_>, now: u64) -> Result<UserId, Problem> {
        let invalid = || unauthenticated("invalid_token", "the download token is not valid for this file");
        let (expires, user, mac) = parse(token).ok_or_else(invalid)?;
        // The code first: an expiry that nobody signed says nothing.
        let expected = self.mac(expires, &user, file).ok_or_else(invalid)?;
        expected.verify_slice(&mac).map_err(|_| invalid())?;
        if now > expires {
            return Err(unauthenticated("expired_token", "the download token has expired"));
        }
        Ok(user)
    }
}

fn parse(token: &str) -> Option<(u64, UserId, Vec<u8>)> {
    let mut parts = token.split('.');
    let expires = parts.next()?.parse().ok()?;
    let user = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(parts.next()?).ok()?).ok()?;
    let mac = BASE64_URL_SAFE_NO_PAD.decode(parts.next()?).ok()?;
    parts.next().is_none().then_some((expires, UserId::new(user).ok()?, mac))
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Which file of which session.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TokenParams {
    /// The agent of the session.
    #[param(value_type = String)]
    agent_id: AgentId,
    /// The session.
    #[param(value_type = String)]
    session_id: SessionId,
    /// The file's path.
    path: String,
}

/// A download token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DownloadToken)]
pub(super) struct TokenBody {
    /// What to give as `token`.
    token: String,
    /// Until when it is valid, in seconds since 1970.
    expires_at: u64,
}

/// Gives a token that lets anybody who has it download this one file for a minute.
#[utoipa::path(
    post, path = "/workspace/files/download-token", operation_id = "make_download_token", tag = "workspace",
    params(TokenParams, ("X-User-ID" = Option<String>, Header, description = "Who asks, unless a token says so.")),
    responses(
        (status = 200, body = TokenBody),
        (status = 404, description = "The caller has no such session.", body = ProblemBody<'_>, content_type = "application/problem+json"),
    )
)]
pub(super) async fn token(
    Started(app): Started,
    Caller(user): Caller,
    _: CallerSession,
    Params(TokenParams { agent_id, session_id, path }): Params<TokenParams>,
) -> Result<Json<TokenBody>, Problem> {
    validate_path(&path)?;
    let file = Download { agent: &agent_id, session: &session_id, path: &path };
    let issued = app.downloads.issue(&user, file, unix_seconds());
    let failed =
        || Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal", "no token can be made");
    let (token, expires_at) = issued.ok_or_else(failed)?;
    Ok(Json(TokenBody { token, expires_at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_file_of_one_session_and_one_minute() {
        let tokens = DownloadTokens::new();
        let user = UserId::new("ann.b@example.org").unwrap();
        let (agent, session) = (AgentId::new("a").unwrap(), SessionId::new("s").unwrap());
        let file = Download { agent: &agent, session: &session, path: "x.txt" };
        let (token, expires) = tokens.issue(&user, file, 1000).unwrap();
        assert_eq!(tokens.check_at(&token, file, 1060).unwrap(), user);
        let refused = |token: &str, file, now| tokens.check_at(token, file, now).unwrap_err().status().as_u16();
        assert_eq!(refused(&token, file, 1061), 401);
        assert_eq!(refused(&token, Download { path: "y.txt", ..file }, 1000), 401);
        let other = SessionId::new("s2").unwrap();
        assert_eq!(refused(&token, Download { session: &other, ..file }, 1000), 401);
        let later = token.replacen(&expires.to_string(), &(expires + 1).to_string(), 1);
        for token in [later.as_str(), "", "abc", "1.2", &format!("{token}.x")] {
            assert_eq!(refused(token, file, 1000), 401, "{token}");
        }
        assert!(DownloadTokens::new().check_at(&token, file, 1000).is_err());
    }
}
