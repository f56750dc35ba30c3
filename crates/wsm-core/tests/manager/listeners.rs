//! Who hears of events.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use wsm_core::{
    CachingManager, CloseOptions, ErrorKind, Event, EventListener, WorkspaceId, WorkspaceManager,
    memory::{Effect, Fault, MemoryConfig, MemoryEngine, Operation},
};

use crate::support::{Manager, get, id, settings, unavailable};

/// Panics whatever it hears.
#[derive(Debug)]
struct Careless;

#[expect(clippy::panic, reason = "to panic is what this listener is for")]
impl EventListener for Careless {
    fn event(&self, _: &Event) {
        panic!("a planted panic");
    }

    fn hit(&self, _: &WorkspaceId) {
        panic!("a planted panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_disturbs_nobody() {
    let engine = MemoryEngine::new();
    let builder = CachingManager::builder(MemoryConfig::new(engine.clone())).settings(settings());
    let manager: Manager = Arc::new(builder.listener(Arc::new(Careless)).build().unwrap());
    let work = async {
        for _ in 0..2 {
            drop(get(&manager, "w").await.unwrap());
        }
        engine.plant(Fault::once(Operation::Open, Effect::Fail(unavailable())));
        assert_eq!(get(&manager, "x").await.unwrap_err().kind(), ErrorKind::Unavailable);
        drop(get(&manager, "x").await.unwrap());
        engine.plant(Fault::once(Operation::Suspend, Effect::Fail(unavailable())));
        assert_eq!(manager.close(&id("x"), CloseOptions::default()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        manager.close(&id("x"), CloseOptions::default()).await.unwrap();
        engine.plant(Fault::once(Operation::Destroy, Effect::Panic));
        assert_eq!(manager.destroy(&id("w")).await.unwrap_err().kind(), ErrorKind::Backend);
        manager.destroy(&id("w")).await.unwrap();
        drop(get(&manager, "w").await.unwrap());
        let report = manager.shutdown(Duration::from_secs(1)).await;
        assert_eq!((report.closed, report.failed.len()), (1, 0), "{:?}", report.failed);
    };
    timeout(Duration::from_secs(600), work).await.expect("nothing waits for ever");
    assert_eq!(engine.running(), 0);
}
