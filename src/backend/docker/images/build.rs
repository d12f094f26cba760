//! One build on the engine's own builder, the one that every supported engine has.

use std::collections::HashMap;

use bollard::Docker;
use bollard::query_parameters::{BuildImageOptionsBuilder, BuilderVersion, PruneImagesOptionsBuilder};
use bottle_contract::terminal::inert;
use futures_util::StreamExt;

use super::program::Program;
use super::recipe::Recipe;
use super::{IMAGE_LABEL, Progress, Step, failed};
use crate::backend::BackendError;
use crate::host::Host;

/// What of a failed build's output an error carries: its end, where the cause stands.
const OUTPUT_KEPT: usize = 32 << 10;
/// How long what builds leave is kept: a build that failed is soon tried again.
const KEPT: &str = "1h";
/// How long an unused image of another program's guards is kept: a week.
const GUARDS_KEPT: &str = "168h";
/// Which program an image of guards holds; written by `Dockerfile.sidecars`.
const PROGRAM_LABEL: &str = "bottle.program";
/// The label of an image of guards.
pub(super) const SIDECARS: &str = "sidecars";
/// The label of a stage; stands in `Dockerfile.agent` too.
const STAGE: &str = "stage";
/// The label of an image that is yet to be made ready.
pub(super) const BUILT: &str = "built";
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
    progress: Progress<'_>,
) -> Result<String, BackendError> {
    let context = recipe
        .context()
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
        let event = event.map_err(|error| output.failure(what, &cause(error)))?;
        id = event.aux.and_then(|aux| aux.id).or(id);
        if let Some(text) = event.stream.or(event.status) {
            output.take(&text, progress);
        }
    }
    id.ok_or_else(|| output.failure(what, "the engine ended the build without a result"))
}

/// What is asked of [`build`] beside the recipe.
#[derive(Debug)]
pub(super) struct Order<'a> {
    /// `the image for claude`.
    pub(super) name: &'a str,
    /// Where it is written, for the person who has to change it.
    pub(super) hint: &'a str,
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

/// Removes what builds leave behind, once no build can still be using it: the stages that fetch an agent, and
/// what could not be made ready for one; and the guards' images of programs other than this one, once they are
/// old and no container has them. Answers with the ids.
///
/// # Errors
/// [`BackendError`] when the engine refuses.
pub(super) async fn sweep(docker: &Docker, program: &Program) -> Result<Vec<String>, BackendError> {
    let own = format!("{PROGRAM_LABEL}={}", program.hash);
    let mut removed = Vec::new();
    for (kind, dangling, kept) in
        [(STAGE, "true", KEPT), (BUILT, "true", KEPT), (SIDECARS, "false", GUARDS_KEPT)]
    {
        let filters = HashMap::from([
            ("dangling", vec![dangling.to_owned()]),
            ("label", vec![format!("{IMAGE_LABEL}={kind}")]),
            ("label!", vec![own.clone()]),
            ("until", vec![kept.to_owned()]),
        ]);
        let options = PruneImagesOptionsBuilder::new().filters(&filters).build();
        let pruned = docker
            .prune_images(Some(options))
            .await
            .map_err(|error| failed("cannot remove what earlier builds left", error))?;
        removed.extend(pruned.images_deleted.into_iter().flatten().filter_map(|item| item.deleted));
    }
    Ok(removed)
}

fn cause(error: bollard::errors::Error) -> String {
    match error {
        bollard::errors::Error::DockerStreamError { error } => error,
        other => other.to_string(),
    }
}

/// A builder's output: shown line by line, kept for the case that it fails.
#[derive(Debug, Default)]
struct Output {
    kept: String,
    cut: bool,
    line: String,
}

impl Output {
    fn take(&mut self, text: &str, progress: Progress<'_>) {
        for piece in text.split_inclusive(['\n', '\r']) {
            self.line.push_str(piece);
            if piece.ends_with(['\n', '\r']) || self.line.len() > OUTPUT_KEPT {
                self.end_line(progress);
            }
        }
    }

    fn end_line(&mut self, progress: Progress<'_>) {
        let line = inert(&plain(self.line.trim_end()));
        self.line.clear();
        let line = line.trim_end();
        if line.trim().is_empty() {
            return;
        }
        progress(if line.starts_with("Step ") { Step::Begins(line) } else { Step::Says(line) });
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

    fn failure(&mut self, what: &Order<'_>, cause: &str) -> BackendError {
        self.end_line(&|_| ());
        self.shorten();
        let cut = if self.cut { "(the beginning is left out)\n" } else { "" };
        let output = format!("{cut}{}", self.kept);
        let message = match output.trim_end() {
            "" => format!("cannot build {}: {}", what.name, inert(cause)),
            said => format!("cannot build {}: {}\n{said}", what.name, inert(cause)),
        };
        BackendError::failed(message).with_hint(what.hint)
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
        let progress = |step: Step<'_>| {
            shown.lock().expect("lock").push(match step {
                Step::Begins(line) => format!("> {line}"),
                Step::Says(line) => line.to_owned(),
            });
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
            output.take(text, &progress);
        }
        let order = Order { name: "the image", hint: "look", tag: None, labels: vec![], proxies: vec![] };
        let error = output.failure(&order, "it said 1");
        let lines = ["> Step 1/2 : FROM base", " ---> 12", "10 %", "20 %", "\\u{1b}[2Jdone", "red"];
        assert_eq!(*shown.lock().expect("lock"), lines);
        assert!(error.message.starts_with("cannot build the image: it said 1\nStep 1/2"), "{error}");
        assert!(error.message.ends_with("done\nred\ncut"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("look"));
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
        let order = Order { name: "it", hint: "", tag: None, labels: vec![], proxies: vec![] };
        let message = output.failure(&order, "why").message;
        assert!(
            message.len() < 3 * OUTPUT_KEPT && message.contains("the beginning is left out"),
            "{}",
            message.len()
        );
    }
}
