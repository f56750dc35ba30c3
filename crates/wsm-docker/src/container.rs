//! What a workspace's container is told: a policy goes in, the engine's words come out. Nothing here talks to an engine.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions,
    RestartPolicy, RestartPolicyNameEnum,
};
use wsm_core::{Encoding, WorkspaceId};

use crate::{
    config::{DockerConfig, DockerNetwork},
    reach::Reach,
};

/// Where workspaces are inside.
pub(crate) const WORKDIR: &str = "/workspace";
/// Where the gateway's socket is inside.
pub(crate) const RUN_DIRECTORY: &str = "/run/wsm";
/// The name of the socket in that directory.
pub(crate) const SOCKET: &str = "gateway.sock";
/// Holds what callers of the gateway must know. It keeps it from all commands.
pub(crate) const TOKEN_VARIABLE: &str = "WSM_GATEWAY_TOKEN";
/// Where the gateway is in the image.
pub(crate) const GATEWAY: &str = "/usr/local/lib/wsm/gateway";

pub(crate) const LABEL_MARK: &str = "agentscope.workspace";
pub(crate) const LABEL_ID: &str = "agentscope.workspace.id";
/// The installation, which is the basedir's.
pub(crate) const LABEL_OWNER: &str = "wsm.owner";
/// The process that made it.
pub(crate) const LABEL_INSTANCE: &str = "wsm.instance";
/// The call that made it.
pub(crate) const LABEL_ATTEMPT: &str = "wsm.attempt";

/// What developers need: installing packages with a manager that changes its user, ports below 1024, other users' files.
const CAPABILITIES: [&str; 9] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID"];

/// Which directory it was made for: another one at the same path is not what it shows.
pub(crate) const LABEL_DIRECTORY: &str = "wsm.directory";

/// How its gateway is reached: `socket`, `engine`, or `port:` and the number.
pub(crate) const LABEL_REACH: &str = "wsm.reach";
/// Which addresses of the outside are to be blocked before anybody is let in.
pub(crate) const LABEL_BLOCKED: &str = "wsm.blocked";

/// Says of a container that only blocks addresses for another one which installation made it. It is no workspace, so it has not
/// the label of those.
pub(crate) const LABEL_BLOCKER: &str = "wsm.blocker";

/// The name of a workspace's container: two installations may use one engine, and have workspaces of one id.
pub(crate) fn name(owner: &str, id: &WorkspaceId) -> String {
    let prefix = format!("wsm-{}_", &owner[..8]);
    format!("{prefix}{}", Encoding::LABEL.with_prefix_of(prefix.len()).encode(id.as_str()))
}

/// What a container is to be like.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub(crate) config: &'a DockerConfig,
    pub(crate) id: &'a WorkspaceId,
    pub(crate) image: &'a str,
    /// The directories that the image wants on volumes.
    pub(crate) volumes: &'a [String],
    /// As whom commands run, as the engine takes it.
    pub(crate) user: &'a str,
    /// The workspace's directory on the host.
    pub(crate) directory: &'a str,
    /// Which directory that is.
    pub(crate) identity: &'a str,
    /// The directory of the socket on the host; none where the engine is elsewhere.
    pub(crate) run_directory: Option<&'a str>,
    /// How the gateway is reached.
    pub(crate) reach: &'a Reach,
    /// The addresses to be blocked.
    pub(crate) blocked: &'a str,
    /// The network's name or mode.
    pub(crate) network: &'a str,
    pub(crate) token: &'a str,
    /// What the first process is told, before what this adds.
    pub(crate) args: &'a [String],
    pub(crate) owner: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) attempt: &'a str,
}

