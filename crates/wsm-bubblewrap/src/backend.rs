//! The backend: opens, finds, lists and destroys workspaces that are sandboxes of this machine.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Cause, Encoding, Error, ErrorKind, FoundWorkspace, InitProgram, Loss, OpenRequest, Opened,
    Outcome, OutcomeKind, Probe, Result, UserId, WorkspaceId, WorkspaceInfo,
};
use wsm_host::{
    Arrival, Basedir, Registry, Sandbox as _, SandboxWorkspace, Settled, Wanted, blocking, gateway_missing,
    keep_ends_of_children, probe_basedir,
};

use crate::{
    KIND,
    cgroup::{Cgroups, Limits},
    config::{BubblewrapConfig, Network, check_real_basedir},
    identity::Identity,
    install, life,
    probe::Bwrap,
    refusal::Circumstances,
    sandbox::{Sandbox, Start, try_out},
    seccomp,
    spec::{self, HostTree, Policy, Program, WORKDIR},
    workspace::Live,
};

/// Workspaces that are sandboxes of this machine. Made from a [`BubblewrapConfig`].
#[derive(Debug)]
pub struct BubblewrapBackend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: BubblewrapConfig,
    registry: Arc<Registry<Live>>,
    /// Open sandboxes, and watch them, each until its end.
    tasks: TaskTracker,
    ready: OnceCell<Ready>,
}

/// What is only known once the machine was looked at.
#[derive(Debug)]
struct Ready {
    base: Arc<Basedir>,
    /// Where the first process' programs are.
    programs: PathBuf,
    identity: Arc<Identity>,
    machine: Machine,
}

/// What sandboxes are made with, wherever the workspaces are.
#[derive(Debug)]
struct Machine {
    bwrap: Bwrap,
    host: HostTree,
    filters: Vec<Vec<u8>>,
    cgroups: Arc<Cgroups>,
    circumstances: Circumstances,
}

impl BubblewrapBackend {
    pub(crate) fn from_valid(config: BubblewrapConfig) -> Self {
        let (registry, tasks) = (Arc::default(), TaskTracker::new());
        Self(Arc::new(Inner { config, registry, tasks, ready: OnceCell::new() }))
    }
}

impl Inner {
    async fn ready(&self) -> Result<&Ready> {
        self.ready.get_or_try_init(|| self.prepare()).await
    }

    /// Looks at the machine and makes the basedir, and then a first sandbox.
    async fn prepare(&self) -> Result<Ready> {
        let machine = Machine::look(&self.config).await?;
        let config = self.config.clone();
        let (base, programs, identity) = blocking(move || {
            let base = Basedir::prepare(&config.basedir)?;
            check_real_basedir(&config, base.path().as_ref())?;
            let identity = Identity::prepare(base.path().as_ref(), config.uids)?;
            let programs = install::directory(base.path().as_ref())?;
            Ok((base, programs, identity))
        })
        .await?;
        // From there, since workspaces lie beside it.
        machine.try_out(&self.config, &programs, identity.any()).await?;
        Ok(Ready { base: Arc::new(base), programs, identity: Arc::new(identity), machine })
    }

    fn is_running(&self, id: &WorkspaceId) -> bool {
        self.registry.get(id).is_some_and(|live| live.sandbox.is_alive())
    }

    fn limits(&self) -> Limits {
        let BubblewrapConfig { memory, pids, cpus, .. } = self.config;
        Limits { memory: memory.map(|memory| memory.as_u64()), pids, cpus }
    }

