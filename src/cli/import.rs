//! `bottle import`: makes a kept bottle from an archive that `bottle export` wrote.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bottle_backend::portable_image::RootKind;
use bottle_backend::{Copied, ProgressSink};
use bottle_host::{Host, Settings};
use bottle_lib::import::{Archive, ImportOrder, ImportPreflight, Signer};
use bottle_lib::launch::changed_manifests::diff;
use bottle_manifest::agent_provider::Image;
use bottle_policy::names::Name;
use indicatif::HumanBytes;

use super::candidates;
use super::launch::changed_manifests::differences;
use super::launch::{launch_failed, preflight, prepare};
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, inert};
use crate::console::progress;
use crate::console::runtime::block_on;
use crate::console::signals::Signals;
use crate::console::terminal;

/// The maximum size in bytes of a manifest in an archive that is compared with the user's manifest. A resolved manifest
/// is much shorter.
const COMPARED_MAX: usize = 256 << 10;

/// The text that the progress display shows during an import.
const IMPORTING: &str = "importing";

/// Make a kept bottle from an archive of `bottle export`
///
/// Verifies the archive, shows who signed it and what the bottle will be allowed, and asks. Your own manifests
/// decide what the bottle may do, not the archive. `bottle resume` starts the new bottle.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// The archive; `-` reads standard input
    file: PathBuf,
    /// Set the new bottle's name; by default the agent's name and five random characters
    #[arg(long)]
    label: Option<String>,
    /// Use this agent instead of the one of the archive
    #[arg(long, add = candidates::agents())]
    agent: Option<Name>,
    /// Use this bottle manifest instead of those of the archive; repeat to merge several, in order
    #[arg(long = "bottle", value_name = "BOTTLE", add = candidates::bottles())]
    bottles: Vec<Name>,
    /// Choose the isolation backend, as `bottle start` does
    #[arg(long)]
    backend: Option<String>,
    /// Put the files into this image: an image reference, or `./PATH` in $BOTTLE_HOME. Only for an archive
    /// without a system of its own
    #[arg(long, value_name = "IMAGE")]
    image: Option<Image>,
    /// Import without asking
    #[arg(short, long)]
    yes: bool,
}

impl Import {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        block_on(async {
            let mut signals = Signals::catch()?;
            self.import(host, &mut signals, output).await
        })
    }

    async fn import(&self, host: &Host, signals: &mut Signals, output: &Output) -> Result<u8, CliError> {
        let settings = Settings::load(host)?;
        let order = self.order();
        let archive = self.receive(&order, host, output).await?;
        let found = order.preflight(archive, host, &settings).await;
        let found = found.map_err(|failure| launch_failed(failure, false))?;
        if !self.confirm(host, &found, signals, output).await? {
            output.note("nothing was imported");
            return Ok(exit::DONE);
        }
        let notify = &|notice| output.notice(notice);
        let prepared = prepare::with_progress(false, signals, output, async |progress| {
            found.prepare(&progress, notify).await
        });
        let prepared = prepared.await?;
        let left = "no bottle was made; `bottle cleanup` removes what is left";
        let made = progress::with_progress(IMPORTING, left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            found.import(host, &prepared, sink).await.map_err(CliError::from)
        });
        let slug = &found.launch.plan.identity.slug;
        made.await.map_err(|error| error.about_if_unset(slug))?;
        report(&found, output)
    }

    fn order(&self) -> ImportOrder {
        ImportOrder {
            archive: self.file.clone(),
            label: self.label.clone(),
            agent: self.agent.clone(),
            bottles: self.bottles.clone(),
            backend: self.backend.clone(),
            image: self.image.clone(),
        }
    }

    /// Reads the archive.
    async fn receive(&self, order: &ImportOrder, host: &Host, output: &Output) -> Result<Archive, CliError> {
        let left = "nothing was imported";
        progress::with_progress("reading the archive", left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            let file = self.file.clone();
            let open = move || -> io::Result<Box<dyn Read>> {
                match file == Path::new("-") {
                    true => Ok(Box::new(io::stdin())),
                    false => Ok(Box::new(File::open(file)?)),
                }
            };
            order.receive(host, open, sink).await.map_err(CliError::from)
        })
        .await
    }

    /// Shows what the bottle is, who signed the archive, and what the bottle will be allowed. Then asks the user
    /// whether to import it.
    async fn confirm(
        &self,
        host: &Host,
        found: &ImportPreflight,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let ImportPreflight { archive, launch, signer, .. } = found;
        let (received, metadata) = (&archive.received, &archive.received.metadata);
        let system = match metadata.root {
            RootKind::Complete => "a complete system",
            RootKind::Home => "a home and a workspace, without a system",
        };
        let made_at = metadata.made_at.strftime("%Y-%m-%d %H:%M:%SZ");
        output.note(format!(
            "{} of {made_at}, from the backend {}: {system}",
            metadata.slug,
            inert(&metadata.backend)
        ));
        match signer {
            Signer::Nobody => output.note("the archive is not signed"),
            Signer::Own(_) => output.note("signed with the key of this home"),
            Signer::Known(key, name) => output.note(format!("signed by {name}: {key}")),
            Signer::Unknown(key) => output.warn(format!("signed with an unknown key: {key}")),
        }
        for rule in &metadata.accepted {
            output.warn(format!("the exporter accepted findings of the secret scanner: {}", inert(rule)));
        }
        if !output.quiet && !output.json {
            output.write_error_lines(&preflight::shown(launch, &host.user_home, output.err_styles()));
            let (theirs, own) = (&received.manifest, &launch.plan.manifest);
            if theirs != own && !theirs.is_empty() && theirs.len() <= COMPARED_MAX {
                let heading = "yours decides, and differs from the manifest of the archive:";
                output.write_error_lines(&differences(
                    heading,
                    &inert_lines(&diff(theirs, own)),
                    output.err_styles(),
                ));
            }
        }
        if self.yes || !terminal::interactive() {
            return Ok(true);
        }
        preflight::ask(format!("Import it as {}?", launch.plan.identity.slug), signals).await
    }
}

fn report(found: &ImportPreflight, output: &Output) -> Result<u8, CliError> {
    let document = found.document();
    output.json_or(&document, || output.print(&document.slug))?;
    output.note(format!("`{}` starts it", document.resume));
    Ok(exit::DONE)
}

/// Escapes each line for printing.
fn inert_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", inert(line))).collect()
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(copied.bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{IMPORTING}: {}, {}/s", HumanBytes(copied.bytes), HumanBytes(rate))
}
