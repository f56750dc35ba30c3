//! What an engine says of a container.

use std::{collections::HashMap, time::SystemTime};

use bollard::models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum};
use wsm_core::{Cause, Result};
use wsm_host::handshake::Token;

use crate::{
    client::{Engine, SHORT, if_found},
    container::{LABEL_ATTEMPT, TOKEN_VARIABLE},
    restart,
};

/// What an engine says of a container.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The engine's own id.
    pub(crate) container: String,
    pub(crate) is_running: bool,
    pub(crate) is_paused: bool,
    /// Whether it was never started.
    pub(crate) is_fresh: bool,
    /// Whether it has ended and can be started again.
    pub(crate) has_exited: bool,
    /// Why it has ended, if it has.
    pub(crate) cause: Cause,
    ended_at: Option<SystemTime>,
    pub(crate) labels: HashMap<String, String>,
    pub(crate) token: Option<Token>,
    /// The call that made it.
    pub(crate) attempt: String,
    pub(crate) exit_code: Option<i64>,
    /// When it was last started, as the engine writes it.
    pub(crate) started_at: String,
    /// What the engine calls the image that it was made from, also after that has lost its name.
    pub(crate) image: String,
    /// The first process, as the engine's machine numbers it.
    pub(crate) pid: Option<i64>,
}

/// Asks for a container; none when there definitely is no such one.
///
/// # Errors
///
/// As for [`Engine::call`].
///
/// # Cancel safety
///
/// Changes nothing.
pub(crate) async fn inspect(engine: &Engine, container: &str) -> Result<Option<Seen>> {
    let inspected = engine.docker()?.inspect_container(container, None);
    let Some(mut seen) = if_found(engine.call("look at the container", SHORT, inspected).await)?.map(Seen::from) else {
        return Ok(None);
    };
    if seen.cause == Cause::Killed
        && let Some(ended) = seen.ended_at
        && let Some(started) = restart::started_at(&engine.host).await
        && restart::explains(started, ended)
    {
        seen.cause = Cause::EngineRestarted;
    }
    Ok(Some(seen))
}

impl From<ContainerInspectResponse> for Seen {
    fn from(seen: ContainerInspectResponse) -> Self {
        let ContainerInspectResponse { id, state, config, image, .. } = seen;
        let config = config.unwrap_or_default();
        let ContainerState { status, running, paused, oom_killed, exit_code, started_at, finished_at, pid, .. } =
            state.unwrap_or_default();
        let variables = config.env.unwrap_or_default();
        let token = variables.iter().find_map(|variable| variable.strip_prefix(TOKEN_VARIABLE)?.strip_prefix('='));
        let labels = config.labels.unwrap_or_default();
        Self {
            attempt: labels.get(LABEL_ATTEMPT).cloned().unwrap_or_default(),
            container: id.unwrap_or_default(),
            is_running: running == Some(true),
            is_paused: paused == Some(true),
            is_fresh: status == Some(ContainerStateStatusEnum::CREATED),
            has_exited: status == Some(ContainerStateStatusEnum::EXITED),
            cause: match (oom_killed, exit_code) {
                (Some(true), _) => Cause::OutOfMemory,
                // 128 and the number of a signal: what `docker kill`, `docker stop` and a stopping engine leave. And 255
                // stands for the code of one that ended while there was no engine.
                (_, Some(129..=192 | 255)) => Cause::Killed,
                // The gateway ends so when it is told to.
                (_, Some(0)) if running == Some(false) => Cause::Killed,
                _ => Cause::Unknown,
            },
            ended_at: finished_at.and_then(|text| humantime::parse_rfc3339(&text).ok()),
            labels,
            exit_code,
            started_at: started_at.unwrap_or_default(),
            image: image.unwrap_or_default(),
            pid,
            token: token.and_then(Token::from_text),
        }
    }
}
