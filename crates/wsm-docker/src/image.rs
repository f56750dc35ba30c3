//! The image that workspaces are made from: the base, the gateway, and what else the options ask for. Built once for each
//! content, and named by it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{body_full, models::BuildInfo, query_parameters::BuildImageOptionsBuilder};
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tar::{Builder, EntryType, Header};
use tokio::{sync::OnceCell, time::timeout};
use wsm_core::{Encoding, Error, ErrorKind, InitProgram, Progress, Result, Step};
use wsm_host::blocking;

use crate::{
    build_args,
    client::{Engine, SHORT, if_found},
    config::DockerConfig,
    container::{GATEWAY, WORKDIR},
    lock,
};

const REPOSITORY: &str = "wsm-workspace";
/// Says of an image which content it was built of.
pub(crate) const LABEL_IMAGE: &str = "wsm.image";
/// Says of an image which installation built it. Containers have the labels of their image too, so it is not the one by which
/// those of an installation are found.
pub(crate) const LABEL_BUILDER: &str = "wsm.builder";
/// Says of an image, and of the stage of its building in which packages were installed, which packages. What is left of such a
/// stage is an image without a name, which the engine keeps to begin the next building with.
pub(crate) const LABEL_PACKAGES: &str = "wsm.packages";
/// How long a build may take. It may fetch the base, and build packages.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
/// How many lines of a failed build are shown.
const LINES_SHOWN: usize = 12;
/// Where Python packages are in the image.
const ENVIRONMENT: &str = "/opt/wsm/venv";

/// Where the certificates of those whom commands trust are in the image.
const CA_FILE: &str = "/usr/local/share/wsm/ca.pem";
/// Where OpenSSL, curl, Python's clients, Node.js and git look for them.
const CA_VARIABLES: [&str; 6] =
    ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"];

/// What an image is built of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    dockerfile: String,
    has_node: bool,
    /// Names the packages, if there are any.
    packages: Option<String>,
    ca: Option<Bytes>,
    build_network: Option<String>,
    gateway: InitProgram,
    hash: String,
}

impl Recipe {
    /// What the options, the file of certificates that they name, and this gateway make.
    pub(crate) fn new(config: &DockerConfig, ca: Option<&Bytes>, gateway: &InitProgram) -> Self {
        let has_node = !config.node_version.is_empty();
        let mut lines = Vec::new();
        let certificates = || {
            let named = CA_VARIABLES.map(|name| format!("{name}={CA_FILE}")).join(" ");
            [format!("COPY ca.pem {CA_FILE}"), format!("ENV {named}")]
        };
        let packages = (!config.extra_pip.is_empty()).then(|| {
            lines.push(format!("FROM {} AS packages", config.base_image));
            // Whoever the base runs as may not be allowed to write there.
            lines.push("USER 0".to_owned());
            lines.extend(ca.into_iter().flat_map(|_| certificates()));
            lines.extend(build_args::OF_PACKAGES.map(|name| format!("ARG {name}")));
            let packages = config.extra_pip.iter().map(|package| quote(package)).collect::<Vec<_>>().join(" ");
            lines.push(format!(
                "RUN python3 -m venv {ENVIRONMENT} && {ENVIRONMENT}/bin/python -m pip install --no-cache-dir \
                 --disable-pip-version-check --no-input {packages}"
            ));
            let hash = Encoding::hash(&lines.join("\n"));
            // After them, so that who builds makes no difference to what the engine has kept of them.
            lines.push(format!("ARG {}", build_args::BUILDER));
            lines.push(format!("LABEL {LABEL_BUILDER}=${} {LABEL_PACKAGES}={hash}", build_args::BUILDER));
            hash
        });
        lines.push(format!("FROM {}", config.base_image));
        if has_node {
            let node = format!("node:{}-slim", config.node_version);
            lines.push(format!("COPY --from={node} /usr/local/bin/node /usr/local/bin/node"));
            lines.push(format!("COPY --from={node} /usr/local/lib/node_modules /usr/local/lib/node_modules"));
            // Links, which a copy of the files themselves would follow.
            lines.push("COPY links/ /usr/local/bin/".to_owned());
        }
        if packages.is_some() {
            lines.push(format!("COPY --from=packages {ENVIRONMENT} {ENVIRONMENT}"));
            // Before what the base has there, which is the engine's own default where it says nothing.
            lines.push(format!("ENV PATH={ENVIRONMENT}/bin:$PATH"));
        }
        lines.extend(ca.into_iter().flat_map(|_| certificates()));
        lines.push(format!("COPY gateway {GATEWAY}"));
        lines.push(format!("WORKDIR {WORKDIR}"));
        let dockerfile = lines.join("\n") + "\n";
        let trusted = ca.map(|ca| Encoding::hash(&String::from_utf8_lossy(ca))).unwrap_or_default();
        let hash = Encoding::hash(&format!("{dockerfile}{trusted}{}", gateway.hash));
        let (ca, build_network) = (ca.cloned(), config.build_network.clone());
        Self { dockerfile, has_node, packages, ca, build_network, gateway: gateway.clone(), hash }
    }

