//! The files of a session's workspace, through the service.

use http::{Method, header};
use reqwest::{Body, RequestBuilder, Response};
use serde::Deserialize;

use super::super::{remote::Client, sessions::is};

/// The files of one session's workspace.
#[derive(Debug)]
pub(super) struct RemoteFiles {
    client: Client,
    session: String,
    agent: String,
}

/// What is at a path.
#[derive(Debug)]
pub(super) enum Found {
    /// A directory, and what is in it.
    Directory(Vec<Entry>),
    /// Something else.
    File,
    /// Nothing.
    Nothing,
}

/// What is in a directory.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) is_dir: bool,
    pub(super) size_bytes: Option<u64>,
    #[serde(default)]
    pub(super) escaped: bool,
}

#[derive(Debug, Deserialize)]
struct Directory {
    entries: Vec<Entry>,
}

impl RemoteFiles {
    pub(super) fn new(client: Client, session: String, agent: String) -> Self {
        Self { client, session, agent }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// A path as it is written on the command line.
    pub(super) fn shown(&self, path: &str) -> String {
        format!("{}:{path}", self.session)
    }

    fn request(&self, method: Method, route: &str, path: &str) -> anyhow::Result<RequestBuilder> {
        let query = [("agent_id", &*self.agent), ("session_id", &self.session), ("path", path)];
        Ok(self.client.request(method, &["workspace", route])?.query(&query))
    }

    pub(super) async fn find(&self, path: &str) -> anyhow::Result<Found> {
        match self.client.json(self.request(Method::GET, "directories", path)?).await {
            Ok(answer) => Ok(Found::Directory(serde_json::from_slice::<Directory>(&answer)?.entries)),
            Err(error) if is(&error, "not_a_directory") => Ok(Found::File),
            Err(error) if is(&error, "not_found") => Ok(Found::Nothing),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn make_directory(&self, path: &str) -> anyhow::Result<()> {
        self.client.send(self.request(Method::PUT, "directories", path)?).await?;
        Ok(())
    }

    pub(super) async fn read(&self, path: &str) -> anyhow::Result<Response> {
        self.client.send(self.request(Method::GET, "files", path)?).await
    }

    /// Writes a file; `mode` are its permissions, where they are known.
    pub(super) async fn write(
        &self,
        path: &str,
        body: Body,
        length: Option<u64>,
        mode: Option<u32>,
    ) -> anyhow::Result<()> {
        let mut request = self.request(Method::PUT, "files", path)?;
        if let Some(mode) = mode {
            request = request.query(&[("mode", format!("{:o}", mode & 0o777))]);
        }
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        self.client.send(request.body(body)).await?;
        Ok(())
    }
}

/// Whether a name can be one of a file in a directory, and of nothing else.
pub(super) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// The last part of a path; none for one that names a directory by its place, such as `.`.
pub(super) fn last(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next();
    name.filter(|name| is_name(name))
}

/// A path below a directory.
pub(super) fn join(directory: &str, name: &str) -> String {
    match directory {
        "." => name.to_owned(),
        _ => format!("{}/{name}", directory.trim_end_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        for (path, name) in [("a/b", Some("b")), ("a/", Some("a")), (".", None), ("a/..", None), ("/", None)] {
            assert_eq!(last(path), name, "{path}");
        }
        for (directory, path) in [(".", "x"), ("a", "a/x"), ("a/", "a/x"), ("/", "/x")] {
            assert_eq!(join(directory, "x"), path);
        }
    }
}
