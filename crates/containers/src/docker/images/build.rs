//! Builds images with the engine's classic builder, or with BuildKit if a Dockerfile needs BuildKit. Also finds images
//! and containers that an aborted build did not remove.

use std::path::Path;

use bollard::Docker;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum, ImageSummary};
use bollard::query_parameters::ListContainersOptionsBuilder;
use bottle_backend::static_program::Program;
use bottle_backend::{BackendError, ProgressSink, Step, Unused};
use bottle_host::Host;
use indicatif::HumanBytes;

use super::build_request::{BuildRequest, Builder};
use super::image_error::failed;
use super::labels::{AGENT, BUILT, HOME_LABEL, IMAGE_LABEL, SIDECARS, SOURCE_LABEL, STAGE, TOOLS};
use super::recipe::Recipe;
use super::unused::{IMAGE, STEP};
use super::{buildkit, classic, recipes};
use crate::docker::listing;

/// The age in seconds at which an agent's or sidecars' image is removed after another image has taken its name. A start
/// that is still running may use a younger image.
const RENAMED_MAX_AGE: i64 = 60 * 60;
/// The age in seconds (a week) at which an unused sidecars' image is removed if it contains another version of
/// `bottle`.
const SIDECAR_IMAGE_MAX_AGE: i64 = 7 * 24 * 60 * 60;
/// The age in seconds at which an agent image is removed if a newer image replaced it.
const AGENT_IMAGE_MAX_AGE: i64 = SIDECAR_IMAGE_MAX_AGE;
/// The label that identifies the version of `bottle` in a sidecars' image. `Dockerfile.sidecars` sets this label.
const PROGRAM_LABEL: &str = "bottle.program";
/// The beginning of a build step's command, unless the Dockerfile sets another shell.
const STEP_COMMAND: &str = "/bin/sh -c ";
/// Predefined build arguments. Builders do not store these arguments in the image or in its history.
const PROXY_VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY"];

/// Builds an image and returns its id.
///
/// # Errors
/// [`BackendError`] with the cause and the builder's output.
pub(super) async fn build(
    docker: &Docker,
    socket: &Path,
    recipe: Recipe,
    mut request: BuildRequest<'_>,
    progress: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    if let Some(directory) = &recipe.directory {
        let line = format!("sending {} files, {}", directory.len(), HumanBytes(directory.bytes));
        progress.report(Step { subject: request.name.to_owned(), line, starts_stage: true });
    }
    match std::mem::replace(&mut request.builder, Builder::Classic) {
        Builder::Classic => classic::build(docker, recipe, &request, progress).await,
        Builder::BuildKit { secrets } => buildkit::build(socket, recipe, &request, secrets, progress).await,
    }
}

/// Returns the machine's proxy variables, which a build needs for downloads. Skips a URL that contains `@`, because it
/// may contain a password, and other users of the engine can read build arguments.
pub(super) fn proxies(host: &Host) -> Vec<(String, String)> {
    let names = PROXY_VARIABLES.iter().flat_map(|name| [(*name).to_owned(), name.to_lowercase()]);
    let set = names.filter_map(|name| host.var(&name).map(|value| (name.clone(), value.to_owned())));
    set.filter(|(_, value)| !value.contains('@')).collect()
}

/// Lists leftovers of aborted builds of this `$BOTTLE_HOME` (stages, the container of the last step, images that were
/// not prepared), and old images that newer images replaced. Excludes images that a container uses.
///
/// # Errors
/// [`BackendError`] when the engine cannot be queried.
pub(super) async fn unused(
    docker: &Docker,
    program: Option<&Program>,
    home: &str,
) -> Result<Vec<Unused>, BackendError> {
    let failed = |error| failed("cannot list what earlier builds left", error);
    let images = listing::images(docker, "label", vec![IMAGE_LABEL.to_owned()]).await.map_err(failed)?;
    let options = ListContainersOptionsBuilder::new().all(true).build();
    let containers = docker.list_containers(Some(options)).await.map_err(failed)?;
    let (steps, others): (Vec<_>, Vec<_>) =
        containers.into_iter().partition(|container| is_leftover_step(container, home));
    let used: Vec<String> = others.into_iter().filter_map(|container| container.image_id).collect();
    let program = program.map(|program| program.id.as_str());
    // Containers of build steps are listed before the images that they use.
    let steps = steps.into_iter().filter_map(|step| {
        let why = "an interrupted build ran a step in it".to_owned();
        Some(Unused { kind: STEP.to_owned(), id: step.id?, why, bytes: None })
    });
    Ok(steps.chain(left(&images, &used, home, program, jiff::Timestamp::now().as_second())).collect())
}