    /// The image's name.
    pub(crate) fn tag(&self) -> String {
        tag_of(&self.hash)
    }

    /// The archive that the engine builds from. Blocks.
    fn context(&self) -> Result<Bytes> {
        let unreadable = |cause: std::io::Error| {
            let message = format!("the gateway `{}` can not be put into an image", self.gateway.path.display());
            Error::new(ErrorKind::Unavailable, message).with_source(cause)
        };
        let gateway = fs::read(&self.gateway.path).map_err(unreadable)?;
        let mut archive = Builder::new(Vec::new());
        let mut add = |name: &str, mode: u32, content: &[u8]| {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            archive.append_data(&mut header, name, content)
        };
        add("Dockerfile", 0o644, self.dockerfile.as_bytes()).map_err(unreadable)?;
        add("gateway", 0o755, &gateway).map_err(unreadable)?;
        if let Some(ca) = &self.ca {
            add("ca.pem", 0o644, ca).map_err(unreadable)?;
        }
        if self.has_node {
            for (name, script) in [("npm", "npm-cli.js"), ("npx", "npx-cli.js")] {
                let mut header = Header::new_gnu();
                header.set_entry_type(EntryType::Symlink);
                header.set_size(0);
                header.set_mode(0o777);
                let target = format!("../lib/node_modules/npm/bin/{script}");
                archive.append_link(&mut header, format!("links/{name}"), target).map_err(unreadable)?;
            }
        }
        archive.into_inner().map(Bytes::from).map_err(unreadable)
    }
}

/// The name of an image with a certain content.
pub(crate) fn tag_of(hash: &str) -> String {
    format!("{REPOSITORY}:{}", hash.get(..16).unwrap_or(hash))
}

/// A word of a shell's line.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) tag: String,
    /// The directories that it wants on volumes.
    pub(crate) volumes: Vec<String>,
}

/// Builds images, each once however many ask.
#[derive(Debug, Default)]
pub(crate) struct Images(Mutex<HashMap<String, Arc<OnceCell<Image>>>>);

impl Images {
    /// Makes sure that an image is there. `current` is the file that holds the name of the image which the installation
    /// uses; a file beside it is locked while an image is built.
    ///
    /// # Errors
    ///
    /// `unavailable` with code `image_failed` and the last lines of a failed build; what [`Engine::call`] says.
    ///
    /// # Cancel safety
    ///
    /// A dropped call breaks the build off; the next one begins it again, with what the engine has kept of it.
    pub(crate) async fn ensure(
        &self,
        engine: &Engine,
        recipe: &Recipe,
        current: &Path,
        wanted: Wanted<'_>,
    ) -> Result<Image> {
        let cell = Arc::clone(self.0.lock().entry(recipe.hash.clone()).or_default());
        cell.get_or_try_init(|| make(engine, recipe, current, wanted)).await.cloned()
    }

