//! What is said about MCP servers: which one, how it is reached, how it is, what its tools are and what they answer.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use wsm_core::{AgentId, Error, ExitStatus, Result, SessionId};

/// The longest name of a server, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Which server: every session of every agent has its own, so that no two share what a server remembers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct McpServerKey {
    /// The agent that uses it.
    pub agent: AgentId,
    /// The agent's session.
    pub session: SessionId,
    /// The server's name in that session: 1 to 256 bytes without control characters.
    pub name: String,
}

impl McpServerKey {
    /// A server of a session.
    pub fn new(agent: AgentId, session: SessionId, name: impl Into<String>) -> Self {
        Self { agent, session, name: name.into() }
    }

    /// Whether both belong to the same session of the same agent.
    pub fn is_neighbour(&self, other: &Self) -> bool {
        (&self.agent, &self.session) == (&other.agent, &other.session)
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    ///
    /// `invalid_input` for a name that is empty, too long or holds control characters.
    pub fn validate(&self) -> Result<()> {
        let name = &self.name;
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            let message = format!("the server's name has 1 to {MAX_NAME_BYTES} bytes and no control characters");
            return Err(Error::invalid("name", message));
        }
        Ok(())
    }
}

/// How to reach a server. Two that are equal are the same server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct McpServerSpec {
    /// The program to start or the address to talk to.
    pub transport: McpTransport,
    /// How long the server may take until it has answered `initialize`. None is 60 seconds, and more than 10 minutes are
    /// 10 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<Duration>,
}

/// What carries the messages to and from a server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpTransport {
    /// A program that is started in the workspace, and talked to over its stdin and stdout.
    Stdio {
        /// The program, looked up in the workspace's `PATH`.
        command: String,
        /// Its arguments.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
        /// Variables that are added to the workspace's environment.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String>,
        /// The directory it runs in; relative to the workspace directory, which is also the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
    },
    /// A server behind a URL, by MCP's streamable HTTP.
    Http {
        /// The endpoint.
        url: String,
    },
}

impl McpServerSpec {
    /// A program to start, without arguments.
    ///
    /// ```
    /// let spec = wsm_gateway::McpServerSpec::stdio("npx").arg("-y").arg("@modelcontextprotocol/server-everything");
    /// # let wsm_gateway::McpTransport::Stdio { args, .. } = spec.transport else { panic!() };
    /// # assert_eq!(args.len(), 2);
    /// ```
    pub fn stdio(command: impl Into<String>) -> Self {
        let (args, env, cwd) = (Vec::new(), BTreeMap::new(), None);
        Self { transport: McpTransport::Stdio { command: command.into(), args, env, cwd }, start_timeout: None }
    }

    /// A server behind a URL.
    pub fn http(url: impl Into<String>) -> Self {
        Self { transport: McpTransport::Http { url: url.into() }, start_timeout: None }
    }

    /// Appends one argument. Says nothing to a server behind a URL.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        if let McpTransport::Stdio { args, .. } = &mut self.transport {
            args.push(arg.into());
        }
        self
    }

    /// Sets one variable. Says nothing to a server behind a URL.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let McpTransport::Stdio { env, .. } = &mut self.transport {
            env.insert(name.into(), value.into());
        }
        self
    }

    /// Sets the directory to run in. Says nothing to a server behind a URL.
    #[must_use]
    pub fn with_cwd(mut self, directory: impl Into<String>) -> Self {
        if let McpTransport::Stdio { cwd, .. } = &mut self.transport {
            *cwd = Some(directory.into());
        }
        self
    }

    /// Sets how long the server may take until it has answered `initialize`.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }
}

/// Variables and addresses may hold secrets, so only names and hosts are shown.
impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &format_args!("{} of them", args.len()))
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish(),
            Self::Http { url } => f.debug_struct("Http").field("url", &shown_url(url)).finish(),
        }
    }
}

/// A URL without what may be secret in it: user, password, path and query.
pub(crate) fn shown_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/…")
}

/// HTTP headers for a server, such as credentials. They live in memory only, and `Debug` shows their names alone.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct McpHeaders(BTreeMap<String, String>);

impl McpHeaders {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces one header.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl fmt::Debug for McpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys().collect::<HashSet<_>>()).finish()
    }
}

/// A registered server, and how it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct McpServer {
    /// Which one.
    pub key: McpServerKey,
    /// How it is.
    pub state: McpState,
    /// How often it was started anew after it had been ready.
    pub restarts: u64,
    /// The calls that are being answered.
    pub calls_in_flight: u64,
    /// The end of what it wrote to stderr since it was started last, at most a few KiB.
    pub stderr: String,
    /// How many bytes it has written to stderr since it was started last.
    pub stderr_bytes: u64,
    /// What went wrong last without ending it, such as a call that it did not answer in time.
    pub last_problem: Option<String>,
}

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum McpState {
    /// It was started and has not answered `initialize` yet.
    Starting,
    /// It takes calls.
    Ready {
        /// What it calls itself.
        name: String,
        /// Its version, by its own word.
        version: String,
        /// The revision of MCP that both agreed on.
        protocol: String,
    },
    /// It was put away to make room for another one. The next call starts it anew.
    Stopped {
        /// Why.
        reason: String,
    },
    /// It could not be started, or ended by itself. The next call tries once to start it anew.
    Failed {
        /// What happened.
        reason: String,
        /// How its process ended, where there was one.
        exit: Option<ExitStatus>,
    },
}

