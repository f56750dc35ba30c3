//! The whole suite, over the backend of this example.

use std::sync::Arc;

use example_custom_backend::Directories;
use wsm_conformance::{Subject, Unavailable};

async fn subject() -> Result<Subject, Unavailable> {
    let base = tempfile::tempdir().map_err(|error| Unavailable::new("directories", error.to_string()))?;
    let directories = Directories(base.path().to_owned(), Arc::default());
    Ok(Subject::new(move || Ok(Arc::new(directories.clone()))).keeping(base))
}

wsm_conformance::main!(subject);
