//! The whole suite, over a temporary directory.

use std::{path::PathBuf, sync::Arc};

use wsm_conformance::{Faults, Subject, Unavailable};
use wsm_core::{Backend, BackendConfig, WorkspaceId};
use wsm_local::LocalConfig;

/// Loses workspaces as an operator with a shell would.
#[derive(Debug)]
struct Disk(PathBuf);

impl Faults for Disk {
    fn lose_files(&self, id: &WorkspaceId) -> bool {
        // The suite asks for ids that no policy assigns, so they lie where such ids do.
        let directory = self.0.join(".wsm/workspaces").join(wsm_core::Encoding::PATH_SEGMENT.encode(id.as_str()));
        std::fs::remove_dir_all(directory).is_ok()
    }
}

async fn subject() -> Result<Subject, Unavailable> {
    let base = tempfile::tempdir().map_err(|error| Unavailable::new("local", error.to_string()))?;
    let path = base.path().to_owned();
    let connect = {
        let path = path.clone();
        move || Ok(Arc::new(LocalConfig::new(&path).build()?) as Arc<dyn Backend>)
    };
    Ok(Subject::new(connect).with_faults(Disk(path)).keeping(base))
}

wsm_conformance::main!(subject);
