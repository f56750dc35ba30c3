//! The manager of one backend, with a cache.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{
    CachedState, CachedWorkspace, CloseOptions, CloseReport, GetRequest, ManagerSettings, WorkspaceHandle,
    WorkspaceManager,
    core::{Core, CoreParts},
    hub::Hub,
    slot::State,
};
use crate::{
    backend::{Backend, BackendConfig, FoundWorkspace, Leftover, Probe, Ready},
    capability::Capabilities,
    coordinate::{Coordinator, InProcess},
    error::Result,
    event::{EventListener, EventStream, EvictReason},
    exec_files::ExecFiles,
    id::WorkspaceId,
    layer::Layer,
    policy::IsolationPolicy,
    scope::Scope,
};

/// Policy, cache and lifecycle over one backend.
///
/// - A hit costs well under a microsecond: no lock that an opening can hold, no I/O.
/// - An opening is a task of its own, one per id however many callers wait, and delays nobody who asks for another id.
/// - Idle time starts when the last handle, call or stream ends; what is in use is never put away.
/// - A dead workspace is opened anew, once, and the handle says what was lost.
///
/// Its background tasks start with the first request, or with [`start`](WorkspaceManager::start). End them with
/// [`shutdown`](WorkspaceManager::shutdown); merely dropping the manager stops the sweeper and leaves open what is open.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> wsm_core::Result<()> {
/// use std::time::Duration;
/// use wsm_core::{CachingManager, Command, GetRequest, ManagerSettings, Scope, WorkspaceManager, memory::MemoryConfig};
///
/// let manager = CachingManager::builder(MemoryConfig::default())
///     .settings(ManagerSettings::default().with_ttl(Duration::from_secs(60)))
///     .build()?;
/// let workspace = manager.get_workspace(&GetRequest::new(Scope::new("ann", "coder", "s1")?)).await?;
/// let result = workspace.exec(Command::new("echo").arg("hello")).await?;
/// assert_eq!(result.stdout.to_text(), "hello\n");
/// drop(workspace);
/// assert_eq!(manager.shutdown(Duration::from_secs(5)).await.closed, 1);
/// # Ok(())
/// # }
/// ```
pub struct CachingManager<B> {
    core: Arc<Core>,
    backend: Arc<B>,
}

impl<B: Backend> CachingManager<B> {
    /// Starts to build a manager over the backend that `config` describes.
    pub fn builder<C: BackendConfig<Backend = B>>(config: C) -> ManagerBuilder<C> {
        ManagerBuilder {
            config,
            settings: ManagerSettings::default(),
            layers: Vec::new(),
            listeners: Vec::new(),
            coordinator: Arc::new(InProcess),
        }
    }

    /// Starts to build a manager over a backend that is there already.
    pub fn over(backend: B) -> ManagerBuilder<Ready<B>> {
        Self::builder(Ready(backend))
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Looks for idle workspaces now. The manager does so by itself; this is for whoever can not wait.
    ///
    /// # Cancel safety
    ///
    /// What began to be put away goes on.
    pub async fn sweep(&self) {
        self.core.sweep().await;
    }
}

/// Builds a [`CachingManager`].
#[derive(Debug)]
pub struct ManagerBuilder<C> {
    config: C,
    settings: ManagerSettings,
    layers: Vec<Arc<dyn Layer>>,
    listeners: Vec<Arc<dyn EventListener>>,
    coordinator: Arc<dyn Coordinator>,
}

impl<C: BackendConfig> ManagerBuilder<C> {
    /// Sets how the manager behaves.
    #[must_use]
    pub fn settings(mut self, settings: ManagerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Adds a layer outside of those already there.
    #[must_use]
    pub fn layer(mut self, layer: Arc<dyn Layer>) -> Self {
        self.layers.push(layer);
        self
    }

    /// Adds somebody who hears of events.
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn EventListener>) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Sets who keeps replicas apart. By default nobody: this process is alone.
    #[must_use]
    pub fn coordinator(mut self, coordinator: Arc<dyn Coordinator>) -> Self {
        self.coordinator = coordinator;
        self
    }

