//! What the tests with a real engine share.

#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout, reason = "each test takes what it needs")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use wsm_conformance::{Layered, Unavailable};
use wsm_core::{Backend, BackendConfig, InitProgram, ManagedWorkspace, OpenRequest, Opened, Result, WorkspaceId};
use wsm_docker::{DockerBackend, DockerConfig};
use wsm_gateway::{GatewayLayer, find_program, load_program};

pub(crate) type Gated = Layered<DockerBackend>;

/// The static program, as `cargo xtask gateway` leaves it.
const BUILT: &str = "../../target/gateway/x86_64-unknown-linux-gnu/gateway/wsm-gateway";
/// The variable that names another engine for tests.
pub(crate) const ENGINE_HOST: &str = "WSM_TEST_DOCKER_HOST";
/// The engine of `cargo xtask setup docker`.
const ENGINE: &str = "unix:///run/wsm-test-docker.sock";

/// The engine for tests, which is never the one of whoever runs them.
pub(crate) fn engine() -> Result<String, Unavailable> {
    let host = std::env::var(ENGINE_HOST).unwrap_or_else(|_| ENGINE.to_owned());
    let answered = Command::new("docker").args(["--host", &host, "version"]).output();
    match answered {
        Ok(output) if output.status.success() => Ok(host),
        _ => Err(Unavailable::new(
            "docker",
            format!("no engine answers at {host}: `cargo xtask setup docker` starts one"),
        )),
    }
}

/// The gateway's program.
pub(crate) fn program() -> Result<InitProgram, Unavailable> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join(BUILT);
    let program = find_program().or_else(|_| load_program(&built));
    program.map_err(|error| Unavailable::new("docker", error.to_string()))
}

/// The backend with the gateway on top.
pub(crate) fn gated(config: DockerConfig, program: InitProgram) -> Result<Gated> {
    Ok(Layered { backend: config.build()?, layer: Arc::new(GatewayLayer::new(program)) })
}

/// The `docker` command, on the engine for tests.
pub(crate) fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(["--host", &engine().unwrap()]).args(args).output().unwrap()
}

/// What the `docker` command prints.
pub(crate) fn docker_says(args: &[&str]) -> String {
    String::from_utf8_lossy(&docker(args).stdout).trim().to_owned()
}

/// The containers of a workspace, running or not.
pub(crate) fn containers(id: &str) -> Vec<String> {
    let filter = format!("label=agentscope.workspace.id={id}");
    docker_says(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter]).lines().map(str::to_owned).collect()
}

/// An id that no other run of a test has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

/// Makes an image with an empty directory, and nothing else.
pub(crate) fn import_empty(host: &str, image: &str) {
    let empty = tempfile::tempdir().unwrap();
    std::fs::create_dir(empty.path().join("etc")).unwrap();
    let archive = empty.path().join("empty.tar");
    let packed = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(empty.path()).arg("etc").status();
    assert!(packed.unwrap().success());
    let imported = Command::new("docker").args(["--host", host, "import"]).arg(&archive).arg(image).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
}

/// Real containers over a directory of their own.
pub(crate) struct Contained {
    pub(crate) base: tempfile::TempDir,
    basedir: PathBuf,
    pub(crate) backend: Gated,
}

impl Contained {
    /// None, said aloud, when there is no engine here. `WSM_REQUIRE=docker` makes that a failure.
    pub(crate) async fn new(configure: impl FnOnce(DockerConfig) -> DockerConfig) -> Option<Self> {
        let (host, program) = match engine().and_then(|host| Ok((host, program()?))) {
            Ok(found) => found,
            Err(unavailable) => {
                let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
                assert!(!required.contains("docker"), "{unavailable:?}");
                println!("skipped: {unavailable:?}");
                return None;
            }
        };
        let base = tempfile::tempdir().unwrap();
        let config = configure(DockerConfig::new(base.path()).with_host(host));
        let basedir = config.basedir.clone();
        Some(Self { base, basedir, backend: gated(config, program).unwrap() })
    }

    pub(crate) async fn open(&self, id: &str) -> Arc<dyn ManagedWorkspace> {
        self.opened(id).await.workspace
    }

    pub(crate) async fn opened(&self, id: &str) -> Opened {
        self.backend.open(OpenRequest::new(WorkspaceId::new(id).unwrap())).await.unwrap()
    }

    pub(crate) fn directory(&self, id: &str) -> PathBuf {
        self.basedir.join(id)
    }
}

/// Removes all of an installation, also after a failed test.
impl Drop for Contained {
    fn drop(&mut self) {
        tidy_up(&self.basedir);
    }
}

/// Removes what an installation has left in the engine for tests.
pub(crate) fn tidy_up(base: &Path) {
    let Ok(owner) = std::fs::read_to_string(base.join(".wsm/installation")) else { return };
    for label in ["wsm.owner", "wsm.blocker"] {
        let filter = format!("label={label}={owner}");
        for id in docker_says(&["ps", "--all", "--quiet", "--filter", &filter]).lines() {
            docker(&["rm", "--force", "--volumes", id]);
        }
    }
    let filter = format!("label=wsm.owner={owner}");
    for id in docker_says(&["network", "ls", "--quiet", "--filter", &filter]).lines() {
        docker(&["network", "rm", id]);
    }
    // Stages of images, which have no name. The images themselves serve other tests, too.
    let filter = format!("label=wsm.builder={owner}");
    for id in docker_says(&["images", "--quiet", "--filter", &filter, "--filter", "dangling=true"]).lines() {
        docker(&["image", "rm", id]);
    }
}
