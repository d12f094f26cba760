//! Chooses the backend of a launch: the backend that the user named, otherwise the first backend that can run the plan.

use crate::registry;
use bottle_backend::{Backend, Check};
use bottle_host::causes;
use bottle_host::{Host, Settings};
use bottle_manifest::resolve::Resolved;
use bottle_plan::Plan;

use crate::failure::{Failure, Kind};
use bottle_text::suggest::suggest;

/// Returns the name of the backend from the manifest, otherwise the name from the settings.
pub fn preferred(resolved: &Resolved, settings: &Settings) -> Option<String> {
    let own = resolved.manifest.backend.as_ref().map(|backend| backend.value.to_string());
    own.or_else(|| settings.backend.clone())
}

/// Chooses the backend, and records its name in the plan.
///
/// # Errors
/// When the named backend is unknown, is unusable on this machine or cannot run the plan. Without a name, when every
/// backend is unusable or cannot run the plan.
pub async fn choose(host: &Host, plan: &mut Plan, named: Option<&str>) -> Result<Box<dyn Backend>, Failure> {
    let backend = match named {
        Some(name) => named_backend(host, plan, name).await?,
        None => first_usable(host, plan).await?,
    };
    backend.name().clone_into(&mut plan.backend);
    Ok(backend)
}

async fn named_backend(host: &Host, plan: &Plan, name: &str) -> Result<Box<dyn Backend>, Failure> {
    let Some(backend) = registry::by_name(host, name) else {
        let choosable = registry::choosable(host);
        let known: Vec<&str> = choosable.iter().map(|backend| backend.name()).collect();
        return Err(unknown(name, &known));
    };
    require(&*backend, plan).await?;
    Ok(backend)
}

/// Checks that this backend can run the plan on this machine.
///
/// # Errors
/// When the backend is unusable on this machine, or cannot run the plan.
pub async fn require(backend: &dyn Backend, plan: &Plan) -> Result<(), Failure> {
    let check = backend.check_use().await;
    if !check.usable {
        return Err(unusable(backend.name(), &check));
    }
    backend.supports(plan).map_err(Failure::from)
}

async fn first_usable(host: &Host, plan: &Plan) -> Result<Box<dyn Backend>, Failure> {
    let mut reasons = Vec::new();
    let mut only = None;
    for backend in registry::choosable(host) {
        let check = backend.check_use().await;
        if !check.usable {
            let error = unusable(backend.name(), &check);
            reasons.push(error.message.clone());
            only = Some(error);
            continue;
        }
        match backend.supports(plan) {
            Ok(()) => return Ok(backend),
            Err(error) => {
                reasons.push(format!("{}: {}", backend.name(), causes::one_line(&error)));
                only = Some(error.into());
            }
        }
    }
    match (only, reasons.len()) {
        // If there is only one cause, the error about this cause is returned with its own hint.
        (Some(error), 1) => Err(error),
        _ => Err(Failure::new(Kind::Backend, format!("no backend can run this: {}", reasons.join("; ")))
            .hint("`bottle doctor` shows what each one lacks")),
    }
}

fn unknown(name: &str, known: &[&str]) -> Failure {
    let hint = match suggest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the backends are {}", known.join(", ")),
    };
    Failure::usage(format!("no backend is named {name:?}")).about("--backend").hint(hint)
}

fn unusable(name: &str, check: &Check) -> Failure {
    let finding = check.findings.first();
    let why = finding.map_or("`bottle doctor` shows why", |finding| finding.what.as_str());
    Failure::new(Kind::Backend, format!("the {name} backend cannot be used here: {why}"))
        .about(name)
        .hint_if(finding.map(|finding| finding.fix.clone()))
}
