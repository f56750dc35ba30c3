//! TLS to an engine: whom to trust, and who this is.

use std::{
    env,
    error::Error as StdError,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bollard::{BollardRequest, Docker, errors::Error as EngineError};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::{Deserialize, Serialize};
use wsm_core::{Error, ErrorKind, Result};

/// How long the library waits for the beginning of an answer, in seconds. As long as it does without TLS; every call has a
/// shorter limit of its own.
const ANSWER_LIMIT: u64 = 120;

/// The files for TLS to an engine, all of them PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificates of those who vouch for the engine, and nobody else. By default whom this machine trusts.
    pub ca: Option<PathBuf>,
    /// This side's certificate, where the engine asks for one, as it should. Goes with `key`.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Sets who vouches for the engine.
    #[must_use]
    pub fn with_ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// Sets this side's certificate and its key.
    #[must_use]
    pub fn with_client(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.cert = Some(cert.into());
        self.key = Some(key.into());
        self
    }

    /// What `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` ask for; none without them. `home` is where the `docker` command has
    /// its files. As for that command, the client's pair may be missing, and the other file may not.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `tls` for `DOCKER_TLS` alone, which would trust anybody.
    pub(crate) fn from_environment(home: Option<&Path>) -> Result<Option<Self>> {
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        if !is_set("DOCKER_TLS_VERIFY") {
            if is_set("DOCKER_TLS") {
                let message = "`DOCKER_TLS` without `DOCKER_TLS_VERIFY` would trust any engine: set the latter, too";
                return Err(Error::invalid("tls", message));
            }
            return Ok(None);
        }
        let named = env::var_os("DOCKER_CERT_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(directory) = named.as_deref().or(home) else {
            return Err(Error::invalid(
                "tls",
                "`DOCKER_TLS_VERIFY` is set: say in `DOCKER_CERT_PATH` where the files are",
            ));
        };
        let present = |name: &str| Some(directory.join(name)).filter(|path| path.exists());
        Ok(Some(Self { ca: Some(directory.join("ca.pem")), cert: present("cert.pem"), key: present("key.pem") }))
    }

    /// What a context of the `docker` command has in a directory; none without any file.
    pub(crate) fn from_context(directory: &Path) -> Option<Self> {
        let present = |name: &str| Some(directory.join(name)).filter(|path| path.exists());
        let files = Self { ca: present("ca.pem"), cert: present("cert.pem"), key: present("key.pem") };
        (files != Self::default()).then_some(files)
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `tls`, naming the file.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>> {
        let Self { ca, cert, key } = self;
        let unusable = |error: rustls::Error| Error::invalid("tls", "`tls` can not be used").with_source(error);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match ca {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("ca", path)? {
                    roots
                        .add(certificate)
                        .map_err(|error| unfit("ca", path, "is no certificate").with_source(error))?;
                }
                config.with_root_certificates(roots)
            }
            None => config.with_platform_verifier().map_err(unusable)?,
        };
        let config = match (cert, key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(path)) => {
                let key = PrivateKeyDer::from_pem_slice(&content("key", path)?)
                    .map_err(|error| unfit("key", path, "holds no key that can be used").with_source(error))?;
                let chain = certificates("cert", cert)?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| unfit("key", path, "does not go with the certificate").with_source(error))?
            }
            _ => return Err(Error::invalid("tls", "`tls` needs both of `cert` and `key`, or neither")),
        };
        Ok(Arc::new(config))
    }
}

fn unfit(name: &str, path: &Path, problem: &str) -> Error {
    Error::invalid("tls", format!("`tls.{name}` is `{}`, which {problem}", path.display()))
}

fn content(name: &str, path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|cause| unfit(name, path, "can not be read").with_source(cause))
}

fn certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let content = content(name, path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&content)
        .collect::<Result<_, _>>()
        .map_err(|error| unfit(name, path, "is no PEM file").with_source(error))?;
    if certificates.is_empty() {
        return Err(unfit(name, path, "holds no certificate"));
    }
    Ok(certificates)
}

/// Connects to an engine. Not with the library's own TLS, which would trust all authorities of this machine beside the named
/// one, and which takes no less than all three files.
///
/// # Errors
///
/// The library's.
pub(crate) fn connect(authority: &str, config: &ClientConfig) -> Result<Docker, EngineError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let https = HttpsConnectorBuilder::new().with_tls_config(config.clone()).https_only().enable_http1();
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https.wrap_connector(http));
    let send = move |request: BollardRequest| {
        let answered = client.request(request);
        async move { answered.await.map_err(EngineError::from) }
    };
    let address = format!("https://{authority}");
    Docker::connect_with_custom_transport(send, Some(address), ANSWER_LIMIT, bollard::API_DEFAULT_VERSION)
}

/// What is wrong with TLS to this engine, if that is why a call failed.
pub(crate) fn explain(error: &(dyn StdError + 'static), host: &str, config: Option<&ClientConfig>) -> Option<Error> {
    use rustls::{AlertDescription as Alert, CertificateError as Certificate, Error as Tls};

    let cause = find(error)?;
    let has_certificate = config.is_some_and(|config| config.client_auth_cert_resolver.has_certs());
    let problem = match cause {
        Tls::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            "shows a certificate that nobody vouches for who is trusted: is `tls.ca` the right file?".to_owned()
        }
        Tls::InvalidCertificate(Certificate::NotValidForName | Certificate::NotValidForNameContext { .. }) => {
            "shows a certificate for another name: give in `host` one that its certificate holds".to_owned()
        }
        Tls::InvalidCertificate(problem) => format!("shows a certificate that can not be trusted: {problem}"),
        // Older engines call a bad one what is none.
        Tls::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure | Alert::BadCertificate)
            if !has_certificate =>
        {
            "asks for a certificate of this side: give `tls.cert` and `tls.key`".to_owned()
        }
        Tls::AlertReceived(
            Alert::BadCertificate | Alert::UnknownCA | Alert::CertificateExpired | Alert::AccessDenied,
        ) => "refuses this side's certificate: are `tls.cert` and `tls.key` the right files?".to_owned(),
        Tls::InvalidMessage(_) => "does not speak TLS: leave `tls` out, or use the port where it does".to_owned(),
        other => format!("and this side do not agree about TLS: {other}"),
    };
    let message = format!("the engine at {host} {problem}");
    Some(Error::new(ErrorKind::InvalidInput, message).with_field("tls").with_source(cause.clone()))
}

fn find<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e rustls::Error> {
    let mut next: Option<&'e (dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // Its source is that of what it holds, and not the latter itself.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = held.map(|held| held as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    None
}
