//! The whole suite, over real containers with the real gateway.

mod common;

use std::{path::PathBuf, sync::Arc};

use common::{containers, docker, engine, gated, program, tidy_up};
use wsm_conformance::{Faults, Subject, Unavailable};
use wsm_core::{Backend, Encoding, WorkspaceId};
use wsm_docker::{Connect, DockerConfig};

/// Ends and loses workspaces as an operator with a shell would.
#[derive(Debug)]
struct Engine(PathBuf);

impl Faults for Engine {
    fn kill(&self, id: &WorkspaceId) -> bool {
        containers(id.as_str()).iter().any(|container| docker(&["kill", container]).status.success())
    }

    fn lose_files(&self, id: &WorkspaceId) -> bool {
        for container in containers(id.as_str()) {
            docker(&["rm", "--force", &container]);
        }
        std::fs::remove_dir_all(self.0.join(Encoding::PATH_SEGMENT.encode(id.as_str()))).is_ok()
    }
}

/// Removed when the suite has run.
struct Base(tempfile::TempDir);

impl Drop for Base {
    fn drop(&mut self) {
        tidy_up(self.0.path());
    }
}

async fn subject() -> Result<Subject, Unavailable> {
    let (host, program) = (engine()?, program()?);
    let base = Base(tempfile::tempdir().map_err(|error| Unavailable::new("docker", error.to_string()))?);
    let path = base.0.path().to_owned();
    let through = match std::env::var("WSM_TEST_CONNECT").as_deref() {
        Ok("engine") => Connect::Engine,
        _ => Connect::Auto,
    };
    let connect = {
        let path = path.clone();
        move || {
            let config = DockerConfig::new(&path).with_host(&host).with_connect(through);
            Ok(Arc::new(gated(config, program.clone())?) as Arc<dyn Backend>)
        }
    };
    Ok(Subject::new(connect).with_faults(Engine(path)).keeping(base))
}

wsm_conformance::main!(subject);
