//! The whole suite, over a stand-in for the cloud that the official SDKs were driven against; over the cloud itself with
//! `E2B_API_KEY` and `WSM_TEST_E2B_CLOUD=1`, which `cargo xtask it e2b` sets where there is a key.

#![allow(clippy::expect_used, reason = "a fault that can not be made fails the test")]

use std::sync::Arc;

use tokio::runtime::Handle;
use wsm_conformance::{Faults, Subject, Unavailable};
use wsm_core::{Backend, BackendConfig, Encoding, WorkspaceId};
use wsm_e2b::E2bConfig;
use wsm_fake_e2b::{API_KEY, Ending, FakeE2b, Fault, On, Options, What};

/// Makes the stand-in fail.
struct Cloud {
    fake: Arc<FakeE2b>,
    runtime: Handle,
}

impl std::fmt::Debug for Cloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cloud")
    }
}

impl Cloud {
    fn sandboxes(&self, id: &WorkspaceId) -> Vec<String> {
        let key = Encoding::LABEL.encode(id.as_str());
        let all = self.fake.sandboxes().all();
        let is_it = |metadata: &std::collections::BTreeMap<String, String>| {
            metadata.get("agentscope.workspace.id").is_some_and(|value| *value == key)
        };
        all.into_iter().filter(|sandbox| is_it(&sandbox.metadata)).map(|sandbox| sandbox.id).collect()
    }
}

impl Faults for Cloud {
    fn set_unreachable(&self, unreachable: bool) -> bool {
        self.fake.faults().clear();
        if unreachable {
            let lost = What::Lose { applied: false, ending: Ending::Reset };
            self.fake.faults().push(Fault::new(On::Control, lost).always());
        }
        true
    }

    /// What a paused sandbox was, but for its files, is over.
    fn kill(&self, id: &WorkspaceId) -> bool {
        let sandboxes = self.sandboxes(id);
        for sandbox in &sandboxes {
            let paused = tokio::task::block_in_place(|| self.runtime.block_on(self.fake.sandboxes().pause(sandbox)));
            paused.expect("it can be paused");
        }
        !sandboxes.is_empty()
    }

    /// It wakes up as it was before anybody had used it.
    fn lose_files(&self, id: &WorkspaceId) -> bool {
        let sandboxes = self.sandboxes(id);
        for sandbox in &sandboxes {
            self.fake.sandboxes().roll_back(sandbox).expect("it can be rolled back");
        }
        !sandboxes.is_empty()
    }
}

async fn subject() -> Result<Subject, Unavailable> {
    if std::env::var("WSM_TEST_E2B_CLOUD").is_ok_and(|value| value == "1") {
        let config = E2bConfig::default().with_installation("wsm-conformance");
        config.clone().build().map_err(|error| Unavailable::new("e2b", error.report().to_string()))?;
        return Ok(Subject::new(move || Ok(Arc::new(config.clone().build()?) as Arc<dyn Backend>)));
    }
    FakeE2b::check().map_err(|error| Unavailable::new("e2b", error.to_string()))?;
    let mut options = Options::default();
    options.accounts = vec![wsm_fake_e2b::Account::new(API_KEY).max_running(10_000)];
    let fake = FakeE2b::start(options).await.map_err(|error| Unavailable::new("e2b", error.to_string()))?;
    let config =
        E2bConfig::default().with_api_key(API_KEY).with_api_url(fake.api_url()).with_sandbox_url(fake.sandbox_url());
    let fake = Arc::new(fake);
    let faults = Cloud { fake: Arc::clone(&fake), runtime: Handle::current() };
    let connect = move || Ok(Arc::new(config.clone().build()?) as Arc<dyn Backend>);
    Ok(Subject::new(connect).with_faults(faults).keeping(fake))
}

wsm_conformance::main!(subject);