/// Puts a policy in the engine's words.
pub(crate) fn body(policy: &Policy<'_>) -> ContainerCreateBody {
    let Policy { config, id, .. } = policy;
    let mut labels: BTreeMap<String, String> = config.labels.clone();
    let reach = policy.reach.to_label();
    for (name, value) in [
        (LABEL_MARK, "true"),
        (LABEL_ID, id.as_str()),
        (LABEL_OWNER, policy.owner),
        (LABEL_INSTANCE, policy.instance),
        (LABEL_ATTEMPT, policy.attempt),
        (LABEL_DIRECTORY, policy.identity),
        (LABEL_REACH, &reach),
        // Also when there are none: an image may have that label.
        (LABEL_BLOCKED, policy.blocked),
    ] {
        labels.insert(name.to_owned(), value.to_owned());
    }
    let mut env: BTreeMap<&str, &str> = BTreeMap::from([("HOME", WORKDIR)]);
    env.extend(config.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env.insert(TOKEN_VARIABLE, policy.token);
    let socket = format!("{RUN_DIRECTORY}/{SOCKET}");
    let (option, place) = match policy.reach {
        Reach::Port(port) => ("--port", port.to_string()),
        Reach::Socket(_) | Reach::Engine => ("--socket", socket),
    };
    let own = [option, &place, "--token", "--id", id.as_str(), "--workdir", WORKDIR];
    let command = policy.args.iter().cloned().chain(own.map(str::to_owned));
    ContainerCreateBody {
        hostname: Some("workspace".to_owned()),
        user: Some(policy.user.to_owned()),
        env: Some(env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()),
        image: Some(policy.image.to_owned()),
        working_dir: Some(WORKDIR.to_owned()),
        entrypoint: Some(vec![GATEWAY.to_owned()]),
        cmd: Some(command.collect()),
        labels: Some(labels.into_iter().collect()),
        stop_signal: Some("SIGTERM".to_owned()),
        // A check that the base image wants would run with the token in its environment.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host(policy)),
        ..ContainerCreateBody::default()
    }
}

fn host(policy: &Policy<'_>) -> HostConfig {
    let config = policy.config;
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let bind = |source: &str, target: &str, read_only| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let mut mounts = vec![bind(policy.directory, WORKDIR, false)];
    // Such directories get volumes in any case, and these have labels by which they are found when they are left.
    let given = |volume: &str| {
        [RUN_DIRECTORY, WORKDIR].contains(&volume) || config.mounts.iter().any(|mount| mount.target == volume)
    };
    mounts.extend(policy.volumes.iter().filter(|volume| !given(volume)).map(|volume| Mount {
        typ: Some(MountType::VOLUME),
        target: Some(volume.clone()),
        volume_options: Some(MountVolumeOptions {
            labels: Some(HashMap::from([
                (LABEL_MARK.to_owned(), "true".to_owned()),
                (LABEL_ID.to_owned(), policy.id.to_string()),
                (LABEL_OWNER.to_owned(), policy.owner.to_owned()),
            ])),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }));
    match policy.run_directory {
        Some(directory) => mounts.push(bind(directory, RUN_DIRECTORY, false)),
        None => mounts.push(Mount {
            typ: Some(MountType::TMPFS),
            target: Some(RUN_DIRECTORY.to_owned()),
            ..Mount::default()
        }),
    }
    mounts.extend(
        config.mounts.iter().map(|mount| bind(&mount.source.to_string_lossy(), &mount.target, !mount.writable)),
    );
    let memory = config.memory.map(|memory| bytes(memory.as_u64()));
    HostConfig {
        mounts: Some(mounts),
        network_mode: Some(policy.network.to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        ipc_mode: Some("private".to_owned()),
        // Whatever is the engine's default: commands could read the token in the variables of another first process.
        init: Some(false),
        memory,
        // Memory and swap together: no swap, which would only make a full workspace slow.
        memory_swap: memory,
        nano_cpus: config.cpus.map(|cpus| (cpus * 1e9).round() as i64),
        pids_limit: config.pids.map(i64::from),
        storage_opt: config.disk.map(|disk| HashMap::from([("size".to_owned(), disk.as_u64().to_string())])),
        // The manager decides what runs when, also after a restart of the engine.
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        // The gateway says little; a command's output never comes here.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "1m".to_owned()),
                ("max-file".to_owned(), "1".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    }
}

/// The mode or name of a network, as the engine takes it. `private` is the name of wsm's own.
pub(crate) fn network_name<'a>(network: &'a DockerNetwork, private: &'a str) -> &'a str {
    match network {
        DockerNetwork::Private => private,
        DockerNetwork::None => "none",
        DockerNetwork::Host => "host",
        DockerNetwork::Named(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_of_a_container() {
        let id = WorkspaceId::new("w 1").unwrap();
        let mut config = DockerConfig::new("/b").with_env("A", "b").with_memory(64 << 20);
        config.cpus = Some(0.5);
        config.disk = Some(bytesize::ByteSize::gib(1));
        config.labels.insert("team".into(), "x".into());
        config.mounts.push(crate::ExtraMount { source: "/opt/data".into(), target: "/data".into(), writable: false });
        let body = body(&Policy {
            config: &config,
            id: &id,
            image: "wsm-workspace:0123",
            volumes: &["/var/lib/data".to_owned(), "/data".to_owned(), WORKDIR.to_owned()],
            user: "1000:1000",
            directory: "/b/w=201",
            identity: "7-8",
            run_directory: Some("/b/.wsm/run/x"),
            reach: &Reach::Socket("/b/.wsm/run/x".into()),
            blocked: "192.0.2.1",
            network: "wsm",
            token: "t0",
            args: &["serve".to_owned()],
            owner: "o",
            instance: "i",
            attempt: "a",
        });
        let text = serde_json::to_string_pretty(&sorted(&serde_json::to_value(body).unwrap())).unwrap();
        assert_eq!(text.trim(), include_str!("../tests/golden/container.json").trim());
        assert_eq!(name("0123456789abcdef", &id), "wsm-01234567_w_201");
    }

    /// Maps of the engine's models have no order.
    fn sorted(value: &serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(map) => {
                let entries: BTreeMap<_, _> = map.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
                serde_json::Value::Object(entries.into_iter().collect())
            }
            other => other.clone(),
        }
    }
}
