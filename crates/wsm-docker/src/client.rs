//! The engine: where it is, how long it may take, and what its answers mean.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error as EngineError};
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::time::timeout;
use wsm_core::{Error, ErrorKind, Result, Retry};

use crate::tls::{self, TlsFiles};

const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// How long the library waits for the beginning of an answer, in seconds. Every call has a shorter limit.
const ANSWER_LIMIT: u64 = 120;
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
    tls: Option<Arc<ClientConfig>>,
}

impl Engine {
    /// An engine by its address, which is not talked to yet. Blocks for the files of the `docker` command and for TLS.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `host` or `tls`.
    pub(crate) fn new(host: Option<&str>, tls: Option<&TlsFiles>) -> Result<Self> {
        let Address { host, tls: its_own } = Address::find(host)?;
        let Some((scheme, rest)) = host.split_once("://") else {
            return Err(unfit(&host, "is no address of an engine"));
        };
        let files = tls.cloned().or(its_own);
        match scheme {
            "tcp" => {}
            "unix" | "http" if tls.is_none() => {}
            "unix" | "http" => {
                return Err(Error::invalid("tls", format!("`tls` is of no use for `{host}`: it goes with `tcp://…`")));
            }
            "ssh" => {
                let way = "is not supported: forward its socket, as by \
                           `ssh -N -L /run/user/1000/engine.sock:/var/run/docker.sock …`, and give that as `unix://…`";
                return Err(unfit(&host, way));
            }
            "npipe" => {
                let way =
                    "is a pipe of Windows, which is not there: run wsm where the engine's own socket is, as in WSL";
                return Err(unfit(&host, way));
            }
            _ => return Err(unfit(&host, "is no address of an engine")),
        }
        let tls = files.filter(|_| scheme == "tcp").map(|files| files.read()).transpose()?;
        let host = match scheme {
            "tcp" => format!("tcp://{}", with_port(rest, tls.is_some())),
            _ => host,
        };
        Ok(Self { client: Arc::default(), host, tls })
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
        // Not what picks the way by itself: it would look at variables that belong to another address.
        let docker = match (self.host.strip_prefix("tcp://"), &self.tls) {
            (Some(authority), Some(config)) => tls::connect(authority, config),
            _ if self.is_local() => Docker::connect_with_unix(&self.host, ANSWER_LIMIT, API_DEFAULT_VERSION),
            _ => Docker::connect_with_http(&self.host, ANSWER_LIMIT, API_DEFAULT_VERSION),
        };
        let docker = docker.map_err(|error| self.error("do anything", error))?;
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
            if let Some(explained) = tls::explain(&error, &self.host, self.tls.as_deref()) {
                return explained;
            }
            // Whoever refuses a certificate may hang up before that could be read.
            let doubt = if self.tls.is_some() { ", and does it accept this side's certificate" } else { "" };
            let reached = format!("the engine at {} can not be reached to {what}: is it running{doubt}?", self.host);
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
        if said.contains("HTTP request to an HTTPS server") {
            let message = format!("the engine at {} speaks TLS only: give `tls`", self.host);
            return Error::invalid("tls", message);
        }
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

/// Where an engine is, and how it is talked to there unless the option says otherwise.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    host: String,
    tls: Option<TlsFiles>,
}

impl Address {
    /// By the option, else by the variables, else by the current context of the `docker` command.
    fn find(option: Option<&str>) -> Result<Self> {
        if let Some(host) = option {
            return Ok(Self { host: host.to_owned(), tls: None });
        }
        let home = client_home();
        if let Some(host) = env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()) {
            // What is set for one address says nothing about a local one.
            let tls = if host.starts_with("tcp://") { TlsFiles::from_environment(home.as_deref())? } else { None };
            return Ok(Self { host, tls });
        }
        let context = home.map(|home| Self::of_context(&home)).transpose()?.flatten();
        Ok(context.unwrap_or_else(|| Self { host: DEFAULT_HOST.to_owned(), tls: None }))
    }

    /// That of the current context: its name is in the command's configuration, and a directory named by the name's SHA-256
    /// holds the rest, so that all of them are looked through.
    fn of_context(home: &Path) -> Result<Option<Self>> {
        let config = fs::read_to_string(home.join("config.json")).ok();
        let current = env::var("DOCKER_CONTEXT").ok().filter(|name| !name.is_empty());
        let Some(current) = current.or_else(|| current_context(&config?)).filter(|name| name != "default") else {
            return Ok(None);
        };
        Self::of_named_context(home, &current)
    }

    fn of_named_context(home: &Path, name: &str) -> Result<Option<Self>> {
        let directories = fs::read_dir(home.join("contexts/meta")).into_iter().flatten().flatten();
        let found = directories.into_iter().find_map(|directory| {
            let text = fs::read_to_string(directory.path().join("meta.json")).ok()?;
            Some((endpoint_of(&text, name)?, directory.file_name()))
        });
        let Some((Endpoint { host: Some(host), skip_tls_verify }, directory)) = found else { return Ok(None) };
        if skip_tls_verify {
            let message = format!(
                "the context `{name}` of the `docker` command has `SkipTLSVerify`, which would trust any engine: update it \
                 with a `ca`, or give `host` and `tls`"
            );
            return Err(Error::invalid("tls", message));
        }
        let tls = TlsFiles::from_context(&home.join("contexts/tls").join(directory).join("docker"));
        Ok(Some(Self { host, tls }))
    }
}

