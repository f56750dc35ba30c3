//! What a sandbox's metadata say of it. They are given at its creation and never change.

use std::{collections::BTreeMap, time::SystemTime};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use wsm_core::{Encoding, OpenRequest, UserId, WorkspaceId};

/// Names that begin so are ours.
const RESERVED: [&str; 2] = ["agentscope.", "wsm."];

/// By what sandboxes of a workspace are found. The value has only characters that no server decodes further.
pub(crate) const WORKSPACE: &str = "agentscope.workspace.id";
const USER: &str = "agentscope.user.id";
const AGENT: &str = "agentscope.agent.id";
/// Which installation it belongs to.
pub(crate) const OWNER: &str = "wsm.owner";
/// The same ids in a form from which they can be read back.
const EXACT_WORKSPACE: &str = "wsm.workspace";
const EXACT_USER: &str = "wsm.user";
/// The process that made it, and the call.
const INSTANCE: &str = "wsm.instance";
pub(crate) const ATTEMPT: &str = "wsm.attempt";
const GENERATION: &str = "wsm.generation";
/// When it was made, in milliseconds: unlike the start of its run, this stays when it is resumed.
const CREATED: &str = "wsm.created";

pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| name.starts_with(reserved))
}

/// The value by which a workspace's sandboxes are found.
pub(crate) fn key(id: &WorkspaceId) -> String {
    Encoding::LABEL.encode(id.as_str())
}

fn exact(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

fn from_exact(text: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// What one attempt to make a sandbox is about.
#[derive(Debug, Clone)]
pub(crate) struct Attempt<'a> {
    pub(crate) installation: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) attempt: &'a str,
    pub(crate) generation: u64,
}

/// The metadata of a sandbox to be made.
pub(crate) fn of(
    request: &OpenRequest,
    attempt: &Attempt<'_>,
    further: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut metadata = further.clone();
    let mut add = |name: &str, value: String| drop(metadata.insert(name.to_owned(), value));
    add(WORKSPACE, key(&request.id));
    add(EXACT_WORKSPACE, exact(request.id.as_str()));
    if let Some(owner) = &request.owner {
        add(USER, Encoding::LABEL.encode(owner.as_str()));
        add(EXACT_USER, exact(owner.as_str()));
    }
    if let Some(placement) = &request.placement {
        add(AGENT, Encoding::LABEL.encode(placement.scope.agent_id.as_str()));
    }
    let Attempt { installation, instance, attempt, generation } = attempt;
    add(OWNER, (*installation).to_owned());
    add(INSTANCE, (*instance).to_owned());
    add(ATTEMPT, (*attempt).to_owned());
    add(GENERATION, generation.to_string());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    add(CREATED, now.as_millis().to_string());
    metadata
}

/// Metadata, read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read<'a>(pub(crate) &'a BTreeMap<String, String>);

impl<'a> Read<'a> {
    fn text(self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn workspace(self) -> Option<WorkspaceId> {
        WorkspaceId::new(from_exact(self.text(EXACT_WORKSPACE)?)?).ok()
    }

    pub(crate) fn user(self) -> Option<UserId> {
        UserId::new(from_exact(self.text(EXACT_USER)?)?).ok()
    }

    pub(crate) fn installation(self) -> Option<&'a str> {
        self.text(OWNER)
    }

    pub(crate) fn attempt(self) -> Option<&'a str> {
        self.text(ATTEMPT)
    }

    pub(crate) fn generation(self) -> u64 {
        self.text(GENERATION).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Milliseconds since 1970.
    pub(crate) fn created(self) -> Option<u64> {
        self.text(CREATED)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_form_are_read_back_and_need_no_decoding() {
        for id in ["a", "ws 1/ä", "..", "%2F", "a=b&c", &"x".repeat(256), "🦀"] {
            let request = OpenRequest::new(WorkspaceId::new(id).unwrap()).with_owner(UserId::new(id).unwrap());
            let attempt = Attempt { installation: "wsm", instance: "i", attempt: "a", generation: 3 };
            let metadata = of(&request, &attempt, &BTreeMap::new());
            let read = Read(&metadata);
            assert_eq!((read.workspace(), read.user()), (Some(request.id.clone()), request.owner.clone()));
            assert_eq!((read.installation(), read.attempt(), read.generation()), (Some("wsm"), Some("a"), 3));
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            assert!(metadata.values().all(|value| value.bytes().all(is_plain)), "{metadata:?}");
        }
    }

    #[test]
    fn metadata_of_others_are_no_reason_to_fail() {
        let metadata =
            BTreeMap::from([(EXACT_WORKSPACE.to_owned(), "!".to_owned()), (GENERATION.to_owned(), "x".to_owned())]);
        let read = Read(&metadata);
        assert_eq!((read.workspace(), read.generation(), read.created()), (None, 0, None));
    }
}
