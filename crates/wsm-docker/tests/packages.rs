//! Packages in the image, from an index that the service's environment names.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener},
    process::Command as Program,
    sync::Arc,
};

use common::{Contained, containers, docker, docker_says, engine, gated, program, unique};
use parking_lot::Mutex;
use wsm_core::{Backend, ErrorKind, LeftoverKind, OpenRequest, WorkspaceExt, WorkspaceId};
use wsm_docker::{DockerConfig, DockerNetwork};

/// A package with one module, so that no index of others is needed.
const WHEEL: &str = "
import io, sys, zipfile
out = io.BytesIO()
with zipfile.ZipFile(out, 'w') as wheel:
    wheel.writestr('wsmdemo.py', 'VALUE = 42')
    wheel.writestr('wsmdemo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: wsmdemo\\nVersion: 1.0\\n')
    wheel.writestr('wsmdemo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('wsmdemo-1.0.dist-info/RECORD', '')
sys.stdout.buffer.write(out.getvalue())
";
const WHEEL_NAME: &str = "wsmdemo-1.0-py3-none-any.whl";
/// What only whoever asks the index should know.
const PASSWORD: &str = "s3cret-of-the-index";

/// Serves an index with that package on the loopback, and keeps what it was asked.
fn serve_index(wheel: Vec<u8>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&asked);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let (status, kind, body) = match head.first().map(String::as_str) {
                Some(line) if line.contains("/simple/wsmdemo/") => {
                    ("200 OK", "text/html", format!("<a href=\"/{WHEEL_NAME}\">{WHEEL_NAME}</a>").into_bytes())
                }
                Some(line) if line.contains(WHEEL_NAME) => ("200 OK", "application/zip", wheel.clone()),
                _ => ("404 Not Found", "text/plain", Vec::new()),
            };
            all.lock().push(head.join("\n"));
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            let _ = stream.write_all(&[answer.into_bytes(), body].concat());
        }
    });
    (port, asked)
}