    /// Makes the sandbox of a workspace whose directory is there.
    async fn make(&self, ready: &Ready, settled: &Settled, init: InitProgram) -> Result<Sandbox> {
        let Ready { base, programs, identity, machine } = ready;
        let directory = PathBuf::from(base.path_of(&settled.record));
        let (id, limits) = (&settled.record.id, self.limits());
        let prepare = {
            let (base, identity, programs) = (Arc::clone(base), Arc::clone(identity), programs.clone());
            let (directory, id, init) = (directory.clone(), id.clone(), init.clone());
            let cgroups = Arc::clone(&machine.cgroups);
            move || {
                let exists = |id: &WorkspaceId| !matches!(base.read(id), Ok(None));
                let uid = identity.settle(&id, &directory, exists)?;
                let program = install::install(&programs, &init)?;
                let group = cgroups.create(&Encoding::hash(id.as_str()), limits).map_err(|cause| {
                    Error::new(ErrorKind::Backend, "a control group for the sandbox could not be made")
                        .with_source(cause)
                })?;
                // Now, since names are looked up elsewhere after the machine has moved to another network.
                let life = life::lock(base.path().as_ref(), &id)?;
                Ok((uid, program, group, life, HostTree::detect()))
            }
        };
        let (uid, program, group, life, host) = blocking(prepare).await?;
        let plan = spec::plan(&Policy {
            host: &host,
            id,
            directory: &directory,
            program: Program::Init { path: &program, args: &init.args, port: self.config.gateway_port },
            network: self.config.network,
            env: &self.config.env,
            read_only: &self.config.read_only,
            tmp_size: self.config.tmp_size.as_u64(),
            filters: &machine.filters,
        });
        let (bwrap, port) = (machine.bwrap.path.as_path(), self.config.gateway_port);
        let start = Start { bwrap, plan, uid, group, life, port, circumstances: machine.circumstances };
        Sandbox::start(start, &self.tasks).await
    }

    /// Opens a workspace for whoever waits at the other end; if nobody does any more, its sandbox is ended again.
    async fn open(&self, request: OpenRequest, waiting: oneshot::Sender<Result<Opened>>) {
        // A checkpoint holds nothing for us: directories do not go back in time. Nor does the placement: every id has a
        // place of its own.
        let OpenRequest { id, owner, placement: _, checkpoint: _, init, allow_foreign_owner, .. } = request;
        let _turn = self.registry.turn(&id).await;
        let earlier = self.registry.get(&id);
        let known = earlier.as_ref().map(|live| live.identity);
        let preferred = Some(place(owner.as_ref(), &id));
        let wanted = Wanted { id: id.clone(), owner, preferred, allow_foreign_owner, known };
        let opened = match self.attach(wanted, earlier, init).await {
            Ok((live, outcome)) if outcome.kind != OutcomeKind::Reattached && waiting.is_closed() => {
                self.let_go(live).await
            }
            Ok((live, outcome)) => {
                self.registry.insert(id.clone(), Arc::clone(&live));
                let workspace = Arc::new(SandboxWorkspace::new(live, Arc::clone(&self.registry), self.tasks.clone()));
                Ok(Opened::new(workspace, outcome))
            }
            Err(error) => Err(error),
        };
        if let Err(Ok(untold)) = waiting.send(opened)
            && untold.outcome.kind != OutcomeKind::Reattached
            && let Some(live) = self.registry.get(&id)
        {
            self.registry.remove(&id, &live);
            if let Err(error) = self.let_go(live).await {
                tracing::debug!(error = %error.report(), "an opening was given up");
            }
        }
    }

