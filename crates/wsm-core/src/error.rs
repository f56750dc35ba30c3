//! The one error of the contract.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::id::WorkspaceId;

/// The result of every fallible call of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// A path or an id names nothing.
    NotFound,
    /// This workspace (or this opening of it) is dead. Asking for it again opens it anew.
    Gone,
    /// The request is wrong; the same request never succeeds.
    InvalidInput,
    /// The request clashes with the present state, such as a workspace in use.
    Conflict,
    /// The caller may not do this.
    PermissionDenied,
    /// A limit is reached and nothing can be put away.
    Capacity,
    /// The engine or service behind the backend can not be reached. Says nothing about the workspace.
    Unavailable,
    /// A deadline passed.
    Timeout,
    /// The backend has no such operation or option.
    Unsupported,
    /// The manager is shutting down.
    ShuttingDown,
    /// The backend failed in a way that fits nothing above.
    Backend,
}

impl ErrorKind {
    /// The stable name, which is also the default [`Error::code`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Gone => "gone",
            Self::InvalidInput => "invalid_input",
            Self::Conflict => "conflict",
            Self::PermissionDenied => "permission_denied",
            Self::Capacity => "capacity",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Unsupported => "unsupported",
            Self::ShuttingDown => "shutting_down",
            Self::Backend => "backend",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the failed operation may be tried again. Set where the vendor's answer is read, not guessed by callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Retry {
    /// Never: it fails again.
    #[default]
    Never,
    /// At once.
    Now,
    /// After this long.
    After(Duration),
    /// It was worth retrying, and has been often enough: an outer retry must not start again.
    Exhausted,
}

/// An error of the contract: what failed, where, and what to do about it.
///
/// Cloning is cheap: one failed flight answers all its waiters.
///
/// `Display` is one line without the source; [`Error::report`] adds the chain of sources.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    code: &'static str,
    message: String,
    retry: Retry,
    field: Option<&'static str>,
    backend: Option<&'static str>,
    operation: Option<&'static str>,
    workspace_id: Option<WorkspaceId>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error. The message is lower case, without a full stop, and does not repeat the source.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            code: kind.as_str(),
            message: message.into(),
            retry: Retry::Never,
            field: None,
            backend: None,
            operation: None,
            workspace_id: None,
            source: None,
        }))
    }

    /// Shorthand for an [`ErrorKind::InvalidInput`] about one field.
    pub fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message).with_field(field)
    }

    /// Shorthand for an [`ErrorKind::Unsupported`].
    pub fn unsupported(operation: &'static str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("this backend does not support `{operation}`"))
            .with_operation(operation)
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets a stable code that is more exact than the kind, such as `program_not_found`.
    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        self.change(|inner| inner.code = code)
    }

    /// Sets the retry verdict.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        self.change(|inner| inner.retry = retry)
    }

    /// Names the input field that is at fault.
    #[must_use]
    pub fn with_field(self, field: &'static str) -> Self {
        self.change(|inner| inner.field = Some(field))
    }

    /// Names the backend, unless one is named already.
    #[must_use]
    pub fn with_backend(self, backend: &'static str) -> Self {
        self.change(|inner| {
            inner.backend.get_or_insert(backend);
        })
    }

    /// Names the operation, unless one is named already.
    #[must_use]
    pub fn with_operation(self, operation: &'static str) -> Self {
        self.change(|inner| {
            inner.operation.get_or_insert(operation);
        })
    }

    /// Names the workspace, unless one is named already.
    #[must_use]
    pub fn with_workspace(self, id: &WorkspaceId) -> Self {
        self.change(|inner| {
            inner.workspace_id.get_or_insert_with(|| id.clone());
        })
    }

    /// Attaches what caused this.
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.change(|inner| inner.source = Some(Arc::from(source.into())))
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// A stable machine-readable code, at least as exact as the kind.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// What failed, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The input field at fault.
    pub fn field(&self) -> Option<&'static str> {
        self.0.field
    }

    /// The backend in which it happened.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The operation in which it happened.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The workspace for which it happened.
    pub fn workspace_id(&self) -> Option<&WorkspaceId> {
        self.0.workspace_id.as_ref()
    }

    /// Displays the error followed by its sources, each after a colon.
    pub fn report(&self) -> impl fmt::Display + '_ {
        Report(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(backend) = inner.backend {
            write!(f, "{backend}: ")?;
        }
        if let Some(operation) = inner.operation {
            write!(f, "{operation}: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(id) = &inner.workspace_id {
            write!(f, " (workspace `{id}`)")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.0.code, Report(self))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// What the operating system refuses for no reason that a backend knows better.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Backend, "the operating system refused").with_source(error)
    }
}

struct Report<'a>(&'a Error);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_where_and_what() {
        let id = WorkspaceId::new("w1").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "the engine does not answer")
            .with_backend("docker")
            .with_operation("open")
            .with_workspace(&id)
            .with_source(std::io::Error::other("connection refused"));
        assert_eq!(error.to_string(), "docker: open: the engine does not answer (workspace `w1`)");
        assert_eq!(
            error.report().to_string(),
            "docker: open: the engine does not answer (workspace `w1`): connection refused"
        );
        assert_eq!(error.code(), "unavailable");
    }

    #[test]
    fn the_innermost_place_wins() {
        let error = Error::unsupported("spawn").with_operation("exec").with_backend("a").with_backend("b");
        assert_eq!((error.operation(), error.backend()), (Some("spawn"), Some("a")));
    }

    #[test]
    fn a_clone_is_not_changed_through_the_original() {
        let first = Error::new(ErrorKind::Backend, "x");
        let second = first.clone().with_code("y");
        assert_eq!((first.code(), second.code()), ("backend", "y"));
    }
}
