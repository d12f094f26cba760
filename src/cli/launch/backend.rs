//! Chooses the backend: the one that the user named, otherwise the first that can run the plan.

use crate::backend::{Backend, Check, registry};
use crate::causes;
use crate::cli::choice::unknown_backend;
use crate::cli::error::{CliError, Kind};
use crate::host::Host;
use crate::plan::Plan;

/// Chooses the backend and records it in the plan.
pub(crate) async fn choose(
    host: &Host,
    plan: &mut Plan,
    named: Option<&str>,
) -> Result<Box<dyn Backend>, CliError> {
    let backend = match named {
        Some(name) => named_backend(host, plan, name).await?,
        None => first_usable(host, plan).await?,
    };
    backend.name().clone_into(&mut plan.backend);
    Ok(backend)
}

async fn named_backend(host: &Host, plan: &Plan, name: &str) -> Result<Box<dyn Backend>, CliError> {
    let Some(backend) = registry::by_name(host, name) else {
        let choosable = registry::choosable(host);
        let known: Vec<&str> = choosable.iter().map(|backend| backend.name()).collect();
        return Err(unknown_backend(name, &known));
    };
    require(&*backend, plan).await?;
    Ok(backend)
}

/// Fails unless this backend can run the plan on this machine.
pub(crate) async fn require(backend: &dyn Backend, plan: &Plan) -> Result<(), CliError> {
    let check = backend.check_use().await;
    if !check.usable {
        return Err(unusable(backend.name(), &check));
    }
    backend.supports(plan).map_err(CliError::from)
}

async fn first_usable(host: &Host, plan: &Plan) -> Result<Box<dyn Backend>, CliError> {
    let mut reasons = Vec::new();
    let mut only = None;
    for backend in registry::choosable(host) {
        let check = backend.check_use().await;
        if !check.usable {
            let error = unusable(backend.name(), &check);
            reasons.push(error.failure.message.clone());
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
        // If there is only one cause, its own hint is shown.
        (Some(error), 1) => Err(error),
        _ => Err(CliError::new(Kind::Backend, format!("no backend can run this: {}", reasons.join("; ")))
            .hint("`bottle doctor` shows what each one lacks")),
    }
}

fn unusable(name: &str, check: &Check) -> CliError {
    let finding = check.findings.first();
    let why = finding.map_or("`bottle doctor` shows why", |finding| finding.what.as_str());
    CliError::new(Kind::Backend, format!("the {name} backend cannot be used here: {why}"))
        .about(name)
        .hint_if(finding.map(|finding| finding.fix.clone()))
}
