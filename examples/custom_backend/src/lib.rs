//! A backend of one's own: a directory for each workspace, plain child processes in it, and an index in memory.
#![expect(clippy::expect_used, reason = "what was asked to be a pipe is one")]

use std::{collections::BTreeMap, fs, path::PathBuf, process::Stdio, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use wsm_core::*;

const CAPABILITIES: Capabilities = Capabilities::NONE.with_shell(true).with_node_bound(true);

/// Workspaces below a directory. Clones share the index.
#[derive(Debug, Clone)]
pub struct Directories(pub PathBuf, pub Arc<Mutex<BTreeMap<WorkspaceId, FoundWorkspace>>>);

#[derive(Debug)]
struct Directory(WorkspaceInfo, std::sync::OnceLock<()>);

#[async_trait]
impl Backend for Directories {
    fn kind(&self) -> &'static str {
        "directories"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn open(&self, request: OpenRequest) -> Result<Opened> {
        let (id, mut index) = (request.id, self.1.lock());
        let path = self.0.join(Encoding::PATH_SEGMENT.encode(id.as_str())).to_string_lossy().into_owned();
        let kind = if index.contains_key(&id) { OutcomeKind::Reattached } else { OutcomeKind::Created };
        let found = FoundWorkspace::new(id.clone(), FoundState::Running, &path);
        let found = index.entry(id.clone()).or_insert(found);
        found.owner = found.owner.take().or(request.owner.clone());
        if request.owner.is_some() && found.owner != request.owner && !request.allow_foreign_owner {
            let error = Error::new(ErrorKind::PermissionDenied, "this workspace belongs to another user");
            return Err(error.with_code(FOREIGN_OWNER));
        }
        fs::create_dir_all(&path)?;
        let directory = Directory(WorkspaceInfo::new(id, self.kind(), path), Default::default());
        Ok(Opened::new(Arc::new(directory), Outcome::new(kind)))
    }

    async fn find(&self, id: &WorkspaceId) -> Result<Option<FoundWorkspace>> {
        Ok(self.1.lock().get(id).cloned())
    }

    fn list(&self) -> BoxStream<'_, Result<FoundWorkspace>> {
        stream::iter(self.1.lock().values().cloned().map(Ok).collect::<Vec<_>>()).boxed()
    }

    async fn destroy(&self, id: &WorkspaceId) -> Result<()> {
        Ok(self.1.lock().remove(id).map_or(Ok(()), |found| fs::remove_dir_all(found.location))?)
    }
}

#[async_trait]
impl Workspace for Directory {
    fn info(&self) -> &WorkspaceInfo {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn exec(&self, command: Command) -> Result<ExecResult> {
        let (started, directory) = (tokio::time::Instant::now(), PathBuf::from(&self.0.workdir));
        let cwd = directory.join(command.cwd.as_deref().unwrap_or("."));
        if self.1.get().is_some() || !directory.exists() {
            return Err(Error::new(ErrorKind::Gone, "this workspace was put away"));
        } else if !cwd.is_dir() {
            return Err(Error::invalid("cwd", "`cwd` is no directory of the workspace"));
        }
        let mut program = tokio::process::Command::new(command.program());
        program.args(&command.argv[1..]).envs(&command.env).current_dir(cwd).kill_on_drop(true);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let code = ["program_not_executable", "program_not_found"][usize::from(missing)];
            Error::invalid("command", "the program can not start").with_code(code).with_source(error)
        })?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut out, mut err) = (Capture::new(command.output_limit), Capture::new(command.output_limit));
        let feed = async { drop(stdin.expect("piped").write_all(&command.stdin).await) };
        let work = async { tokio::join!(feed, keep(stdout, &mut out), keep(stderr, &mut err), child.wait()).3 };
        let status = match tokio::time::timeout(command.timeout.unwrap_or(std::time::Duration::MAX), work).await {
            Err(_) => ExitStatus::TimedOut,
            Ok(ended) => ended?.into(),
        };
        Ok(ExecResult::new(status, out.finish(), err.finish(), started.elapsed()))
    }
}

async fn keep(stream: Option<impl AsyncRead + Unpin>, capture: &mut Capture) {
    let (mut stream, mut buffer) = (stream.expect("piped"), vec![0; 1 << 16]);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        capture.push(&buffer[..count]);
    }
}

#[async_trait]
impl ManagedWorkspace for Directory {
    async fn suspend(&self) -> Result<Option<Checkpoint>> {
        let _ = self.1.set(());
        Ok(None)
    }

    async fn detach(&self) -> Result<()> {
        self.suspend().await.map(drop)
    }

    async fn health(&self) -> Result<Health> {
        let there = fs::exists(&self.0.workdir)?;
        Ok(if there { Health::Alive(None) } else { Health::Dead(Cause::Deleted) })
    }
}
