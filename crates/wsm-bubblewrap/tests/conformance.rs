//! The whole suite, over real sandboxes with the real gateway.

mod common;

use std::{path::PathBuf, sync::Arc};

use common::{basedir, gated, kill_sandbox, program, require_bwrap};
use wsm_bubblewrap::{BubblewrapConfig, Network};
use wsm_conformance::{Faults, Subject, Unavailable};
use wsm_core::{Backend, Encoding, WorkspaceId};

/// Ends and loses workspaces as an operator with a shell would.
#[derive(Debug)]
struct Machine(PathBuf);

impl Faults for Machine {
    fn kill(&self, id: &WorkspaceId) -> bool {
        kill_sandbox(id.as_str())
    }

    fn lose_files(&self, id: &WorkspaceId) -> bool {
        kill_sandbox(id.as_str());
        // Whoever opened it first.
        let users = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut places = users.map(|user| user.path().join(Encoding::hash(id.as_str())));
        places.find(|place| place.is_dir()).is_some_and(|place| std::fs::remove_dir_all(place).is_ok())
    }
}

async fn subject() -> Result<Subject, Unavailable> {
    require_bwrap()?;
    let program = program()?;
    let base = basedir();
    let path = base.path().to_owned();
    // Without network unless told otherwise: everything must work there.
    let network = match std::env::var("WSM_TEST_NETWORK").as_deref() {
        Ok("host") => Network::Host,
        _ => Network::None,
    };
    let connect = {
        let path = path.clone();
        move || {
            let config = BubblewrapConfig::new(&path).with_network(network);
            Ok(Arc::new(gated(config, program.clone())?) as Arc<dyn Backend>)
        }
    };
    Ok(Subject::new(connect).with_faults(Machine(path)).keeping(base))
}

wsm_conformance::main!(subject);
