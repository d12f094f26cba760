//! Checks that can refuse a launch before any secret is read.

use bottle_host::Host;
use bottle_instance::{State, Store};
use bottle_plan::{Plan, PlanError};

use crate::failure::{Failure, Kind};

/// Checks the host keys of the plan's repositories before any resource is created. The launch reads the host keys
/// again.
///
/// # Errors
/// When a repository has no usable host key.
pub fn require_host_keys(plan: &Plan) -> Result<(), Failure> {
    for repo in &plan.repos {
        repo.host_keys().map_err(|error| {
            let hint = error.hint();
            Failure::from_error(Kind::Usage, &error).about(format!("git-gate.repos.{}", repo.name)).hint(hint)
        })?;
    }
    Ok(())
}

/// Checks that the slug is unused, before any secret is read. The check does not reserve the slug: the keeper claims
/// the slug later.
///
/// # Errors
/// When a bottle already has the slug.
pub fn require_free_slug(host: &Host, plan: &Plan) -> Result<(), Failure> {
    let slug = &plan.identity.slug;
    let taken = |message: String, hint: String| Err(Failure::state(message).about(slug).hint(hint));
    match Store::of(host).state(slug) {
        None => Ok(()),
        // The new bottle replaces the old logs.
        Some(State::Dead(record)) if record.has_only_logs() => Ok(()),
        Some(State::Alive(_)) => taken(
            format!("a bottle named {slug} is running"),
            format!("choose another --label, or `bottle attach {slug}`"),
        ),
        Some(State::Kept(record)) if record.has_only_conversation() => taken(
            format!("the conversation of a bottle named {slug} is kept, and never overwritten"),
            format!("`bottle resume {slug}` continues it; `bottle discard {slug}` frees the name"),
        ),
        Some(State::Kept(_)) => taken(
            format!("a bottle named {slug} is kept, and never overwritten"),
            format!("`bottle resume {slug}` starts it again; or choose another --label"),
        ),
        Some(_) => taken(
            format!("a bottle named {slug} was left behind"),
            "choose another --label, or `bottle cleanup`".to_owned(),
        ),
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let failed = |kind| Self::from_error(kind, &error);
        match &error {
            PlanError::Label(_) => failed(Kind::Usage).about("--label").hint(
                "use at least one letter from a to z or digit: they form the bottle's name in commands",
            ),
            PlanError::Argv { source, .. } => failed(Kind::Usage).about("--prompt").hint(source.hint()),
            PlanError::Repository { .. } => failed(Kind::Manifest)
                .hint("give it a key of your own (`key: {provider: static, path}`), or correct its address"),
            PlanError::Skill(_) | PlanError::Dockerfile(_) | PlanError::Routes(_) => failed(Kind::Manifest),
        }
    }
}

/// Refuses a working directory that the bottle's record cannot store as text.
pub(super) fn require_utf8_cwd(host: &Host) -> Result<(), Failure> {
    if host.cwd.to_str().is_some() {
        return Ok(());
    }
    Err(Failure::usage(format!("the path {} is not UTF-8", host.cwd.display()))
        .about(host.cwd.display())
        .hint("start from a directory whose path is UTF-8"))
}