    /// Looks for the image anew the next time.
    pub(crate) fn forget(&self, recipe: &Recipe) {
        self.0.lock().remove(&recipe.hash);
    }
}

/// The file that is locked while an image is built, beside the one that holds its name.
pub(crate) fn lock_file(current: &Path) -> PathBuf {
    current.with_extension("lock")
}

/// For whom an image is built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The installation.
    pub(crate) owner: &'a str,
    /// Who hears how far the build is.
    pub(crate) progress: &'a Progress,
}

async fn make(engine: &Engine, recipe: &Recipe, current: &Path, wanted: Wanted<'_>) -> Result<Image> {
    let tag = recipe.tag();
    let image = match look(engine, &tag).await? {
        Some(image) => image,
        None => {
            // Another process of this installation may build it just now.
            let _lock = lock::wait(lock_file(current), BUILD_LIMIT).await?;
            if look(engine, &tag).await?.is_none() {
                build(engine, recipe, wanted).await?;
            }
            let ended = || failed("the engine ended the build without an image", &[]);
            look(engine, &tag).await?.ok_or_else(ended)?
        }
    };
    let current = current.to_owned();
    blocking(move || {
        // In one step: whoever looks for images of no use must never find it empty.
        let draft = current.with_extension(uuid::Uuid::new_v4().simple().to_string());
        fs::write(&draft, &tag).and_then(|()| fs::rename(&draft, &current)).map_err(|cause| {
            Error::new(ErrorKind::Backend, format!("`{}` can not be written", current.display())).with_source(cause)
        })
    })
    .await?;
    Ok(image)
}

async fn build(engine: &Engine, recipe: &Recipe, Wanted { owner, progress }: Wanted<'_>) -> Result<()> {
    let tag = recipe.tag();
    tracing::info!(tag, "building the image of workspaces");
    let context = {
        let recipe = recipe.clone();
        blocking(move || recipe.context()).await?
    };
    let mut labels = HashMap::from([(LABEL_IMAGE, recipe.hash.as_str()), (LABEL_BUILDER, owner)]);
    labels.extend(recipe.packages.iter().map(|packages| (LABEL_PACKAGES, packages.as_str())));
    let args = build_args::from_environment(recipe.packages.is_some(), owner);
    let options = BuildImageOptionsBuilder::default().t(&tag).rm(true).forcerm(true).labels(&labels).buildargs(&args);
    let options = match &recipe.build_network {
        Some(network) => options.networkmode(network).build(),
        None => options.build(),
    };
    let mut said = engine.docker()?.build_image(options, None, Some(body_full(context)));
    let mut lines = Vec::new();
    let run = async {
        while let Some(info) = said.next().await {
            let BuildInfo { stream, error_detail, status, .. } =
                info.map_err(|error| failed(&engine.error("build the image", error).to_string(), &lines))?;
            if let Some(detail) = error_detail {
                return Err(failed(detail.message.as_deref().unwrap_or("for no reason given"), &lines));
            }
            for line in stream.or(status).iter().flat_map(|text| text.lines()).filter(|line| !line.trim().is_empty()) {
                tracing::debug!(tag, line, "the engine builds");
                progress.report(step(line));
                lines.push(line.to_owned());
                let excess = lines.len().saturating_sub(LINES_SHOWN);
                lines.drain(..excess);
            }
        }
        Ok(())
    };
    let limit = |_| failed(&format!("it did not end within {BUILD_LIMIT:?}"), &[]);
    timeout(BUILD_LIMIT, run).await.map_err(limit)?
}