/// Whether a container is a build step that was not removed. The builder removes the containers of its steps unless the
/// engine was killed.
fn is_leftover_step(container: &ContainerSummary, home: &str) -> bool {
    let label =
        |name: &str| container.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let runs = matches!(
        container.state,
        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
    );
    // A container that the user runs from a stage's image belongs to the user and is not removed.
    let is_step = container.command.as_ref().is_some_and(|command| command.starts_with(STEP_COMMAND));
    label(IMAGE_LABEL) == Some(STAGE) && label(HOME_LABEL) == Some(home) && is_step && !runs
}

/// Selects from `images` the images that [`unused`] lists, with the reason for each.
fn left(
    images: &[ImageSummary],
    used: &[String],
    home: &str,
    program: Option<&str>,
    now: i64,
) -> Vec<Unused> {
    let superseded = superseded(images, home, now);
    let newest_tools =
        images.iter().filter(|image| is_of(recipes::TOOLS, image)).map(|image| image.created).max();
    let why = |image: &ImageSummary| {
        let label = |name: &str| image.labels.get(name).map(String::as_str);
        let older = |than: i64| now.saturating_sub(image.created) > than;
        let nameless = image.repo_tags.iter().all(|name| name.ends_with(":<none>"));
        match label(IMAGE_LABEL)? {
            STAGE | BUILT if nameless && label(HOME_LABEL) == Some(home) => Some("a build left it"),
            AGENT | SIDECARS if nameless && label(HOME_LABEL) == Some(home) && older(RENAMED_MAX_AGE) => {
                Some("another image has its name")
            }
            TOOLS if nameless && older(RENAMED_MAX_AGE) => Some("another image has its name"),
            TOOLS
                if newest_tools.is_some_and(|newest| newest > image.created)
                    && older(AGENT_IMAGE_MAX_AGE) =>
            {
                Some("there is a newer image of the same source")
            }
            SIDECARS if !nameless && label(PROGRAM_LABEL) != program && older(SIDECAR_IMAGE_MAX_AGE) => {
                Some("it contains the program of another version")
            }
            AGENT if image.repo_tags.iter().any(|name| superseded.contains(name)) => {
                Some("there is a newer image of the same source")
            }
            _ => None,
        }
    };
    let free = images.iter().filter(|image| !used.contains(&image.id));
    free.filter_map(|image| {
        // A replaced agent image, a sidecars' image or a tools image is removed by its name. If the image also has
        // another name, for example as a snapshot, the image stays under that name.
        let is_ours = |name: &str| [recipes::SIDECARS, recipes::TOOLS].iter().any(|own| is_named(own, name));
        let name = image.repo_tags.iter().find(|name| superseded.contains(name) || is_ours(name));
        Some(Unused {
            kind: IMAGE.to_owned(),
            id: name.unwrap_or(&image.id).clone(),
            why: why(image)?.to_owned(),
            bytes: u64::try_from(image.size).ok(),
        })
    })
    .collect()
}

/// Whether an image has a name in this repository.
fn is_of(repository: &str, image: &ImageSummary) -> bool {
    image.repo_tags.iter().any(|name| is_named(repository, name))
}

fn is_named(repository: &str, name: &str) -> bool {
    name.strip_prefix(repository).is_some_and(|rest| rest.starts_with(':'))
}