/// A tool of a server, as the server describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct McpTool {
    /// What it is called by.
    pub name: String,
    /// What to show people instead of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of its arguments.
    pub input_schema: Value,
    /// The JSON Schema of its structured result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// Everything else that MCP knows of a tool, under MCP's names: annotations, icons, `_meta`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What a tool has answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct McpToolResult {
    /// The blocks of content as MCP has them: text, images, audio, resources.
    #[serde(default)]
    pub content: Vec<Value>,
    /// The structured result, which may be null, or none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub structured_content: Option<Value>,
    /// Whether the tool says that it has failed.
    #[serde(default)]
    pub is_error: bool,
    /// Everything else, under MCP's names, such as `_meta`.
    #[serde(flatten)]
    pub other: Map<String, Value>,
    /// Set when the server had to be started anew, or a new HTTP session to be begun, for this call: why. What the server
    /// remembered before, such as an open page or a login, is lost.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "wsmStateLost")]
    pub state_lost: Option<String>,
}

impl McpToolResult {
    /// The blocks of text, one after the other.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter(|block| block["type"] == "text");
        texts.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }
}

/// A null is something else than nothing.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What a client asks about MCP servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mcp", rename_all = "snake_case")]
pub(crate) enum McpRequest {
    /// Answered by an [`McpServer`].
    Register { key: McpServerKey, spec: McpServerSpec, headers: McpHeaders },
    /// Answered by a list of [`McpServer`]s.
    List,
    /// Answered by whether there was one.
    Remove { key: McpServerKey },
    /// Answered by a list of [`McpTool`]s.
    Tools { key: McpServerKey },
    /// Answered by an [`McpToolResult`]. The arguments, a JSON object, follow as the stream's body.
    Call { key: McpServerKey, tool: String, timeout: Option<Duration> },
    /// Answered by null.
    SetHeaders { key: McpServerKey, headers: McpHeaders },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> McpServerKey {
        McpServerKey::new(AgentId::new("a").unwrap(), SessionId::new("s").unwrap(), "browser")
    }

    #[test]
    fn secrets_do_not_show() {
        let spec = McpServerSpec::stdio("server").arg("--token=CANARY").with_env("KEY", "CANARY");
        let url = McpServerSpec::http("https://me:CANARY@example.org/CANARY?token=CANARY#CANARY");
        let headers = McpHeaders::new().with("Authorization", "Bearer CANARY");
        let request = McpRequest::Register { key: key(), spec: spec.clone(), headers: headers.clone() };
        for shown in [format!("{spec:?}"), format!("{url:?}"), format!("{headers:?}"), format!("{request:#?}")] {
            assert!(!shown.contains("CANARY"), "{shown}");
        }
        assert!(format!("{url:?}").contains("https://example.org/"));
        assert!(format!("{headers:?}").contains("Authorization"));
    }

    #[test]
    fn requests_survive_the_wire() {
        let spec = McpServerSpec::stdio("npx").arg("x").with_env("A", "1").with_cwd("sub");
        let spec = spec.with_start_timeout(Duration::from_millis(1500));
        let headers = McpHeaders::new().with("X-A", "1");
        for request in [
            McpRequest::Register { key: key(), spec, headers: headers.clone() },
            McpRequest::Register { key: key(), spec: McpServerSpec::http("http://h/mcp"), headers: McpHeaders::new() },
            McpRequest::Call { key: key(), tool: "t".to_owned(), timeout: Some(Duration::from_secs(3)) },
            McpRequest::SetHeaders { key: key(), headers },
            McpRequest::List,
        ] {
            let request = crate::message::Request::Mcp(request);
            let wire = serde_json::to_vec(&request).unwrap();
            assert_eq!(serde_json::from_slice::<crate::message::Request>(&wire).unwrap(), request);
        }
    }

    #[test]
    fn results_keep_what_nobody_here_knows_and_a_null_is_not_nothing() {
        let wire = serde_json::json!({
            "content": [{"type": "text", "text": "a"}, {"type": "hologram", "depth": 3}, {"type": "text", "text": "b"}],
            "structuredContent": null,
            "_meta": {"cost": 1},
        });
        let result: McpToolResult = serde_json::from_value(wire).unwrap();
        assert_eq!((result.text().as_str(), result.is_error), ("a\nb", false));
        assert_eq!(result.structured_content, Some(Value::Null));
        assert_eq!((result.content[1]["depth"].clone(), result.other["_meta"]["cost"].clone()), (3.into(), 1.into()));
        let without: McpToolResult = serde_json::from_value(serde_json::json!({"content": []})).unwrap();
        assert_eq!(without.structured_content, None);
    }

    #[test]
    fn names_are_checked() {
        for name in ["", "a\nb", &"x".repeat(257)] {
            let key = McpServerKey { name: name.to_owned(), ..key() };
            assert_eq!(key.validate().unwrap_err().field(), Some("name"), "{name:?}");
        }
        key().validate().unwrap();
    }
}
