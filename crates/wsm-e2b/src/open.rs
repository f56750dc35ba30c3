//! One opening of a workspace: find its sandbox or make one, attach, and see how new its files are.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::future::join;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use wsm_core::{
    Cause, Encoding, Error, ErrorKind, FOREIGN_OWNER, Loss, OpenRequest, Opened, Outcome, OutcomeKind, Result,
    WorkspaceId, WorkspaceInfo,
};

use crate::{
    KIND,
    attach::{Choice, choose},
    backend::Shared,
    control::{Listed, Reached, outcome_is_lost, outcome_is_unknown},
    envd::Daemon,
    error::{Failure, control, creation},
    guest::{ENTERED_ONCE, MARK, Marker, PROBE, Probed},
    metadata::{self, Attempt, Read},
    sandbox::{Attached, Parts, SECOND_LOOK, Sandbox, Trouble},
    workspace::{E2bWorkspace, Kept},
};

/// How often it is looked anew when sandboxes come and go while a workspace is opened.
const MOST_ROUNDS: u32 = 4;
/// After how long a creation whose answer was lost must be seen in a list, if it was carried out.
const SEEN_WITHIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1500)];
/// Within this time who makes a superfluous sandbox looks into it, and kills it if nobody has used it. So it is not paused before.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether it has been killed.
const RIVALS_LOOK: Duration = Duration::from_millis(250);

/// What is said of a sandbox that was paused when its daemon did not answer any more.
const DEAF: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// One opening.
pub(crate) struct Opening {
    shared: Arc<Shared>,
    request: OpenRequest,
    /// What was known of the workspace before: by a checkpoint, or by this process.
    kept: Option<Kept>,
    /// Sandboxes that are listed and not there.
    gone: HashSet<String>,
    /// Sandboxes that this very call has made, which nobody has used.
    made: HashSet<String>,
    /// Whether a creation was begun anew since the service had lost track of one.
    has_begun_anew: bool,
}

/// How a sandbox was come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Creation,
    Attaching,
}

/// How attaching ended.
enum Attempted {
    Opened(Box<Opened>),
    /// It is not there any more, or is going.
    Lost,
}

impl Opening {
    pub(crate) fn new(shared: Arc<Shared>, request: OpenRequest) -> Self {
        Self { shared, request, kept: None, gone: HashSet::new(), made: HashSet::new(), has_begun_anew: false }
    }

    /// # Errors
    ///
    /// As [`wsm_core::Backend::open`] says.
    ///
    /// # Cancel safety
    ///
    /// It is run on a task of its own and never dropped.
    pub(crate) async fn run(mut self) -> Result<Opened> {
        let shared = Arc::clone(&self.shared);
        let _turn = shared.locks.turn(&self.request.id).await;
        let checkpoint = self.request.checkpoint.as_ref().and_then(Kept::of);
        // Whichever knows of newer files.
        self.kept = [checkpoint, shared.recall(&self.request.id)].into_iter().flatten().max_by_key(Kept::marker);
        for round in 0..MOST_ROUNDS {
            let listed = self.look().await?;
            let attempted = match self.choose(listed) {
                Choice::Foreign(sandbox) => return Err(Shared::foreign(&self.request.id, &sandbox)),
                Choice::This { chosen, losers } => {
                    self.put_aside(&losers).await?;
                    self.attach(chosen).await?
                }
                Choice::None => self.create().await?,
            };
            if let Attempted::Opened(opened) = attempted {
                return Ok(*opened);
            }
            sleep(Duration::from_millis(100) * round).await;
        }
        let message = "the sandbox of this workspace comes and goes while it is opened: try again";
        Err(Error::new(ErrorKind::Unavailable, message).with_backend(KIND).with_retry(wsm_core::Retry::Now))
    }

    fn choose(&self, listed: Vec<Listed>) -> Choice {
        choose(listed, &self.request.id, &self.shared.config.installation)
    }

    /// All sandboxes of this workspace. One that is known and not listed is asked for: one that is being copied is in no list.
    async fn look(&self) -> Result<Vec<Listed>> {
        let mut listed = self.shared.sandboxes_of(&self.request.id).await?;
        if let Some(kept) = &self.kept
            && !listed.iter().any(|sandbox| sandbox.id == kept.sandbox)
            && !self.gone.contains(&kept.sandbox)
        {
            listed.extend(self.shared.control.get_surely(&kept.sandbox, SECOND_LOOK).await?);
        }
        listed.retain(|sandbox| !self.gone.contains(&sandbox.id));
        Ok(listed)
    }