    /// See [`Backend::destroy`].
    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let Ready { base, identity, .. } = self.ready().await?;
        let _turn = self.registry.turn(id).await;
        let record = {
            // Nothing is ended before it is certain that the rest can be done.
            let (base, id) = (Arc::clone(base), id.clone());
            blocking(move || base.read(&id)).await?
        };
        if let Some(live) = self.registry.get(id) {
            live.sandbox.end().await?;
            self.registry.remove(id, &live);
        }
        let Some(record) = record else { return Ok(()) };
        let (base, identity, id) = (Arc::clone(base), Arc::clone(identity), id.clone());
        blocking(move || {
            let owner = identity.owner(base.path_of(&record).as_ref());
            base.vacate(&id)?;
            life::forget(base.path().as_ref(), &id);
            if let Some(owner) = owner {
                identity.release(&id, owner, |id| !matches!(base.read(id), Ok(None)));
            }
            Ok(())
        })
        .await
    }

    /// Finds the sandbox that runs, or makes one. It is not in the registry then.
    async fn attach(
        &self,
        wanted: Wanted,
        earlier: Option<Arc<Live>>,
        init: Option<InitProgram>,
    ) -> Result<(Arc<Live>, Outcome)> {
        let Some(init) = init else { return Err(gateway_missing::<Live>()) };
        let ready = self.ready().await?;
        let base = &ready.base;
        let settled = {
            let base = Arc::clone(base);
            blocking(move || base.settle(wanted)).await?
        };
        let mut cause = None;
        if let Some(live) = earlier {
            cause = Arc::clone(&live).death().await?;
            if settled.arrival.is_none() && cause.is_none() {
                return Ok((live, Outcome::new(OutcomeKind::Reattached)));
            }
            // Nothing of it may run on beside the new one.
            live.sandbox.end().await?;
            self.registry.remove(&live.info.id, &live);
        }
        let sandbox = match self.make(ready, &settled, init).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                if let Err(left) = self.take_back(&settled.record.id, settled.arrival).await {
                    tracing::warn!(error = %left.report(), "nobody will be told how the opening ended");
                }
                return Err(error);
            }
        };
        let outcome = outcome(settled.arrival, cause);
        let directory = base.directory(&settled);
        let Settled { record, identity, arrival } = settled;
        let info = WorkspaceInfo::new(record.id, KIND, WORKDIR).with_generation(record.generation);
        Ok((Arc::new(Live { info, identity, arrival, directory, sandbox }), outcome))
    }

    /// Ends a sandbox that nobody waits for any more.
    async fn let_go(&self, live: Arc<Live>) -> Result<Opened> {
        live.sandbox.end().await?;
        self.take_back(&live.info.id, live.arrival).await?;
        Err(Error::new(ErrorKind::Gone, "nobody waited for the workspace any more"))
    }

    /// Lets the next opening tell what nobody was told.
    async fn take_back(&self, id: &WorkspaceId, arrival: Option<Arrival>) -> Result<()> {
        let Some(arrival) = arrival else { return Ok(()) };
        let (base, id) = (Arc::clone(&self.ready().await?.base), id.clone());
        blocking(move || base.take_back(&id, arrival)).await
    }
}

impl Machine {
    async fn look(config: &BubblewrapConfig) -> Result<Self> {
        let bwrap = Bwrap::find(&config.bwrap).await?;
        blocking(move || {
            // `bwrap` 0.8 never returns where they are thrown away.
            keep_ends_of_children();
            let (host, circumstances) = (HostTree::detect(), Circumstances::detect());
            let cgroups = Arc::new(Cgroups::detect());
            Ok(Self { bwrap, host, filters: seccomp::filters()?, cgroups, circumstances })
        })
        .await
    }

    /// Runs `true` in a sandbox as all will be, with some directory as its workspace.
    async fn try_out(&self, config: &BubblewrapConfig, directory: &std::path::Path, uid: Option<u32>) -> Result<()> {
        let plan = spec::plan(&Policy {
            host: &self.host,
            id: &WorkspaceId::random(),
            directory,
            program: Program::Command(&["true"]),
            network: config.network,
            env: &config.env,
            read_only: &config.read_only,
            tmp_size: config.tmp_size.as_u64(),
            filters: &self.filters,
        });
        try_out(&self.bwrap.path, &plan, uid, self.circumstances).await
    }
}

#[async_trait]
impl Backend for BubblewrapBackend {
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
        let Ready { base, .. } = self.0.ready().await?;
        base.find_workspace(id, |id| self.0.is_running(id)).await
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let list = async {
            let Ready { base, .. } = self.0.ready().await?;
            base.list_workspaces(|id| self.0.is_running(id)).await
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        // On a task of its own, so that nobody else has a turn before it is through.
        let destroyed = self.0.tasks.spawn(async move { inner.destroy(&id).await }).await;
        destroyed.unwrap_or_else(|cause| {
            Err(Error::new(ErrorKind::Backend, "the workspace was not destroyed to the end").with_source(cause))
        })
    }

