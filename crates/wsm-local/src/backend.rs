//! The backend: opens, finds, lists and destroys workspaces below one directory.

use std::{fs::read_to_string, sync::Arc};

use async_trait::async_trait;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use rustix::fs::{Access, AtFlags, CWD, accessat, statfs};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;
use wsm_core::{
    Backend, Capabilities, Cause, Error, ErrorKind, FoundState, FoundWorkspace, Loss, OpenRequest, Opened, Outcome,
    OutcomeKind, Probe, Result, WorkspaceId,
};

use crate::{
    KIND,
    base::{Base, require_openat2},
    blocking::blocking,
    config::LocalConfig,
    error,
    index::{self, Arrival, Index, Record, Settled, Wanted},
    live::{self, Live},
    process::{Environment, Instance, Launcher, Marked, keep_ends_of_children},
    registry::Registry,
    workspace::LocalWorkspace,
};

/// What every workspace of this backend can do.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::NONE
    .with_spawn(true)
    .with_files(true)
    .with_confined_files(true)
    .with_shell(true)
    .with_background(true)
    .with_node_bound(true);

const NO_SANDBOX: &str = "there is no sandbox: commands run as the user of this process, and can do whatever it can";

/// How many records are read at once for a list.
const LIST_CHUNK: usize = 256;

/// Workspaces that are directories of this machine. Made from a [`LocalConfig`].
#[derive(Debug)]
pub struct LocalBackend {
    config: LocalConfig,
    registry: Arc<Registry>,
    /// Ends processes that belong to no open workspace.
    tasks: TaskTracker,
    ready: OnceCell<Ready>,
}

