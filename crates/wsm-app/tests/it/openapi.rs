//! The description of the API is a part of it.

use std::path::Path;

/// `UPDATE_SNAPSHOTS=1 cargo test -p wsm-app` writes the file anew.
#[test]
fn the_document_is_the_committed_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/openapi.json");
    // Through a value, whose keys are in order.
    let document = serde_json::to_value(wsm_app::http::openapi()).unwrap();
    let actual = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == actual, "the API changed: run the tests with UPDATE_SNAPSHOTS=1 and look at the difference");
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let document = serde_json::to_value(wsm_app::http::openapi()).unwrap();
    let paths = document["paths"].as_object().unwrap().values();
    let names: Vec<_> = paths
        .flat_map(|methods| methods.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
}
