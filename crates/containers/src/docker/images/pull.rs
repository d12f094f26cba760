//! Pulls images, with the user's login at their registry.

use bollard::Docker;
use bollard::query_parameters::CreateImageOptionsBuilder;
use bottle_backend::{BackendError, ProgressSink, Step};
use bottle_host::Host;
use bottle_text::terminal::inert;
use futures_util::StreamExt;

use super::image_error::failed;
use super::logins::{Login, Logins, registry_of, shown};

/// Parts of the messages with which registries report a missing or wrong login. Many registries report that a private
/// image does not exist.
const DENIED: [&str; 6] =
    ["unauthorized", "denied", "authentication required", "no basic auth", "may require", "not found"];

/// Pulls an image by its reference, from the registry that the reference names. `why` is the beginning of an error
/// message (`the image a/b:1 is not on this engine and`).
///
/// # Errors
/// [`BackendError`] that names the image, the registry and the cause.
pub(super) async fn pull(
    docker: &Docker,
    host: &Host,
    reference: &str,
    why: &str,
    progress: &ProgressSink<Step>,
) -> Result<(), BackendError> {
    let report = |line: String, starts_stage| {
        progress.report(Step { subject: format!("the image {reference}"), line, starts_stage })
    };
    report("fetching it".to_owned(), true);
    let registry = registry_of(reference);
    let login = login(host, registry).await;
    if let Err(why) = &login {
        report(inert(&format!("no login is sent: {why}")), false);
    }
    let mut options = CreateImageOptionsBuilder::new().from_image(reference);
    // If the reference had no tag, the engine would pull all tags.
    if !reference.rsplit('/').next().is_some_and(|name| name.contains([':', '@'])) {
        options = options.tag("latest");
    }
    let credentials = login.as_ref().ok().and_then(Option::as_ref).map(|login| login.credentials(registry));
    let mut events = docker.create_image(Some(options.build()), None, credentials);
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| {
            let failed = failed(format!("{why} cannot be pulled from {}", shown(registry)), error);
            let hint = hint(&failed.message, registry, login.as_ref());
            match (hint, failed.hint.is_some()) {
                (Some(hint), false) => failed.with_hint(hint),
                _ => failed,
            }
        })?;
        if let Some(status) = event.status {
            let layer = event.id.map(|id| format!("{id}: ")).unwrap_or_default();
            report(inert(&format!("{layer}{status}")), false);
        }
    }
    Ok(())
}

/// Returns the user's login at this registry.
///
/// # Errors
/// The cause, as a sentence, if the login cannot be read. A public image can be pulled without a login.
pub(super) async fn login(host: &Host, registry: &str) -> Result<Option<Login>, String> {
    Logins::load(host)?.at(registry).await
}

/// Returns the user's next step after a failed pull.
fn hint(message: &str, registry: &str, login: Result<&Option<Login>, &String>) -> Option<String> {
    let message = message.to_lowercase();
    let denied = DENIED.iter().any(|part| message.contains(part));
    let registry = shown(registry);
    match login {
        Err(why) => Some(why.clone()),
        Ok(None) if denied => Some(format!(
            "see whether the name and the tag are right; if it is private, `docker login {registry}`"
        )),
        Ok(Some(_)) if denied => {
            Some(format!("see whether your login may pull it; `docker login {registry}` renews the login"))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_pull_names_the_command_for_a_login() {
        let of = |message: &str, login| hint(message, "a.example", Ok(&login));
        let login = Login::IdentityToken(bottle_policy::secret::Secret::new("t".to_owned()));
        let first = of("pull access denied for x", None).expect("a hint");
        assert!(first.contains("`docker login a.example`"), "{first}");
        let renew = of("no basic auth credentials", Some(login)).expect("a hint");
        assert!(renew.contains("renews"), "{renew}");
        assert_eq!(of("dial tcp: i/o timeout", None), None);
        let broken = "`docker-credential-x get` failed".to_owned();
        assert_eq!(hint("dial tcp: i/o timeout", "a.example", Err(&broken)), Some(broken));
    }
}
