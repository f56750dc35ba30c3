//! The adapter that makes file operations of commands only claims what it can do.

use wsm_core::{CachingManager, Capabilities, WorkspaceManager, memory::MemoryConfig};

#[tokio::test]
async fn a_backend_with_files_of_its_own_keeps_them() {
    let manager = CachingManager::builder(MemoryConfig::default()).build().unwrap();
    let expected = Capabilities::NONE.with_spawn(true).with_files(true).with_confined_files(true);
    assert_eq!(manager.capabilities(), expected);
}
