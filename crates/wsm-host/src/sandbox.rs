//! A workspace whose commands and files all go through the gateway in it, as the layer above sees it.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio_util::task::TaskTracker;
use wsm_core::{
    ByteStream, Capabilities, Cause, Checkpoint, Command, Connection, DirEntry, Endpoint, Error, ErrorKind, ExecResult,
    Health, ManagedWorkspace, Metadata, Process, ReadFile, ReadOptions, RemoveOptions, Result, Workspace,
    WorkspaceInfo, WriteOptions,
};

use crate::Registry;

/// What an open sandbox can do by itself, without the gateway in it.
#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync + 'static {
    /// What its kind is called with an article, for messages: `a container`.
    const NOUN: &'static str;

    /// What workspaces can do before the gateway's layer adds to it.
    const CAPABILITIES: Capabilities;

    /// What is known of the workspace.
    fn info(&self) -> &WorkspaceInfo;

    /// Connects to the gateway.
    ///
    /// # Errors
    ///
    /// `gone` when the sandbox has ended; `unavailable` when that can not be decided.
    ///
    /// # Cancel safety
    ///
    /// A connection that is not returned is closed.
    async fn connect(self: Arc<Self>) -> Result<Connection>;

    /// Why it is dead or of no use any more; none while it lives.
    ///
    /// # Errors
    ///
    /// `unavailable` when that can not be decided.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    async fn death(self: Arc<Self>) -> Result<Option<Cause>>;

    /// Ends it. The directory stays. May be called more than once.
    ///
    /// # Errors
    ///
    /// Whatever leaves it running, or in doubt.
    ///
    /// # Cancel safety
    ///
    /// It is run on a task of its own, which goes on when nobody waits for it.
    async fn end(self: Arc<Self>) -> Result<()>;
}

/// One handed-out object of an open sandbox.
#[derive(Debug)]
pub struct SandboxWorkspace<S> {
    sandbox: Arc<S>,
    registry: Arc<Registry<S>>,
    /// Where what must not be dropped half way runs.
    tasks: TaskTracker,
    /// Whether the holder of this object has let go, while the workspace goes on for others.
    detached: AtomicBool,
}

impl<S: Sandbox> SandboxWorkspace<S> {
    /// An object for an open sandbox that the registry holds. `tasks` are the backend's.
    pub fn new(sandbox: Arc<S>, registry: Arc<Registry<S>>, tasks: TaskTracker) -> Self {
        Self { sandbox, registry, tasks, detached: AtomicBool::new(false) }
    }

    fn check(&self) -> Result<()> {
        if self.detached.load(Ordering::Relaxed) || !self.registry.holds(&self.sandbox.info().id, &self.sandbox) {
            return Err(Error::new(ErrorKind::Gone, "the workspace was put away: ask for it again"));
        }
        Ok(())
    }

    fn needs_layer<T>(&self, what: &'static str) -> Result<T> {
        let noun = S::NOUN;
        let message = format!(
            "{noun} is driven through its gateway, and this workspace lacks the layer for `{what}`: add \
             `wsm_gateway::GatewayLayer` to the manager"
        );
        Err(Error::new(ErrorKind::Unsupported, message).with_code("gateway_missing"))
    }
}

