//! A real engine that listens with TLS, and does not see all of this machine's files.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test panics, and a skipped one says why")]

mod common;

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    time::Duration,
};

use common::{engine, gated, import_empty, program, unique};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use wsm_core::{Backend, BackendConfig, Command, ErrorKind, OpenRequest, WorkspaceExt, WorkspaceId};
use wsm_docker::{DockerConfig, DockerNetwork, TlsFiles};

/// The files of one authority: its own certificate, and one for each side.
struct Authority(PathBuf);

impl Authority {
    fn make(place: PathBuf) -> Self {
        fs::create_dir_all(&place).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(place.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for (name, usage) in
            [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
        {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.extended_key_usages.push(usage);
            fs::write(place.join(format!("{name}.pem")), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
            fs::write(place.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        }
        Self(place)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn client(&self) -> TlsFiles {
        TlsFiles::default()
            .with_ca(self.file("ca.pem"))
            .with_client(self.file("client.pem"), self.file("client-key.pem"))
    }
}

/// An engine of its own, on a port of the loopback, that sees an empty directory in place of one of this machine's.
struct Dockerd {
    child: Child,
    port: u16,
}

impl Dockerd {
    fn start(place: &Path, authority: &Authority, hidden: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = |name: &str| place.join(name).display().to_string();
        let log = fs::File::create(place.join("log")).unwrap();
        let mut dockerd = Program::new("unshare");
        dockerd.args(["--mount", "sh", "-c", r#"mount -t tmpfs none "$0" && exec dockerd "$@""#]).arg(hidden);
        dockerd.args(["--host", &format!("tcp://127.0.0.1:{port}"), "--host", &format!("unix://{}", at("sock"))]);
        dockerd.args(["--tlsverify", "--tlscacert"]).arg(authority.file("ca.pem"));
        dockerd
            .arg("--tlscert")
            .arg(authority.file("server.pem"))
            .arg("--tlskey")
            .arg(authority.file("server-key.pem"));
        dockerd.args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")]);
        dockerd.args(["--bridge=none", "--iptables=false", "--ip-forward=false", "--log-level=warn"]);
        dockerd.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        Self { child: dockerd.env("PATH", path).spawn().unwrap(), port }
    }

    async fn wait(&mut self, place: &Path) {
        let log = || fs::read_to_string(place.join("log")).unwrap_or_default();
        for _ in 0..300 {
            let socket = format!("unix://{}", place.join("sock").display());
            let asked = Program::new("docker").args(["--host", &socket, "version"]).output().unwrap();
            if asked.status.success() {
                return;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "{}", log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the engine does not answer: {}", log());
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // So that it ends what it has started.
        let _ = Program::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Why an engine is not reached. It may hang up before its reason could be read, which is told as a doubt.
async fn refused(config: DockerConfig) -> wsm_core::Error {
    let backend = config.build().unwrap();
    for _ in 0..20 {
        let error = backend.probe().await.unwrap_err();
        println!("{error}");
        if error.kind() != ErrorKind::Unavailable {
            return error;
        }
        assert!(error.to_string().contains("does it accept this side's certificate?"), "{error}");
    }
    panic!("it never says why");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_elsewhere_is_reached_by_tls_and_says_what_is_wrong() {
    let host = match engine() {
        Ok(host) if rustix::process::geteuid().is_root() && host.starts_with("unix://") => host,
        found => {
            let required = std::env::var("WSM_REQUIRE").unwrap_or_default();
            assert!(!required.contains("docker"), "{found:?}");
            println!("skipped: it takes root and `cargo xtask setup docker`: {found:?}");
            return;
        }
    };
    let place = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::make(place.path().join("tls")), Authority::make(place.path().join("other")));
    let (seen, hidden) = (place.path().join("seen"), place.path().join("hidden"));
    fs::create_dir(&hidden).unwrap();
    let mut dockerd = Dockerd::start(place.path(), &authority, &hidden);
    dockerd.wait(place.path()).await;
    let elsewhere = |name: &str| format!("tcp://{name}:{}", dockerd.port);
    let plain = DockerConfig::new(&seen).with_host(elsewhere("127.0.0.1"));

    let probe = plain.clone().with_tls(authority.client()).build().unwrap().probe().await.unwrap();
    assert!(format!("{probe:?}").contains(&format!("127.0.0.1:{} answers", dockerd.port)), "{probe:?}");

    let ca = TlsFiles::default().with_ca(authority.file("ca.pem"));
    let foreign = ca.clone().with_client(other.file("client.pem"), other.file("client-key.pem"));
    let stranger = TlsFiles::default().with_ca(other.file("ca.pem"));
    // A socket without TLS, and an engine that expects it.
    let simple = TcpListener::bind("127.0.0.1:0").unwrap();
    let no_tls = format!("tcp://{}", simple.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = simple.accept() {
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for (config, said) in [
        (plain.clone(), "give `tls`"),
        (plain.clone().with_tls(ca), "give `tls.cert` and `tls.key`"),
        (plain.clone().with_tls(foreign), "refuses this side's certificate"),
        (plain.clone().with_tls(stranger), "`tls.ca`"),
        (plain.clone().with_tls(TlsFiles::default()), "`tls.ca`"),
        (plain.clone().with_host(elsewhere("localhost")).with_tls(authority.client()), "another name"),
        (plain.clone().with_host(no_tls).with_tls(authority.client()), "does not speak TLS"),
    ] {
        let error = refused(config).await;
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("tls")), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let mixed = TlsFiles::default().with_ca(authority.file("ca.pem"));
    let mixed = mixed.with_client(authority.file("client.pem"), other.file("client-key.pem"));
    let error = plain.clone().with_tls(mixed).build().unwrap_err();
    assert_eq!(error.field(), Some("tls"), "{error}");

    // Commands are reached through the engine: nothing of this machine but the basedir is shared with it.
    let image = format!("{}:none", unique("wsm-test-tls").to_lowercase());
    import_empty(&format!("unix://{}", place.path().join("sock").display()), &image);
    let tiny = plain.with_base_image(&image).with_node_version("").with_network(DockerNetwork::None);
    let tiny = tiny.with_tls(authority.client());
    let backend = gated(tiny.clone(), program().unwrap()).unwrap();
    let id = WorkspaceId::new(unique("afar")).unwrap();
    let workspace = backend.open(OpenRequest::new(id.clone())).await.unwrap().workspace;
    workspace.write_bytes("f", vec![7; 1 << 20].into()).await.unwrap();
    assert_eq!(workspace.read_bytes("f", 2 << 20).await.unwrap().len(), 1 << 20);
    assert_eq!(fs::metadata(seen.join(id.as_str()).join("f")).unwrap().len(), 1 << 20, "it sees the basedir");
    let ran = workspace.exec(Command::new("/usr/local/lib/wsm/gateway").arg("version")).await.unwrap();
    assert!(ran.stdout.to_text().starts_with("wsm-gateway"), "{ran:?}");
    backend.destroy(&id).await.unwrap();

    let mut blind = tiny;
    blind.basedir = hidden.join("base");
    let backend = gated(blind, program().unwrap()).unwrap();
    let error = backend.open(OpenRequest::new(id.clone())).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("basedir")), "{error}");
    assert!(error.to_string().contains("does not see"), "{error}");
    assert_eq!(fs::read_dir(hidden.join("base/.wsm/run")).map_or(0, Iterator::count), 0);
    drop((dockerd, host));
}

/// What [`addresses_of_the_docker_command_are_understood`] runs with other variables.
#[tokio::test]
async fn an_engine_by_the_environment() {
    let Ok(expected) = std::env::var("WSM_TEST_EXPECTED") else { return };
    let said = match DockerConfig::new("/nowhere").build() {
        Ok(backend) => format!("{backend:?}"),
        Err(error) => format!("{:?}: {error}", error.field()),
    };
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn addresses_of_the_docker_command_are_understood() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::make(place.path().to_owned());
    let (home, certificates) = (place.path().join("home"), place.path().join("certificates"));
    fs::create_dir_all(home.join("contexts/meta/0a")).unwrap();
    fs::create_dir_all(home.join("contexts/tls/0a/docker")).unwrap();
    fs::create_dir_all(&certificates).unwrap();
    fs::copy(authority.file("ca.pem"), certificates.join("ca.pem")).unwrap();
    fs::copy(authority.file("ca.pem"), home.join("contexts/tls/0a/docker/ca.pem")).unwrap();
    let meta = r#"{"Name":"far","Endpoints":{"docker":{"Host":"tcp://192.0.2.7:2376","SkipTLSVerify":false}}}"#;
    fs::write(home.join("contexts/meta/0a/meta.json"), meta).unwrap();
    let certificates = certificates.display().to_string();
    let (host, verify, path) = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH");
    for (variables, expected) in [
        (vec![(host, "tcp://192.0.2.1")], "tcp://192.0.2.1:2375\", tls: None"),
        (vec![(host, "tcp://192.0.2.1"), (verify, "1"), (path, &certificates)], "tcp://192.0.2.1:2376\", tls: Some"),
        (vec![(host, "tcp://192.0.2.1"), (verify, ""), (path, &certificates)], "tcp://192.0.2.1:2375\", tls: None"),
        (vec![(host, "tcp://192.0.2.1"), (verify, "1")], "Some(\"tls\")"),
        (vec![(host, "tcp://192.0.2.1"), ("DOCKER_TLS", "1")], "`DOCKER_TLS_VERIFY`"),
        // Of no use for a socket, and none of the context's business.
        (vec![(host, "unix:///x.sock"), (verify, "1"), (path, &certificates)], "unix:///x.sock\", tls: None"),
        (vec![("DOCKER_CONTEXT", "far"), (verify, "1"), (path, "/no/such")], "tcp://192.0.2.7:2376\", tls: Some"),
        (vec![("DOCKER_CONTEXT", "default")], "unix:///var/run/docker.sock"),
    ] {
        let mut test = Program::new(std::env::current_exe().unwrap());
        test.args(["--exact", "an_engine_by_the_environment"]).env("WSM_TEST_EXPECTED", expected);
        for name in [host, verify, path, "DOCKER_CONTEXT", "DOCKER_TLS"] {
            test.env_remove(name);
        }
        let ran = test.env("DOCKER_CONFIG", &home).envs(variables.clone()).output().unwrap();
        assert!(ran.status.success(), "{variables:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}
