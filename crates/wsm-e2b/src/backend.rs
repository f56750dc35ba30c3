//! The backend: opens, finds, lists and destroys workspaces that are sandboxes of E2B.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Error, ErrorKind, FoundState, FoundWorkspace, Leftover, LeftoverKind, OpenRequest, Opened,
    Probe, Result, Variables, WorkspaceId,
};

use crate::{
    KIND,
    attach::{Choice, choose},
    config::E2bConfig,
    control::{Control, Listed, Place},
    envd,
    locks::Locks,
    metadata::{self, Read},
    open::Opening,
    sandbox::SECOND_LOOK,
    sandbox::{End, Life},
    workspace::{CAPABILITIES, Kept},
};

/// After so long it is looked again whether what was killed has come back, as a resume under way can make it.
const THIRD_LOOK: Duration = Duration::from_secs(3);
/// How many workspaces a process remembers that it does not hold any more.
const MOST_KNOWN: usize = 50_000;
/// How often a workspace's sandboxes are killed until none is listed any more.
const MOST_KILLS: u32 = 5;

/// Workspaces that are sandboxes of E2B. Made from an [`E2bConfig`].
#[derive(Debug)]
pub struct E2bBackend(Arc<Shared>);

/// What the backend and its workspaces share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: E2bConfig,
    pub(crate) env: Arc<Variables>,
    pub(crate) control: Control,
    pub(crate) place: Place,
    pub(crate) http: reqwest::Client,
    pub(crate) locks: Locks,
    pub(crate) tasks: TaskTracker,
    /// What distinguishes the sandboxes that this process made.
    pub(crate) instance: String,
    /// What this process knows of workspaces that it has had: that they exist, and how new their files are.
    known: Mutex<HashMap<WorkspaceId, Kept>>,
    /// The openings that callers hold.
    lives: Mutex<HashMap<WorkspaceId, Vec<Weak<Life>>>>,
    /// Sandboxes whose pause has begun and not succeeded.
    to_be_put_away: Mutex<HashSet<String>>,
}

