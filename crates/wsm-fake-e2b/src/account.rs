//! Who may use the fake.

/// An account with its API key. What one has, another does not see.
#[derive(Clone)]
pub struct Account {
    pub(crate) key: String,
    pub(crate) refused: bool,
    pub(crate) max_running: usize,
}

impl Account {
    /// An account like those of the smallest plan, but for how many sandboxes may run.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), refused: false, max_running: 100 }
    }

    /// Its key is known, and not allowed to do anything: 403.
    #[must_use]
    pub fn refused(mut self) -> Self {
        self.refused = true;
        self
    }

    /// So many sandboxes may run at once. One more gets 429.
    #[must_use]
    pub fn max_running(mut self, count: usize) -> Self {
        self.max_running = count;
        self
    }
}

impl std::fmt::Debug for Account {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key: _, refused, max_running } = self;
        let mut shown = formatter.debug_struct("Account");
        shown.field("refused", refused).field("max_running", max_running).finish_non_exhaustive()
    }
}
