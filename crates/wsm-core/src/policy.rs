//! Which scopes share a workspace.

use std::{fmt, str::FromStr};

use blake2::{
    Blake2b,
    digest::{Digest, consts::U16},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, ErrorKind},
    id::WorkspaceId,
    scope::Scope,
};

/// Separates these hashes from every other use of the same function, and one version of the rule from the next.
const DOMAIN: &[u8] = b"wsm/workspace-id/v1";

/// Which scopes share a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IsolationPolicy {
    /// One workspace for each agent of a user: all its sessions share it.
    #[default]
    PerAgent,
    /// One workspace for each session.
    PerSession,
    /// One workspace for each user: all agents of the user share it.
    PerUser,
}

impl IsolationPolicy {
    /// Every policy, in the order in which they are documented.
    pub const ALL: [Self; 3] = [Self::PerAgent, Self::PerSession, Self::PerUser];

    /// The name that configuration files use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PerAgent => "per_agent",
            Self::PerSession => "per_session",
            Self::PerUser => "per_user",
        }
    }

    /// The id of the workspace that `scope` works in under this policy.
    ///
    /// Pure: no input or output, no clock, no randomness, so every replica gives the same answer, for ever. The id is
    /// `ws-` and, in hexadecimal digits, BLAKE2b-128 over a domain tag, the policy's name and the fields of the scope that
    /// the policy tells apart, each preceded by its length; so no two different field lists are ever hashed as the same
    /// bytes.
    ///
    /// ```
    /// use wsm_core::{IsolationPolicy, Scope};
    ///
    /// let monday = Scope::new("ann", "coder", "monday")?;
    /// let tuesday = Scope::new("ann", "coder", "tuesday")?;
    /// assert_eq!(IsolationPolicy::PerAgent.assign(&monday), IsolationPolicy::PerAgent.assign(&tuesday));
    /// assert_ne!(IsolationPolicy::PerSession.assign(&monday), IsolationPolicy::PerSession.assign(&tuesday));
    /// # Ok::<(), wsm_core::IdError>(())
    /// ```
    pub fn assign(self, scope: &Scope) -> WorkspaceId {
        let mut hash = Blake2b::<U16>::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        field(DOMAIN);
        field(self.as_str().as_bytes());
        field(scope.user_id.as_str().as_bytes());
        match self {
            Self::PerUser => {}
            Self::PerAgent => field(scope.agent_id.as_str().as_bytes()),
            Self::PerSession => {
                field(scope.agent_id.as_str().as_bytes());
                field(scope.session_id.as_str().as_bytes());
            }
        }
        WorkspaceId::from_digest(&hash.finalize().into())
    }

    /// The policy that gives `id` to `scope`, if one does.
    ///
    /// Stored ids outlive a change of the policy, so a backend that places workspaces by who asked asks this.
    pub fn that_assigned(id: &WorkspaceId, scope: &Scope) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.assign(scope) == *id)
    }
}

impl fmt::Display for IsolationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for IsolationPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == text).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("`{text}` is not an isolation policy: allowed are `per_agent`, `per_session` and `per_user`"),
            )
            .with_field("isolation")
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope(user: &str, agent: &str, session: &str) -> Scope {
        Scope::new(user, agent, session).unwrap()
    }

    /// Ids are stored, so these values must never change. They were computed with Python's `hashlib.blake2b`.
    #[test]
    fn golden_values() {
        for line in include_str!("../tests/golden/policy-v1.tsv").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [policy, user, agent, session, id] = fields[..] else { panic!("five fields in {line:?}") };
            let policy: IsolationPolicy = policy.parse().unwrap();
            assert_eq!(policy.assign(&scope(user, agent, session)).as_str(), id, "{line}");
        }
    }

    #[test]
    fn a_separator_inside_an_id_does_not_move_the_border_between_fields() {
        let left = scope("a::b", "c", "s");
        let right = scope("a", "b::c", "s");
        for policy in IsolationPolicy::ALL {
            assert_ne!(policy.assign(&left), policy.assign(&right), "{policy}");
        }
    }

    #[test]
    fn an_unknown_policy_is_refused_with_the_known_ones() {
        let error = "per-agent".parse::<IsolationPolicy>().unwrap_err().to_string();
        assert!(error.contains("`per_agent`, `per_session` and `per_user`"), "{error}");
    }

    proptest! {
        #[test]
        fn ids_are_equal_exactly_when_the_fields_that_count_are(
            a in ("[ab:/]{1,4}", "[ab:/]{1,4}", "[ab:/]{1,4}"),
            b in ("[ab:/]{1,4}", "[ab:/]{1,4}", "[ab:/]{1,4}"),
        ) {
            let (left, right) = (scope(&a.0, &a.1, &a.2), scope(&b.0, &b.1, &b.2));
            prop_assert_eq!(
                IsolationPolicy::PerUser.assign(&left) == IsolationPolicy::PerUser.assign(&right), a.0 == b.0);
            prop_assert_eq!(
                IsolationPolicy::PerAgent.assign(&left) == IsolationPolicy::PerAgent.assign(&right),
                (&a.0, &a.1) == (&b.0, &b.1));
            prop_assert_eq!(
                IsolationPolicy::PerSession.assign(&left) == IsolationPolicy::PerSession.assign(&right), a == b);
        }

        #[test]
        fn policies_never_meet_in_one_id(user in "[a-c]{1,3}", agent in "[a-c]{1,3}", session in "[a-c]{1,3}") {
            let scope = scope(&user, &agent, &session);
            let ids: std::collections::HashSet<_> =
                IsolationPolicy::ALL.into_iter().map(|policy| policy.assign(&scope)).collect();
            prop_assert_eq!(ids.len(), 3);
            for policy in IsolationPolicy::ALL {
                prop_assert_eq!(IsolationPolicy::that_assigned(&policy.assign(&scope), &scope), Some(policy));
            }
        }
    }
}