/// What [`the_index_of_the_environment_is_used_and_not_shown`] runs with other variables.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_an_index() {
    let Some(base) = std::env::var_os("WSM_TEST_INDEX") else { return };
    let backend = |package: &str| {
        let config = DockerConfig::new(&base).with_host(engine().unwrap()).with_network(DockerNetwork::None);
        let config = config.with_node_version("").with_build_network("host").with_extra_pip([package]);
        gated(config, program().unwrap()).unwrap()
    };
    let id = WorkspaceId::new(std::env::var("WSM_TEST_ID").unwrap()).unwrap();
    let open = async |package: &str| backend(package).open(OpenRequest::new(id.clone())).await;
    let error = open("no-such-package").await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "image_failed"), "{error}");
    assert!(error.to_string().contains("no-such-package") && !error.to_string().contains(PASSWORD), "{error}");
    // What no other installation on this engine asks for, so that the images are built by this one.
    let [former, latter] = ["<", "<="].map(|sign| format!("wsmdemo{sign}{}", 2 + std::process::id()));
    open(&former).await.unwrap();
    let earlier = backend(&former);
    assert!(earlier.leftovers().await.unwrap().is_empty(), "what it is built of begins the next building");
    earlier.destroy(&id).await.unwrap();
    let workspace = open(&latter).await.unwrap().workspace;
    // The image with other packages, and the stage in which they were installed.
    let leftovers = earlier.leftovers().await.unwrap();
    let [image, stage] = &leftovers[..] else { panic!("{leftovers:?}") };
    assert!([image, stage].iter().all(|leftover| leftover.kind == LeftoverKind::Image), "{leftovers:?}");
    for leftover in &leftovers {
        assert!(docker(&["image", "inspect", &leftover.name]).status.success(), "{leftover:?}");
        assert!(earlier.remove_leftover(leftover).await.unwrap(), "{leftover:?}");
        assert!(!docker(&["image", "inspect", &leftover.name]).status.success(), "{leftover:?}");
    }
    assert!(earlier.leftovers().await.unwrap().is_empty());
    let value = "python3 -c 'import wsmdemo; print(wsmdemo.VALUE)'; env; command -v pip";
    let said = workspace.sh(value).await.unwrap().stdout.to_text();
    assert!(said.starts_with("42\n") && said.contains("/opt/wsm/venv/bin/pip"), "{said}");
    assert!(!said.contains(PASSWORD) && !said.contains("PIP_INDEX_URL"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_of_the_environment_is_used_and_not_shown() {
    let Some(contained) = Contained::new(|config| config).await else { return };
    let made = docker(&["run", "--rm", "--network", "none", "python:3.11-slim", "python3", "-c", WHEEL]);
    assert!(made.status.success(), "{made:?}");
    let (port, asked) = serve_index(made.stdout);
    let id = unique("index");
    let mut service = Program::new(std::env::current_exe().unwrap());
    service.args(["--exact", "a_service_with_an_index", "--nocapture"]);
    service.env("WSM_TEST_INDEX", contained.base.path()).env("WSM_TEST_ID", &id);
    // Settings of this machine's own would lead elsewhere.
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("PIP_") || name.to_lowercase().ends_with("_proxy"))
    {
        service.env_remove(name);
    }
    service.env("PIP_INDEX_URL", format!("http://wsm:{PASSWORD}@127.0.0.1:{port}/simple"));
    service.env("PIP_RETRIES", "1").env("NO_PROXY", "127.0.0.1");
    let ran = tokio::task::spawn_blocking(move || service.output().unwrap()).await.unwrap();
    let heads = asked.lock().join("\n\n");
    assert!(
        ran.status.success(),
        "{}{}\n{heads}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(heads.to_lowercase().contains("authorization: basic"), "{heads}");
    let image = docker_says(&["inspect", "--format", "{{.Config.Image}}", &containers(&id)[0]]);
    for args in [vec!["history", "--no-trunc", &image], vec!["inspect", &image], vec!["inspect", &containers(&id)[0]]] {
        let shown = docker_says(&args);
        assert!(
            !shown.is_empty() && !shown.contains(PASSWORD) && !shown.contains("PIP_INDEX_URL"),
            "{args:?}: {shown}"
        );
    }
    docker(&["rm", "--force", &containers(&id)[0]]);
    docker(&["rmi", "--force", &image]);
}

/// Where a Debian has all certificates that it trusts, with those of its proxy.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

#[tokio::test(flavor = "multi_thread")]
async fn packages_come_from_the_public_index_behind_a_proxy_of_its_own_authority() {
    let trusting = |config: DockerConfig| {
        let config = config.with_network(DockerNetwork::None).with_node_version("").with_build_network("host");
        config.with_ca_file(BUNDLE).with_extra_pip(["six==1.17.0"])
    };
    let Ok(bundle) = fs::read_to_string(BUNDLE) else {
        println!("skipped: this machine has no {BUNDLE}");
        return;
    };
    let Some(contained) = Contained::new(trusting).await else { return };
    let reach = "import socket; socket.create_connection(('pypi.org', 443), 5)";
    let reached = docker(&["run", "--rm", "--network", "host", "python:3.11-slim", "python3", "-c", reach]);
    if !reached.status.success() {
        let said = String::from_utf8_lossy(&reached.stderr).into_owned();
        println!("skipped: no container reaches pypi.org:443: {}", said.lines().last().unwrap_or_default());
        return;
    }
    let id = unique("public");
    let workspace = contained.open(&id).await;
    let said = workspace.sh("python3 -c 'import six; print(six.__version__)'; echo $SSL_CERT_FILE").await.unwrap();
    assert_eq!(said.stdout.to_text(), "1.17.0\n/usr/local/share/wsm/ca.pem\n", "{said:?}");
    assert_eq!(workspace.read_text("/usr/local/share/wsm/ca.pem", 4 << 20).await.unwrap(), bundle);
    let image = docker_says(&["inspect", "--format", "{{.Config.Image}}", &containers(&id)[0]]);
    contained.backend.destroy(&WorkspaceId::new(&id).unwrap()).await.unwrap();
    docker(&["rmi", "--force", &image]);
}
