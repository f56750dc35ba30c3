//! The backend: opens, finds, lists and destroys workspaces that are containers.

use std::{
    collections::HashMap,
    fs,
    future::ready,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bollard::{
    models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, NetworkCreateRequest},
    query_parameters::{CreateContainerOptionsBuilder, ListContainersOptionsBuilder},
};
use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use rustix::process::{getegid, geteuid};
use tokio::{
    sync::{OnceCell, oneshot},
    time::{Instant, sleep},
};
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Cause, Encoding, Error, ErrorKind, FoundState, FoundWorkspace, InitProgram, Loss,
    OpenRequest, Opened, Outcome, OutcomeKind, Probe, Result, WorkspaceId, WorkspaceInfo,
};
use wsm_host::{Arrival, Basedir, Registry, Settled, Wanted, blocking, handshake::Token, probe_basedir};

use crate::{
    KIND,
    client::{Engine, LONG, SHORT, if_found},
    config::{Connect, DockerConfig, DockerNetwork},
    container::{
        self, LABEL_ATTEMPT, LABEL_BLOCKED, LABEL_DIRECTORY, LABEL_ID, LABEL_MARK, LABEL_OWNER, LABEL_REACH, Policy,
        TOKEN_VARIABLE, WORKDIR, name, network_name,
    },
    image::{Images, Recipe},
    metadata::{self, Blocker},
    reach::{Reach, connect},
    refusal, user,
    workspace::{CAPABILITIES, DockerWorkspace, Live, remove},
};

/// How long a started container's gateway may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How soon it is asked again.
const ANSWER_PAUSE: Duration = Duration::from_millis(5);

/// Workspaces that are containers of a Docker engine. Made from a [`DockerConfig`].
#[derive(Debug)]
pub struct DockerBackend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: DockerConfig,
    engine: Engine,
    /// What is in the file of certificates for the image.
    ca: Option<Bytes>,
    registry: Arc<Registry<Live>>,
    images: Images,
    tasks: TaskTracker,
    ready: OnceCell<Ready>,
    /// What distinguishes the containers that this process made.
    instance: String,
}

/// What is only known once the basedir is there and the engine has answered.
#[derive(Debug)]
struct Ready {
    base: Arc<Basedir>,
    /// The installation, which is the basedir's.
    owner: String,
    /// The name of the network for workspaces.
    network: String,
}

/// What an engine says of a container.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The engine's own id.
    pub(crate) container: String,
    pub(crate) is_running: bool,
    is_paused: bool,
    /// Whether it was never started.
    is_fresh: bool,
    /// Whether it has ended and can be started again.
    has_exited: bool,
    /// Why it has ended, if it has.
    pub(crate) cause: Cause,
    labels: HashMap<String, String>,
    token: Option<Token>,
    /// The call that made it.
    attempt: String,
    exit_code: Option<i64>,
    /// When it was last started, as the engine writes it.
    pub(crate) started_at: String,
    /// What the engine calls the image that it was made from, also after that has lost its name.
    image: String,
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
    Ok(if_found(engine.call("look at the container", SHORT, inspected).await)?.map(Seen::from))
}

impl From<ContainerInspectResponse> for Seen {
    fn from(seen: ContainerInspectResponse) -> Self {
        let ContainerInspectResponse { id, state, config, image, .. } = seen;
        let config = config.unwrap_or_default();
        let ContainerState { status, running, paused, oom_killed, exit_code, started_at, .. } =
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
                // 128 and the number of a signal: what `docker kill`, `docker stop` and a stopping engine leave.
                (_, Some(129..=192)) => Cause::Killed,
                _ => Cause::Unknown,
            },
            labels,
            exit_code,
            started_at: started_at.unwrap_or_default(),
            image: image.unwrap_or_default(),
            token: token.and_then(Token::from_text),
        }
    }
}