/// What is only known once the basedir is there.
#[derive(Debug)]
struct Ready {
    base: Arc<Base>,
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
                keep_ends_of_children();
                let base = Base::prepare(&config.basedir)?;
                let instance = Instance::new(base.identity())
                    .map_err(|cause| error::io("this process could not be found in `/proc`", cause))?;
                let environment = Environment::new(&config, std::env::vars_os());
                let launcher = Arc::new(Launcher::new(instance, environment, config.kill_grace));
                Ok(Ready { base: Arc::new(base), launcher })
            })
        };
        self.ready.get_or_try_init(prepare).await
    }

    fn found(&self, base: &Base, record: Record, exists: bool) -> FoundWorkspace {
        let state = match (exists, self.registry.is_open(&record.id)) {
            (false, _) => FoundState::Dead,
            (true, true) => FoundState::Running,
            (true, false) => FoundState::Suspended,
        };
        let location = format!("{}/{}", base.path().trim_end_matches('/'), record.path);
        FoundWorkspace::new(record.id, state, location)
            .with_owner(record.owner)
            .with_generation(record.generation)
            .with_created_at(Some(record.created_at))
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
        let known = earlier.as_ref().map(|live| live.identity());
        let wanted = Wanted { id, owner, placement, allow_foreign_owner, known };
        let settled = {
            let base = Arc::clone(base);
            blocking(move || index::settle(&base, wanted)).await?
        };
        let Settled { record, identity, arrival } = settled;

        if let Some(live) = earlier {
            if arrival.is_none() && !live.is_over() {
                let workspace = Arc::new(LocalWorkspace::new(live, Arc::clone(&self.registry)));
                return Ok(Opened::new(workspace, Outcome::new(OutcomeKind::Reattached)));
            }
            // Its directory was deleted, or putting it away was broken off. Nothing of it may run on beside the new one.
            live.end().await?;
            self.registry.remove(&live);
        }
        let outcome = match arrival {
            Some(Arrival::Created) => Outcome::new(OutcomeKind::Created),
            Some(Arrival::Recreated) => Outcome::new(OutcomeKind::Recreated)
                .with_lost([Loss::Processes, Loss::WorkspaceFiles])
                .with_cause(Cause::Deleted),
            None => Outcome::new(OutcomeKind::Resumed).with_lost([Loss::Processes]),
        };
        let live = Arc::new(Live::new(&record, identity, base, launcher));
        self.registry.insert(Arc::clone(&live));
        Ok(Opened::new(Arc::new(LocalWorkspace::new(live, Arc::clone(&self.registry))), outcome))
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        let Ready { base, .. } = self.ready().await?;
        let record = {
            let (base, id) = (Arc::clone(base), id.clone());
            blocking(move || {
                let directory = base.open()?;
                let Some(record) = Index::open(&directory)?.read(&id)? else { return Ok(None) };
                let exists = index::look(&directory, &record.path)?.is_some();
                Ok(Some((record, exists)))
            })
            .await?
        };
        Ok(record.map(|(record, exists)| self.found(base, record, exists)))
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        let list = async {
            let Ready { base, .. } = self.ready().await?;
            let names = {
                let base = Arc::clone(base);
                blocking(move || Index::open(&base.open()?)?.files()).await?
            };
            let chunks: Vec<Vec<String>> = names.chunks(LIST_CHUNK).map(<[String]>::to_vec).collect();
            let records = stream::iter(chunks).then(|chunk| {
                let base = Arc::clone(base);
                blocking(move || read_chunk(&base, &chunk))
            });
            let records = records.map_ok(stream::iter).try_flatten();
            Ok::<_, Error>(records.map_ok(|(record, exists)| self.found(base, record, exists)))
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
            blocking(move || Index::open(&base.open()?)?.read(&id)).await?;
        }
        if let Some(live) = self.registry.get(id) {
            live.end().await?;
            self.registry.remove(&live);
        }
        // Also what another process started there, and what an earlier one left.
        live::hunt(&self.tasks, Marked::AnyInstance(base.identity(), id.clone()), launcher).await?;
        let (base, id) = (Arc::clone(base), id.clone());
        blocking(move || index::vacate(&base, &id)).await
    }

    async fn probe(&self) -> Result<Probe> {
        let basedir = self.config.basedir.clone();
        blocking(move || {
            require_openat2()?;
            let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            let probe = Probe::new(format!("directories of this machine, Linux {}", kernel.trim()))
                .with_fact("`openat2` is available: files are confined to their workspace")
                .with_warning(NO_SANDBOX);
            let shown = basedir.display();
            match basedir.metadata() {
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                    Ok(probe.with_warning(format!("`basedir` {shown} does not exist yet: it is made at the start")))
                }
                Err(cause) => Err(unusable(format!("`basedir` {shown} can not be looked at")).with_source(cause)),
                Ok(metadata) if !metadata.is_dir() => {
                    Err(unusable(format!("`basedir` {shown} is not a directory: give a directory")))
                }
                Ok(_) => {
                    let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
                    accessat(CWD, &basedir, access, AtFlags::EACCESS).map_err(|errno| {
                        let message =
                            format!("`basedir` {shown} can not be written: give it to the user that wsm runs as");
                        unusable(message).with_source(errno)
                    })?;
                    let file_system = statfs(&basedir).map_or("unknown", |stat| file_system_name(stat.f_type as u64));
                    Ok(probe.with_fact(format!("`basedir` is {shown}, on a file system of type {file_system}")))
                }
            }
        })
        .await
    }

    async fn start(&self) -> Result<()> {
        let Ready { base, launcher } = self.ready().await?;
        tracing::warn!(basedir = base.path(), "{NO_SANDBOX}");
        // What can not be tidied up is no reason not to work.
        match live::hunt(&self.tasks, Marked::Strays(base.identity()), launcher).await {
            Ok(0) => {}
            Ok(ended) => tracing::warn!(ended, "ended processes that an earlier run had left"),
            Err(error) => tracing::error!(error = %error.report(), "could not end what an earlier run had left"),
        }
        let base = Arc::clone(base);
        if let Err(error) = blocking(move || index::sweep_trash(&base)).await {
            tracing::warn!(error = %error.report(), "could not delete what an earlier run had left");
        }
        Ok(())
    }
}

/// Reads some records, and whether their directories exist. What can not be read is told in its place.
fn read_chunk(base: &Base, names: &[String]) -> Result<Vec<Result<(Record, bool)>>> {
    let directory = base.open()?;
    let index = Index::open(&directory)?;
    let read = |name: &String| -> Result<Option<(Record, bool)>> {
        let Some(record) = index.read_listed(name)? else { return Ok(None) };
        let exists = index::look(&directory, &record.path)?.is_some();
        Ok(Some((record, exists)))
    };
    Ok(names.iter().filter_map(|name| read(name).transpose()).collect())
}

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_field("basedir")
}

/// The usual file systems, by the magic number that `statfs` gives.
fn file_system_name(magic: u64) -> &'static str {
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        0x2FC1_2FC1 => "zfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        _ => "unknown",
    }
}