    /// Pauses what nobody may use beside the chosen one. Not killed, unless this call has made it: it may hold files that
    /// somebody looks for.
    async fn put_aside(&self, losers: &[Listed]) -> Result<()> {
        for loser in losers {
            if self.made.contains(&loser.id) {
                self.discard(loser).await?;
                continue;
            }
            tracing::warn!(
                workspace_id = %self.request.id,
                sandbox = loser.id,
                "a workspace has more than one sandbox; this one is put aside, and `wsm gc` names it"
            );
            if loser.is_running {
                let shared = Arc::clone(&self.shared);
                let (id, sandbox) = (self.request.id.clone(), loser.id.clone());
                self.shared.tasks.spawn(async move {
                    sleep(SETTLED_WITHIN).await;
                    if let Err(error) = pause_if_superfluous(&shared, &id, &sandbox).await {
                        tracing::warn!(sandbox, error = %error.report(), "a superfluous sandbox could not be paused");
                    }
                });
            }
        }
        Ok(())
    }

    /// Refuses another user, as far as metadata tell.
    fn check_owner(&self, metadata: Read<'_>) -> Result<()> {
        let (Some(owner), Some(asker)) = (metadata.user(), &self.request.owner) else { return Ok(()) };
        if owner == *asker || self.request.allow_foreign_owner { Ok(()) } else { Err(self.foreign_owner()) }
    }

    fn foreign_owner(&self) -> Error {
        Error::new(ErrorKind::PermissionDenied, "the workspace belongs to another user")
            .with_code(FOREIGN_OWNER)
            .with_backend(KIND)
            .with_workspace(&self.request.id)
    }

    async fn attach(&mut self, chosen: Listed) -> Result<Attempted> {
        self.check_owner(Read(&chosen.metadata))?;
        let (control_plane, timeout) = (&self.shared.control, self.shared.timeout());
        let mut connected = control_plane.connect(&chosen.id, timeout, true).await;
        let is_cold = matches!(&connected, Err(Failure::Answer(answer)) if answer.code == DEAF);
        if is_cold {
            // Only a boot from its disk brings it back.
            connected = control_plane.connect(&chosen.id, timeout, false).await;
        }
        let reached = match connected {
            Ok(reached) => reached,
            Err(Failure::Answer(answer)) if answer.status == 404 => {
                // Said once, it may be a delay of the service's. Said twice, it is gone.
                if self.shared.control.get_surely(&chosen.id, SECOND_LOOK).await?.is_none() {
                    self.gone.insert(chosen.id.clone());
                    self.lose(&chosen);
                }
                return Ok(Attempted::Lost);
            }
            Err(Failure::Answer(answer)) if answer.status == 409 && answer.message.contains("being killed") => {
                sleep(SECOND_LOOK).await;
                return Ok(Attempted::Lost);
            }
            Err(failure @ Failure::Garbled(_)) => {
                let error = control(&failure, "attach to the sandbox");
                return Err(Error::new(ErrorKind::Unavailable, error.message()).with_backend(KIND));
            }
            Err(failure) => return Err(control(&failure, "attach to the sandbox")),
        };
        let by = if self.made.contains(&chosen.id) { By::Creation } else { By::Attaching };
        if by == By::Creation && reached.token.is_none() {
            return Err(self.insecure(&chosen.id).await?);
        }
        let mut attempted = self.enter(&chosen, &reached, by).await?;
        if let (Attempted::Opened(opened), true) = (&mut attempted, is_cold) {
            opened.outcome.lost.extend([Loss::Processes, Loss::Memory]);
        }
        Ok(attempted)
    }

    /// A sandbox with files has gone.
    fn lose(&mut self, sandbox: &Listed) {
        let generation = Read(&sandbox.metadata).generation();
        let lost = Kept { sandbox: sandbox.id.clone(), generation, count: 0 };
        let known = self.kept.take().filter(|kept| kept.generation >= generation);
        self.kept = Some(known.unwrap_or(lost));
    }