impl Shared {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.config.timeout_seconds.into())
    }

    pub(crate) fn recall(&self, id: &WorkspaceId) -> Option<Kept> {
        self.known.lock().get(id).cloned()
    }

    pub(crate) fn remember(&self, id: &WorkspaceId, kept: Kept) {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN && !known.contains_key(id) {
            // Of those that nobody holds, only what a sandbox says itself is known from here on.
            let lives = self.lives.lock();
            known.retain(|id, _| lives.contains_key(id));
        }
        known.insert(id.clone(), kept);
    }

    fn forget(&self, id: &WorkspaceId) {
        self.known.lock().remove(id);
    }

    /// Forgets a workspace if it is known by this sandbox.
    pub(crate) fn forget_if(&self, id: &WorkspaceId, sandbox: &str) {
        let mut known = self.known.lock();
        if known.get(id).is_some_and(|kept| kept.sandbox == sandbox) {
            known.remove(id);
        }
    }

    pub(crate) fn add_life(&self, id: &WorkspaceId, life: &Arc<Life>) {
        let mut lives = self.lives.lock();
        let held = lives.entry(id.clone()).or_default();
        held.retain(|life| life.strong_count() > 0);
        held.push(Arc::downgrade(life));
        // Those of ids that nobody asks for any more go by and by.
        if lives.len().is_multiple_of(64) {
            lives.retain(|_, held| held.iter().any(|life| life.strong_count() > 0));
        }
    }

    fn lives_of(&self, id: &WorkspaceId) -> Vec<Arc<Life>> {
        self.lives.lock().get(id).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Ends all openings of a sandbox here.
    pub(crate) fn finish_sandbox(&self, id: &WorkspaceId, sandbox: &str, end: End) {
        self.lives_of(id).iter().filter(|life| life.sandbox == sandbox).for_each(|life| life.finish(end));
    }

    fn finish_all(&self, id: &WorkspaceId, end: End) {
        self.lives_of(id).iter().for_each(|life| life.finish(end));
        self.lives.lock().remove(id);
    }

    pub(crate) fn is_to_be_put_away(&self, sandbox: &str) -> bool {
        self.to_be_put_away.lock().contains(sandbox)
    }

    pub(crate) fn set_to_be_put_away(&self, sandbox: &str, yes: bool) {
        let mut all = self.to_be_put_away.lock();
        if yes {
            all.insert(sandbox.to_owned());
        } else {
            all.remove(sandbox);
        }
    }

    /// All sandboxes that may be a workspace's, whoever made them.
    pub(crate) async fn sandboxes_of(&self, id: &WorkspaceId) -> Result<Vec<Listed>> {
        self.control.list(metadata::WORKSPACE, &metadata::key(id)).await
    }

    pub(crate) fn foreign(id: &WorkspaceId, sandbox: &str) -> Error {
        let message = format!(
            "the sandbox `{sandbox}` of this workspace belongs to another installation of wsm: see `installation`"
        );
        Error::new(ErrorKind::Conflict, message).with_code("foreign_installation").with_backend(KIND).with_workspace(id)
    }

    async fn destroy(self: &Arc<Self>, id: &WorkspaceId) -> Result<()> {
        let _turn = self.locks.turn(id).await;
        let known = self.recall(id).map(|kept| kept.sandbox);
        let mut killed = HashSet::new();
        let mut is_gone = false;
        for round in 0..MOST_KILLS {
            let listed = self.sandboxes_of(id).await?;
            let is_it = |sandbox: &&Listed| Read(&sandbox.metadata).workspace().as_ref() == Some(id);
            let is_ours = |sandbox: &&Listed| Read(&sandbox.metadata).installation() == Some(&self.config.installation);
            let all: Vec<&Listed> = listed.iter().filter(is_it).collect();
            let ours: Vec<&Listed> = all.iter().copied().filter(is_ours).collect();
            if let (Some(foreign), true, 0) = (all.first(), ours.is_empty(), round) {
                return Err(Self::foreign(id, &foreign.id));
            }
            let mut ids: Vec<&str> = ours.iter().map(|sandbox| sandbox.id.as_str()).collect();
            // One that is being copied is in no list.
            if let Some(known) = known.as_deref().filter(|known| round == 0 && !ids.contains(known)) {
                ids.push(known);
            }
            is_gone = ids.is_empty();
            if is_gone {
                break;
            }
            // Nobody who holds it gets anything of it any more.
            self.finish_all(id, End::Destroyed);
            for sandbox in ids {
                self.control.kill(sandbox).await?;
                killed.insert(sandbox.to_owned());
            }
            if round > 0 {
                sleep(Duration::from_millis(200)).await;
            }
        }
        self.finish_all(id, End::Destroyed);
        if !is_gone {
            // A list may be late; whether one is there is asked for itself.
            for sandbox in &killed {
                if self.control.get(sandbox).await?.is_some() {
                    let message =
                        format!("the sandbox `{sandbox}` is there still, although E2B says that it was killed");
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        self.forget(id);
        let shared = Arc::clone(self);
        self.tasks.spawn(async move { shared.look_again(killed).await });
        Ok(())
    }

    /// A resume that was under way can bring back what was killed.
    async fn look_again(&self, killed: HashSet<String>) {
        if killed.is_empty() {
            return;
        }
        sleep(THIRD_LOOK).await;
        for sandbox in killed {
            if let Ok(Some(_)) = self.control.get(&sandbox).await {
                tracing::warn!(sandbox, "a sandbox that was killed had come back; it is killed again");
                let _ = self.control.kill(&sandbox).await;
            }
        }
    }

    /// All workspaces of this installation, and what is superfluous of each.
    async fn survey(&self) -> Result<Vec<(WorkspaceId, Listed, Vec<Listed>)>> {
        let listed = self.control.list(metadata::OWNER, &self.config.installation).await?;
        let mut by_id: BTreeMap<WorkspaceId, Vec<Listed>> = BTreeMap::new();
        for sandbox in listed {
            if let Some(id) = Read(&sandbox.metadata).workspace() {
                by_id.entry(id).or_default().push(sandbox);
            }
        }
        let chosen =
            by_id.into_iter().filter_map(|(id, sandboxes)| match choose(sandboxes, &id, &self.config.installation) {
                Choice::This { chosen, losers } => Some((id, chosen, losers)),
                Choice::None | Choice::Foreign(_) => None,
            });
        Ok(chosen.collect())
    }

    fn found(&self, id: WorkspaceId, sandbox: &Listed) -> FoundWorkspace {
        let state = if sandbox.is_running { FoundState::Running } else { FoundState::Suspended };
        let read = Read(&sandbox.metadata);
        let known = self.recall(&id).filter(|kept| kept.sandbox == sandbox.id).map_or(0, |kept| kept.generation);
        let created = read.created().map(|millis| std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        FoundWorkspace::new(id, state, sandbox.id.clone())
            .with_owner(read.user())
            .with_generation(read.generation().max(known))
            .with_created_at(created.or(sandbox.started_at))
    }
}

impl E2bBackend {
    pub(crate) fn new(config: E2bConfig, control: Control, place: Place) -> Result<Self> {
        let env = Arc::new(config.env.clone());
        Ok(Self(Arc::new(Shared {
            config,
            env,
            control,
            place,
            http: envd::client()?,
            locks: Locks::default(),
            tasks: TaskTracker::new(),
            instance: uuid::Uuid::new_v4().simple().to_string(),
            known: Mutex::default(),
            lives: Mutex::default(),
            to_be_put_away: Mutex::default(),
        })))
    }
}

/// Says where an error happened.
fn place<'a>(operation: &'static str, id: Option<&'a WorkspaceId>) -> impl Fn(Error) -> Error + 'a {
    move |error| {
        let error = error.with_backend(KIND).with_operation(operation);
        match id {
            Some(id) => error.with_workspace(id),
            None => error,
        }
    }
}

#[async_trait]
impl Backend for E2bBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        let id = request.id.clone();
        // On a task of its own: what it has begun to make is found by whoever asks next, not by chance.
        let opening = Opening::new(Arc::clone(&self.0), request);
        let opened = self.0.tasks.spawn(opening.run()).await;
        let opened = opened.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Backend, "the opening ended without a result: this is a bug of wsm"))
        });
        opened.map_err(place("open", Some(&id)))
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        let shared = &self.0;
        let find = async {
            let mut listed = shared.sandboxes_of(id).await?;
            let known = shared.recall(id).map(|kept| kept.sandbox);
            if let (true, Some(known)) = (listed.is_empty(), &known) {
                // One that is being copied is in no list.
                listed.extend(shared.control.get_surely(known, SECOND_LOOK).await?);
            }
            Ok(match choose(listed, id, &shared.config.installation) {
                Choice::This { chosen, .. } => Some(shared.found(id.clone(), &chosen)),
                Choice::None | Choice::Foreign(_) => None,
            })
        };
        find.await.map_err(place("find", Some(id)))
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        stream::once(async {
            let survey = self.0.survey().await.map_err(place("list", None))?;
            let found: Vec<Result<FoundWorkspace>> =
                survey.into_iter().map(|(id, sandbox, _)| Ok(self.0.found(id, &sandbox))).collect();
            Ok::<_, Error>(stream::iter(found))
        })
        .try_flatten()
        .boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        self.0.destroy(id).await.map_err(place("destroy", Some(id)))
    }

    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let survey = self.0.survey().await.map_err(place("leftovers", None))?;
        let leftover = |id: &WorkspaceId, chosen: &Listed, loser: Listed| {
            let state = if loser.is_running { "runs" } else { "is paused" };
            let reason = format!(
                "it {state} beside `{}`, which is the sandbox of its workspace: look at its files first",
                chosen.id
            );
            Leftover::new(LeftoverKind::Sandbox, loser.id, reason).with_workspace(Some(id.clone()))
        };
        let of_one = |(id, chosen, losers): (WorkspaceId, Listed, Vec<Listed>)| {
            losers.into_iter().map(|loser| leftover(&id, &chosen, loser)).collect::<Vec<_>>()
        };
        Ok(survey.into_iter().flat_map(of_one).collect())
    }

    async fn remove_leftover(&self, leftover: &Leftover) -> Result<bool> {
        let (LeftoverKind::Sandbox, Some(id)) = (leftover.kind, &leftover.workspace_id) else { return Ok(false) };
        let shared = &self.0;
        let remove = async {
            let _turn = shared.locks.turn(id).await;
            let listed = shared.sandboxes_of(id).await?;
            let Choice::This { losers, .. } = choose(listed, id, &shared.config.installation) else {
                return Ok(false);
            };
            // One that runs may be used by another replica, or be about to be chosen or discarded by who makes it. It is paused
            // by the next opening, or by its own timeout.
            if !losers.iter().any(|loser| loser.id == leftover.name && !loser.is_running) {
                return Ok(false);
            }
            shared.control.kill(&leftover.name).await?;
            Ok(true)
        };
        remove.await.map_err(place("remove_leftover", Some(id)))
    }

    async fn probe(&self) -> Result<Probe> {
        let shared = &self.0;
        let survey = shared.survey().await.map_err(place("probe", None))?;
        let superfluous: usize = survey.iter().map(|(_, _, losers)| losers.len()).sum();
        let probe = Probe::new(format!("E2B at {}", shared.control.base()))
            .with_fact(format!(
                "the API key works: {} workspaces of installation `{}`",
                survey.len(),
                shared.config.installation
            ))
            .with_fact(format!("template `{}`, looked for when the first sandbox is made", shared.config.template));
        Ok(match superfluous {
            0 => probe,
            count => probe.with_warning(format!("{count} sandboxes are superfluous: `wsm gc` names them")),
        })
    }
}
