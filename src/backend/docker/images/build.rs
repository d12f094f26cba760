//! One build on the engine's own builder, the one that every supported engine has.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum, ImageSummary};
use bollard::query_parameters::{BuildImageOptionsBuilder, BuilderVersion, ListContainersOptionsBuilder};
use bottle_contract::terminal::inert;
use futures_util::StreamExt;

use super::program::Program;
use super::recipe::Recipe;
use super::unused::{IMAGE, STEP};
use super::{IMAGE_LABEL, failed, stages};
use crate::backend::docker::engine::{EngineError, FREE_SPACE};
use crate::backend::docker::listing;
use crate::backend::{BackendError, ProgressSink, Step, Unused};
use crate::host::Host;

/// What of a failed build's output an error carries: its end, where the cause stands.
const OUTPUT_KEPT: usize = 32 << 10;
/// How long an image is kept that lost its name to another start's: that one may be about to use it.
const RENAMED_KEPT: i64 = 60 * 60;
/// How long an unused image of another program's guards is kept: a week.
const SIDECAR_IMAGES_KEPT: i64 = 7 * 24 * 60 * 60;
/// How long an agent's image is kept that another has taken the place of, likewise.
const AGENTS_KEPT: i64 = SIDECAR_IMAGES_KEPT;
/// The home that an image was made by.
pub(super) const HOME_LABEL: &str = "bottle.built-by";
/// What an agent's image was made of, for the home that made it.
pub(super) const SOURCE_LABEL: &str = "bottle.source";
/// Which program an image of guards holds; written by `Dockerfile.sidecars`.
const PROGRAM_LABEL: &str = "bottle.program";
/// The label of an image of guards.
pub(super) const SIDECARS: &str = "sidecars";
/// The label of a stage.
const STAGE: &str = "stage";
/// What the builder runs a step with, unless its Dockerfile names another shell.
const STEP_COMMAND: &str = "/bin/sh -c ";
/// The label of an image that is yet to be made ready.
pub(super) const BUILT: &str = "built";
/// The label of an image that an agent works in.
pub(super) const AGENT: &str = "agent";
/// Variables every builder takes without their being declared, and leaves out of the image and its history.
const PROXY_VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY"];

/// Builds, and answers with the image's id. `what` names the image in errors.
///
/// # Errors
/// [`BackendError`] with the cause and the builder's output.
pub(super) async fn build(
    docker: &Docker,
    recipe: &Recipe,
    what: &Order<'_>,
    told: &ProgressSink<Step>,
) -> Result<String, BackendError> {
    let marked = stages::marked(&recipe.dockerfile, &mark(what.home, STAGE));
    let context = recipe
        .context(&marked)
        .map_err(|error| BackendError::failed(format!("cannot pack {}: {error}", what.name)))?;
    let args: HashMap<String, String> = what.proxies.iter().cloned().chain(recipe.args.clone()).collect();
    let mut options = BuildImageOptionsBuilder::new()
        .version(BuilderVersion::BuilderV1)
        .buildargs(&args)
        .labels(&what.labels.iter().cloned().collect())
        // Nothing of an aborted build stays.
        .rm(true)
        .forcerm(true);
    if let Some(tag) = &what.tag {
        options = options.t(tag);
    }
    let mut events = docker.build_image(options.build(), None, Some(bollard::body_full(context)));
    let mut output = Output::default();
    let mut id = None;
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| output.failure(what, &EngineError::from(error)))?;
        id = event.aux.and_then(|aux| aux.id).or(id);
        if let Some(text) = event.stream.or(event.status) {
            output.take(&text, &|step| told.tell(Step { of: what.name.to_owned(), ..step }));
        }
    }
    let ended = || EngineError::Gone("it ended the build without a result".to_owned());
    id.ok_or_else(|| output.failure(what, &ended()))
}

/// What is asked of [`build`] beside the recipe.
#[derive(Debug)]
pub(super) struct Order<'a> {
    /// `the image for claude`.
    pub(super) name: &'a str,
    /// Where it is written, for the user who has to change it.
    pub(super) hint: &'a str,
    /// The hash of the home that it is built for.
    pub(super) home: &'a str,
    /// Its tag.
    pub(super) tag: Option<String>,
    /// Its labels.
    pub(super) labels: Vec<(String, String)>,
    /// See [`proxies`].
    pub(super) proxies: Vec<(String, String)>,
}

