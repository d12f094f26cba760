//! The inputs of a launch that the user confirmed: secrets and prepared images.

use std::collections::BTreeMap;

use bottle_backend::{Backend, Origin, Prepared, ProgressSink, Step};
use bottle_host::Host;
use bottle_keeper::launch::order::{LaunchOrder, Resumed};
use bottle_plan::Plan;
use bottle_plan::secrets::SecretError;
use bottle_plan::sensitive_env::{self, SensitiveEnv};
use bottle_protocol::session::guest::SecretText;

use super::preflight::Preflight;
use crate::failure::{Failure, Kind};
use crate::notice::{Notice, Notify};

/// A launch that the user confirmed.
pub struct Confirmed {
    /// The backend that launches the bottle.
    pub backend: Box<dyn Backend>,
    /// The plan of the bottle.
    pub plan: Plan,
    /// Notes about the image that the user has already seen.
    shown_notes: Vec<String>,
    origin: Origin,
    resumed: Option<Resumed>,
}

impl Preflight {
    /// Converts the preflight to the launch that the user confirmed.
    pub fn confirmed(self) -> Confirmed {
        let Self { backend, plan, preview, origin, resumed, .. } = self;
        Confirmed { backend, plan, shown_notes: preview.notes, origin, resumed }
    }
}

impl Confirmed {
    /// Finds or builds the images, and returns the order for the launch. `marked` contains the values of sensitive
    /// environment variables, and `secrets` contains the values of [`Plan::secrets`].
    ///
    /// # Errors
    /// When an image is unavailable. Dropping the future cancels a build.
    pub async fn order(
        self,
        marked: Vec<SecretText>,
        secrets: BTreeMap<String, SecretText>,
        progress: &ProgressSink<Step>,
        notify: Notify<'_>,
    ) -> Result<LaunchOrder, Failure> {
        let Self { backend, plan, shown_notes, origin, resumed } = self;
        let preparing = prepare(&*backend, &plan, &secrets, &shown_notes, progress, notify);
        // The engine takes a few milliseconds to return its identity, so the images are prepared concurrently.
        let (prepared, engine) = tokio::join!(preparing, backend.identity());
        let (prepared, engine) = (prepared?, engine?);
        Ok(LaunchOrder { origin, resumed, marked, engine, ..LaunchOrder::new(plan, prepared, secrets)? })
    }
}

/// Finds or builds the images of a plan. `shown_notes` are notes that the user has already read.
///
/// # Errors
/// When an image is unavailable. Dropping the future cancels a build.
pub async fn prepare(
    backend: &dyn Backend,
    plan: &Plan,
    secrets: &BTreeMap<String, SecretText>,
    shown_notes: &[String],
    progress: &ProgressSink<Step>,
    notify: Notify<'_>,
) -> Result<Prepared, Failure> {
    let prepared = backend.prepare(plan, secrets, progress).await?;
    let unread = prepared.notes.iter().filter(|note| !shown_notes.contains(note));
    unread.for_each(|note| notify(Notice::Note(note.clone())));
    Ok(prepared)
}

/// Returns the values of the environment variables that [`sensitive_env::VARIABLE`] names.
///
/// # Errors
/// When the variable cannot be read.
pub fn marked(host: &Host, plan: &Plan, notify: Notify<'_>) -> Result<Vec<SecretText>, Failure> {
    let SensitiveEnv { values, names, short } = SensitiveEnv::of(host, plan).map_err(|error| {
        Failure::usage(error.to_string())
            .about(sensitive_env::VARIABLE)
            .hint("write prefixes of variable names, as in `AWS_,STRIPE_`")
    })?;
    if !names.is_empty() {
        let names = names.join(", ");
        notify(Notice::Note(format!("{} blocks the values of {names}", sensitive_env::VARIABLE)));
    }
    for name in short {
        let text = format!("cannot block the value of {name}: it is too short to scan for");
        notify(Notice::Warning(text));
    }
    Ok(values)
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Self {
        let hint = error.hint();
        let kind = match error {
            SecretError::Cancelled(_) => Kind::Interrupted,
            SecretError::Missing(_) | SecretError::Unreadable { .. } => Kind::Secret,
        };
        Self::from_error(kind, &error).hint_if(hint)
    }
}