impl DockerBackend {
    pub(crate) fn from_valid(config: DockerConfig) -> Result<Self> {
        let engine = Engine::new(config.host.as_deref(), config.tls.as_ref())?;
        if config.gateway_port.is_some() && !engine.is_local() {
            let message = format!(
                "`gateway_port` is one of the engine's machine, and the engine at {} is elsewhere: leave it out",
                engine.host
            );
            return Err(Error::invalid("gateway_port", message));
        }
        let ca = config.ca_file.as_deref().map(read_ca_file).transpose()?;
        let instance = uuid::Uuid::new_v4().simple().to_string();
        let (registry, images, tasks, ready) = (Arc::default(), Images::default(), TaskTracker::new(), OnceCell::new());
        Ok(Self(Arc::new(Inner { config, engine, ca, registry, images, tasks, ready, instance })))
    }
}

impl Inner {
    fn blocks_metadata(&self) -> bool {
        self.config.network == DockerNetwork::Private && self.config.block_metadata
    }

    async fn ready(&self) -> Result<&Ready> {
        self.ready.get_or_try_init(|| self.prepare()).await
    }

    async fn prepare(&self) -> Result<Ready> {
        self.engine.call("answer", SHORT, self.engine.docker()?.ping()).await?;
        let basedir = self.config.basedir.clone();
        let (base, owner) = blocking(move || {
            let base = Basedir::prepare(&basedir)?;
            let owner = installation(&base)?;
            Ok((base, owner))
        })
        .await?;
        let private = format!("wsm-{}", &owner[..12]);
        if self.config.network == DockerNetwork::Private {
            // The engine makes two of one name when it is asked twice at once.
            let _lock = lock(PathBuf::from(base.path()).join(".wsm/network.lock")).await?;
            self.make_network(&private, &owner).await?;
        }
        let network = network_name(&self.config.network, &private).to_owned();
        Ok(Ready { base: Arc::new(base), owner, network })
    }

    /// Makes the network on which workspaces reach the outside and not each other, unless it is there.
    async fn make_network(&self, name: &str, owner: &str) -> Result<()> {
        let found = self.engine.docker()?.inspect_network(name, None);
        if if_found(self.engine.call("look at the network", SHORT, found).await)?.is_some() {
            return Ok(());
        }
        let request = NetworkCreateRequest {
            name: name.to_owned(),
            driver: Some("bridge".to_owned()),
            options: Some(HashMap::from([(
                // https://docs.docker.com/engine/network/drivers/bridge/#options
                "com.docker.network.bridge.enable_icc".to_owned(),
                "false".to_owned(),
            )])),
            labels: Some(HashMap::from([
                (LABEL_MARK.to_owned(), "true".to_owned()),
                (LABEL_OWNER.to_owned(), owner.to_owned()),
            ])),
            ..NetworkCreateRequest::default()
        };
        match self.engine.call("make the network", SHORT, self.engine.docker()?.create_network(request)).await {
            // Another process of this installation was faster.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            made => made.map(drop),
        }
    }

    /// Opens a workspace for whoever waits at the other end.
    async fn open(&self, request: OpenRequest, waiting: oneshot::Sender<Result<Opened>>) {
        // A checkpoint holds nothing for us: directories do not go back in time. Nor does the placement: every id has a
        // place of its own.
        let OpenRequest { id, owner, placement: _, checkpoint: _, init, allow_foreign_owner, .. } = request;
        let _turn = self.registry.turn(&id).await;
        let earlier = self.registry.get(&id);
        let known = earlier.as_ref().map(|live| live.identity);
        let preferred = Some(Encoding::PATH_SEGMENT.encode(id.as_str()));
        let wanted = Wanted { id: id.clone(), owner, preferred, allow_foreign_owner, known };
        let opened = self.attach(wanted, earlier, init).await.map(|(live, outcome)| {
            // What nobody waits for any more is found by its label, and adopted by the next opening.
            self.registry.insert(id, Arc::clone(&live));
            Opened::new(Arc::new(DockerWorkspace::new(live, Arc::clone(&self.registry))), outcome)
        });
        let _ = waiting.send(opened);
    }

