//! Who is asking.

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, IdError, SessionId, UserId};

/// The triple that a request for a workspace comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scope {
    /// The tenant's user.
    pub user_id: UserId,
    /// The user's agent.
    pub agent_id: AgentId,
    /// The agent's conversation.
    pub session_id: SessionId,
}

impl Scope {
    /// Checks the three texts and makes a scope of them.
    ///
    /// # Errors
    ///
    /// [`IdError`] naming the first field that is not an id.
    ///
    /// ```
    /// let scope = wsm_core::Scope::new("ann@example.org", "coder", "2026-11-30/1")?;
    /// assert_eq!(scope.agent_id.as_str(), "coder");
    /// # Ok::<(), wsm_core::IdError>(())
    /// ```
    pub fn new(
        user_id: impl AsRef<str>,
        agent_id: impl AsRef<str>,
        session_id: impl AsRef<str>,
    ) -> Result<Self, IdError> {
        Ok(Self {
            user_id: UserId::new(user_id)?,
            agent_id: AgentId::new(agent_id)?,
            session_id: SessionId::new(session_id)?,
        })
    }
}
