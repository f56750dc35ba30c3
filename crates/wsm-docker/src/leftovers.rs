//! What an installation has made in the engine, and beside it, and nothing needs any more.
//!
//! Everything that wsm makes carries the installation's label from the call that makes it, and a workspace's record is
//! written before anything is made for it. So what has the label and no record was left by a crash.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bollard::{
    models::{ContainerSummary, ImageSummary},
    query_parameters::{
        ListContainersOptionsBuilder, ListImagesOptionsBuilder, ListNetworksOptionsBuilder, ListVolumesOptionsBuilder,
        RemoveImageOptionsBuilder, RemoveVolumeOptionsBuilder,
    },
};
use wsm_core::{Error, ErrorKind, Leftover, LeftoverKind, Result, WorkspaceId};
use wsm_host::{Basedir, blocking, remove_tree};

use crate::{
    client::{Engine, LONG, SHORT, if_found},
    container::{self, LABEL_ATTEMPT, LABEL_BLOCKER, LABEL_ID, LABEL_OWNER},
    hold::{self, Hold},
    image::{self, LABEL_BUILDER, LABEL_IMAGE, LABEL_PACKAGES},
    lock,
    workspace::remove,
};

/// How old must be what only helps to make something, or is made before it: it may be just now.
const YOUNG: Duration = Duration::from_secs(15 * 60);

/// What some engines say in place of an image's name when it has none.
const NO_NAME: &str = "<none>:<none>";

/// An installation and where its things are.
#[derive(Debug)]
pub(crate) struct House<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) base: &'a Arc<Basedir>,
    pub(crate) owner: &'a str,
    /// The network that new containers get, if it is one of wsm's.
    pub(crate) network: Option<&'a str>,
    /// The file that holds the name of the image which new containers get.
    pub(crate) current_image: PathBuf,
    /// Where the directories of sockets are.
    pub(crate) run_directories: PathBuf,
}