/// The machine's proxies, for what a build fetches. One with a password in its URL is left out: the engine
/// keeps a build's arguments where others can read them.
pub(super) fn proxies(host: &Host) -> Vec<(String, String)> {
    let names = PROXY_VARIABLES.iter().flat_map(|name| [(*name).to_owned(), name.to_lowercase()]);
    let set = names.filter_map(|name| host.var(&name).map(|value| (name.clone(), value.to_owned())));
    set.filter(|(_, value)| !value.contains('@')).collect()
}

/// The labels of an image of this kind that a home makes, as a Dockerfile writes them.
pub(super) fn mark(home: &str, kind: &str) -> String {
    format!("{IMAGE_LABEL}={kind} {HOME_LABEL}={home}")
}

/// What builds of this home left behind: stages, the last step of one that was given up, what could not be made
/// ready for an agent; and images that others have taken the place of, once they are old. No container has them.
///
/// # Errors
/// [`BackendError`] when the engine cannot be asked.
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
        containers.into_iter().partition(|container| is_step_left(container, home));
    let used: Vec<String> = others.into_iter().filter_map(|container| container.image_id).collect();
    let program = program.map(|program| program.hash.as_str());
    // Before the images that they stand on.
    let steps = steps.into_iter().filter_map(|step| {
        let why = "a build that was cut off ran a step in it".to_owned();
        Some(Unused { kind: STEP.to_owned(), id: step.id?, why, bytes: None })
    });
    Ok(steps.chain(left(&images, &used, home, program, jiff::Timestamp::now().as_second())).collect())
}

/// Whether a container is one of a build's steps and does not run: the builder removes its own, but for those of
/// an engine that was killed.
fn is_step_left(container: &ContainerSummary, home: &str) -> bool {
    let label =
        |name: &str| container.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let runs = matches!(
        container.state,
        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
    );
    // What a user runs by hand on a stage is theirs.
    let is_step = container.command.as_ref().is_some_and(|command| command.starts_with(STEP_COMMAND));
    label(IMAGE_LABEL) == Some(STAGE) && label(HOME_LABEL) == Some(home) && is_step && !runs
}

/// Which of these images are [`unused`].
fn left(
    images: &[ImageSummary],
    used: &[String],
    home: &str,
    program: Option<&str>,
    now: i64,
) -> Vec<Unused> {
    let superseded = superseded(images, home, now);
    let why = |image: &ImageSummary| {
        let label = |name: &str| image.labels.get(name).map(String::as_str);
        let older = |than: i64| now.saturating_sub(image.created) > than;
        let nameless = image.repo_tags.iter().all(|name| name.ends_with(":<none>"));
        match label(IMAGE_LABEL)? {
            STAGE | BUILT if nameless && label(HOME_LABEL) == Some(home) => Some("a build left it"),
            AGENT | SIDECARS if nameless && label(HOME_LABEL) == Some(home) && older(RENAMED_KEPT) => {
                Some("another one has its name")
            }
            SIDECARS if !nameless && label(PROGRAM_LABEL) != program && older(SIDECAR_IMAGES_KEPT) => {
                Some("it holds the program of another version")
            }
            AGENT if image.repo_tags.iter().any(|name| superseded.contains(name)) => {
                Some("a newer one of the same source is there")
            }
            _ => None,
        }
    };
    let free = images.iter().filter(|image| !used.contains(&image.id));
    free.filter_map(|image| {
        // By its name, so that another name of it, a snapshot's, stays what it is.
        let name = image.repo_tags.iter().find(|name| superseded.contains(name) || is_of_sidecars(name));
        Some(Unused {
            kind: IMAGE.to_owned(),
            id: name.unwrap_or(&image.id).clone(),
            why: why(image)?.to_owned(),
            bytes: u64::try_from(image.size).ok(),
        })
    })
    .collect()
}

fn is_of_sidecars(name: &str) -> bool {
    name.strip_prefix(super::SIDECARS).is_some_and(|rest| rest.starts_with(':'))
}

