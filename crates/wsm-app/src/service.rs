//! What the routes and the command do: sessions, and the workspaces that they work in.

mod locks;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::TryStreamExt;
use moka::sync::Cache;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use wsm_core::{
    AgentId, CachedWorkspace, CloseOptions, Error, ErrorKind, FoundWorkspace, GetRequest, IsolationPolicy, OutcomeKind,
    Result, Scope, SessionId, UserId, WorkspaceHandle, WorkspaceId, WorkspaceManager,
};

use crate::store::{
    Claimed, Retired, SessionClaim, SessionPage, SessionRecord, Store, Told, WorkspaceRecord, foreign_owner,
};
use locks::KeyedLocks;

/// How many sessions are remembered, so that a request for one asks the store no more.
const REMEMBERED: u64 = 100_000;

/// Marks a session that was not told any generation yet.
const NEVER_TOLD: u64 = u64::MAX;

/// Sessions and their workspaces over a manager and a store.
#[derive(Debug)]
pub(crate) struct Service {
    manager: Arc<dyn WorkspaceManager>,
    store: OnceLock<Arc<dyn Store>>,
    node: String,
    allow_foreign_owner: bool,
    prewarmed: bool,
    sessions: Cache<(UserId, SessionId), Arc<Session>>,
    /// Counts deleted sessions, so that none is remembered that was read just before it was deleted.
    deletions: AtomicU64,
    /// The workspaces that are known to have a record.
    recorded: Cache<WorkspaceId, ()>,
    /// Keeps the making of a record and the destroying of a workspace apart.
    workspace_locks: KeyedLocks<WorkspaceId>,
    session_locks: KeyedLocks<(UserId, SessionId)>,
    /// What goes on though its caller went away.
    tasks: TaskTracker,
}

/// A session as it is remembered.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) record: SessionRecord,
    told: AtomicU64,
}

impl Session {
    fn new(record: SessionRecord) -> Arc<Self> {
        let told = AtomicU64::new(record.told_generation.unwrap_or(NEVER_TOLD));
        Arc::new(Self { record, told })
    }
}

/// A session that somebody asks for.
#[derive(Debug, Clone)]
pub(crate) struct NewSession {
    pub(crate) user: UserId,
    pub(crate) agent: AgentId,
    pub(crate) session: Option<SessionId>,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) name: Option<String>,
}

/// A workspace opened for a session.
#[derive(Debug)]
pub(crate) struct OpenedWorkspace {
    pub(crate) handle: WorkspaceHandle,
    /// Whether files were lost since the session last used the workspace. True for one request only.
    pub(crate) lost: bool,
}

/// What is known of a workspace from all sides.
#[derive(Debug, Default)]
pub(crate) struct KnownWorkspace {
    pub(crate) cached: Option<CachedWorkspace>,
    pub(crate) found: Option<FoundWorkspace>,
    pub(crate) record: Option<WorkspaceRecord>,
}

impl KnownWorkspace {
    pub(crate) fn is_known(&self) -> bool {
        self.cached.is_some() || self.found.is_some() || self.record.is_some()
    }
}

impl Service {
    pub(crate) fn new(
        manager: Arc<dyn WorkspaceManager>,
        node: String,
        allow_foreign_owner: bool,
        prewarmed: bool,
    ) -> Self {
        Self {
            manager,
            store: OnceLock::new(),
            node,
            allow_foreign_owner,
            prewarmed,
            sessions: Cache::new(REMEMBERED),
            deletions: AtomicU64::new(0),
            recorded: Cache::new(REMEMBERED),
            workspace_locks: KeyedLocks::default(),
            session_locks: KeyedLocks::default(),
            tasks: TaskTracker::new(),
        }
    }

    pub(crate) fn use_store(&self, store: Arc<dyn Store>) {
        // The life cycle starts once.
        let _ = self.store.set(store);
    }

    pub(crate) fn manager(&self) -> &Arc<dyn WorkspaceManager> {
        &self.manager
    }

    pub(crate) fn store(&self) -> Result<&Arc<dyn Store>> {
        self.store.get().ok_or_else(|| Error::new(ErrorKind::Unavailable, "the application has not been started"))
    }

    /// Waits for what goes on though its caller went away.
    pub(crate) async fn finish(&self, deadline: Duration) {
        self.tasks.close();
        // What is still going on then is ended by the manager's own shutdown.
        let _ = tokio::time::timeout(deadline, self.tasks.wait()).await;
    }

