//! The engine: where it is, how long it may take, and what its answers mean.

use std::{
    collections::HashMap,
    env, fs,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bollard::{Docker, errors::Error as EngineError};
use serde::Deserialize;
use tokio::time::timeout;
use wsm_core::{Error, ErrorKind, Result, Retry};

const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// How long a call may take that only asks or changes a record.
pub(crate) const SHORT: Duration = Duration::from_secs(30);
/// How long a call may take that starts, stops or removes something.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// A connection to an engine.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    /// Made when it is first needed: the library wants the socket to be there.
    client: Arc<OnceLock<Docker>>,
    /// Where it is, for messages.
    pub(crate) host: String,
}

impl Engine {
    /// An engine by its address, which is not talked to yet. Blocks for the files of the `docker` command.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `host`.
    pub(crate) fn new(host: Option<&str>) -> Result<Self> {
        let host = host.map(str::to_owned).or_else(named_host).or_else(context_host);
        let host = host.unwrap_or_else(|| DEFAULT_HOST.to_owned());
        if !["unix://", "tcp://", "http://"].iter().any(|scheme| host.starts_with(scheme)) {
            let message = format!("`host` is `{host}`, which is no address of an engine: give `unix://…` or `tcp://…`");
            return Err(Error::invalid("host", message));
        }
        Ok(Self { client: Arc::default(), host })
    }

    /// The library's connection to it.
    ///
    /// # Errors
    ///
    /// `unavailable` when its socket is not there.
    pub(crate) fn docker(&self) -> Result<&Docker> {
        if let Some(docker) = self.client.get() {
            return Ok(docker);
        }
        let docker = Docker::connect_with_host(&self.host).map_err(|error| self.error("do anything", error))?;
        Ok(self.client.get_or_init(|| docker))
    }

    /// Whether it runs on this machine, as far as its address tells.
    pub(crate) fn is_local(&self) -> bool {
        self.host.starts_with("unix://")
    }

    /// Waits for an answer, and no longer than it may take.
    ///
    /// # Errors
    ///
    /// As for [`error`](Self::error); `timeout`.
    ///
    /// # Cancel safety
    ///
    /// The engine may or may not do what a dropped call asked for.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        limit: Duration,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T> {
        match timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.error(what, error)),
            Err(_) => {
                let message = format!("the engine at {} did not {what} within {limit:?}", self.host);
                Err(Error::new(ErrorKind::Timeout, message))
            }
        }
    }

    /// What an error of the engine's means: `not_found`, `conflict`, `capacity` for a full disk, `unavailable` when it can not
    /// be reached, and else `backend`.
    pub(crate) fn error(&self, what: &str, error: EngineError) -> Error {
        let EngineError::DockerResponseServerError { status_code, message } = &error else {
            let reached = format!("the engine at {} can not be reached to {what}: is it running?", self.host);
            let error = match error {
                EngineError::JsonDataError { .. } | EngineError::DockerStreamError { .. } => {
                    Error::new(ErrorKind::Backend, format!("the engine could not {what}")).with_source(error)
                }
                error => Error::new(ErrorKind::Unavailable, reached)
                    .with_retry(Retry::After(Duration::from_secs(1)))
                    .with_source(error),
            };
            return error;
        };
        let said = message.trim();
        let kind = match status_code {
            _ if said.contains("no space left on device") => ErrorKind::Capacity,
            403 => ErrorKind::PermissionDenied,
            404 => ErrorKind::NotFound,
            409 => ErrorKind::Conflict,
            400 => ErrorKind::InvalidInput,
            503 => ErrorKind::Unavailable,
            _ => ErrorKind::Backend,
        };
        Error::new(kind, format!("the engine could not {what}: {said}"))
    }
}

/// Gives none where the engine definitely has no such thing.
pub(crate) fn if_found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn named_host() -> Option<String> {
    env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty())
}

/// Where the current context of the `docker` command is: its name is in the command's configuration, and a directory named by
/// the name's SHA-256 holds the rest, so that all of them are looked through.
fn context_host() -> Option<String> {
    let directory = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let directory = directory.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".docker")))?;
    let config = fs::read_to_string(directory.join("config.json")).ok();
    let current = env::var("DOCKER_CONTEXT").ok().filter(|name| !name.is_empty());
    let current = current.or_else(|| current_context(&config?))?;
    let contexts = fs::read_dir(directory.join("contexts/meta")).ok()?;
    let texts = contexts.filter_map(|context| fs::read_to_string(context.ok()?.path().join("meta.json")).ok());
    texts.filter_map(|text| host_of(&text, &current)).next()
}

fn current_context(config: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Config {
        current_context: Option<String>,
    }

    serde_json::from_str::<Config>(config).ok()?.current_context.filter(|name| name != "default")
}

fn host_of(meta: &str, wanted: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Context {
        name: String,
        endpoints: HashMap<String, Endpoint>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Endpoint {
        host: Option<String>,
    }

    let mut context: Context = serde_json::from_str(meta).ok()?;
    (context.name == wanted).then(|| context.endpoints.remove("docker")?.host).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_says_where_the_engine_is() {
        assert_eq!(current_context(r#"{"auths":{},"currentContext":"remote"}"#).as_deref(), Some("remote"));
        assert_eq!(current_context(r#"{"currentContext":"default"}"#), None);
        assert_eq!(current_context("{}"), None);
        let meta = r#"{"Name":"remote","Metadata":{},"Endpoints":{"docker":{"Host":"tcp://192.0.2.1:2375","SkipTLSVerify":false}}}"#;
        assert_eq!(host_of(meta, "remote").as_deref(), Some("tcp://192.0.2.1:2375"));
        assert_eq!(host_of(meta, "other"), None);
        assert_eq!(host_of("no json", "remote"), None);
    }

    #[test]
    fn what_the_engine_says_is_told_by_its_kind() {
        let engine = Engine::new(Some("unix:///nowhere.sock")).unwrap();
        let said = |status_code, message: &str| {
            let message = message.to_owned();
            engine.error("start it", EngineError::DockerResponseServerError { status_code, message })
        };
        assert_eq!(said(404, "No such container: x").kind(), ErrorKind::NotFound);
        assert_eq!(said(409, "name in use").kind(), ErrorKind::Conflict);
        assert_eq!(said(500, "write /x: no space left on device").kind(), ErrorKind::Capacity);
        assert!(said(500, "OCI runtime").to_string().contains("start it: OCI runtime"));
        assert_eq!(Engine::new(Some("gopher://x")).unwrap_err().field(), Some("host"));
    }

    #[test]
    fn an_engine_that_is_not_there_is_unavailable_and_never_an_absence() {
        let engine = Engine::new(Some("unix:///nowhere/docker.sock")).unwrap();
        let error = engine.docker().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("is it running?"), "{error}");
    }
}