/// The names of old images of this home's that a newer one of the same source has taken the place of.
fn superseded(images: &[ImageSummary], home: &str, now: i64) -> Vec<String> {
    let (ours, tag) = (format!("{home}:"), format!("{}:", super::AGENT));
    // A snapshot has the labels of what it was made on, and not its name.
    let named = |image: &ImageSummary| image.repo_tags.iter().find(|name| name.starts_with(&tag)).cloned();
    let all: Vec<(&str, i64, String)> = images
        .iter()
        .filter_map(|image| Some((image.labels.get(SOURCE_LABEL)?.as_str(), image.created, named(image)?)))
        .filter(|(source, ..)| source.starts_with(&ours))
        .collect();
    let newer = |of: &str, made: i64| all.iter().any(|(source, created, _)| *source == of && *created > made);
    let old = all
        .iter()
        .filter(|(source, made, _)| now.saturating_sub(*made) > AGENTS_KEPT && newer(source, *made));
    old.map(|(.., name)| name.clone()).collect()
}

/// A builder's output: shown line by line, kept for the case that it fails.
#[derive(Debug, Default)]
struct Output {
    kept: String,
    cut: bool,
    line: String,
}

impl Output {
    fn take(&mut self, text: &str, hear: &dyn Fn(Step)) {
        for piece in text.split_inclusive(['\n', '\r']) {
            self.line.push_str(piece);
            if piece.ends_with(['\n', '\r']) || self.line.len() > OUTPUT_KEPT {
                self.end_line(hear);
            }
        }
    }

    fn end_line(&mut self, hear: &dyn Fn(Step)) {
        let line = inert(&plain(self.line.trim_end()));
        self.line.clear();
        let line = line.trim_end();
        if line.trim().is_empty() {
            return;
        }
        let begins = line.starts_with("Step ");
        // Labels of ours are nothing to a user.
        if !(begins && line.contains(" : LABEL bottle.")) {
            hear(Step { of: String::new(), line: line.to_owned(), begins });
        }
        self.kept.push_str(line);
        self.kept.push('\n');
        if self.kept.len() > 2 * OUTPUT_KEPT {
            self.shorten();
        }
    }

    /// Keeps whole lines of the end.
    fn shorten(&mut self) {
        let from = self.kept.ceil_char_boundary(self.kept.len().saturating_sub(OUTPUT_KEPT));
        let line_end = self.kept[from..].trim_end().find('\n').filter(|_| from > 0);
        let from = line_end.map_or(from, |at| from + at + 1);
        self.cut |= from > 0;
        self.kept.drain(..from);
    }

    fn failure(&mut self, what: &Order<'_>, cause: &EngineError) -> BackendError {
        self.end_line(&|_| ());
        self.shorten();
        let cut = if self.cut { "(the beginning is left out)\n" } else { "" };
        let output = format!("{cut}{}", self.kept);
        let why = inert(&cause.to_string());
        let message = match output.trim_end() {
            "" => format!("cannot build {}: {why}", what.name),
            said => format!("cannot build {}: {why}\n{said}", what.name),
        };
        // A step that found the disk full says so in words of its own.
        let full = self.kept.to_ascii_lowercase().contains("no space left on device");
        let hint = cause.hint().or(full.then_some(FREE_SPACE)).unwrap_or(what.hint);
        BackendError::failed(message).with_hint(hint)
    }
}