/// Where the `docker` command has its files.
fn client_home() -> Option<PathBuf> {
    let directory = env::var_os("DOCKER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    directory.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".docker")))
}

/// Engines have a usual port for either way.
fn with_port(authority: &str, has_tls: bool) -> String {
    let authority = authority.trim_end_matches('/');
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match has_port {
        true => authority.to_owned(),
        false => format!("{authority}:{}", if has_tls { 2376 } else { 2375 }),
    }
}

fn unfit(host: &str, problem: &str) -> Error {
    Error::invalid("host", format!("`host` is `{host}`, which {problem}: give `unix://…` or `tcp://…`"))
}

fn current_context(config: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Config {
        current_context: Option<String>,
    }

    serde_json::from_str::<Config>(config).ok()?.current_context.filter(|name| name != "default")
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Endpoint {
    host: Option<String>,
    #[serde(default, rename = "SkipTLSVerify")]
    skip_tls_verify: bool,
}

fn endpoint_of(meta: &str, wanted: &str) -> Option<Endpoint> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Context {
        name: String,
        endpoints: HashMap<String, Endpoint>,
    }

    let mut context: Context = serde_json::from_str(meta).ok()?;
    (context.name == wanted).then(|| context.endpoints.remove("docker")).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_says_where_the_engine_is() {
        assert_eq!(current_context(r#"{"auths":{},"currentContext":"remote"}"#).as_deref(), Some("remote"));
        assert_eq!(current_context(r#"{"currentContext":"default"}"#), None);
        assert_eq!(current_context("{}"), None);

        let home = tempfile::tempdir().unwrap();
        let find = || Address::of_named_context(home.path(), "remote");
        assert_eq!(find().unwrap(), None);
        let (meta, tls) = (home.path().join("contexts/meta/0a"), home.path().join("contexts/tls/0a/docker"));
        fs::create_dir_all(&meta).unwrap();
        fs::create_dir_all(&tls).unwrap();
        let describe = |skip| {
            let text = format!(
                r#"{{"Name":"remote","Metadata":{{}},"Endpoints":{{"docker":{{"Host":"tcp://192.0.2.1:2376","SkipTLSVerify":{skip}}}}}}}"#
            );
            fs::write(meta.join("meta.json"), text).unwrap();
        };
        describe(false);
        let plain = Address { host: "tcp://192.0.2.1:2376".to_owned(), tls: None };
        assert_eq!(find().unwrap(), Some(plain));
        assert_eq!(Address::of_named_context(home.path(), "other").unwrap(), None);
        fs::write(tls.join("ca.pem"), "").unwrap();
        assert_eq!(find().unwrap().unwrap().tls, Some(TlsFiles::default().with_ca(tls.join("ca.pem"))));
        describe(true);
        let error = find().unwrap_err();
        assert_eq!(error.field(), Some("tls"));
        assert!(error.to_string().contains("`remote`"), "{error}");
    }

    #[test]
    fn an_address_that_can_not_be_used_says_what_to_do() {
        for (host, said) in
            [("ssh://me@box", "-L "), ("npipe:////./pipe/x", "WSL"), ("gopher://x", "tcp://"), ("/run/x", "unix://")]
        {
            let error = Engine::new(Some(host), None).unwrap_err();
            assert_eq!(error.field(), Some("host"));
            assert!(error.to_string().contains(said) && error.to_string().contains(host), "{error}");
        }
        let files = TlsFiles::default();
        assert_eq!(Engine::new(Some("unix:///x"), Some(&files)).unwrap_err().field(), Some("tls"));
        let half = TlsFiles { cert: Some("/x".into()), ..TlsFiles::default() };
        let gone = TlsFiles::default().with_ca("/no/such/ca.pem");
        for (files, said) in [(half, "both"), (gone, "/no/such/ca.pem")] {
            let error = Engine::new(Some("tcp://192.0.2.1"), Some(&files)).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("tls")));
            assert!(error.to_string().contains(said), "{error}");
        }
        let host = |host, tls| Engine::new(Some(host), tls).unwrap().host;
        assert_eq!(host("tcp://192.0.2.1", None), "tcp://192.0.2.1:2375");
        assert_eq!(host("tcp://[::1]/", Some(&files)), "tcp://[::1]:2376");
        assert_eq!(host("tcp://engine:1", None), "tcp://engine:1");
    }

    #[test]
    fn what_the_engine_says_is_told_by_its_kind() {
        let engine = Engine::new(Some("unix:///nowhere.sock"), None).unwrap();
        let said = |status_code, message: &str| {
            let message = message.to_owned();
            engine.error("start it", EngineError::DockerResponseServerError { status_code, message })
        };
        assert_eq!(said(404, "No such container: x").kind(), ErrorKind::NotFound);
        assert_eq!(said(409, "name in use").kind(), ErrorKind::Conflict);
        assert_eq!(said(500, "write /x: no space left on device").kind(), ErrorKind::Capacity);
        assert!(said(500, "OCI runtime").to_string().contains("start it: OCI runtime"));
    }

    /// As one does that hangs: it takes the connection, and that is all.
    #[tokio::test(start_paused = true)]
    async fn an_engine_that_does_not_answer_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let engine = Engine::new(Some(&format!("unix://{}", path.display())), None).unwrap();
        let error = engine.call("answer", SHORT, engine.docker().unwrap().ping()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("did not answer within 30s"), "{error}");
    }

    #[test]
    fn an_engine_that_is_not_there_is_unavailable_and_never_an_absence() {
        let engine = Engine::new(Some("unix:///nowhere/docker.sock"), None).unwrap();
        let error = engine.docker().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("is it running?"), "{error}");
    }
}
