//! The backend: opens, finds, lists and destroys workspaces below one directory.

use std::{fs::read_to_string, sync::Arc};

use async_trait::async_trait;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Cause, Encoding, Error, FoundWorkspace, IsolationPolicy, Loss, OpenRequest, Opened, Outcome,
    OutcomeKind, Placement, Probe, Result, WorkspaceId, WorkspaceInfo,
};

use wsm_host::{
    Arrival, Basedir, HostWorkspace, Launcher, Opening, Reach, Registry, Settled, Wanted, blocking, probe_basedir,
    require_openat2,
};

use crate::{
    KIND,
    config::LocalConfig,
    environment::environment,
    workspace::{Live, LocalWorkspace},
};

/// What every workspace of this backend can do.
const CAPABILITIES: Capabilities =
    HostWorkspace::CAPABILITIES.with_confined_files(true).with_shell(true).with_node_bound(true);

const NO_SANDBOX: &str = "there is no sandbox: commands run as the user of this process, and can do whatever it can";

/// Workspaces that are directories of this machine. Made from a [`LocalConfig`].
#[derive(Debug)]
pub struct LocalBackend {
    config: LocalConfig,
    registry: Arc<Registry<Live>>,
    /// Ends processes that belong to no open workspace.
    tasks: TaskTracker,
    ready: OnceCell<Ready>,
}

/// What is only known once the basedir is there.
#[derive(Debug)]
struct Ready {
    base: Arc<Basedir>,
    launcher: Arc<Launcher>,
}

impl LocalBackend {
    pub(crate) fn from_valid(config: LocalConfig) -> Self {
        Self { config, registry: Arc::default(), tasks: TaskTracker::new(), ready: OnceCell::new() }
    }

    async fn ready(&self) -> Result<&Ready> {
        let prepare = || {
            let config = self.config.clone();
            blocking(move || {
                let base = Basedir::prepare(&config.basedir)?;
                let environment = environment(&config, std::env::vars_os());
                let launcher = Launcher::new(base.identity(), environment, config.kill_grace)?;
                Ok(Ready { base: Arc::new(base), launcher: Arc::new(launcher) })
            })
        };
        self.ready.get_or_try_init(prepare).await
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        // A checkpoint holds nothing for us: directories do not go back in time.
        let OpenRequest { id, owner, placement, checkpoint: _, init, allow_foreign_owner, .. } = request;
        if init.is_some() {
            return Err(Error::unsupported("init"));
        }
        let Ready { base, launcher } = self.ready().await?;
        let _turn = self.registry.turn(&id).await;
        let earlier = self.registry.get(&id);
        let known = earlier.as_ref().map(|live| live.identity);
        let preferred = placement.as_ref().and_then(agents_place);
        let wanted = Wanted { id, owner, preferred, allow_foreign_owner, known };
        let settled = {
            let base = Arc::clone(base);
            blocking(move || base.settle(wanted)).await?
        };

        if let Some(live) = earlier {
            if settled.arrival.is_none() && !live.opening.is_over() {
                let workspace = Arc::new(LocalWorkspace::new(live, Arc::clone(&self.registry)));
                return Ok(Opened::new(workspace, Outcome::new(OutcomeKind::Reattached)));
            }
            // Its directory was deleted, or putting it away was broken off. Nothing of it may run on beside the new one.
            live.opening.end().await?;
            self.registry.remove(live.id(), &live);
        }
        let outcome = match settled.arrival {
            Some(Arrival::Created) => Outcome::new(OutcomeKind::Created),
            Some(Arrival::Recreated) => Outcome::new(OutcomeKind::Recreated)
                .with_lost([Loss::Processes, Loss::WorkspaceFiles])
                .with_cause(Cause::Deleted),
            None => Outcome::new(OutcomeKind::Resumed).with_lost([Loss::Processes]),
        };
        let directory = base.directory(&settled);
        let Settled { record, identity, .. } = settled;
        let workdir = base.path_of(&record);
        let info = WorkspaceInfo::new(record.id, KIND, workdir).with_generation(record.generation);
        let opening = Opening::new(info, CAPABILITIES, Reach::Workdir, directory, Arc::clone(launcher));
        let live = Arc::new(Live { opening: Arc::new(opening), identity });
        self.registry.insert(live.id().clone(), Arc::clone(&live));
        Ok(Opened::new(Arc::new(LocalWorkspace::new(live, Arc::clone(&self.registry))), outcome))
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        let Ready { base, .. } = self.ready().await?;
        base.find_workspace(id, |id| self.registry.is_open(id)).await
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let list = async {
            let Ready { base, .. } = self.ready().await?;
            base.list_workspaces(|id| self.registry.is_open(id)).await
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        let Ready { base, launcher } = self.ready().await?;
        let _turn = self.registry.turn(id).await;
        {
            // Nothing is ended before it is certain that the rest can be done.
            let base = Arc::clone(base);
            let id = id.clone();
            blocking(move || base.read(&id)).await?;
        }
        if let Some(live) = self.registry.get(id) {
            live.opening.end().await?;
            self.registry.remove(live.id(), &live);
        }
        // Also what another process started there, and what an earlier one left.
        launcher.end_everywhere(&self.tasks, id).await?;
        let (base, id) = (Arc::clone(base), id.clone());
        blocking(move || base.vacate(&id)).await
    }

    async fn probe(&self) -> Result<Probe> {
        let basedir = self.config.basedir.clone();
        blocking(move || {
            require_openat2()?;
            let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            let probe = Probe::new(format!("directories of this machine, Linux {}", kernel.trim()))
                .with_fact("`openat2` is available: files are confined to their workspace")
                .with_warning(NO_SANDBOX);
            probe_basedir(probe, &basedir)
        })
        .await
    }

    async fn start(&self) -> Result<()> {
        let Ready { base, launcher } = self.ready().await?;
        tracing::warn!(basedir = base.path(), "{NO_SANDBOX}");
        // What can not be tidied up is no reason not to work.
        match launcher.end_strays(&self.tasks).await {
            Ok(0) => {}
            Ok(ended) => tracing::warn!(ended, "ended processes that an earlier run had left"),
            Err(error) => tracing::error!(error = %error.report(), "could not end what an earlier run had left"),
        }
        let base = Arc::clone(base);
        if let Err(error) = blocking(move || base.sweep_trash()).await {
            tracing::warn!(error = %error.report(), "could not delete what an earlier run had left");
        }
        Ok(())
    }
}

/// Where the workspace of an agent is put; nowhere in particular for any other.
fn agents_place(placement: &Placement) -> Option<String> {
    let Placement { policy, scope } = placement;
    let segment = |id: &str| Encoding::PATH_SEGMENT.encode(id);
    (*policy == IsolationPolicy::PerAgent)
        .then(|| format!("{}/{}", segment(scope.user_id.as_str()), segment(scope.agent_id.as_str())))
}
