//! The error type of all backends.

use std::error::Error;
use std::sync::Arc;

use bottle_host::causes;
use bottle_plan::Plan;

/// A backend's error: a kind, a lower-case message, its cause and a hint. Code that handles an error depends only on
/// its kind.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    /// The kind, which determines the exit code.
    pub kind: BackendErrorKind,
    /// The action that failed, and its object.
    pub message: String,
    /// The user's next step.
    pub hint: Option<String>,
    /// The error that caused this error.
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kind of a [`BackendError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendErrorKind {
    /// The backend is not usable on this machine (exit 4).
    Unavailable,
    /// The plan needs a feature that the backend lacks (exit 4).
    Unsupported,
    /// The agent's program does not exist (exit 127 with `-p`, else 4).
    ProgramMissing,
    /// The bottle exists but cannot be contacted now (exit 1).
    Busy,
    /// The process that the caller wants to contact does not run (exit 1).
    NotRunning,
    /// Any other failure (exit 1).
    Failed,
}

impl BackendError {
    /// Creates an error of kind `kind`, without a hint and without a cause.
    #[must_use]
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// Creates an error of kind [`BackendErrorKind::Failed`].
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(BackendErrorKind::Failed, message)
    }

    /// Creates an error of kind [`BackendErrorKind::Unavailable`].
    #[must_use]
    pub fn unavailable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(BackendErrorKind::Unavailable, message).with_hint(hint)
    }

    /// Creates an error of kind [`BackendErrorKind::Unsupported`].
    #[must_use]
    pub fn unsupported(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(BackendErrorKind::Unsupported, message).with_hint(hint)
    }

    /// Combines the `failures` of an operation that continued after each failure into one error.
    ///
    /// # Errors
    /// When `failures` is not empty. The message contains all failures.
    pub fn all(failures: &[String]) -> Result<(), Self> {
        if failures.is_empty() { Ok(()) } else { Err(Self::failed(failures.join("; "))) }
    }

    /// Rejects resource limits that a backend cannot enforce. Each entry of `limits` says whether the plan sets the
    /// limit, and gives the limit's key under `resources`.
    ///
    /// # Errors
    /// When the plan sets one of the limits. The message names the first limit that the plan sets.
    pub fn reject_unsupported_limits(backend: &str, limits: &[(bool, &str)]) -> Result<(), Self> {
        let Some((_, key)) = limits.iter().find(|(set, _)| *set) else { return Ok(()) };
        let message = format!("`resources.{key}` is not available on the {backend} backend");
        Err(Self::unsupported(message, format!("take `{key}` out of the manifest, or use another backend")))
    }

    /// Refuses a plan that mounts a directory of the user as the workspace.
    ///
    /// # Errors
    /// When `plan.live` is set.
    pub fn reject_live(backend: &str, plan: &Plan) -> Result<(), Self> {
        let Some(live) = &plan.live else { return Ok(()) };
        let message = format!(
            "`--cwd=live` is not available on the {backend} backend, so it cannot mount {}",
            live.path.display()
        );
        Err(Self::unsupported(
            message,
            "use `--backend linux` or `docker`, or `--cwd`, which copies the directory",
        ))
    }

    /// Returns the message and its causes on one line, as commands print them.
    #[must_use]
    pub fn one_line(&self) -> String {
        causes::one_line(self)
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(cause));
        self
    }
}