    /// Runs `work` to its end, whether or not the caller waits for it.
    pub(crate) async fn detached<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.tasks
            .spawn(work)
            .await
            .unwrap_or_else(|error| Err(Error::new(ErrorKind::Backend, "the work broke off").with_source(error)))
    }

    /// Runs `work` that nobody waits for but a stop.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        self.tasks.spawn_on(work, runtime);
    }

    /// Makes a session, or finds the equal one that exists. Tells which.
    pub(crate) async fn create_session(&self, new: NewSession) -> Result<(SessionRecord, bool)> {
        let NewSession { user, agent, session, workspace, name } = new;
        let session = match session {
            Some(session) => session,
            None => SessionId::new(uuid::Uuid::new_v4().simple().to_string())?,
        };
        let scope = Scope { user_id: user, agent_id: agent, session_id: session };
        let claimed = match &workspace {
            Some(id) => self.claim_named(&scope, id, &name).await?,
            None if self.takes_ready_workspaces() => self.claim_ready(&scope, &name).await?,
            None => {
                let id = self.manager.assign_workspace_id(&scope);
                let policy = IsolationPolicy::that_assigned(&id, &scope);
                self.claim(&scope, &id, policy, false, &name).await?
            }
        };
        match claimed {
            Claimed::Created(record) => Ok((record, true)),
            Claimed::Existing(record) => {
                let same_workspace = match &workspace {
                    Some(id) => record.explicit && record.workspace_id == *id,
                    None => !record.explicit,
                };
                if record.scope == scope && record.name == name && same_workspace {
                    Ok((record, false))
                } else {
                    let message = "a session of this id exists with other fields";
                    Err(Error::new(ErrorKind::Conflict, message).with_code("session_exists").with_field("session_id"))
                }
            }
        }
    }

    fn takes_ready_workspaces(&self) -> bool {
        self.prewarmed && self.manager.isolation() == IsolationPolicy::PerSession
    }

    async fn claim(
        &self,
        scope: &Scope,
        id: &WorkspaceId,
        policy: Option<IsolationPolicy>,
        explicit: bool,
        name: &Option<String>,
    ) -> Result<Claimed> {
        let _lock = self.workspace_locks.lock(id).await;
        let claim = SessionClaim {
            scope: scope.clone(),
            name: name.clone(),
            explicit,
            workspace: self.new_record(id, scope, policy),
            allow_foreign_owner: self.allow_foreign_owner,
        };
        self.store()?.claim_session(&claim).await
    }

    async fn claim_named(&self, scope: &Scope, id: &WorkspaceId, name: &Option<String>) -> Result<Claimed> {
        self.check_named(scope, id).await?;
        self.claim(scope, id, IsolationPolicy::that_assigned(id, scope), true, name).await
    }

    /// Refuses a named id that is another user's, or that only another user will be given.
    ///
    /// The store may have been replaced while the backend kept its workspaces, so both are asked whose the id is.
    async fn check_named(&self, scope: &Scope, id: &WorkspaceId) -> Result<()> {
        if self.allow_foreign_owner || !self.store()?.workspace(id).await?.is_empty() {
            // The claim itself compares the owner in the record.
            return Ok(());
        }
        match self.find(id).await? {
            Some(found) if found.owner.as_ref().is_some_and(|owner| *owner != scope.user_id) => Err(foreign_owner(id)),
            None if id.is_assigned() && IsolationPolicy::that_assigned(id, scope).is_none() => {
                let message = "ids of this form are assigned by wsm, and this one is not assigned to you: \
                               name one that exists, or one of your own making";
                Err(Error::new(ErrorKind::PermissionDenied, message)
                    .with_code("workspace_id_reserved")
                    .with_field("workspace_id"))
            }
            _ => Ok(()),
        }
    }

    /// Takes a workspace that is ready, unless the session exists already.
    async fn claim_ready(&self, scope: &Scope, name: &Option<String>) -> Result<Claimed> {
        let key = (scope.user_id.clone(), scope.session_id.clone());
        let _lock = self.session_locks.lock(&key).await;
        if let Some(record) = self.store()?.session(&scope.user_id, &scope.session_id).await? {
            return Ok(Claimed::Existing(record));
        }
        let handle = self.manager.create_workspace(scope).await?;
        let id = handle.id().clone();
        let claimed = self.claim(scope, &id, Some(IsolationPolicy::PerSession), false, name).await;
        if !matches!(claimed, Ok(Claimed::Created(_))) {
            drop(handle);
            if let Err(error) = self.manager.destroy(&id).await {
                tracing::warn!(workspace = %id, error = %error.report(), "a workspace that nobody took was left");
            }
        }
        claimed
    }

    /// Looks a session up; `agent`, where it is given, must be the session's.
    pub(crate) async fn session(&self, user: &UserId, agent: Option<&AgentId>, id: &SessionId) -> Result<Arc<Session>> {
        let key = (user.clone(), id.clone());
        let session = match self.sessions.get(&key) {
            Some(session) => Some(session),
            None => {
                let deletions = self.deletions.load(Ordering::SeqCst);
                self.store()?.session(user, id).await?.map(|record| {
                    let session = Session::new(record);
                    self.sessions.insert(key.clone(), Arc::clone(&session));
                    if self.deletions.load(Ordering::SeqCst) != deletions {
                        self.sessions.invalidate(&key);
                    }
                    session
                })
            }
        };
        session
            .filter(|session| agent.is_none_or(|agent| session.record.scope.agent_id == *agent))
            .ok_or_else(|| no_session(id))
    }

    /// A page of sessions.
    pub(crate) async fn sessions(&self, page: &SessionPage) -> Result<Vec<SessionRecord>> {
        self.store()?.sessions(page).await
    }

    /// Deletes a session, and its workspace with it when that was the session's alone.
    pub(crate) async fn delete_session(&self, user: &UserId, id: &SessionId) -> Result<()> {
        let key = (user.clone(), id.clone());
        let _session_lock = self.session_locks.lock(&key).await;
        let retired = self.store()?.retire_session(user, id).await?;
        self.deletions.fetch_add(1, Ordering::SeqCst);
        self.sessions.invalidate(&key);
        match retired {
            Retired::Unknown => Err(no_session(id)),
            Retired::Done(_) => Ok(()),
            Retired::Orphaned(workspace) => match self.destroy_orphan(&workspace, user, id).await {
                // The session is gone all the same, and trying again would not help.
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::warn!(%workspace, "the manager can not destroy: a workspace without a session was left");
                    Ok(())
                }
                answer => answer,
            },
        }
    }

    /// Destroys a workspace unless somebody joined it since the last session was deleted.
    async fn destroy_orphan(&self, workspace: &WorkspaceId, user: &UserId, id: &SessionId) -> Result<()> {
        let _lock = self.workspace_locks.lock(workspace).await;
        match self.store()?.retire_session(user, id).await? {
            Retired::Orphaned(_) => self.destroy_locked(workspace).await,
            Retired::Unknown | Retired::Done(_) => Ok(()),
        }
    }

    /// Opens the workspace of a session.
    pub(crate) async fn open(&self, session: &Session) -> Result<OpenedWorkspace> {
        let SessionRecord { scope, workspace_id, .. } = &session.record;
        let handle = self.open_scope(scope, workspace_id, Some(session)).await?;
        let lost = self.tell(session, &handle).await?;
        Ok(OpenedWorkspace { handle, lost })
    }

    /// Opens a workspace without a session: the one that is named, else that of the scope's session where there is one,
    /// else the policy's.
    pub(crate) async fn open_by_hand(&self, scope: &Scope, named: Option<WorkspaceId>) -> Result<WorkspaceHandle> {
        let id = match named {
            Some(id) => {
                self.check_named(scope, &id).await?;
                id
            }
            None => {
                let session = self.store()?.session(&scope.user_id, &scope.session_id).await?;
                let stored = session.filter(|it| it.scope.agent_id == scope.agent_id).map(|it| it.workspace_id);
                stored.unwrap_or_else(|| self.manager.assign_workspace_id(scope))
            }
        };
        self.open_scope(scope, &id, None).await
    }

    async fn open_scope(&self, scope: &Scope, id: &WorkspaceId, session: Option<&Session>) -> Result<WorkspaceHandle> {
        self.record(scope, id, session).await?;
        let request = GetRequest::new(scope.clone()).with_workspace_id(id.clone());
        let handle = self.manager.get_workspace(&request).await?;
        // It may have been destroyed in between, in which case it was just made anew and has no record.
        if let Err(error) = self.record(scope, id, session).await {
            let mine = IsolationPolicy::PerSession.assign(scope) == *id;
            if error.kind() == ErrorKind::NotFound && mine && handle.opening().outcome.kind == OutcomeKind::Created {
                drop(handle);
                let destroyed = self.manager.destroy(id).await;
                destroyed.unwrap_or_else(|error| tracing::warn!(error = %error.report(), "a workspace was left"));
            }
            return Err(error);
        }
        Ok(handle)
    }

    /// Makes sure that a workspace has a record before it is made.
    async fn record(&self, scope: &Scope, id: &WorkspaceId, session: Option<&Session>) -> Result<()> {
        if self.recorded.contains_key(id) {
            return Ok(());
        }
        let _lock = self.workspace_locks.lock(id).await;
        if session.is_some() && self.store()?.session(&scope.user_id, &scope.session_id).await?.is_none() {
            return Err(no_session(&scope.session_id));
        }
        let record = self.new_record(id, scope, IsolationPolicy::that_assigned(id, scope));
        self.store()?.ensure_workspace(&record, self.allow_foreign_owner).await?;
        self.recorded.insert(id.clone(), ());
        Ok(())
    }

    fn new_record(&self, id: &WorkspaceId, scope: &Scope, policy: Option<IsolationPolicy>) -> WorkspaceRecord {
        WorkspaceRecord::new(id.clone(), scope.clone(), self.manager.backend_kind(), &self.node, policy)
    }

    /// Whether the session has to be told that files were lost.
    async fn tell(&self, session: &Session, handle: &WorkspaceHandle) -> Result<bool> {
        let generation = handle.opening().generation;
        let told = session.told.load(Ordering::Acquire);
        if told != NEVER_TOLD && generation <= told {
            return Ok(false);
        }
        let SessionRecord { scope, workspace_id, .. } = &session.record;
        let store = self.store()?;
        store.note_generation(workspace_id, self.manager.backend_kind(), generation).await?;
        let answer = store.tell_generation(&scope.user_id, &scope.session_id, generation).await?;
        session.told.store(generation, Ordering::Release);
        Ok(answer == Told::Now)
    }

    /// Puts a workspace away.
    pub(crate) async fn close(&self, id: &WorkspaceId, options: CloseOptions) -> Result<()> {
        self.manager.close(id, options).await
    }

    /// Ends a workspace and deletes its data and its record.
    pub(crate) async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        if !self.known(id).await?.is_known() {
            let message = "no workspace of this id is known";
            return Err(Error::new(ErrorKind::NotFound, message).with_code("workspace_not_found").with_workspace(id));
        }
        let _lock = self.workspace_locks.lock(id).await;
        self.destroy_locked(id).await?;
        // What its sessions were told counted the losses of the workspace that is gone.
        self.deletions.fetch_add(1, Ordering::SeqCst);
        self.sessions.invalidate_all();
        Ok(())
    }

    /// The record goes last: a destroy that broke off can be found and tried again.
    async fn destroy_locked(&self, id: &WorkspaceId) -> Result<()> {
        self.recorded.invalidate(id);
        self.manager.destroy(id).await?;
        self.store()?.forget_workspace(id, self.manager.backend_kind()).await
    }

    /// Looks a workspace up from all sides.
    pub(crate) async fn known(&self, id: &WorkspaceId) -> Result<KnownWorkspace> {
        let backend = self.manager.backend_kind();
        Ok(KnownWorkspace {
            cached: self.manager.cached().into_iter().find(|cached| cached.workspace_id == *id),
            found: self.find(id).await?,
            record: self.store()?.workspace(id).await?.into_iter().find(|record| record.backend == backend),
        })
    }

    /// Everything that the cache, the backend and the records know.
    pub(crate) async fn all_known(&self) -> Result<BTreeMap<WorkspaceId, KnownWorkspace>> {
        let mut all: BTreeMap<WorkspaceId, KnownWorkspace> = BTreeMap::new();
        for record in self.store()?.workspaces().await? {
            if record.backend == self.manager.backend_kind() {
                let known = all.entry(record.id.clone()).or_default();
                known.record = Some(record);
            }
        }
        match self.manager.list().try_collect::<Vec<_>>().await {
            Ok(found) => {
                for found in found {
                    let known = all.entry(found.id.clone()).or_default();
                    known.found = Some(found);
                }
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => return Err(error),
        }
        for cached in self.manager.cached() {
            let known = all.entry(cached.workspace_id.clone()).or_default();
            known.cached = Some(cached);
        }
        Ok(all)
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        match self.manager.find(id).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            answer => answer,
        }
    }
}

fn no_session(id: &SessionId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no session `{id}`"))
        .with_code("session_not_found")
        .with_field("session_id")
}
