//! The network on which workspaces reach the outside and not each other.

use std::collections::HashMap;

use bollard::models::NetworkCreateRequest;
use wsm_core::{ErrorKind, Result};

use crate::{
    client::{Engine, SHORT, if_found},
    container::{LABEL_MARK, LABEL_OWNER},
};

/// The name of an installation's network.
pub(crate) fn private(owner: &str) -> String {
    format!("wsm-{}", &owner[..12])
}

/// Makes a network, unless it is there. The engine makes two of one name when it is asked twice at once, so that whoever
/// calls this must hold a lock.
///
/// # Errors
///
/// As for [`Engine::call`].
///
/// # Cancel safety
///
/// A dropped call may have made it.
pub(crate) async fn ensure(engine: &Engine, name: &str, owner: &str) -> Result<()> {
    let found = engine.docker()?.inspect_network(name, None);
    if if_found(engine.call("look at the network", SHORT, found).await)?.is_some() {
        return Ok(());
    }
    let request = NetworkCreateRequest {
        name: name.to_owned(),
        driver: Some("bridge".to_owned()),
        options: Some(HashMap::from([(
            // https://docs.docker.com/engine/network/drivers/bridge/#options
            "com.docker.network.bridge.enable_icc".to_owned(),
            "false".to_owned(),
        )])),
        labels: Some(HashMap::from([
            (LABEL_MARK.to_owned(), "true".to_owned()),
            (LABEL_OWNER.to_owned(), owner.to_owned()),
        ])),
        ..NetworkCreateRequest::default()
    };
    match engine.call("make the network", SHORT, engine.docker()?.create_network(request)).await {
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
        made => made.map(drop),
    }
}
