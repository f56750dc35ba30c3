//! How the commands reach a running service.

mod absent;
mod refusal;
mod sse;

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http::{Method, header};
use reqwest::{RequestBuilder, Response, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use wsm_core::UserId;

pub(super) use absent::Absent;
pub(super) use refusal::Refusal;
pub(super) use sse::{Event, Events};

use super::login::login_name;
use crate::auth::USER_HEADER;

/// Where `wsm serve` listens unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// How long a connection may take to come about. What comes after it has no limit here: the service has its own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which service to talk to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub(super) struct RemoteArgs {
    /// Where the service is
    #[arg(long, value_name = "URL", env = "WSM_URL", hide_env_values = true, default_value = DEFAULT_URL)]
    pub(super) url: String,
    /// The service's token, not needed on the service's own machine; other users of this machine see flags, but not
    /// variables
    #[arg(long, value_name = "TOKEN", env = "WSM_TOKEN", hide_env_values = true)]
    pub(super) token: Option<SecretString>,
}

/// For whom to talk to it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub(super) struct UserArgs {
    /// Who asks [default: the login name]
    #[arg(long, value_name = "U", env = "WSM_USER", hide_env_values = true)]
    user: Option<String>,
}

impl UserArgs {
    fn user(self) -> wsm_core::Result<UserId> {
        Ok(UserId::new(self.user.unwrap_or_else(login_name))?)
    }
}

/// A client of one service, for one user or for the operator.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    token: Option<SecretString>,
    user: Option<UserId>,
}

impl Client {
    /// A client for the routes of a user.
    pub(super) fn of_user(service: RemoteArgs, user: UserArgs) -> anyhow::Result<Self> {
        Ok(Self { user: Some(user.user()?), ..Self::of_operator(service)? })
    }

    /// A client for the routes of the operator.
    pub(super) fn of_operator(service: RemoteArgs) -> anyhow::Result<Self> {
        let RemoteArgs { url, token } = service;
        let url = parse_url(&url)?;
        // No TLS is spoken here; but a client that could wants to know by whom it is done.
        crate::tls::install();
        // Directly, whatever proxy is configured, and to nobody else, wherever an answer may point.
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        Ok(Self { http, url, token: token.filter(|token| !token.expose_secret().is_empty()), user: None })
    }

    /// Where the service is, for people.
    pub(super) fn url(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// Begins a request; `path` are the segments of the route, of any characters.
    pub(super) fn request(&self, method: Method, path: &[&str]) -> anyhow::Result<RequestBuilder> {
        let mut url = self.url.clone();
        for segment in path {
            anyhow::ensure!(!matches!(*segment, "" | "." | ".."), "`{segment}` can not be an id in a URL");
        }
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.pop_if_empty().extend(path);
            }
            Err(()) => anyhow::bail!("`{}` can not be the URL of a service", self.url()),
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        if let Some(user) = &self.user {
            request = request.header(USER_HEADER, user.as_str().as_bytes());
        }
        Ok(request)
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when the service said no, [`Absent`] when there is none; else what kept it from answering.
    pub(super) async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Err(Absent::new(self.url(), &error).into()),
            Err(error) => return Err(self.broken(error)),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Refusal::read(response, self.url()).await.into())
    }

    /// Sends a request whose answer is JSON, and gives the answer as it is.
    pub(super) async fn json(&self, request: RequestBuilder) -> anyhow::Result<Bytes> {
        let response = self.send(request).await?;
        let is_json = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
        anyhow::ensure!(is_json, "what answers at {} is not a wsm service", self.url());
        response.bytes().await.map_err(|error| self.broken(error))
    }

    /// The error for a connection that broke off.
    pub(super) fn broken(&self, error: reqwest::Error) -> anyhow::Error {
        anyhow::Error::new(error.without_url()).context(format!("the connection to {} broke off", self.url()))
    }
}

fn parse_url(text: &str) -> anyhow::Result<Url> {
    let text = if text.is_empty() { DEFAULT_URL } else { text };
    let url = Url::parse(text).with_context(|| format!("`--url`: `{text}` is not a URL, such as `{DEFAULT_URL}`"))?;
    match url.scheme() {
        "http" => {}
        "https" => anyhow::bail!(
            "`--url`: this command speaks plain HTTP only: reach {text} through a local proxy that speaks TLS, or \
             through a tunnel, and give the URL of that"
        ),
        other => anyhow::bail!("`--url`: `{other}:` is not the beginning of a service's URL, such as `{DEFAULT_URL}`"),
    }
    let extra = url.query().is_some() || url.fragment().is_some() || !url.username().is_empty();
    anyhow::ensure!(!extra, "`--url`: give scheme, host, port and perhaps a path; the token is a flag of its own");
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> anyhow::Result<Client> {
        Client::of_operator(RemoteArgs { url: url.to_owned(), token: Some("CANARY".to_owned().into()) })
    }

    #[test]
    fn ids_of_any_characters_are_one_segment_of_the_path() {
        let client = client("http://127.0.0.1:1/below/").unwrap();
        let request = client.request(Method::GET, &["admin", "workspaces", "a/b?c#d%2F é"]).unwrap();
        let path = request.build().unwrap().url().path().to_owned();
        assert_eq!(path, "/below/admin/workspaces/a%2Fb%3Fc%23d%252F%20%C3%A9");
        for id in ["", ".", ".."] {
            assert!(client.request(Method::GET, &["admin", "workspaces", id]).is_err(), "{id:?}");
        }
    }

    #[test]
    fn only_plain_http_is_spoken_and_the_rest_is_told_what_to_do() {
        assert_eq!(client("").unwrap().url(), DEFAULT_URL);
        for (url, word) in [
            ("https://wsm.example", "plain HTTP"),
            ("ftp://wsm.example", "`ftp:`"),
            ("127.0.0.1:8080", "not a URL"),
            ("http://ann:secret@127.0.0.1", "a flag of its own"),
        ] {
            let error = format!("{:#}", client(url).unwrap_err());
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_token() {
        assert!(!format!("{:?}", client("").unwrap()).contains("CANARY"));
    }
}
