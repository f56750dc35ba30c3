//! What nothing needs any more is found and removed, and nothing else is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::time::{Duration, SystemTime};

use common::{Contained, containers, docker, docker_says};
use wsm_core::{Backend, Leftover, LeftoverKind, WorkspaceExt, WorkspaceId};
use wsm_docker::DockerNetwork;

fn unique(name: &str) -> String {
    format!("{name}-{}", WorkspaceId::random())
}

fn kinds(leftovers: &[Leftover]) -> Vec<LeftoverKind> {
    let mut kinds: Vec<_> = leftovers.iter().map(|leftover| leftover.kind).collect();
    kinds.sort();
    kinds
}

fn owner(contained: &Contained) -> String {
    std::fs::read_to_string(contained.base.path().join(".wsm/installation")).unwrap()
}

/// Everything in the engine that an installation has made.
fn made_by(owner: &str) -> String {
    let filter = format!("label=wsm.owner={owner}");
    let lists: [&[&str]; 3] = [&["ps", "--all"], &["volume", "ls"], &["network", "ls"]];
    lists.map(|list| docker_says(&[list, &["--quiet", "--filter", &filter]].concat())).join("")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_leaves_is_found_with_a_reason_and_removed() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let backend = &contained.backend;
    let used = unique("used");
    let workspace = contained.open(&used).await;
    assert!(backend.leftovers().await.unwrap().is_empty(), "nothing is left over while all of it is needed");

    let owner = owner(&contained);
    let own = format!("wsm.owner={owner}");
    let lost = unique("lost");
    let id = format!("agentscope.workspace.id={lost}");
    // As a service leaves it that was killed after the record of a workspace was deleted.
    let container = format!("wsm-{}_{lost}", &owner[..8]);
    let create = ["create", "--name", &container, "--label", &own, "--label", &id, "python:3.11-slim", "true"];
    assert!(docker(&create).status.success());
    docker(&["volume", "create", "--label", &own, "--label", &id, &lost]);
    docker(&["network", "create", "--label", &own, &lost]);
    let hash = lost[5..].replace('-', "");
    let image = format!("wsm-workspace:{}", &hash[..16]);
    let change = format!("LABEL wsm.image={hash} wsm.builder={owner}");
    let commit = ["commit", "--change", &change, &container, &image];
    assert!(docker(&commit).status.success());
    let directory = contained.base.path().join(".wsm/run").join(&lost).join("0123");
    std::fs::create_dir_all(&directory).unwrap();
    let young = backend.leftovers().await.unwrap();
    assert!(!kinds(&young).contains(&LeftoverKind::Directory), "it may be of an opening: {young:?}");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::open(&directory).unwrap().set_modified(hour_ago).unwrap();

    // Of another installation, and of nobody.
    let foreign = [unique("foreign"), unique("nobodys")];
    let labels = ["wsm.owner=0123456789abcdef0123456789abcdef", "team=x"];
    let builders = ["wsm.builder=0123456789abcdef0123456789abcdef", "team=x"];
    for ((name, label), builder) in foreign.iter().zip(labels).zip(builders) {
        docker(&[
            "create",
            "--name",
            name,
            "--label",
            label,
            "--label",
            "agentscope.workspace=true",
            "python:3.11-slim",
        ]);
        docker(&["volume", "create", "--label", label, name]);
        docker(&["network", "create", "--label", label, name]);
        let tag = format!("wsm-workspace:{name}");
        docker(&["commit", "--change", &format!("LABEL wsm.image={name} {builder}"), name, &tag]);
    }

    let leftovers = backend.leftovers().await.unwrap();
    let all = [
        LeftoverKind::Sandbox,
        LeftoverKind::Volume,
        LeftoverKind::Network,
        LeftoverKind::Image,
        LeftoverKind::Directory,
    ];
    assert_eq!(kinds(&leftovers), all, "{leftovers:?}");
    assert!(leftovers.iter().all(|leftover| !leftover.reason.is_empty()));
    let sandbox = leftovers.iter().find(|leftover| leftover.kind == LeftoverKind::Sandbox).unwrap();
    assert_eq!((sandbox.name.as_str(), sandbox.workspace_id.clone()), (&*container, WorkspaceId::new(&lost).ok()));
    for leftover in &leftovers {
        assert!(backend.remove_leftover(leftover).await.unwrap(), "{leftover:?}");
        assert!(!backend.remove_leftover(leftover).await.unwrap(), "it is gone: {leftover:?}");
    }
    assert!(backend.leftovers().await.unwrap().is_empty());
    assert!(containers(&lost).is_empty() && !directory.exists());
    assert!(!docker(&["image", "inspect", &image]).status.success());

    assert_eq!(workspace.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
    for name in &foreign {
        let tag = format!("wsm-workspace:{name}");
        let things: [&[&str]; 4] = [
            &["container", "inspect", name],
            &["volume", "inspect", name],
            &["network", "inspect", name],
            &["image", "inspect", &tag],
        ];
        for thing in things {
            assert!(docker(thing).status.success(), "{thing:?} is never touched");
        }
        for (kind, name) in [("container", name), ("volume", name), ("network", name), ("image", &tag)] {
            docker(&[kind, "rm", name]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_make_of_a_workspace_and_its_image_is_theirs() {
    // The engine is used before there is anything of wsm's.
    if Contained::new(|config| config).await.is_none() {
        return;
    }
    let (base, theirs, other) = (unique("base"), unique("theirs"), unique("other"));
    assert!(docker(&["create", "--name", &base, "python:3.11-slim", "true"]).status.success());
    let base_image = format!("wsm-test-own:{}", &base[5..21]);
    docker(&["commit", &base, &base_image]);
    docker(&["rm", &base]);
    let configure = |config: wsm_docker::DockerConfig| config.with_base_image(&base_image);
    let Some(contained) = Contained::new(configure).await else { return };
    let id = unique("copied");
    contained.open(&id).await;
    let workspace = containers(&id).remove(0);
    let image = docker_says(&["inspect", "--format", "{{.Config.Image}}", &workspace]);
    // A look into the image, a copy of a workspace, and what runs from that: all of them have the labels of what they were
    // made of.
    assert!(docker(&["create", "--name", &other, "--entrypoint", "true", &image]).status.success());
    let copy = format!("wsm-test-copy:{}", &base[5..21]);
    assert!(docker(&["commit", "--pause=false", &workspace, &copy]).status.success());
    assert!(docker(&["create", "--name", &theirs, "--entrypoint", "true", &copy]).status.success());
    assert_eq!(contained.backend.leftovers().await.unwrap(), [], "while the workspace is there");
    docker(&["rm", &theirs]);
    assert_eq!(contained.backend.leftovers().await.unwrap(), [], "the copy, which nothing uses");
    docker(&["create", "--name", &theirs, "--entrypoint", "true", &copy]);
    contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
    let left = contained.backend.leftovers().await.unwrap();
    assert!(left.iter().all(|left| left.kind == LeftoverKind::Network), "{left:?}");
    docker(&["rm", &theirs, &other]);
    // One of theirs that is like the present one to the last layer.
    docker(&["tag", &image, &format!("{copy}-tag")]);
    let left = contained.backend.leftovers().await.unwrap();
    assert!(left.iter().all(|left| left.kind == LeftoverKind::Network), "{left:?}");
    for image in [&format!("{copy}-tag"), &copy, &image, &base_image] {
        docker(&["image", "rm", image]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_needed_since_the_list_was_made_stays() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let id = unique("back");
    contained.open(&id).await;
    let record = std::fs::read_dir(contained.base.path().join(".wsm/index")).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    let leftovers = contained.backend.leftovers().await.unwrap();
    assert_eq!(kinds(&leftovers), [LeftoverKind::Sandbox]);
    assert!(!contained.backend.remove_leftover(&leftovers[0]).await.unwrap(), "somebody has it open");
    std::fs::write(&record, text).unwrap();
    assert!(!contained.backend.remove_leftover(&leftovers[0]).await.unwrap());
    assert_eq!(containers(&id).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_removed_is_made_again() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let (first, second) = (unique("first"), unique("second"));
    contained.open(&first).await.suspend().await.unwrap();
    let filter = format!("label=wsm.owner={}", owner(&contained));
    let network = docker_says(&["network", "ls", "--quiet", "--filter", &filter]);
    assert!(docker(&["network", "rm", &network]).status.success());
    let opened = contained.open(&second).await;
    assert_eq!(opened.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
    assert_eq!(contained.open(&first).await.sh("echo works").await.unwrap().stdout.to_text(), "works\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_cycles_leave_nothing() {
    // The engine is used before there is anything of wsm's.
    if Contained::new(|config| config).await.is_none() {
        return;
    }
    let base = unique("base");
    // An image that wants a volume.
    assert!(docker(&["create", "--name", &base, "python:3.11-slim", "true"]).status.success());
    let image = format!("wsm-test-volume:{}", &base[5..21]);
    docker(&["commit", "--change", "VOLUME /var/lib/data", &base, &image]);
    docker(&["rm", &base]);
    for network in [DockerNetwork::None, DockerNetwork::Private] {
        let configure = |config: wsm_docker::DockerConfig| config.with_network(network).with_base_image(&image);
        let Some(contained) = Contained::new(configure).await else { return };
        for round in 0..10 {
            let ids: Vec<String> = (0..5).map(|number| unique(&format!("cycle-{round}-{number}"))).collect();
            let opened = futures::future::join_all(ids.iter().map(|id| contained.open(id))).await;
            futures::future::join_all(
                opened.iter().map(|workspace| workspace.sh("echo x > /var/lib/data/f; echo x > f")),
            )
            .await
            .into_iter()
            .for_each(|written| drop(written.unwrap()));
            // Whatever volume the image makes the engine give it can be told as ours.
            let volumes = r#"{{range .Mounts}}{{if eq .Type "volume"}}{{println .Name}}{{end}}{{end}}"#;
            let volume = docker_says(&["inspect", "--format", volumes, &containers(&ids[0])[0]]);
            let label = docker_says(&["volume", "inspect", "--format", r#"{{index .Labels "wsm.owner"}}"#, &volume]);
            assert_eq!(label, owner(&contained), "{volume}");
            // Some are put away first, and some are ended behind our back.
            opened[0].suspend().await.unwrap();
            docker(&["kill", &containers(&ids[1])[0]]);
            docker(&["rm", "--force", "--volumes", &containers(&ids[2])[0]]);
            let ids: Vec<WorkspaceId> = ids.iter().map(|id| WorkspaceId::new(id).unwrap()).collect();
            let destroyed = futures::future::join_all(ids.iter().map(|id| contained.backend.destroy(id))).await;
            destroyed.into_iter().for_each(Result::unwrap);
        }
        let left = contained.backend.leftovers().await.unwrap();
        assert!(left.iter().all(|left| left.kind == LeftoverKind::Network), "{left:?}");
        for network in &left {
            assert!(contained.backend.remove_leftover(network).await.unwrap());
        }
        let base = contained.base.path();
        for directory in [".wsm/index", ".wsm/trash", ".wsm/places", ".wsm/run", ".wsm/held"] {
            let left = std::fs::read_dir(base.join(directory)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{directory}");
        }
        let workspaces = std::fs::read_dir(base).unwrap().flatten().filter(|entry| entry.file_name() != ".wsm").count();
        assert_eq!(workspaces, 0);
        assert_eq!(made_by(&owner(&contained)), "");
    }
    docker(&["image", "rm", &image]);
}