impl House<'_> {
    /// What nothing needs.
    ///
    /// # Errors
    ///
    /// As for [`Engine::call`], and what the system says of the basedir.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub(crate) async fn leftovers(&self) -> Result<Vec<Leftover>> {
        // Records are looked at after what was made for them, so that whatever comes in between has one.
        let containers = self.containers().await?;
        let mut found = Vec::new();
        for (container, id) in
            containers.iter().filter_map(|container| Some((container, self.workspace_of(container)?)))
        {
            if let Some(reason) = self.unrecorded(&id).await? {
                found
                    .push(Leftover::new(LeftoverKind::Sandbox, shown_name(container), reason).with_workspace(Some(id)));
            }
        }
        found.extend(self.blockers().await?);
        found.extend(self.volumes().await?);
        found.extend(self.networks(&containers).await?);
        found.extend(self.images().await?);
        found.extend(self.directories(&containers).await?);
        Ok(found)
    }

    /// Removes one of them, unless something needs it by now.
    ///
    /// # Errors
    ///
    /// As for [`leftovers`](Self::leftovers).
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have removed it.
    pub(crate) async fn remove(&self, leftover: &Leftover) -> Result<bool> {
        if !self.leftovers().await?.contains(leftover) {
            return Ok(false);
        }
        let docker = self.engine.docker()?;
        let name = leftover.name.as_str();
        let removed = match leftover.kind {
            LeftoverKind::Sandbox if leftover.workspace_id.is_some() => return self.remove_sandbox(name).await,
            LeftoverKind::Sandbox => remove(self.engine, name).await,
            LeftoverKind::Volume => {
                let options = Some(RemoveVolumeOptionsBuilder::default().build());
                self.engine.call("remove the volume", LONG, docker.remove_volume(name, options)).await
            }
            LeftoverKind::Network => self.engine.call("remove the network", LONG, docker.remove_network(name)).await,
            LeftoverKind::Image => {
                // What is being built may begin with it.
                let Some(_lock) = lock::try_now(&image::lock_file(&self.current_image)).await? else {
                    return Ok(false);
                };
                let options = Some(RemoveImageOptionsBuilder::default().build());
                let removed = docker.remove_image(name, options, None);
                self.engine.call("remove the image", LONG, removed).await.map(drop)
            }
            LeftoverKind::Directory => {
                let path = PathBuf::from(name);
                blocking(move || remove_directory(&path)).await
            }
            _ => return Ok(false),
        };
        match removed {
            Ok(()) => Ok(true),
            // Something began to use it at this moment.
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::PermissionDenied) => Ok(false),
            Err(error) => if_found::<()>(Err(error)).map(|_| true),
        }
    }

    /// Removes a workspace's container by its name, unless an opening of the workspace has begun.
    async fn remove_sandbox(&self, name: &str) -> Result<bool> {
        let containers = self.containers().await?;
        let named = containers.into_iter().find(|container| shown_name(container) == name);
        let named = named.and_then(|named| Some((named.id.clone()?, self.workspace_of(&named)?)));
        let Some((container, id)) = named else { return Ok(true) };
        // An opening writes the record first, and waits then until it can have the workspace, too.
        let (basedir, held) = (PathBuf::from(self.base.path()), id.clone());
        let Some(hold) = blocking(move || Hold::exclude(&basedir, &held)).await? else { return Ok(false) };
        let is_left = self.unrecorded(&id).await?.is_some();
        let removed = match is_left {
            // By what no later container ever has.
            true => remove(self.engine, &container).await,
            false => Ok(()),
        };
        blocking(move || {
            hold.forget();
            Ok(())
        })
        .await?;
        removed.map(|()| is_left)
    }

    /// The workspace that a container is of; none for one that only has the labels of what it was made of, such as a copy of a
    /// workspace that somebody keeps, or a look into an image.
    fn workspace_of(&self, container: &ContainerSummary) -> Option<WorkspaceId> {
        workspace_of(self.owner, container)
    }

    /// All containers with this installation's label.
    async fn containers(&self) -> Result<Vec<ContainerSummary>> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&self.own()).build();
        let listed = self.engine.docker()?.list_containers(Some(options));
        self.engine.call("list the containers", SHORT, listed).await
    }

    /// Containers that helped to start another one, and that nobody has removed then.
    async fn blockers(&self) -> Result<Vec<Leftover>> {
        let filters = HashMap::from([("label", vec![format!("{LABEL_BLOCKER}={}", self.owner)])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.engine.docker()?.list_containers(Some(options));
        let listed = self.engine.call("list the containers", SHORT, listed).await?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_old = |container: &ContainerSummary| {
            let created = container.created.and_then(|seconds| u64::try_from(seconds).ok());
            now.saturating_sub(Duration::from_secs(created.unwrap_or(0))) > YOUNG
        };
        let reason = "it helped to start another one";
        let leftover = |container| Leftover::new(LeftoverKind::Sandbox, shown_name(&container), reason);
        Ok(listed.into_iter().filter(is_old).map(leftover).collect())
    }

    async fn volumes(&self) -> Result<Vec<Leftover>> {
        let mut filters = self.own();
        filters.insert("dangling", vec!["true".to_owned()]);
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let listed = self.engine.call("list the volumes", SHORT, self.engine.docker()?.list_volumes(Some(options)));
        let volumes = listed.await?.volumes.unwrap_or_default();
        let leftover = |volume: bollard::models::Volume| {
            Leftover::new(LeftoverKind::Volume, volume.name, "no container has it")
                .with_workspace(labelled_id(Some(&volume.labels)))
        };
        Ok(volumes.into_iter().map(leftover).collect())
    }

    async fn networks(&self, containers: &[ContainerSummary]) -> Result<Vec<Leftover>> {
        let options = ListNetworksOptionsBuilder::default().filters(&self.own()).build();
        let listed = self.engine.call("list the networks", SHORT, self.engine.docker()?.list_networks(Some(options)));
        let networks: Vec<String> = listed.await?.into_iter().filter_map(|network| network.name).collect();
        let used: HashSet<&String> = containers
            .iter()
            .filter_map(|container| container.network_settings.as_ref()?.networks.as_ref())
            .flat_map(HashMap::keys)
            .collect();
        let has_workspaces = {
            let base = Arc::clone(self.base);
            blocking(move || base.list()).await.map(|records| !records.is_empty())?
        };
        let leftover = |name: String| {
            let reason = match self.network {
                Some(current) if current == name => (!has_workspaces).then_some("there is no workspace"),
                _ => Some("workspaces no longer use it"),
            };
            Some(Leftover::new(LeftoverKind::Network, name, reason?))
        };
        Ok(networks.into_iter().filter(|name| !used.contains(name)).filter_map(leftover).collect())
    }

    /// Images that people have made of one have its labels, and are theirs. So are further names of one.
    async fn images(&self) -> Result<Vec<Leftover>> {
        let current = {
            let path = self.current_image.clone();
            blocking(move || Ok(fs::read_to_string(path).unwrap_or_default())).await?
        };
        let filters = HashMap::from([("label", vec![format!("{LABEL_BUILDER}={}", self.owner)])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        let listed = self.engine.call("list the images", SHORT, self.engine.docker()?.list_images(Some(options)));
        let images = listed.await?;
        if images.is_empty() {
            return Ok(Vec::new());
        }
        // Other installations may use an image that this one has built.
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let listed = self.engine.docker()?.list_containers(Some(options));
        let everybodys = self.engine.call("list the containers", SHORT, listed).await?;
        let used: HashSet<String> = everybodys.into_iter().filter_map(|container| container.image_id).collect();
        let packages = |image: &ImageSummary| image.labels.get(LABEL_PACKAGES).cloned();
        let superseded = |image: &ImageSummary| {
            let name = image::tag_of(image.labels.get(LABEL_IMAGE)?);
            (image.repo_tags.contains(&name) && name != current && !used.contains(&image.id))
                .then(|| Leftover::new(LeftoverKind::Image, name, "another one has taken its place"))
        };
        let needed: HashSet<String> = images
            .iter()
            .filter(|image| image.labels.contains_key(LABEL_IMAGE) && superseded(image).is_none())
            .filter_map(packages)
            .collect();
        let is_building = lock::try_now(&image::lock_file(&self.current_image)).await?.is_none();
        let stage = |image: &ImageSummary| {
            let is_stage = !image.labels.contains_key(LABEL_IMAGE) && image.repo_tags.iter().all(|tag| tag == NO_NAME);
            let is_left = packages(image).is_some_and(|packages| !needed.contains(&packages));
            (is_stage && is_left && !is_building && !used.contains(&image.id)).then(|| {
                Leftover::new(LeftoverKind::Image, image.id.clone(), "it holds packages that no image has any more")
            })
        };
        Ok(images.iter().filter_map(|image| superseded(image).or_else(|| stage(image))).collect())
    }

    async fn directories(&self, containers: &[ContainerSummary]) -> Result<Vec<Leftover>> {
        let label = |container: &ContainerSummary| container.labels.as_ref()?.get(LABEL_ATTEMPT).cloned();
        let attempts: HashSet<String> = containers.iter().filter_map(label).collect();
        let directory = self.run_directories.clone();
        blocking(move || {
            let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
            let is_left = |entry: &fs::DirEntry| {
                let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|made| made.elapsed());
                let is_used = entry.file_name().to_str().is_none_or(|attempt| attempts.contains(attempt));
                !is_used && age.is_ok_and(|age| age.is_ok_and(|age| age > YOUNG))
            };
            let leftover = |entry: fs::DirEntry| {
                let path = entry.path().to_string_lossy().into_owned();
                Leftover::new(LeftoverKind::Directory, path, "its container is gone")
            };
            let all = entries(directory).flat_map(|workspace| entries(workspace.path()));
            Ok(all.filter(is_left).map(leftover).collect())
        })
        .await
    }

    /// Why nothing needs what was made for a workspace; none where it has a record.
    async fn unrecorded(&self, id: &WorkspaceId) -> Result<Option<&'static str>> {
        let (base, id) = (Arc::clone(self.base), id.clone());
        blocking(move || Ok(base.read(&id)?.is_none().then_some("its workspace has no record"))).await
    }

    fn own(&self) -> HashMap<&'static str, Vec<String>> {
        HashMap::from([("label", vec![format!("{LABEL_OWNER}={}", self.owner)])])
    }
}