    async fn probe(&self) -> Result<Probe> {
        let machine = Machine::look(&self.0.config).await?;
        let config = self.0.config.clone();
        let probe = Probe::new(format!("bubblewrap {}", machine.bwrap.version));
        let (mut probe, exists) = blocking(move || {
            let probe = probe_basedir(probe, &config.basedir)?;
            Ok((probe, config.basedir.is_dir()))
        })
        .await?;
        // The basedir is not made for a question. Where there is none yet, any directory shows whether there can be a
        // sandbox.
        match self.0.ready.get() {
            Some(ready) => machine.try_out(&self.0.config, &ready.programs, ready.identity.any()).await?,
            None => {
                let uid = rustix::process::geteuid().is_root().then_some(self.0.config.uids.first);
                let directory =
                    if exists && uid.is_none() { self.0.config.basedir.clone() } else { std::env::temp_dir() };
                machine.try_out(&self.0.config, &directory, uid).await?;
            }
        }
        probe = probe.with_fact(format!("a sandboxed `true` ran, made by {}", machine.bwrap.path.display()));
        probe = probe.with_fact(match rustix::process::geteuid() {
            user if user.is_root() => {
                let uids = self.0.config.uids;
                format!("sandboxes run as users {} to {}", uids.first, uids.first + (uids.count - 1))
            }
            user => format!("sandboxes run as the user of this process, {user}", user = user.as_raw()),
        });
        probe = probe.with_fact(match self.0.config.network {
            Network::Host => "commands share the network of this machine",
            Network::None => "commands have no network",
        });
        if let Some(limited) = machine.cgroups.describe() {
            probe = probe.with_fact(limited);
        }
        if let Some(missing) = machine.cgroups.missing(self.0.limits()) {
            probe = probe.with_warning(missing);
        }
        Ok(probe)
    }

    async fn start(&self) -> Result<()> {
        let Ready { base, machine, .. } = self.0.ready().await?;
        if let Some(missing) = machine.cgroups.missing(self.0.limits()) {
            tracing::warn!("{missing}");
        }
        if self.0.config.network == Network::Host {
            tracing::info!("commands share the network of this machine: `network = \"none\"` takes it away");
        }
        let (base, cgroups) = (Arc::clone(base), Arc::clone(&machine.cgroups));
        blocking(move || {
            match cgroups.sweep() {
                0 => {}
                swept => tracing::warn!(swept, "removed control groups that an earlier run had left"),
            }
            if let Err(error) = base.sweep_trash() {
                tracing::warn!(error = %error.report(), "could not delete what an earlier run had left");
            }
            Ok(())
        })
        .await
    }
}

/// Where a new workspace is put. Hashes, since everybody may see the names of these directories.
fn place(owner: Option<&UserId>, id: &WorkspaceId) -> String {
    format!("{}/{}", Encoding::hash(owner.map_or("", UserId::as_str)), Encoding::hash(id.as_str()))
}

/// How an opening ended for which a sandbox was made, given why the one before was not there any more.
fn outcome(arrival: Option<Arrival>, cause: Option<Cause>) -> Outcome {
    let outcome = match arrival {
        Some(Arrival::Created) => return Outcome::new(OutcomeKind::Created),
        Some(Arrival::Recreated) => {
            let outcome = Outcome::new(OutcomeKind::Recreated).with_lost([Loss::WorkspaceFiles]);
            outcome.with_cause(Cause::Deleted)
        }
        None => Outcome::new(OutcomeKind::Resumed),
    };
    // `/tmp` lies in memory.
    let outcome = outcome.with_lost([Loss::Processes, Loss::Memory]);
    match cause {
        Some(cause) if outcome.cause.is_none() => outcome.with_cause(cause),
        _ => outcome,
    }
}
