//! The proxy in front of the daemons: which sandbox a request is for, and whether it can be reached.

use std::{io, net::IpAddr, sync::Arc};

use axum::{
    Json,
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    envd,
    fault::Unreachable,
    lifecycle,
    operation::Operation,
    serve::Connection,
    state::{Fake, Phase, Sandbox},
};

/// Where the daemon listens.
pub(crate) const ENVD_PORT: u16 = 49983;
/// What only the node that runs a sandbox may ask of its daemon.
const RESERVED: [&str; 7] = ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];
/// Who gets errors as a page.
const BROWSERS: [&str; 7] = ["mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"];
const PAGE: &str =
    "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>\n";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Api,
    Sandbox { id: String, port: u16 },
    Bad(&'static str),
}

/// Whom a request is for, by its host and its headers.
pub(crate) fn target(headers: &HeaderMap, only_sandboxes: bool) -> Target {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if host == "localhost" || host.starts_with("sandbox.") || host.parse::<IpAddr>().is_ok() {
        return match (text("e2b-sandbox-id"), text("e2b-sandbox-port")) {
            (Some(id), Some(port)) => sandbox(id, port),
            (None, None) if !only_sandboxes => Target::Api,
            _ => Target::Bad("missing header"),
        };
    }
    let label = host.split('.').next().unwrap_or_default();
    let mut parts = label.split('-');
    match (parts.next(), parts.next()) {
        (Some(port), Some(id)) if port.parse::<u16>().is_ok() => sandbox(id, port),
        _ if only_sandboxes => Target::Bad("Invalid host"),
        _ => Target::Api,
    }
}

fn sandbox(id: &str, port: &str) -> Target {
    let Ok(port) = port.parse() else { return Target::Bad("Invalid sandbox port") };
    // The end of the long form does not count.
    let id = id.split('-').next().unwrap_or_default();
    match !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        true => Target::Sandbox { id: id.to_owned(), port },
        false => Target::Bad("Invalid sandbox ID"),
    }
}

/// Brings a request to the daemon of a sandbox, if that is there.
pub(crate) async fn reach(
    fake: &Arc<Fake>,
    id: &str,
    port: u16,
    operation: Operation,
    request: Request<Body>,
    connection: &Connection,
) -> io::Result<Response> {
    lifecycle::expire_due(fake).await;
    let headers = request.headers();
    let unreachable = |says| Ok(unreachable(says, id, port, headers));
    let Some(sandbox) = fake.sandbox(id) else { return unreachable(Unreachable::NotFound) };
    match sandbox.phase() {
        Phase::Running | Phase::Snapshotting => {}
        Phase::Pausing | Phase::Resuming => return unreachable(Unreachable::Transitioning),
        Phase::Paused if sandbox.auto_resume => {
            let token = headers.get("x-access-token").and_then(|token| token.to_str().ok());
            if sandbox.token.as_deref().is_some_and(|wanted| token != Some(wanted)) {
                let message = "This sandbox can't be resumed with the credentials provided. Use its access token.";
                return Ok(error(StatusCode::FORBIDDEN, message, id));
            }
            if lifecycle::wake(fake, &sandbox).await.is_err() {
                return unreachable(Unreachable::NotFound);
            }
        }
        Phase::Paused => return unreachable(Unreachable::NotFound),
    }
    if let Some(says) = why_down(&sandbox) {
        return unreachable(says);
    }
    if port != ENVD_PORT {
        return unreachable(Unreachable::PortClosed);
    }
    if RESERVED.contains(&request.uri().path()) {
        let message = "This endpoint is reserved for the E2B control plane and can not be reached through the proxy";
        return Ok(error(StatusCode::NOT_FOUND, message, id));
    }
    let Ok(run) = sandbox.guest.run() else { return unreachable(Unreachable::PortClosed) };
    let (headers, cut) = (headers.clone(), sandbox.guest.cut());
    let call = envd::Call { fake: Arc::clone(fake), sandbox, run, cut, connection: connection.clone() };
    match envd::answer(call, operation, request).await {
        Ok(response) => Ok(response),
        // The daemon died of it, or with the sandbox.
        Err(envd::Failed::Gone) => Ok(self::unreachable(Unreachable::PortClosed, id, port, &headers)),
        Err(envd::Failed::Crashed(error)) => Err(error),
    }
}

fn why_down(sandbox: &Sandbox) -> Option<Unreachable> {
    let mut live = sandbox.live.lock();
    if live.crashed {
        return Some(Unreachable::PortClosed);
    }
    let down = live.down.as_mut()?;
    let says = down.says;
    let still = match down.until {
        Some(until) => Instant::now() < until,
        None if down.times > 0 => {
            down.times -= 1;
            true
        }
        None => false,
    };
    if !still {
        live.down = None;
    }
    still.then_some(says)
}

fn error(status: StatusCode, message: &str, id: &str) -> Response {
    (status, Json(json!({ "sandboxId": id, "message": message, "code": status.as_u16() }))).into_response()
}

fn unreachable(says: Unreachable, id: &str, port: u16, headers: &HeaderMap) -> Response {
    let mut body: Value = json!({ "sandboxId": id, "code": 502 });
    match says {
        Unreachable::Html => return page(),
        Unreachable::Text => return (StatusCode::BAD_GATEWAY, "Failed to route request to sandbox").into_response(),
        Unreachable::Transitioning => {
            return error(StatusCode::CONFLICT, "The sandbox is still transitioning. Try again in a moment.", id);
        }
        _ if wants_page(headers) => return page(),
        Unreachable::NotFound => body["message"] = json!("The sandbox was not found"),
        Unreachable::PortClosed => {
            body["message"] = json!("The sandbox is running but port is not open");
            body["port"] = json!(port);
        }
    }
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

fn page() -> Response {
    (StatusCode::BAD_GATEWAY, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response()
}

fn wants_page(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let agent = text(header::USER_AGENT).to_ascii_lowercase();
    BROWSERS.iter().any(|browser| agent.contains(browser)) && !text(header::ACCEPT).starts_with("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target_of(pairs: &[(&'static str, &str)]) -> Target {
        let pairs = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        target(&pairs.collect(), false)
    }

    #[test]
    fn a_sandbox_is_named_by_headers_or_by_the_host() {
        let sandbox = |port| Target::Sandbox { id: "iabc".to_owned(), port };
        let ids = [("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "49983")];
        for host in ["localhost:1", "127.0.0.1:1", "[::1]:1", "sandbox.example.com"] {
            assert_eq!(target_of(&[("host", host), ids[0], ids[1]]), sandbox(49983));
            assert_eq!(target_of(&[("host", host)]), Target::Api);
            assert_eq!(target_of(&[("host", host), ids[0]]), Target::Bad("missing header"));
        }
        // With such a host, headers are not looked at.
        assert_eq!(target_of(&[("host", "3000-iabc.example.com"), ids[1]]), sandbox(3000));
        assert_eq!(target_of(&[("host", "49983-iabc.localhost:7")]), sandbox(49983));
        assert_eq!(target_of(&[("host", "49983-i_bc.localhost")]), Target::Bad("Invalid sandbox ID"));
        assert_eq!(target_of(&[("host", "api.example.com")]), Target::Api);
    }
}