/// Removes the files of what is held by nobody. Blocks.
pub(crate) fn sweep_holds(base: &Basedir) {
    hold::sweep(Path::new(base.path()), |_| false);
}

fn remove_directory(path: &Path) -> Result<()> {
    let failed = |cause: std::io::Error| {
        Error::new(ErrorKind::Backend, format!("`{}` can not be removed", path.display())).with_source(cause)
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = fs::File::open(parent).map_err(failed)?.into();
    remove_tree(&parent, name).map_err(|errno| failed(errno.into()))?;
    let _ = path.parent().map(fs::remove_dir);
    Ok(())
}

fn labelled_id(labels: Option<&HashMap<String, String>>) -> Option<WorkspaceId> {
    WorkspaceId::new(labels?.get(LABEL_ID)?).ok()
}

/// The workspace of an installation that a container is of: it has the label, and the name that goes with it.
pub(crate) fn workspace_of(owner: &str, container: &ContainerSummary) -> Option<WorkspaceId> {
    let id = labelled_id(container.labels.as_ref())?;
    (shown_name(container) == container::name(owner, &id)).then_some(id)
}

/// What people know a container by.
fn shown_name(container: &ContainerSummary) -> String {
    let name = container.names.as_ref().and_then(|names| names.first());
    let name = name.map(|name| name.trim_start_matches('/').to_owned());
    name.or_else(|| container.id.clone()).unwrap_or_default()
}