    /// Makes the manager. Nothing runs until it is started or used.
    ///
    /// # Errors
    ///
    /// `invalid_input` naming the setting or the backend's option at fault.
    pub fn build(self) -> Result<CachingManager<C::Backend>> {
        let Self { config, settings, layers, listeners, coordinator } = self;
        settings.validate()?;
        let sweep_trigger = config.sweep();
        let backend = Arc::new(config.build()?);
        let adapted = ExecFiles::capabilities_above(backend.capabilities());
        let capabilities = layers.iter().fold(adapted, |inner, layer| layer.capabilities(inner));
        let core = Core::new(CoreParts {
            backend: Arc::clone(&backend) as Arc<dyn Backend>,
            layers,
            coordinator,
            settings,
            sweep_trigger,
            capabilities,
            hub: Hub::new(listeners),
        });
        Ok(CachingManager { core, backend })
    }
}

#[async_trait]
impl<B: Backend> WorkspaceManager for CachingManager<B> {
    fn isolation(&self) -> IsolationPolicy {
        self.core.settings.isolation
    }

    fn backend_kind(&self) -> &'static str {
        self.backend.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.core.capabilities
    }

    async fn get_workspace(&self, request: &GetRequest) -> Result<WorkspaceHandle> {
        self.core.get_workspace(request).await
    }

    async fn create_workspace(&self, scope: &Scope) -> Result<WorkspaceHandle> {
        self.core.create_workspace(&scope.user_id).await
    }

    async fn close(&self, id: &WorkspaceId, options: CloseOptions) -> Result<()> {
        self.core.close(id, options, EvictReason::Closed).await.map(drop)
    }

    async fn close_all(&self, options: CloseOptions) -> CloseReport {
        self.core.close_all(options, EvictReason::Closed).await
    }

    async fn start(&self) -> Result<()> {
        self.core.start().await
    }

    async fn shutdown(&self, deadline: Duration) -> CloseReport {
        self.core.shutdown(deadline).await
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        self.core.destroy(id).await
    }

    fn cached(&self) -> Vec<CachedWorkspace> {
        self.core.roster.all().iter().filter_map(|slot| describe(slot)).collect()
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        self.backend.list()
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        self.core.within(self.core.settings.health_timeout, "find", self.backend.find(id)).await
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        self.backend.leftovers().await.map_err(|error| self.core.place(error, "leftovers"))
    }

    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        self.backend.remove_leftover(leftover).await.map_err(|error| self.core.place(error, "remove_leftover"))
    }

    async fn probe(&self) -> Result<Probe> {
        self.core.within(self.core.settings.health_timeout, "probe", self.backend.probe()).await
    }

    fn subscribe(&self) -> EventStream {
        self.core.hub.subscribe()
    }
}

fn describe(slot: &super::slot::Slot) -> Option<CachedWorkspace> {
    let state = slot.lock();
    let (cached_state, epoch) = match &*state {
        State::Vacant | State::Retired => return None,
        State::Doubtful(doubt) if doubt.is_news_only() => return None,
        State::Opening(_) => (CachedState::Opening, None),
        State::Checking(epoch, _) => (CachedState::Opening, Some(Arc::clone(epoch))),
        State::Live(epoch) => (CachedState::Live, Some(Arc::clone(epoch))),
        State::Settling(_) => (CachedState::Suspending, None),
        State::Doubtful(doubt) => (CachedState::Doubtful, doubt.epoch.clone()),
    };
    drop(state);
    Some(CachedWorkspace {
        workspace_id: slot.id.clone(),
        user_id: epoch.as_ref().and_then(|epoch| epoch.owner.clone()),
        state: cached_state,
        leases: epoch.as_ref().map_or(0, |epoch| epoch.leases()),
        idle: epoch.as_ref().map_or(Duration::ZERO, |epoch| epoch.idle()),
        opened_at: epoch.as_ref().map(|epoch| epoch.opened_at),
        opening: epoch.map(|epoch| epoch.opening.clone()),
    })
}

impl<B> Drop for CachingManager<B> {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

impl<B: Backend> fmt::Debug for CachingManager<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingManager")
            .field("backend", &self.backend.kind())
            .field("settings", &self.core.settings)
            .field("cached", &self.core.roster.len())
            .finish_non_exhaustive()
    }
}