/// The refusal to open a sandbox that nobody could do anything with.
pub fn gateway_missing<S: Sandbox>() -> Error {
    let message = format!("{} is driven through its gateway: add `wsm_gateway::GatewayLayer` to the manager", S::NOUN);
    Error::new(ErrorKind::Unsupported, message).with_code("gateway_missing")
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: Sandbox> Workspace for SandboxWorkspace<S> {
    fn info(&self) -> &WorkspaceInfo {
        self.sandbox.info()
    }

    fn capabilities(&self) -> Capabilities {
        S::CAPABILITIES
    }

    async fn exec(&self, _: Command) -> Result<ExecResult> {
        self.needs_layer("exec")
    }

    async fn spawn(&self, _: Command) -> Result<Process> {
        self.needs_layer("spawn")
    }

    async fn read(&self, _: &str, _: ReadOptions) -> Result<ReadFile> {
        self.needs_layer("read")
    }

    async fn write(&self, _: &str, _: ByteStream, _: WriteOptions) -> Result<Metadata> {
        self.needs_layer("write")
    }

    async fn stat(&self, _: &str) -> Result<Metadata> {
        self.needs_layer("stat")
    }

    async fn list(&self, _: &str) -> Result<Vec<DirEntry>> {
        self.needs_layer("list")
    }

    async fn make_dir(&self, _: &str) -> Result<()> {
        self.needs_layer("make_dir")
    }

    async fn remove(&self, _: &str, _: RemoveOptions) -> Result<()> {
        self.needs_layer("remove")
    }

    async fn rename(&self, _: &str, _: &str) -> Result<()> {
        self.needs_layer("rename")
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Connection> {
        self.check()?;
        match endpoint {
            Endpoint::Init => Arc::clone(&self.sandbox).connect().await,
            _ => Err(Error::unsupported("connect")),
        }
    }

    fn extension(&self, _: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: Sandbox> ManagedWorkspace for SandboxWorkspace<S> {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        if self.detached.load(Ordering::Relaxed) {
            self.check()?;
        }
        let (sandbox, registry) = (Arc::clone(&self.sandbox), Arc::clone(&self.registry));
        // An opening of the same id waits for the end of this one. Waited for here, so that nothing begins to end once nobody
        // waits for it any more: an opening may have had its turn meanwhile, and found it running.
        let turn = registry.turn(&sandbox.info().id).await;
        // What has begun to end goes on to, whether or not anybody waits for it.
        let ended = self.tasks.spawn(async move {
            let _turn = turn;
            let id = &sandbox.info().id;
            if registry.holds(id, &sandbox) {
                Arc::clone(&sandbox).end().await?;
                registry.remove(id, &sandbox);
            }
            // Else it has ended already, and what runs there now is of a later opening.
            Ok(())
        });
        ended
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Backend, "the workspace's end did not come to an end")))?;
        Ok(None)
    }

    async fn detach(&self) -> Result<()> {
        self.detached.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn health(&self) -> Result<Health> {
        if let Some(cause) = Arc::clone(&self.sandbox).death().await? {
            return Ok(Health::Dead(cause));
        }
        self.check()?;
        Ok(Health::Alive(None))
    }

    async fn keep_alive(&self, _: Duration) -> Result<Option<Duration>> {
        self.check()?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use wsm_core::WorkspaceId;

    use super::*;

    #[derive(Debug)]
    struct Fake(WorkspaceInfo);

    #[async_trait]
    impl Sandbox for Fake {
        const NOUN: &'static str = "a fake";

        const CAPABILITIES: Capabilities = Capabilities::NONE;

        fn info(&self) -> &WorkspaceInfo {
            &self.0
        }

        async fn connect(self: Arc<Self>) -> Result<Connection> {
            Err(Error::unsupported("connect"))
        }

        async fn death(self: Arc<Self>) -> Result<Option<Cause>> {
            Ok(None)
        }

        async fn end(self: Arc<Self>) -> Result<()> {
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_end_that_nobody_waits_for_goes_on_before_the_next_opening_or_does_not_begin() {
        let (id, registry, tasks) = (WorkspaceId::random(), Arc::new(Registry::default()), TaskTracker::new());
        let sandbox = Arc::new(Fake(WorkspaceInfo::new(id.clone(), "fake", "/")));
        registry.insert(id.clone(), Arc::clone(&sandbox));
        let workspace = SandboxWorkspace::new(Arc::clone(&sandbox), Arc::clone(&registry), tasks.clone());
        // An opening has its turn, and finds it running.
        let turn = registry.turn(&id).await;
        assert!(workspace.suspend().now_or_never().is_none());
        drop(turn);
        tasks.close();
        tasks.wait().await;
        assert!(registry.holds(&id, &sandbox), "what was opened does not end under its user");
        // Without one, the end has its turn from the first moment on.
        assert!(workspace.suspend().now_or_never().is_none());
        let turn = registry.turn(&id).await;
        assert!(!registry.is_open(&id), "what is opened next is another one");
        drop(turn);
    }
}
