//! How a caching manager behaves.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    policy::IsolationPolicy,
};

/// How a caching manager behaves. Every field has a default; see [`ManagerSettings::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerSettings {
    /// Which scopes share a workspace \[per agent\].
    pub isolation: IsolationPolicy,
    /// How long nobody must have used a workspace before it is put away \[3600 s\].
    pub ttl: Duration,
    /// How often the manager looks for such workspaces \[300 s\]. Does nothing where the backend's
    /// [`SweepTrigger`](crate::SweepTrigger) is `Get`.
    pub sweep_interval: Duration,
    /// How many workspaces may be open at once \[no limit\]. Over it, the one idle for longest is put away.
    pub max_workspaces: Option<usize>,
    /// How many workspaces may be opening at once \[32\]. The others queue, first come first served.
    pub max_provisioning: usize,
    /// How many workspaces a sweep or a shutdown puts away at once \[32\].
    pub max_suspending: usize,
    /// How long one opening may take \[600 s\].
    pub open_timeout: Duration,
    /// How long putting one workspace away may take \[60 s\].
    pub suspend_timeout: Duration,
    /// How long a health check, and each call that keeps a workspace alive, may take \[10 s\].
    pub health_timeout: Duration,
    /// A buffer of ready workspaces for [`create_workspace`](crate::WorkspaceManager::create_workspace) \[none\].
    pub prewarm: Option<Prewarm>,
    /// Whether an explicit id of another user's workspace may be used \[no\].
    pub allow_foreign_owner: bool,
    /// Whether this manager looks after what earlier services left where the backend is bound to this machine \[yes\]: it
    /// takes over workspaces that run for nobody, so that they are put away when they are idle, and removes the backend's
    /// [leftovers](crate::Backend::leftovers). Both at the start, and every [`sweep_interval`](Self::sweep_interval).
    pub housekeeping: bool,
}

/// A buffer of ready workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prewarm {
    /// How many are kept ready.
    pub size: usize,
    /// How many are made at once.
    pub max_creating: usize,
}

impl Prewarm {
    /// Keeps `size` workspaces ready and makes at most two at once.
    pub fn new(size: usize) -> Self {
        Self { size, max_creating: 2 }
    }

    /// Sets how many are made at once.
    #[must_use]
    pub fn with_max_creating(mut self, max_creating: usize) -> Self {
        self.max_creating = max_creating;
        self
    }
}

impl Default for ManagerSettings {
    fn default() -> Self {
        Self {
            isolation: IsolationPolicy::default(),
            ttl: Duration::from_secs(3600),
            sweep_interval: Duration::from_secs(300),
            max_workspaces: None,
            max_provisioning: 32,
            max_suspending: 32,
            open_timeout: Duration::from_secs(600),
            suspend_timeout: Duration::from_secs(60),
            health_timeout: Duration::from_secs(10),
            prewarm: None,
            allow_foreign_owner: false,
            housekeeping: true,
        }
    }
}

macro_rules! setters {
    ($($setter:ident($field:ident: $type:ty)),* $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $setter(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

impl ManagerSettings {
    setters! {
        with_isolation(isolation: IsolationPolicy),
        with_ttl(ttl: Duration),
        with_sweep_interval(sweep_interval: Duration),
        with_max_workspaces(max_workspaces: Option<usize>),
        with_max_provisioning(max_provisioning: usize),
        with_max_suspending(max_suspending: usize),
        with_open_timeout(open_timeout: Duration),
        with_suspend_timeout(suspend_timeout: Duration),
        with_health_timeout(health_timeout: Duration),
        with_prewarm(prewarm: Option<Prewarm>),
        with_allow_foreign_owner(allow_foreign_owner: bool),
        with_housekeeping(housekeeping: bool),
    }

    /// Checks what would make a manager that can not work.
    ///
    /// # Errors
    ///
    /// `invalid_input` naming the setting: a time or a limit of zero.
    pub fn validate(&self) -> Result<()> {
        for (field, time) in [
            ("ttl", self.ttl),
            ("sweep_interval", self.sweep_interval),
            ("open_timeout", self.open_timeout),
            ("suspend_timeout", self.suspend_timeout),
            ("health_timeout", self.health_timeout),
        ] {
            if time.is_zero() {
                return Err(Error::invalid(field, format!("`{field}` is zero: it must be longer than that")));
            }
        }
        for (field, limit) in [
            ("max_workspaces", self.max_workspaces.unwrap_or(1)),
            ("max_provisioning", self.max_provisioning),
            ("max_suspending", self.max_suspending),
            ("prewarm.max_creating", self.prewarm.map_or(1, |prewarm| prewarm.max_creating)),
        ] {
            if limit == 0 {
                return Err(Error::invalid(field, format!("`{field}` is zero: it must be at least 1")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused_by_name() {
        let settings = ManagerSettings::default;
        for (settings, field) in [
            (settings().with_ttl(Duration::ZERO), "ttl"),
            (settings().with_sweep_interval(Duration::ZERO), "sweep_interval"),
            (settings().with_max_workspaces(Some(0)), "max_workspaces"),
            (settings().with_max_provisioning(0), "max_provisioning"),
            (settings().with_prewarm(Some(Prewarm::new(1).with_max_creating(0))), "prewarm.max_creating"),
        ] {
            assert_eq!(settings.validate().unwrap_err().field(), Some(field));
        }
        assert!(settings().validate().is_ok());
    }
}
