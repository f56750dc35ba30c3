//! Which option is at fault when the engine refuses a container.

use wsm_core::{Error, ErrorKind};

use crate::config::{DockerConfig, DockerNetwork};

/// Names the option, where what the engine says tells it.
pub(crate) fn explain(error: Error, config: &DockerConfig) -> Error {
    // What has found its option is not about another one.
    if error.field().is_some() {
        return error;
    }
    let said = error.to_string();
    let invalid = |field: &'static str, message: String| Error::invalid(field, message).with_source(error.clone());
    if let Some((_, path)) = said.split_once("bind source path does not exist: ") {
        let path = path.trim();
        return match config.mounts.iter().find(|mount| mount.source.to_string_lossy() == path) {
            Some(_) => invalid("mounts", format!("`mounts` holds {path}, which the engine's machine does not have")),
            None => {
                let message = format!(
                    "the engine does not see {path}: `basedir` must be a directory of the engine's own machine, at the \
                     same path"
                );
                invalid("basedir", message)
            }
        };
    }
    if config.disk.is_some() && ["storage-opt", "storage opt", "pquota"].iter().any(|word| said.contains(word)) {
        let message = "the engine's storage driver can not limit how large a container grows: leave `disk` out, or have the \
                       engine use one that can, such as `overlay2` on xfs with project quotas";
        return invalid("disk", message.to_owned());
    }
    if config.cpus.is_some() && said.contains("ange of CPUs") {
        return invalid("cpus", "`cpus` is more than the engine's machine has".to_owned());
    }
    if let Some(user) = &config.user
        && (said.contains("unable to find user") || said.contains("unable to find group"))
    {
        let message =
            format!("`user` is `{user}`, which the image does not know: give a number, or a name that it knows");
        return invalid("user", message);
    }
    if let DockerNetwork::Named(name) = &config.network
        && error.kind() == ErrorKind::NotFound
        && said.contains("network")
    {
        return invalid("network", format!("`network` is `{name}`, and the engine has no network of that name"));
    }
    error
}

/// The error about a port that somebody else has.
pub(crate) fn port_taken(port: Option<u16>) -> Error {
    let number = port.map_or_else(String::new, |port| format!(" {port}"));
    let message = format!(
        "`gateway_port`{number} is in use, perhaps by another workspace: give another one, or leave it out, which needs no \
         port"
    );
    Error::new(ErrorKind::Conflict, message).with_field("gateway_port")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExtraMount;

    #[test]
    fn what_the_engine_refuses_is_told_by_the_option() {
        let mut config = DockerConfig::new("/b").with_user("ann").with_network(DockerNetwork::Named("mine".into()));
        config.mounts.push(ExtraMount { source: "/gone".into(), target: "/x".into(), writable: false });
        config.disk = Some(bytesize::ByteSize::gib(1));
        config.cpus = Some(99.0);
        let field = |kind, said: &str| explain(Error::new(kind, said), &config).field();
        let invalid = ErrorKind::InvalidInput;
        let missing = "invalid mount config for type \"bind\": bind source path does not exist: ";
        assert_eq!(field(invalid, &format!("{missing}/gone")), Some("mounts"));
        assert_eq!(field(invalid, &format!("{missing}/b/w")), Some("basedir"));
        assert_eq!(field(ErrorKind::Backend, "--storage-opt is supported only for overlay over xfs"), Some("disk"));
        assert_eq!(field(invalid, "Range of CPUs is from 0.01 to 2.00"), Some("cpus"));
        assert_eq!(field(ErrorKind::Backend, "unable to find user ann: no matching entries"), Some("user"));
        assert_eq!(field(ErrorKind::NotFound, "network mine not found"), Some("network"));
        assert_eq!(field(ErrorKind::Backend, "the sky has fallen"), None);
    }
}