    fn body(&self, attempt: &str, generation: u64) -> Value {
        let config = &self.shared.config;
        let attempt =
            Attempt { installation: &config.installation, instance: &self.shared.instance, attempt, generation };
        let mut body = json!({
            "templateID": config.template,
            "timeout": config.timeout_seconds,
            "autoPause": true,
            "metadata": metadata::of(&self.request, &attempt, &config.sandbox_metadata),
            "envVars": config.env,
        });
        if let Some(allow) = config.network.allow_internet_access {
            body["allow_internet_access"] = json!(allow);
        }
        let mut network = serde_json::Map::new();
        if let Some(public) = config.network.allow_public_traffic {
            network.insert("allowPublicTraffic".to_owned(), json!(public));
        }
        for (name, places) in [("allowOut", &config.network.allow_out), ("denyOut", &config.network.deny_out)] {
            if !places.is_empty() {
                network.insert(name.to_owned(), json!(places));
            }
        }
        if !network.is_empty() {
            body["network"] = Value::Object(network);
        }
        body
    }

    async fn create(&mut self) -> Result<Attempted> {
        let generation = self.kept.as_ref().map_or(0, |kept| kept.generation + 1);
        // Kept over all tries, so that one whose answer was lost is not made twice.
        let attempt = uuid::Uuid::new_v4().to_string();
        let body = self.body(&attempt, generation);
        let reached = match self.shared.control.create(&body, &attempt).await {
            Ok(reached) => reached,
            Err(failure) if outcome_is_unknown(&failure) => match self.adopt(&attempt).await? {
                // The next look finds it.
                true => return Ok(Attempted::Lost),
                // The key is used up: the next round has another one.
                false if outcome_is_lost(&failure) && !std::mem::replace(&mut self.has_begun_anew, true) => {
                    return Ok(Attempted::Lost);
                }
                false => return Err(creation(&failure, &self.shared.config.template)),
            },
            Err(failure) => return Err(creation(&failure, &self.shared.config.template)),
        };
        if reached.token.is_none() {
            return Err(self.insecure(&reached.id).await?);
        }
        let made = Listed {
            id: reached.id.clone(),
            is_running: true,
            started_at: None,
            end_at: None,
            metadata: serde_json::from_value(body["metadata"].clone()).unwrap_or_default(),
        };
        self.made.insert(made.id.clone());
        // Whoever else makes one now sees this one, or is seen: it is there since it was answered. So the two need not wait
        // for each other.
        let others = self.shared.sandboxes_of(&self.request.id);
        let (opened, listed) = join(self.enter(&made, &reached, By::Creation), others).await;
        match opened {
            Ok(Attempted::Opened(opened)) => self.settle(made, opened, listed?).await,
            Ok(Attempted::Lost) => Ok(Attempted::Lost),
            Err(error) => {
                // Nobody has used it, and nobody shall find half of one.
                if let Err(error) = self.shared.control.kill(&made.id).await {
                    tracing::warn!(sandbox = made.id, error = %error.report(), "a sandbox that could not be used could not be killed");
                }
                Err(error)
            }
        }
    }

    /// Ends one that was made a moment ago and needs no token: whoever learns the id would be let in.
    async fn insecure(&self, sandbox: &str) -> Result<Error> {
        self.shared.control.kill(sandbox).await?;
        let message = "E2B made a sandbox that anybody may enter: no token came back. It was killed again";
        Ok(Error::new(ErrorKind::Backend, message).with_code("insecure_sandbox").with_backend(KIND))
    }