/// How far a build is, by a line of the engine's such as `Step 3/8 : COPY a b`.
fn step(line: &str) -> Step {
    let numbers = line.strip_prefix("Step ").and_then(|rest| rest.split_once(' ')?.0.split_once('/'));
    let step = Step::new("building the image of workspaces", line.trim());
    match numbers.and_then(|(done, all)| Some((done.parse::<u64>().ok()?, all.parse().ok()?))) {
        // The step that is told of begins only.
        Some((number, all)) => step.with_done(number.saturating_sub(1), all),
        None => step,
    }
}

async fn look(engine: &Engine, tag: &str) -> Result<Option<Image>> {
    let inspected = engine.call("look for the image", SHORT, engine.docker()?.inspect_image(tag)).await;
    Ok(if_found(inspected)?.map(|image| {
        let mut volumes = image.config.and_then(|config| config.volumes).unwrap_or_default();
        volumes.sort();
        Image { tag: tag.to_owned(), volumes }
    }))
}

fn failed(why: &str, lines: &[String]) -> Error {
    let lines = lines.join("\n");
    let message = format!("the image of workspaces could not be built: {}\n{lines}", why.trim());
    Error::new(ErrorKind::Unavailable, message.trim_end()).with_code("image_failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(hash: &str) -> InitProgram {
        InitProgram { path: "/nowhere".into(), hash: hash.into(), args: Vec::new() }
    }

    #[test]
    fn an_image_is_named_by_all_that_it_is_built_of() {
        let base = || DockerConfig::new("/b");
        let recipe = |config: &DockerConfig| Recipe::new(config, None, &gateway("1"));
        let mut with_packages = base();
        with_packages.extra_pip = vec!["numpy==2.0".into(), "it's".into()];
        let recipes = [
            recipe(&base()),
            recipe(&base().with_base_image("debian:12")),
            recipe(&base().with_node_version("22")),
            recipe(&base().with_node_version("")),
            recipe(&with_packages),
            Recipe::new(&base(), None, &gateway("2")),
            Recipe::new(&base(), Some(&Bytes::from("a")), &gateway("1")),
            Recipe::new(&base(), Some(&Bytes::from("b")), &gateway("1")),
        ];
        let tags: std::collections::BTreeSet<_> = recipes.iter().map(Recipe::tag).collect();
        assert_eq!(tags.len(), recipes.len());
        assert_eq!(recipe(&base()).tag(), recipe(&base().with_env("A", "b")).tag(), "only what is in it counts");
        assert_eq!(
            recipe(&base()).dockerfile,
            "FROM python:3.11-slim\n\
             COPY --from=node:20-slim /usr/local/bin/node /usr/local/bin/node\n\
             COPY --from=node:20-slim /usr/local/lib/node_modules /usr/local/lib/node_modules\n\
             COPY links/ /usr/local/bin/\n\
             COPY gateway /usr/local/lib/wsm/gateway\n\
             WORKDIR /workspace\n"
        );
        assert!(recipe(&with_packages).dockerfile.contains(r"'numpy==2.0' 'it'\''s'"));
        let last_stage = recipe(&with_packages).dockerfile.rsplit_once("FROM ").unwrap().1.to_owned();
        assert!(
            last_stage.contains("PATH=/opt/wsm/venv/bin:$PATH\n"),
            "what the base finds is found still: {last_stage}"
        );
        assert!(!last_stage.contains("ARG"), "{last_stage}");
    }

    #[test]
    fn the_archive_holds_the_gateway_and_the_links() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "program").unwrap();
        let gateway = InitProgram { path: file.path().into(), hash: "1".into(), args: Vec::new() };
        let context = Recipe::new(&DockerConfig::new("/b"), None, &gateway).context().unwrap();
        let mut archive = tar::Archive::new(&context[..]);
        let entries: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap().map(|link| link.display().to_string());
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap(), link)
            })
            .collect();
        assert_eq!(entries[1], ("gateway".to_owned(), 0o755, None));
        assert_eq!(entries[2].2.as_deref(), Some("../lib/node_modules/npm/bin/npm-cli.js"));
        assert_eq!(entries.len(), 4);
    }
}