/// Without colours: the builder paints what a step writes to its standard error.
fn plain(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('m') {
            Some((codes, rest)) if codes.bytes().all(|b| b.is_ascii_digit() || b == b';') => {
                plain.push_str(rest)
            }
            _ => {
                plain.push_str("\u{1b}[");
                plain.push_str(piece);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn output_comes_line_by_line_however_it_is_cut_and_does_nothing() {
        let shown = Mutex::new(Vec::new());
        let hear = |Step { line, begins, .. }: Step| {
            shown.lock().expect("lock").push(if begins { format!("> {line}") } else { line });
        };
        let mut output = Output::default();
        for text in [
            "Step 1/2 : FR",
            "OM base\n",
            "\n ---> 12\n",
            "10 %\r20 %\r",
            "\u{1b}[2Jdone\n",
            "\u{1b}[91mred\n",
            "\u{1b}[0mcut",
        ] {
            output.take(text, &hear);
        }
        let order =
            Order { name: "the image", hint: "look", home: "", tag: None, labels: vec![], proxies: vec![] };
        let refused = |message: &str| EngineError::Refused { status: 500, message: message.to_owned() };
        let error = output.failure(&order, &refused("it said 1"));
        let lines = ["> Step 1/2 : FROM base", " ---> 12", "10 %", "20 %", "\\u{1b}[2Jdone", "red"];
        assert_eq!(*shown.lock().expect("lock"), lines);
        assert!(error.message.starts_with("cannot build the image: it said 1\nStep 1/2"), "{error}");
        assert!(error.message.ends_with("done\nred\ncut"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("look"));
        // What is no fault of the Dockerfile's has another way out.
        let gone = output.failure(&order, &EngineError::Gone("end of file".to_owned()));
        assert!(gone.hint.is_some_and(|hint| hint.contains("journalctl")));
        output.take("cc: write: No space left on device\n", &hear);
        let full = output.failure(&order, &refused("returned a non-zero code: 1"));
        assert_eq!(full.hint.as_deref(), Some(FREE_SPACE));
    }

    #[test]
    fn an_agents_image_goes_when_it_is_old_and_another_took_its_place() {
        let image = |tag: &str, source: &str, created: i64| ImageSummary {
            created,
            repo_tags: vec![tag.to_owned()],
            labels: [(SOURCE_LABEL.to_owned(), source.to_owned())].into(),
            ..ImageSummary::default()
        };
        let images = [
            image("bottle-agent:old", "0123abcd:claude", 100),
            image("bottle-agent:older", "0123abcd:claude", 50),
            image("bottle-agent:young", "0123abcd:claude", AGENTS_KEPT),
            image("bottle-agent:newest", "0123abcd:claude", AGENTS_KEPT + 1),
            image("bottle-agent:alone", "0123abcd:codex", 100),
            image("bottle-agent:another-home", "ffffffff:claude", 1),
            image("bottle-snapshot:1", "0123abcd:codex", 2 * AGENTS_KEPT),
            ImageSummary { repo_tags: vec!["bottle-agent:unmarked".to_owned()], ..ImageSummary::default() },
        ];
        assert_eq!(superseded(&images, "0123abcd", AGENTS_KEPT + 100), ["bottle-agent:older"]);
        let later = superseded(&images, "0123abcd", 2 * AGENTS_KEPT + 1);
        assert_eq!(later, ["bottle-agent:old", "bottle-agent:older", "bottle-agent:young"]);
    }

    #[test]
    fn proxies_go_into_a_build_and_their_passwords_do_not() {
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
    fn what_builds_left_is_told_from_what_is_used_anothers_or_young() {
        let now = 100 * SIDECAR_IMAGES_KEPT;
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
        let (ours, week) = ("0123abcd", SIDECAR_IMAGES_KEPT + 1);
        let images = [
            image("stage", STAGE, ours, None, 0),
            image("built", BUILT, ours, None, 0),
            image("used", STAGE, ours, None, week),
            image("named", STAGE, ours, Some("mine:1"), week),
            image("anothers", STAGE, "ffffffff", None, week),
            image("renamed", AGENT, ours, None, RENAMED_KEPT + 1),
            image("just-renamed", AGENT, ours, None, RENAMED_KEPT),
            image("guards", SIDECARS, "ffffffff", Some("bottle-sidecars:1"), week),
            image("own-guards", SIDECARS, ours, Some("bottle-sidecars:2"), week),
            image("young-guards", SIDECARS, ours, Some("bottle-sidecars:3"), week - 1),
            image("used-guards", SIDECARS, ours, Some("bottle-sidecars:4"), week),
            image("snapshot", AGENT, ours, Some("bottle-snapshot:0123abcd-a-1"), week),
        ];
        let used = ["used".to_owned(), "used-guards".to_owned()];
        let left = left(&images, &used, ours, Some("own-guards"), now);
        assert!(left.iter().all(|image| image.kind == IMAGE && image.bytes == Some(7)), "{left:?}");
        let ids: Vec<&str> = left.iter().map(|image| image.id.as_str()).collect();
        assert_eq!(ids, ["stage", "built", "renamed", "bottle-sidecars:1"]);
    }

    #[test]
    fn of_a_long_output_the_end_is_kept() {
        let mut output = Output::default();
        for number in 0..100_000 {
            output.take(&format!("line {number}\n"), &|_| ());
        }
        output.take(&"x".repeat(10 * OUTPUT_KEPT), &|_| ());
        let order = Order { name: "it", hint: "", home: "", tag: None, labels: vec![], proxies: vec![] };
        let message = output.failure(&order, &EngineError::Late).message;
        assert!(
            message.len() < 3 * OUTPUT_KEPT && message.contains("the beginning is left out"),
            "{}",
            message.len()
        );
    }
}
