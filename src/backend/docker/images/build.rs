//! One build on the engine's own builder, the one that every supported engine has.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::ImageSummary;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, BuilderVersion, ListImagesOptionsBuilder, PruneImagesOptionsBuilder,
    RemoveImageOptions,
};
use bottle_contract::terminal::inert;
use futures_util::StreamExt;

use super::program::Program;
use super::recipe::Recipe;
use super::{IMAGE_LABEL, failed, stages};
use crate::backend::docker::engine::{EngineError, FREE_SPACE};
use crate::backend::{BackendError, Step, Told};
use crate::host::Host;

/// What of a failed build's output an error carries: its end, where the cause stands.
const OUTPUT_KEPT: usize = 32 << 10;
/// How long an image is kept that lost its name to another start's: that one may be about to use it.
const RENAMED_KEPT: &str = "1h";
/// How long an unused image of another program's guards is kept: a week.
const GUARDS_KEPT: &str = "168h";
/// How long an agent's image is kept that another has taken the place of, likewise.
const AGENTS_KEPT: i64 = 7 * 24 * 60 * 60;
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
    told: &Told<Step>,
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
    /// Where it is written, for the person who has to change it.
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

/// Removes what builds of this home left behind, none of which goes on: stages, the last step of one that was
/// given up, what could not be made ready for an agent; and images that others have taken the place of, once
/// they are old and no container has them. Answers with the ids.
///
/// # Errors
/// [`BackendError`] when the engine refuses.
pub(super) async fn sweep(
    docker: &Docker,
    home: &str,
    program: &Program,
) -> Result<Vec<String>, BackendError> {
    let label = |kind: &str| ("label", vec![format!("{IMAGE_LABEL}={kind}"), format!("{HOME_LABEL}={home}")]);
    let dangling = ("dangling", vec!["true".to_owned()]);
    let until = |age: &str| ("until", vec![age.to_owned()]);
    let others = ("label!", vec![format!("{PROGRAM_LABEL}={}", program.hash)]);
    let guards = ("label", vec![format!("{IMAGE_LABEL}={SIDECARS}")]);
    let mut removed = Vec::new();
    for filters in [
        vec![dangling.clone(), label(STAGE)],
        vec![dangling.clone(), label(BUILT)],
        vec![dangling.clone(), label(AGENT), until(RENAMED_KEPT)],
        vec![dangling, label(SIDECARS), until(RENAMED_KEPT)],
        vec![("dangling", vec!["false".to_owned()]), guards, others, until(GUARDS_KEPT)],
    ] {
        let options = PruneImagesOptionsBuilder::new().filters(&HashMap::from_iter(filters)).build();
        let pruned = docker
            .prune_images(Some(options))
            .await
            .map_err(|error| failed("cannot remove what earlier builds left", error))?;
        removed.extend(pruned.images_deleted.into_iter().flatten().filter_map(|item| item.deleted));
    }
    removed.extend(sweep_agents(docker, home).await?);
    Ok(removed)
}

async fn sweep_agents(docker: &Docker, home: &str) -> Result<Vec<String>, BackendError> {
    let filters = HashMap::from([("label", vec![format!("{IMAGE_LABEL}={AGENT}")])]);
    let images = docker
        .list_images(Some(ListImagesOptionsBuilder::new().filters(&filters).build()))
        .await
        .map_err(|error| failed("cannot list the agents' images", error))?;
    let mut removed = Vec::new();
    for name in superseded(&images, home, jiff::Timestamp::now().as_second()) {
        // By its name only: one that a container has is refused, one that a snapshot stands on stays under it.
        if docker.remove_image(&name, None::<RemoveImageOptions>, None).await.is_ok() {
            removed.push(name);
        }
    }
    Ok(removed)
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
        // Labels of ours are nothing to a person.
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