/// Returns the names of agent images of this `$BOTTLE_HOME` that are older than [`AGENT_IMAGE_MAX_AGE`], if a newer
/// image of the same source exists.
fn superseded(images: &[ImageSummary], home: &str, now: i64) -> Vec<String> {
    let (ours, tag) = (format!("{home}:"), format!("{}:", recipes::AGENT));
    // A snapshot has the labels of its base image, but another name.
    let named = |image: &ImageSummary| image.repo_tags.iter().find(|name| name.starts_with(&tag)).cloned();
    let all: Vec<(&str, i64, String)> = images
        .iter()
        .filter_map(|image| Some((image.labels.get(SOURCE_LABEL)?.as_str(), image.created, named(image)?)))
        .filter(|(source, ..)| source.starts_with(&ours))
        .collect();
    let newer = |of: &str, made: i64| all.iter().any(|(source, created, _)| *source == of && *created > made);
    let old = all
        .iter()
        .filter(|(source, made, _)| now.saturating_sub(*made) > AGENT_IMAGE_MAX_AGE && newer(source, *made));
    old.map(|(.., name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_agent_image_with_a_newer_one_of_its_source_is_superseded() {
        let image = |tag: &str, source: &str, created: i64| ImageSummary {
            created,
            repo_tags: vec![tag.to_owned()],
            labels: [(SOURCE_LABEL.to_owned(), source.to_owned())].into(),
            ..ImageSummary::default()
        };
        let images = [
            image("bottle-agent:old", "0123abcd:claude", 100),
            image("bottle-agent:older", "0123abcd:claude", 50),
            image("bottle-agent:young", "0123abcd:claude", AGENT_IMAGE_MAX_AGE),
            image("bottle-agent:newest", "0123abcd:claude", AGENT_IMAGE_MAX_AGE + 1),
            image("bottle-agent:alone", "0123abcd:codex", 100),
            image("bottle-agent:another-home", "ffffffff:claude", 1),
            image("bottle-snapshot:1", "0123abcd:codex", 2 * AGENT_IMAGE_MAX_AGE),
            ImageSummary { repo_tags: vec!["bottle-agent:unmarked".to_owned()], ..ImageSummary::default() },
        ];
        assert_eq!(superseded(&images, "0123abcd", AGENT_IMAGE_MAX_AGE + 100), ["bottle-agent:older"]);
        let later = superseded(&images, "0123abcd", 2 * AGENT_IMAGE_MAX_AGE + 1);
        assert_eq!(later, ["bottle-agent:old", "bottle-agent:older", "bottle-agent:young"]);
    }

    #[test]
    fn proxy_urls_with_passwords_are_skipped() {
        let set = [
            ("HTTPS_PROXY", "http://proxy.example:3128"),
            ("https_proxy", "http://me:secret@proxy.example:3128"),
            ("NO_PROXY", "localhost"),
            ("HTTP_PROXY", ""),
            ("ALL_PROXY", "socks5://proxy.example"),
            ("ANTHROPIC_API_KEY", "secret"),
        ];
        let host = Host {
            env: set.map(|(name, value)| (name.into(), value.into())).into(),
            cwd: "/".into(),
            home: "/home/somebody/.bottle".into(),
            user_home: "/home/somebody".into(),
            runtime: "/run/bottle".into(),
            program: "/usr/bin/bottle".into(),
        };
        let expected = [("HTTPS_PROXY", "http://proxy.example:3128"), ("NO_PROXY", "localhost")];
        assert_eq!(proxies(&host), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn finds_leftovers_but_no_used_foreign_or_recent_images() {
        let now = 100 * SIDECAR_IMAGE_MAX_AGE;
        let image = |id: &str, kind: &str, home: &str, name: Option<&str>, age: i64| ImageSummary {
            id: id.to_owned(),
            repo_tags: vec![name.unwrap_or("<none>:<none>").to_owned()],
            created: now - age,
            size: 7,
            labels: [(IMAGE_LABEL, kind), (HOME_LABEL, home), (PROGRAM_LABEL, id)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..ImageSummary::default()
        };
        let (ours, week) = ("0123abcd", SIDECAR_IMAGE_MAX_AGE + 1);
        let images = [
            image("stage", STAGE, ours, None, 0),
            image("built", BUILT, ours, None, 0),
            image("used", STAGE, ours, None, week),
            image("named", STAGE, ours, Some("mine:1"), week),
            image("anothers", STAGE, "ffffffff", None, week),
            image("renamed", AGENT, ours, None, RENAMED_MAX_AGE + 1),
            image("just-renamed", AGENT, ours, None, RENAMED_MAX_AGE),
            image("guards", SIDECARS, "ffffffff", Some("bottle-sidecars:1"), week),
            image("own-guards", SIDECARS, ours, Some("bottle-sidecars:2"), week),
            image("young-guards", SIDECARS, ours, Some("bottle-sidecars:3"), week - 1),
            image("used-guards", SIDECARS, ours, Some("bottle-sidecars:4"), week),
            image("snapshot", AGENT, ours, Some("bottle-snapshot:0123abcd-a-1"), week),
            image("tools", TOOLS, "", Some("bottle-tools:1"), week),
            image("current-tools", TOOLS, "", Some("bottle-tools:2"), week - 1),
            image("renewed-tools", TOOLS, "", None, RENAMED_MAX_AGE + 1),
            image("just-renewed-tools", TOOLS, "", None, RENAMED_MAX_AGE),
        ];
        let used = ["used".to_owned(), "used-guards".to_owned()];
        let left = left(&images, &used, ours, Some("own-guards"), now);
        assert!(left.iter().all(|image| image.kind == IMAGE && image.bytes == Some(7)), "{left:?}");
        let ids: Vec<&str> = left.iter().map(|image| image.id.as_str()).collect();
        let expected = ["stage", "built", "renamed", "bottle-sidecars:1", "bottle-tools:1", "renewed-tools"];
        assert_eq!(ids, expected);
    }
}