    /// Whether a creation without an answer was carried out.
    async fn adopt(&mut self, attempt: &str) -> Result<bool> {
        for pause in SEEN_WITHIN {
            sleep(pause).await;
            let listed = self.shared.sandboxes_of(&self.request.id).await?;
            if let Some(made) = listed.iter().find(|sandbox| Read(&sandbox.metadata).attempt() == Some(attempt)) {
                self.made.insert(made.id.clone());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sees whether somebody else has made one at the same time, by what is listed since, and agrees with them on one.
    async fn settle(&mut self, made: Listed, opened: Box<Opened>, mut listed: Vec<Listed>) -> Result<Attempted> {
        if !listed.iter().any(|sandbox| sandbox.id == made.id) {
            listed.push(made.clone());
        }
        match self.choose(listed) {
            Choice::This { chosen, losers } if chosen.id == made.id => match self.kept_beside(&made, &losers).await? {
                Some(other) if self.is_unused(&opened).await => {
                    self.discard(&made).await?;
                    self.attach_instead(opened, other).await
                }
                _ => {
                    self.put_aside(&losers).await?;
                    Ok(Attempted::Opened(opened))
                }
            },
            Choice::This { chosen, .. } => {
                if self.is_unused(&opened).await {
                    self.discard(&made).await?;
                } else {
                    // Another one saw this one alone, and has opened it meanwhile.
                    self.made.remove(&made.id);
                    self.shared.forget_if(&self.request.id, &made.id);
                    self.put_aside(std::slice::from_ref(&made)).await?;
                }
                self.attach_instead(opened, chosen).await
            }
            Choice::Foreign(sandbox) => {
                self.discard(&made).await?;
                Err(Shared::foreign(&self.request.id, &sandbox))
            }
            Choice::None => Ok(Attempted::Opened(opened)),
        }
    }

    /// One of those that lose, if its maker keeps it. There was none before this creation, so whoever made it did so at the
    /// same time, and kills it as soon as this one is seen. If that does not happen, this one was in no list yet when its maker
    /// looked, and what was made there may be in use by now.
    async fn kept_beside(&self, made: &Listed, losers: &[Listed]) -> Result<Option<Listed>> {
        let generation = |sandbox: &Listed| Read(&sandbox.metadata).generation();
        let mut rivals = losers.to_vec();
        rivals.retain(|loser| generation(loser) == generation(made));
        let until = Instant::now() + SETTLED_WITHIN;
        // One that was put away already is not killed any more.
        while !rivals.is_empty() && rivals.iter().all(|rival| rival.is_running) && Instant::now() < until {
            sleep(RIVALS_LOOK).await;
            let listed = self.shared.sandboxes_of(&self.request.id).await?;
            rivals = listed.into_iter().filter(|listed| rivals.iter().any(|rival| rival.id == listed.id)).collect();
        }
        Ok(rivals.into_iter().next())
    }

    async fn attach_instead(&mut self, opened: Box<Opened>, other: Listed) -> Result<Attempted> {
        drop(opened);
        self.kept = None;
        self.attach(other).await
    }

    /// Whether nobody else has opened what this call has made, before it has entered it itself or after. What can not be told
    /// is used.
    async fn is_unused(&self, opened: &Opened) -> bool {
        let entered = format!("{}/entered", Probed::home(&opened.workspace.info().workdir));
        let command = wsm_core::Command::from_argv(["cat", &entered]).with_timeout(SECOND_LOOK * 10);
        let Ok(read) = opened.workspace.exec(command).await else { return false };
        read.stdout.bytes == ENTERED_ONCE
    }

    /// Kills what this very call has made and nobody has used.
    async fn discard(&self, made: &Listed) -> Result<()> {
        self.shared.forget_if(&self.request.id, &made.id);
        self.shared.control.kill(&made.id).await
    }

    /// Attaches to a sandbox that runs: one round trip that shows that it can be worked in, and how new its files are.
    async fn enter(&self, sandbox: &Listed, reached: &Reached, by: By) -> Result<Attempted> {
        let shared = &self.shared;
        let daemon = Daemon::new(shared.http.clone(), &shared.place, reached, shared.config.user.clone())
            .map_err(|failure| control(&failure, "say how its sandbox is reached"))?;
        let parts = Parts {
            id: sandbox.id.clone(),
            control: shared.control.clone(),
            daemon,
            env: Arc::clone(&shared.env),
            timeout: shared.timeout(),
        };
        let attached = Arc::new(Sandbox::new(parts));
        let read = Read(&sandbox.metadata);
        let kept = self.kept.clone().filter(|kept| kept.sandbox == sandbox.id);
        // Nobody but who made it a moment ago can have seen one that was never paused and is not known: it may still be
        // about to get its marker.
        let is_fresh = by == By::Creation || (!reached.was_paused && kept.is_none());
        let begin = if is_fresh { Marker { generation: read.generation(), count: 1 }.text() } else { String::new() };
        let claim = match (&self.request.owner, read.user()) {
            (Some(owner), None) => Encoding::hash(owner.as_str()),
            _ => String::new(),
        };
        let ran = match attached.script(PROBE, &[&claim, &begin]).await {
            Ok(ran) => ran,
            // It went while it was entered.
            Err(Trouble::Failed(error)) if error.kind() == ErrorKind::Gone => return Ok(Attempted::Lost),
            Err(Trouble::Answered(Failure::Answer(answer))) if answer.message.contains("error starting process") => {
                return Err(unusable(&answer.message));
            }
            Err(trouble) => return Err(trouble.or_daemon("run a first command")),
        };
        let probed = Probed::read(&ran).map_err(|why| unusable(&why))?;
        if !claim.is_empty() && probed.owner != claim && !self.request.allow_foreign_owner {
            if reached.was_paused {
                // As it was before.
                shared.control.pause(&sandbox.id).await?;
            }
            return Err(self.foreign_owner());
        }
        let (marker, outcome) = self.weigh(&attached, sandbox, &probed, reached.was_paused, by).await?;
        let id = &self.request.id;
        shared.set_to_be_put_away(&sandbox.id, false);
        shared.remember(id, Kept { sandbox: sandbox.id.clone(), generation: marker.generation, count: marker.count });
        shared.add_life(id, &attached.life);
        let info = WorkspaceInfo::new(id.clone(), KIND, probed.workdir.clone()).with_generation(marker.generation);
        let attached = Attached { sandbox: attached, info, has_setsid: probed.has_setsid };
        let workspace = Arc::new(E2bWorkspace::new(attached, Arc::clone(shared)));
        Ok(Attempted::Opened(Box::new(Opened::new(workspace, outcome).with_idle_stop(shared.timeout()))))
    }

    /// Compares the marker with what it should be. One that is missing or lower is one of older files: that is told, counted,
    /// and never silent.
    async fn weigh(
        &self,
        attached: &Sandbox,
        sandbox: &Listed,
        probed: &Probed,
        was_paused: bool,
        by: By,
    ) -> Result<(Marker, Outcome)> {
        let recorded = Read(&sandbox.metadata).generation();
        if by == By::Creation {
            let marker = probed.now.unwrap_or(Marker { generation: recorded, count: 0 });
            let outcome = match &self.kept {
                None => Outcome::new(OutcomeKind::Created),
                Some(_) => Outcome::new(OutcomeKind::Recreated)
                    .with_lost([Loss::Processes, Loss::Memory, Loss::SystemFiles, Loss::WorkspaceFiles])
                    .with_cause(Cause::Deleted),
            };
            return Ok((marker, outcome));
        }
        let expected = self.kept.as_ref().map(Kept::marker);
        let is_current = probed
            .marker
            .is_some_and(|marker| marker.generation >= recorded && expected.is_none_or(|expected| marker >= expected));
        if let (Some(marker), true) = (probed.marker, is_current) {
            let outcome = match was_paused {
                // What ran may be frozen and wake up; what wsm put away was ended before.
                true => Outcome::new(OutcomeKind::Resumed).with_lost([Loss::Processes]).with_cause(Cause::Suspended),
                false => Outcome::new(OutcomeKind::Reattached),
            };
            // What is there, not what should be: on a full disk it stays as it was.
            return Ok((probed.now.unwrap_or(marker), outcome));
        }
        let highest = [probed.marker, expected].into_iter().flatten().max();
        let generation = highest.map_or(recorded, |marker| marker.generation.max(recorded)) + 1;
        let marker = Marker { generation, count: highest.map_or(0, |marker| marker.count) + 1 };
        tracing::warn!(
            workspace_id = %self.request.id,
            sandbox = sandbox.id,
            "the sandbox has woken up with older files than it had"
        );
        let home = Probed::home(&probed.workdir);
        let marked = attached.script(MARK, &[&home, &marker.text()]).await;
        marked.map_err(|trouble| trouble.or_daemon("note that its files were lost"))?;
        let outcome = Outcome::new(OutcomeKind::Recreated)
            .with_lost([Loss::Processes, Loss::Memory, Loss::SystemFiles, Loss::WorkspaceFiles])
            .with_cause(Cause::Unknown);
        Ok((marker, outcome))
    }
}

/// Pauses a sandbox, if it is still one too many.
async fn pause_if_superfluous(shared: &Shared, id: &WorkspaceId, sandbox: &str) -> Result<()> {
    let listed = shared.sandboxes_of(id).await?;
    match choose(listed, id, &shared.config.installation) {
        Choice::This { losers, .. } if losers.iter().any(|loser| loser.id == sandbox && loser.is_running) => {
            shared.control.pause(sandbox).await.map(drop)
        }
        Choice::This { .. } | Choice::None | Choice::Foreign(_) => Ok(()),
    }
}

fn unusable(why: &str) -> Error {
    let message = format!("no command runs in a sandbox of this `template`: does it have `/bin/sh` and `mkdir`? {why}");
    Error::invalid("template", message).with_code("unusable_template").with_backend(KIND)
}