    /// Finds the container that runs, or makes one.
    async fn attach(
        &self,
        wanted: Wanted,
        earlier: Option<Arc<Live>>,
        init: Option<InitProgram>,
    ) -> Result<(Arc<Live>, Outcome)> {
        let Some(init) = init else {
            let message = "a container is driven through its gateway: add `wsm_gateway::GatewayLayer` to the manager";
            return Err(Error::new(ErrorKind::Unsupported, message).with_code("gateway_missing"));
        };
        let ready = self.ready().await?;
        let settled = {
            let base = Arc::clone(&ready.base);
            blocking(move || base.settle(wanted)).await?
        };
        let run = async {
            let name = name(&settled.record.id);
            let mut tries = 0;
            loop {
                let seen = inspect(&self.engine, &name).await?;
                match self.revive(ready, &settled, seen, &name, &init).await {
                    Ok(revived) => return Ok(revived),
                    // Another process was faster, or removes it just now: what is there then is looked at.
                    Err(error) if is_race(&error) && tries < RACES => {
                        tries += 1;
                        sleep(RACE_PAUSE * tries).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let Revived { container, token, reach, revival } = match run.await {
            Ok(revived) => revived,
            Err(error) => {
                if let Some(arrival) = settled.arrival {
                    let (base, id) = (Arc::clone(&ready.base), settled.record.id.clone());
                    blocking(move || base.take_back(&id, arrival)).await?;
                }
                return Err(error);
            }
        };
        let outcome = outcome(settled.arrival, revival);
        let started_at = inspect(&self.engine, &container).await?.map(|seen| seen.started_at).unwrap_or_default();
        let is_same = |live: &Arc<Live>| {
            live.container == container && live.identity == settled.identity && live.started_at == started_at
        };
        if let Some(live) = earlier.filter(is_same) {
            return Ok((live, outcome));
        }
        let directory = ready.base.directory(&settled);
        let Settled { record, identity, .. } = settled;
        let info = WorkspaceInfo::new(record.id, KIND, WORKDIR).with_generation(record.generation);
        let engine = self.engine.clone();
        Ok((Arc::new(Live { info, engine, container, started_at, reach, token, identity, directory }), outcome))
    }

    /// Makes a workspace's container run and its gateway answer, whatever state it is in.
    async fn revive(
        &self,
        ready: &Ready,
        settled: &Settled,
        seen: Option<Seen>,
        name: &str,
        init: &InitProgram,
    ) -> Result<Revived> {
        let id = &settled.record.id;
        let mut lost = Revival::Made(None);
        if let Some(seen) = seen {
            if seen.labels.get(LABEL_OWNER) != Some(&ready.owner) {
                let message = format!(
                    "the container `{name}` has the name of this workspace, and is of another installation or of somebody \
                     else: remove it, or use another engine"
                );
                return Err(Error::new(ErrorKind::Conflict, message).with_code(FOREIGN));
            }
            // What shows a deleted directory is of no use, nor is what nobody can talk to.
            let shown = seen.labels.get(LABEL_DIRECTORY);
            let token = seen.token.clone().filter(|_| shown == Some(&settled.identity.to_string()));
            match token {
                Some(token) if seen.is_running => {
                    if seen.is_paused {
                        let unpaused = self.engine.docker()?.unpause_container(&seen.container);
                        self.engine.call("unpause the container", SHORT, unpaused).await?;
                    }
                    let reach = self.reach_of(ready, id, &seen);
                    match self.wait_for_answer(&seen.container, &reach, &token).await {
                        Ok(()) => {
                            // Whoever made it may have ended before it had done so, or somebody else has started it again.
                            self.block(ready, &seen).await?;
                            let revival = Revival::Running;
                            return Ok(Revived { container: seen.container, token, reach, revival });
                        }
                        // It has ended meanwhile.
                        Err(error) if error.code() == ENDED => lost = Revival::Made(Some(Cause::Killed)),
                        Err(error) => return Err(error),
                    }
                }
                Some(token) if seen.is_fresh || seen.has_exited => {
                    let started = self.engine.docker()?.start_container(&seen.container, None);
                    self.engine.call("start the container", LONG, started).await?;
                    let reach = self.reach_of(ready, id, &seen);
                    self.wait_for_answer(&seen.container, &reach, &token).await?;
                    self.block(ready, &seen).await?;
                    // One that another process makes at this moment was never anything else.
                    let revival = if seen.is_fresh { Revival::Running } else { Revival::Started(seen.cause) };
                    return Ok(Revived { container: seen.container, token, reach, revival });
                }
                _ => lost = Revival::Made(Some(seen.cause)),
            }
            remove(&self.engine, &seen.container).await?;
            self.reach_of(ready, id, &seen).clear().await;
        }
        let (container, token, reach) = self.make(ready, settled, name, init).await?;
        Ok(Revived { container, token, reach, revival: lost })
    }

    async fn make(
        &self,
        ready: &Ready,
        settled: &Settled,
        name: &str,
        init: &InitProgram,
    ) -> Result<(String, Token, Reach)> {
        let id = &settled.record.id;
        let recipe = Recipe::new(&self.config, self.ca.as_ref(), init);
        let lock = PathBuf::from(ready.base.path()).join(".wsm/image.lock");
        let image = self.images.ensure(&self.engine, &recipe, &lock).await?;
        let (token, attempt) = (Token::random()?, uuid::Uuid::new_v4().simple().to_string());
        let reach = self.reach(ready, id, &attempt);
        let run_directory = reach.prepare().await?;
        let blocked = if self.blocks_metadata() { metadata::ADDRESSES } else { "" };
        let own = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        let body = container::body(&Policy {
            config: &self.config,
            id,
            image: &image,
            user: self.config.user.as_deref().unwrap_or(&own),
            directory: &ready.base.path_of(&settled.record),
            identity: &settled.identity.to_string(),
            run_directory: run_directory.as_deref(),
            reach: &reach,
            blocked,
            network: &ready.network,
            token: &token.to_text(),
            args: &init.args,
            owner: &ready.owner,
            instance: &self.instance,
            attempt: &attempt,
        });
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.engine.docker()?.create_container(Some(options), body);
        let created = match self.engine.call("create the container", LONG, created).await {
            Ok(created) => created,
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    // The image was removed behind our back: the next opening builds it again.
                    self.images.forget(&recipe);
                }
                reach.clear().await;
                return Err(refusal::explain(error, &self.config));
            }
        };
        let run = async {
            if let Some(user) = &self.config.user {
                let own = [Some(ready.base.path_of(&settled.record)), run_directory];
                let own = own.into_iter().flatten().map(PathBuf::from).collect();
                user::hand_over(&self.engine, &created.id, user, own).await?;
            }
            let started = self.engine.docker()?.start_container(&created.id, None);
            let started = self.engine.call("start the container", LONG, started);
            let blocker = Blocker::prepare(&self.engine, &created.id, &image, blocked, &ready.owner);
            // Nobody is let in before all of it is done, and much of it can be done at once.
            let (started, blocker) = tokio::join!(started, blocker);
            if let Err(error) = started {
                blocker.into_iter().flatten().for_each(|blocker| blocker.discard(&self.engine, &self.tasks));
                return Err(error);
            }
            let blocker = blocker?;
            let block = async {
                match blocker {
                    Some(blocker) => blocker.run(&self.engine, &self.tasks).await,
                    None => Ok(()),
                }
            };
            let (answered, blocked) = tokio::join!(self.wait_for_answer(&created.id, &reach, &token), block);
            answered.and(blocked)
        };
        if let Err(error) = run.await.map_err(|error| refusal::explain(error, &self.config)) {
            if let Err(left) = remove(&self.engine, &created.id).await {
                tracing::warn!(container = name, error = %left.report(), "a container that does not work is left");
            }
            reach.clear().await;
            return Err(error);
        }
        Ok((created.id, token, reach))
    }

    /// Waits until the gateway takes connections.
    async fn wait_for_answer(&self, container: &str, reach: &Reach, token: &Token) -> Result<()> {
        let begun = Instant::now();
        let mut pause = ANSWER_PAUSE;
        loop {
            let error = match connect(&self.engine, container, reach, token).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match inspect(&self.engine, container).await? {
                Some(seen) if seen.is_running => {}
                Some(Seen { exit_code: Some(PORT_TAKEN), .. }) if matches!(reach, Reach::Port(_)) => {
                    return Err(refusal::port_taken(self.config.gateway_port));
                }
                _ => return Err(self.explain_end(container).await),
            }
            if begun.elapsed() > ANSWER_LIMIT {
                let message = format!("the gateway in the container did not answer within {ANSWER_LIMIT:?}");
                return Err(Error::new(ErrorKind::Timeout, message).with_source(error));
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Why a container ended before it was ready: the last that it said.
    async fn explain_end(&self, container: &str) -> Error {
        let options =
            bollard::query_parameters::LogsOptionsBuilder::default().stdout(true).stderr(true).tail("10").build();
        let lines: Vec<String> = match self.engine.docker() {
            Ok(docker) => {
                let logs = docker
                    .logs(container, Some(options))
                    .filter_map(|line| ready(line.ok()))
                    .map(|line| String::from_utf8_lossy(&line.into_bytes()).into_owned());
                logs.collect().await
            }
            Err(_) => Vec::new(),
        };
        let message = format!("the container ended before it was ready: {}", lines.concat().trim());
        Error::new(ErrorKind::Backend, message.trim_end_matches(": ")).with_code(ENDED)
    }

    /// How the gateway of a container is reached that a certain call makes.
    fn reach(&self, ready: &Ready, id: &WorkspaceId, attempt: &str) -> Reach {
        match (self.config.connect, self.config.gateway_port) {
            (Connect::Auto, Some(port)) => Reach::Port(port),
            (Connect::Auto, None) if !self.engine.is_local() => Reach::Engine,
            (Connect::Engine, _) => Reach::Engine,
            (Connect::Auto | Connect::Socket, _) => Reach::Socket(run_directory(ready, id, attempt)),
        }
    }

    /// How the gateway of a container is reached that is there: as it was made, whatever the options say by now.
    fn reach_of(&self, ready: &Ready, id: &WorkspaceId, seen: &Seen) -> Reach {
        let directory = run_directory(ready, id, &seen.attempt);
        let told = seen.labels.get(LABEL_REACH).and_then(|label| Reach::from_label(label, directory));
        told.unwrap_or_else(|| self.reach(ready, id, &seen.attempt))
    }

    /// Blocks what a container's label says.
    async fn block(&self, ready: &Ready, seen: &Seen) -> Result<()> {
        let Some(addresses) = seen.labels.get(LABEL_BLOCKED) else { return Ok(()) };
        match Blocker::prepare(&self.engine, &seen.container, &seen.image, addresses, &ready.owner).await? {
            Some(blocker) => blocker.run(&self.engine, &self.tasks).await,
            None => Ok(()),
        }
    }

    /// Which of this installation's containers run, by workspace.
    async fn running(&self, ready: &Ready) -> Result<HashMap<String, bool>> {
        let owner = format!("{LABEL_OWNER}={}", ready.owner);
        let filters = HashMap::from([("label", vec![owner])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.engine.docker()?.list_containers(Some(options));
        let listed = self.engine.call("list the containers", SHORT, listed).await?;
        let states = listed.into_iter().filter_map(|container| {
            let id = container.labels?.remove(LABEL_ID)?;
            let is_running = container.state == Some(bollard::models::ContainerSummaryStateEnum::RUNNING);
            Some((id, is_running))
        });
        Ok(states.collect())
    }
}

/// How often an opening starts again because another process changed what it had seen.
const RACES: u32 = 10;
const RACE_PAUSE: Duration = Duration::from_millis(50);

/// Whether an error only says that something else happened to the container meanwhile.
fn is_race(error: &Error) -> bool {
    // What names an option is that option's fault.
    let changed = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) && error.code() != FOREIGN;
    let changed = changed && error.field().is_none();
    changed || error.code() == ENDED
}

/// The code of the error about a container of somebody else.
const FOREIGN: &str = "foreign_container";

/// The code of the error about a container that ended before it was ready.
const ENDED: &str = "container_ended";

/// The code of the exit of a gateway whose port somebody else has.
const PORT_TAKEN: i64 = 98;

fn run_directory(ready: &Ready, id: &WorkspaceId, attempt: &str) -> PathBuf {
    let name = format!("{}-{attempt}", Encoding::hash(id.as_str()));
    PathBuf::from(ready.base.path()).join(RUN_DIRECTORIES).join(name)
}

/// Blocks.
fn read_ca_file(path: &Path) -> Result<Bytes> {
    let unfit =
        |problem: &str| Error::invalid("ca_file", format!("`ca_file` is `{}`, which {problem}", path.display()));
    let content = fs::read(path).map_err(|cause| unfit("can not be read").with_source(cause))?;
    // Whoever could not use it would say so in many ways, and only later.
    match String::from_utf8_lossy(&content).contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(Bytes::from(content)),
        false => Err(unfit("holds no certificate in PEM")),
    }
}

/// Where the directories of gateways' sockets are, below the basedir.
const RUN_DIRECTORIES: &str = ".wsm/run";

/// A container that runs, and whose gateway answers.
struct Revived {
    container: String,
    token: Token,
    reach: Reach,
    revival: Revival,
}

/// What it took to make a container run.
#[derive(Debug, Clone, Copy)]
enum Revival {
    Running,
    /// It had ended for this reason, and was started again.
    Started(Cause),
    /// It was made anew, in place of one that had ended for this reason.
    Made(Option<Cause>),
}

/// How an opening ended, given why the directory had to be made, if it had.
fn outcome(arrival: Option<Arrival>, revival: Revival) -> Outcome {
    match (arrival, revival) {
        (Some(Arrival::Created), _) => Outcome::new(OutcomeKind::Created),
        (Some(Arrival::Recreated), _) => Outcome::new(OutcomeKind::Recreated)
            .with_lost([Loss::Processes, Loss::Memory, Loss::SystemFiles, Loss::WorkspaceFiles])
            .with_cause(Cause::Deleted),
        (None, Revival::Running) => Outcome::new(OutcomeKind::Reattached),
        (None, Revival::Started(cause)) => {
            Outcome::new(OutcomeKind::Resumed).with_lost([Loss::Processes, Loss::Memory]).with_cause(cause)
        }
        (None, Revival::Made(cause)) => {
            let resumed = Outcome::new(OutcomeKind::Resumed);
            let resumed = resumed.with_lost([Loss::Processes, Loss::Memory, Loss::SystemFiles]);
            match cause {
                Some(cause) => resumed.with_cause(cause),
                None => resumed,
            }
        }
    }
}

/// Waits until no other process of this installation does the same.
pub(crate) async fn lock(path: PathBuf) -> Result<fs::File> {
    blocking(move || {
        let locked = fs::File::create(&path).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|cause| {
            Error::new(ErrorKind::Backend, format!("`{}` can not be locked", path.display())).with_source(cause)
        })
    })
    .await
}

/// The installation's name, made up once for a basedir. Blocks.
fn installation(base: &Basedir) -> Result<String> {
    let path = PathBuf::from(base.path()).join(".wsm/installation");
    let made = uuid::Uuid::new_v4().simple().to_string();
    let draft = path.with_extension(&made);
    let write = || -> io::Result<String> {
        fs::write(&draft, &made)?;
        // Whoever is first keeps it.
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        match linked {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => Err(cause),
            _ => fs::read_to_string(&path),
        }
    };
    match fs::read_to_string(&path).or_else(|_| write()) {
        Ok(name) if name.len() >= 12 => Ok(name),
        Ok(_) => {
            let message = format!("`{}` is damaged: it must hold the name of this installation", path.display());
            Err(Error::new(ErrorKind::Backend, message))
        }
        Err(cause) => {
            let message = format!("`{}` can neither be read nor made", path.display());
            Err(Error::new(ErrorKind::Backend, message).with_source(cause))
        }
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        let (sender, opened) = oneshot::channel();
        let inner = Arc::clone(&self.0);
        // On a task of its own, so that nothing of it goes on beside others' turns when nobody waits for it any more.
        self.0.tasks.spawn(async move { inner.open(request, sender).await });
        match opened.await {
            Ok(opened) => opened,
            Err(_) => Err(Error::new(ErrorKind::Backend, "the opening did not come to an end")),
        }
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        let ready = self.0.ready().await?;
        let Some(found) = ready.base.find_workspace(id, |_| false).await? else { return Ok(None) };
        let seen = inspect(&self.0.engine, &name(id)).await?;
        let seen = seen.filter(|seen| seen.labels.get(LABEL_OWNER) == Some(&ready.owner));
        Ok(Some(with_state(found, seen.map(|seen| seen.is_running))))
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let list = async {
            let ready = self.0.ready().await?;
            let running = self.0.running(ready).await?;
            let found = ready.base.list_workspaces(|_| false).await?;
            Ok::<_, Error>(found.map_ok(move |found| {
                let is_running = running.get(found.id.as_str()).copied();
                with_state(found, is_running)
            }))
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let ready = self.0.ready().await?;
        let _turn = self.0.registry.turn(id).await;
        {
            // Nothing is ended before it is certain that the rest can be done.
            let (base, id) = (Arc::clone(&ready.base), id.clone());
            blocking(move || base.read(&id)).await?;
        }
        let name = name(id);
        if let Some(seen) = inspect(&self.0.engine, &name).await?
            && seen.labels.get(LABEL_OWNER) == Some(&ready.owner)
        {
            remove(&self.0.engine, &seen.container).await?;
            self.0.reach_of(ready, id, &seen).clear().await;
        }
        if let Some(live) = self.0.registry.get(id) {
            self.0.registry.remove(id, &live);
        }
        let (base, id) = (Arc::clone(&ready.base), id.clone());
        blocking(move || base.vacate(&id)).await
    }

    async fn probe(&self) -> Result<Probe> {
        let engine = &self.0.engine;
        let version = engine.call("tell its version", SHORT, engine.docker()?.version()).await?;
        let (name, api) = (version.version.unwrap_or_default(), version.api_version.unwrap_or_default());
        let basedir = self.0.config.basedir.clone();
        let probe = Probe::new(format!("Docker {name}"));
        let mut probe = blocking(move || probe_basedir(probe, &basedir)).await?;
        probe = probe.with_fact(format!("the engine at {} answers, API version {api}", engine.host));
        let image = engine.docker()?.inspect_image(&self.0.config.base_image);
        let base_image = &self.0.config.base_image;
        probe = match if_found(engine.call("look for the base image", SHORT, image).await)? {
            Some(_) => probe.with_fact(format!("the base image `{base_image}` is there")),
            None => probe.with_warning(format!(
                "the base image `{base_image}` is not there: it is fetched at the first opening"
            )),
        };
        if !matches!(self.0.config.network, DockerNetwork::None) && !self.0.blocks_metadata() && engine.is_local() {
            probe = metadata::warn_if_served(probe).await;
        }
        Ok(probe)
    }

    async fn start(&self) -> Result<()> {
        let Ready { base, owner, .. } = self.0.ready().await?;
        if let Err(error) = metadata::sweep(&self.0.engine, owner).await {
            tracing::warn!(error = %error.report(), "could not remove what an earlier run had left");
        }
        let base = Arc::clone(base);
        if let Err(error) = blocking(move || base.sweep_trash()).await {
            tracing::warn!(error = %error.report(), "could not delete what an earlier run had left");
        }
        Ok(())
    }
}

fn with_state(mut found: FoundWorkspace, is_running: Option<bool>) -> FoundWorkspace {
    if found.state != FoundState::Dead && is_running == Some(true) {
        found.state = FoundState::Running;
    }
    found
}
