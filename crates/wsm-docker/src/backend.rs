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
    models::ContainerSummaryStateEnum,
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
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Cause, Encoding, Error, ErrorKind, FoundState, FoundWorkspace, InitProgram, Leftover, Loss,
    OpenRequest, Opened, Outcome, OutcomeKind, Probe, Progress, Result, WorkspaceId, WorkspaceInfo,
};
use wsm_host::{
    Arrival, Basedir, Registry, Sandbox as _, SandboxWorkspace, Settled, Wanted, blocking, gateway_missing,
    handshake::Token, probe_basedir,
};

use crate::{
    KIND,
    client::{Engine, LONG, SHORT, if_found},
    config::{Connect, DockerConfig, DockerNetwork},
    container::{self, LABEL_BLOCKED, LABEL_DIRECTORY, LABEL_OWNER, LABEL_REACH, Policy, WORKDIR, name, network_name},
    hold::{self, Hold},
    image::{self, Images, Recipe},
    leftovers::{House, sweep_holds, workspace_of},
    lock,
    metadata::{self, Blocker},
    network,
    reach::{DEAF, Reach, connect},
    refusal,
    seen::{Seen, inspect},
    user,
    workspace::{Live, remove},
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

impl Ready {
    /// Where the sockets of a workspace's containers are, each in a directory named by the call that made it.
    fn sockets(&self, id: &WorkspaceId) -> PathBuf {
        self.internal("run").join(Encoding::hash(id.as_str()))
    }

    /// A file of this backend's own in the basedir.
    fn internal(&self, name: &str) -> PathBuf {
        PathBuf::from(self.base.path()).join(".wsm").join(name)
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
        let network = network_name(&self.config.network, &network::private(&owner)).to_owned();
        Ok(Ready { base: Arc::new(base), owner, network })
    }

    /// Makes the network for workspaces, if they are to have one of wsm's.
    async fn ensure_network(&self, ready: &Ready) -> Result<()> {
        if self.config.network != DockerNetwork::Private {
            return Ok(());
        }
        let _lock = lock::wait(ready.internal("network.lock"), LONG).await?;
        network::ensure(&self.engine, &ready.network, &ready.owner).await
    }

    /// Opens a workspace for whoever waits at the other end.
    async fn open(&self, request: OpenRequest, waiting: oneshot::Sender<Result<Opened>>) {
        // A checkpoint holds nothing for us: directories do not go back in time. Nor does the placement: every id has a
        // place of its own.
        let OpenRequest { id, owner, placement: _, checkpoint: _, init, allow_foreign_owner, progress, .. } = request;
        let _turn = self.registry.turn(&id).await;
        let earlier = self.registry.get(&id);
        let known = earlier.as_ref().map(|live| live.identity);
        let preferred = Some(Encoding::PATH_SEGMENT.encode(id.as_str()));
        let wanted = Wanted { id: id.clone(), owner, preferred, allow_foreign_owner, known };
        let opened = self.attach(wanted, earlier, init, progress).await.map(|(live, outcome)| {
            // What nobody waits for any more is found by its label, and adopted by the next opening.
            self.registry.insert(id, Arc::clone(&live));
            Opened::new(Arc::new(SandboxWorkspace::new(live, Arc::clone(&self.registry), self.tasks.clone())), outcome)
        });
        let _ = waiting.send(opened);
    }

    /// Finds the container that runs, or makes one.
    async fn attach(
        &self,
        wanted: Wanted,
        earlier: Option<Arc<Live>>,
        init: Option<InitProgram>,
        progress: Progress,
    ) -> Result<(Arc<Live>, Outcome)> {
        let Some(init) = init else { return Err(gateway_missing::<Live>()) };
        let asked = Asked { init, progress };
        let ready = self.ready().await?;
        let settled = {
            let base = Arc::clone(&ready.base);
            blocking(move || base.settle(wanted)).await?
        };
        let run = async {
            let name = name(&ready.owner, &settled.record.id);
            // Before anything is looked at, so that what is seen then is not ended by another process.
            let hold = self.hold(ready, &settled.record.id, earlier.as_deref()).await?;
            let mut tries = 0;
            loop {
                let seen = inspect(&self.engine, &name).await?;
                match self.revive(ready, &settled, seen, &hold, &asked).await {
                    Ok(revived) => return Ok((revived, hold)),
                    // Another process was faster, or removes it just now: what is there then is looked at.
                    Err(error) if is_race(&error) && tries < RACES => {
                        if error.kind() == ErrorKind::NotFound {
                            self.mend(ready, &asked.init).await?;
                        }
                        tries += 1;
                        sleep(RACE_PAUSE * tries).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let (Revived { container, started_at, token, reach, revival }, hold) = match run.await {
            Ok(run) => run,
            Err(error) => {
                if let Some(arrival) = settled.arrival {
                    let (base, id) = (Arc::clone(&ready.base), settled.record.id.clone());
                    blocking(move || base.take_back(&id, arrival)).await?;
                }
                return Err(error);
            }
        };
        let outcome = outcome(settled.arrival, revival);
        let is_same = |live: &Arc<Live>| {
            let is_as_it_was = live.container == container && live.started_at == started_at;
            // One whose hold was given up would hold nothing.
            is_as_it_was && live.identity == settled.identity && Arc::ptr_eq(&live.hold, &hold)
        };
        if let Some(live) = earlier.filter(is_same) {
            return Ok((live, outcome));
        }
        let directory = ready.base.directory(&settled);
        let Settled { record, identity, .. } = settled;
        let info = WorkspaceInfo::new(record.id, KIND, WORKDIR).with_generation(record.generation);
        let engine = self.engine.clone();
        Ok((Arc::new(Live { info, engine, container, started_at, reach, token, identity, directory, hold }), outcome))
    }

    /// Has the workspace for this process too, and waits until no other one puts it away any more.
    async fn hold(&self, ready: &Ready, id: &WorkspaceId, earlier: Option<&Live>) -> Result<Arc<Hold>> {
        if let Some(live) = earlier
            && let hold = Arc::clone(&live.hold)
            && blocking(move || hold.share_again()).await?
        {
            return Ok(Arc::clone(&live.hold));
        }
        let (basedir, id) = (PathBuf::from(ready.base.path()), id.clone());
        blocking(move || Hold::share(&basedir, &id).map(Arc::new)).await
    }

    /// Makes again what somebody has removed that containers are made with.
    async fn mend(&self, ready: &Ready, init: &InitProgram) -> Result<()> {
        self.images.forget(&Recipe::new(&self.config, self.ca.as_ref(), init));
        self.ensure_network(ready).await
    }

    /// Makes a workspace's container run and its gateway answer, whatever state it is in.
    async fn revive(
        &self,
        ready: &Ready,
        settled: &Settled,
        seen: Option<Seen>,
        hold: &Arc<Hold>,
        asked: &Asked,
    ) -> Result<Revived> {
        let id = &settled.record.id;
        let name = &name(&ready.owner, id);
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
                            self.block(ready, &seen, asked).await?;
                            let Seen { container, started_at, .. } = seen;
                            return Ok(Revived { container, started_at, token, reach, revival: Revival::Running });
                        }
                        // It has ended meanwhile.
                        Err(error) if error.code() == ENDED => lost = Revival::Made(Some(Cause::Killed)),
                        // Commands can remove its socket. Nobody could get in ever again, nor put it away.
                        Err(error) if error.code() == DEAF && Hold::is_only_one(hold).await? => {
                            tracing::warn!(container = name, error = %error.report(), "a container is made anew");
                            lost = Revival::Made(Some(Cause::Unknown));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Some(token) if seen.is_fresh || seen.has_exited => {
                    let reach = self.reach_of(ready, id, &seen);
                    // Whoever cleans up may have removed the directory while the container did not run.
                    reach.prepare().await?;
                    let started = self.engine.docker()?.start_container(&seen.container, None);
                    match self.engine.call("start the container", LONG, started).await {
                        Ok(()) => {
                            self.wait_for_answer(&seen.container, &reach, &token).await?;
                            let Seen { container, started_at, .. } =
                                self.block_in(ready, &seen.container, asked).await?;
                            // One that another process makes at this moment was never anything else.
                            let revival = if seen.is_fresh { Revival::Running } else { Revival::Started(seen.cause) };
                            return Ok(Revived { container, started_at, token, reach, revival });
                        }
                        // An engine that was killed may have left it half started, for ever.
                        Err(error) if matches!(error.kind(), ErrorKind::Backend | ErrorKind::InvalidInput) => {
                            tracing::warn!(container = name, error = %error.report(), "a container is made anew");
                            lost = Revival::Made(Some(seen.cause).filter(|_| seen.has_exited));
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => lost = Revival::Made(Some(seen.cause)),
            }
            remove(&self.engine, &seen.container).await?;
            self.reach_of(ready, id, &seen).clear().await;
        }
        let (Seen { container, started_at, .. }, token, reach) = self.make(ready, settled, name, asked).await?;
        Ok(Revived { container, started_at, token, reach, revival: lost })
    }

    async fn make(&self, ready: &Ready, settled: &Settled, name: &str, asked: &Asked) -> Result<(Seen, Token, Reach)> {
        let id = &settled.record.id;
        let recipe = Recipe::new(&self.config, self.ca.as_ref(), &asked.init);
        let wanted = image::Wanted { owner: &ready.owner, progress: &asked.progress };
        let image = self.images.ensure(&self.engine, &recipe, &ready.internal("image"), wanted).await?;
        self.ensure_network(ready).await?;
        let (token, attempt) = (Token::random()?, uuid::Uuid::new_v4().simple().to_string());
        let reach = self.reach(ready, id, &attempt);
        let run_directory = reach.prepare().await?;
        let blocked = if self.blocks_metadata() { metadata::ADDRESSES } else { "" };
        let own = format!("{}:{}", geteuid().as_raw(), getegid().as_raw());
        let body = container::body(&Policy {
            config: &self.config,
            id,
            image: &image.tag,
            volumes: &image.volumes,
            user: self.config.user.as_deref().unwrap_or(&own),
            directory: &ready.base.path_of(&settled.record),
            identity: &settled.identity.to_string(),
            run_directory: run_directory.as_deref(),
            reach: &reach,
            blocked,
            network: &ready.network,
            token: &token.to_text(),
            args: &asked.init.args,
            owner: &ready.owner,
            instance: &self.instance,
            attempt: &attempt,
        });
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.engine.docker()?.create_container(Some(options), body);
        let created = match self.engine.call("create the container", LONG, created).await {
            Ok(created) => created,
            Err(error) => {
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
            // Nobody is let in before all of it is done, and much of it can be done at once.
            if metadata::can_enter(&self.engine) {
                started.await?;
                let block = self.block_in(ready, &created.id, asked);
                let (answered, blocked) = tokio::join!(self.wait_for_answer(&created.id, &reach, &token), block);
                return answered.and(blocked);
            }
            let blocker = Blocker::prepare(&self.engine, &created.id, &image.tag, blocked, &ready.owner);
            let (started, blocker) = tokio::join!(started, blocker);
            if let Err(error) = started {
                blocker.into_iter().flatten().for_each(|blocker| blocker.discard(&self.engine, &self.tasks));
                return Err(error);
            }
            let blocker = blocker?;
            let block = async {
                let seen = self.started(&created.id).await?;
                if let Some(blocker) = blocker {
                    blocker.run(&self.engine, &self.tasks).await?;
                }
                Ok(seen)
            };
            let (answered, blocked) = tokio::join!(self.wait_for_answer(&created.id, &reach, &token), block);
            answered.and(blocked)
        };
        match run.await.map_err(|error| refusal::explain(error, &self.config)) {
            Ok(seen) => Ok((seen, token, reach)),
            Err(error) => {
                match remove(&self.engine, &created.id).await {
                    Ok(()) => reach.clear().await,
                    // The next opening finds it by its name, and its socket's directory with it.
                    Err(left) => {
                        tracing::warn!(container = name, error = %left.report(), "a container that does not work is left");
                    }
                }
                Err(error)
            }
        }
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
                let late = Error::new(ErrorKind::Timeout, message);
                return Err(if error.code() == DEAF { late.with_code(DEAF) } else { late }.with_source(error));
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
                // Without them the error says less, but it is said.
                timeout(SHORT, logs.collect()).await.unwrap_or_default()
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
            (Connect::Auto | Connect::Socket, _) => Reach::Socket(ready.sockets(id).join(attempt)),
        }
    }

    /// How the gateway of a container is reached that is there: as it was made, whatever the options say by now.
    fn reach_of(&self, ready: &Ready, id: &WorkspaceId, seen: &Seen) -> Reach {
        let directory = ready.sockets(id).join(&seen.attempt);
        let told = seen.labels.get(LABEL_REACH).and_then(|label| Reach::from_label(label, directory));
        told.unwrap_or_else(|| self.reach(ready, id, &seen.attempt))
    }

    /// A container that was started, as it is now.
    async fn started(&self, container: &str) -> Result<Seen> {
        let ended = || Error::new(ErrorKind::NotFound, "the container was removed when it was started");
        inspect(&self.engine, container).await?.ok_or_else(ended)
    }

    /// Blocks what the label of a container that was started says, and tells what it was blocked in: the network of a later
    /// start is another one.
    async fn block_in(&self, ready: &Ready, container: &str, asked: &Asked) -> Result<Seen> {
        let seen = self.started(container).await?;
        self.block(ready, &seen, asked).await?;
        Ok(seen)
    }

    /// Blocks what a container's label says.
    async fn block(&self, ready: &Ready, seen: &Seen, asked: &Asked) -> Result<()> {
        let Some(addresses) = seen.labels.get(LABEL_BLOCKED) else { return Ok(()) };
        if metadata::block_from_here(&self.engine, seen, addresses, &asked.init.path).await {
            return Ok(());
        }
        match Blocker::prepare(&self.engine, &seen.container, &seen.image, addresses, &ready.owner).await? {
            Some(blocker) => blocker.run(&self.engine, &self.tasks).await,
            None => Ok(()),
        }
    }

    /// Ends a workspace, and deletes its files.
    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let ready = self.ready().await?;
        let _turn = self.registry.turn(id).await;
        {
            // Nothing is ended before it is certain that the rest can be done.
            let (base, id) = (Arc::clone(&ready.base), id.clone());
            blocking(move || base.read(&id)).await?;
        }
        let name = name(&ready.owner, id);
        if let Some(seen) = inspect(&self.engine, &name).await?
            && seen.labels.get(LABEL_OWNER) == Some(&ready.owner)
        {
            remove(&self.engine, &seen.container).await?;
        }
        if let Some(live) = self.registry.get(id) {
            self.registry.remove(id, &live);
        }
        let (base, id, sockets) = (Arc::clone(&ready.base), id.clone(), ready.sockets(id));
        blocking(move || {
            // Also those of containers that somebody else has removed.
            let _ = fs::remove_dir_all(sockets);
            base.vacate(&id)?;
            hold::remove(Path::new(base.path()), &id);
            Ok(())
        })
        .await
    }

    /// The state of this installation's containers, by workspace.
    async fn states(&self, ready: &Ready) -> Result<HashMap<WorkspaceId, Condition>> {
        let owner = format!("{LABEL_OWNER}={}", ready.owner);
        let filters = HashMap::from([("label", vec![owner])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.engine.docker()?.list_containers(Some(options));
        let listed = self.engine.call("list the containers", SHORT, listed).await?;
        let states = listed.into_iter().filter_map(|container| {
            let id = workspace_of(&ready.owner, &container)?;
            let is_running =
                matches!(container.state, Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED));
            Some((id, is_running))
        });
        let states: Vec<(WorkspaceId, bool)> = states.collect();
        let basedir = PathBuf::from(ready.base.path());
        let condition = move |(id, is_running): (WorkspaceId, bool)| {
            let is_held = !is_running || hold::is_held(&basedir, &id)?;
            Ok((id, Condition { is_running, is_held }))
        };
        blocking(move || states.into_iter().map(condition).collect()).await
    }

    fn house<'a>(&'a self, ready: &'a Ready) -> House<'a> {
        House {
            engine: &self.engine,
            base: &ready.base,
            owner: &ready.owner,
            network: (self.config.network == DockerNetwork::Private).then_some(&ready.network),
            current_image: ready.internal("image"),
            run_directories: ready.internal("run"),
        }
    }
}

/// How a workspace's container is.
#[derive(Debug, Clone, Copy)]
struct Condition {
    is_running: bool,
    /// Whether some process has it open.
    is_held: bool,
}

impl Condition {
    fn show(self, found: &mut FoundWorkspace) {
        if found.state != FoundState::Dead && self.is_running {
            found.state = FoundState::Running;
            found.is_abandoned = !self.is_held;
        }
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

/// What a container is made with that the request brings.
#[derive(Debug)]
struct Asked {
    init: InitProgram,
    progress: Progress,
}

/// The code of the exit of a gateway whose port somebody else has.
const PORT_TAKEN: i64 = 98;

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

/// A container that runs, and whose gateway answers.
struct Revived {
    container: String,
    /// Of the start whose network is blocked.
    started_at: String,
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
        Live::CAPABILITIES
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
        let Some(mut found) = ready.base.find_workspace(id, |_| false).await? else { return Ok(None) };
        let seen = inspect(&self.0.engine, &name(&ready.owner, id)).await?;
        if let Some(seen) = seen.filter(|seen| seen.labels.get(LABEL_OWNER) == Some(&ready.owner)) {
            let (basedir, id) = (PathBuf::from(ready.base.path()), id.clone());
            let is_held = blocking(move || hold::is_held(&basedir, &id)).await?;
            Condition { is_running: seen.is_running, is_held }.show(&mut found);
        }
        Ok(Some(found))
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let list = async {
            let ready = self.0.ready().await?;
            let states = self.0.states(ready).await?;
            let found = ready.base.list_workspaces(|_| false).await?;
            Ok::<_, Error>(found.map_ok(move |mut found| {
                if let Some(condition) = states.get(&found.id) {
                    condition.show(&mut found);
                }
                found
            }))
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        // As for an opening: files that a later one has made are not to be deleted by this one.
        match self.0.tasks.spawn(async move { inner.destroy(&id).await }).await {
            Ok(destroyed) => destroyed,
            Err(_) => Err(Error::new(ErrorKind::Backend, "the destruction did not come to an end")),
        }
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let ready = self.0.ready().await?;
        self.0.house(ready).leftovers().await
    }

    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let ready = self.0.ready().await?;
        self.0.house(ready).remove(leftover).await
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
        let Ready { base, .. } = self.0.ready().await?;
        let base = Arc::clone(base);
        let swept = blocking(move || {
            sweep_holds(&base);
            base.sweep_trash()
        });
        if let Err(error) = swept.await {
            tracing::warn!(error = %error.report(), "could not delete what an earlier run had left");
        }
        Ok(())
    }
}
