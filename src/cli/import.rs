//! `bottle import`: makes a preserved bottle of an archive that `bottle export` wrote.
//!
//! ```text
//!   FILE ─► staging: every digest is verified ─► what it is, who signed it ─► plan of this user's manifests
//!        ─► question ─► claim of the slug ─► snapshot ─► preserved, for `bottle resume`
//! ```
//! The archive is untrusted, and grants nothing: the manifests of this user decide what the bottle may do. The new
//! bottle gets its own slug, and its own certificate authority and canary at each start.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bottle_contract::names::{Name, Slug};
use bottle_contract::session::guest::SecretText;
use bottle_guest::file_clock::before_any_change;
use indicatif::HumanBytes;
use jiff::Timestamp;
use rand::RngExt as _;

use super::candidates;
use super::choice::{manifests, resolved};
use super::error::{CliError, Kind};
use super::exit;
use super::launch::manifest_changes::{diff, differences};
use super::launch::prepare::prepare_failed;
use super::launch::{backend, preferred, preflight, prepare, require_free_slug, require_host_keys};
use super::output::{Output, inert};
use super::progress;
use super::runtime::block_on;
use super::session::Signals;
use super::terminal;
use crate::backend::portable_image::{Import as Request, Imported, RootKind};
use crate::backend::{Backend, Copied, Prepared, Preview, ProgressSink};
use crate::host::{Host, Settings, disk};
use crate::instance::committed::{self, Committed, CommittedList};
use crate::instance::record::Record;
use crate::instance::{Claim, Store, canaries};
use crate::library::report::{self, SignedBy};
use crate::manifest::provider::Image;
use crate::plan::{self, Flags, ImageSource, Plan, Workspace};
use crate::portable::{BadArchive, Metadata, PublicKey, Received, SigningKey, Staging, receive};
use crate::resolve::Resolved;

/// The maximum size of a manifest that is compared, in bytes. A resolved manifest is much shorter.
const COMPARED_MAX: usize = 256 << 10;

/// The progress of an import.
const IMPORTING: &str = "importing";

/// Make a preserved bottle from an archive of `bottle export`
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

/// What the user decides about.
struct Proposed {
    plan: Plan,
    backend: Box<dyn Backend>,
    resolved: Resolved,
    preview: Preview,
    signer: Signer,
}

/// Who signed an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Signer {
    Nobody,
    /// This home.
    Own(PublicKey),
    /// A key of `settings.yml`, with its name there.
    Known(PublicKey, String),
    Unknown(PublicKey),
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
        let staging = Staging::create(host).map_err(|error| self.refused(BadArchive::Disk(error)))?;
        let layout = staging.make("image").map_err(|error| self.refused(BadArchive::Disk(error)))?;
        let received = self.receive(&layout, output).await?;
        let signer = self.signer(host, &settings, &received)?;
        let proposed = self.propose(host, &settings, &received.metadata, signer).await?;
        if !self.confirm(host, &received, &proposed, signals, output).await? {
            output.note("nothing was imported");
            return Ok(exit::DONE);
        }
        let prepared = self.prepared(&proposed, &received.metadata, signals, output).await?;
        let slug = proposed.plan.identity.slug.clone();
        let left = "no bottle was made; `bottle cleanup` removes what is left";
        let made = progress::with_progress(IMPORTING, left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            self.make(host, &received.metadata, &proposed, &prepared, &layout, sink).await
        });
        made.await.map_err(|error| error.about_if_unset(&slug))?;
        report(&received.metadata, &proposed, output)
    }

    /// Reads the archive into the staging directory.
    async fn receive(&self, layout: &Path, output: &Output) -> Result<Received, CliError> {
        let (file, layout) = (self.file.clone(), layout.to_owned());
        let left = "nothing was imported";
        progress::with_progress("reading the archive", left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            let reading = tokio::task::spawn_blocking(move || {
                let mut archive: Box<dyn Read> = match file == Path::new("-") {
                    true => Box::new(io::stdin()),
                    false => Box::new(File::open(file).map_err(BadArchive::Unreadable)?),
                };
                receive(&mut BufReader::with_capacity(1 << 20, &mut archive), &layout, &sink)
            });
            let read = reading.await.map_err(|error| CliError::cannot("read the archive", error))?;
            read.map_err(|error| self.refused(error))
        })
        .await
    }

    fn refused(&self, error: BadArchive) -> CliError {
        let file = self.file.display();
        let hint = match &error {
            BadArchive::Newer(_) => {
                "use that version of bottle, or export the bottle with this one".to_owned()
            }
            BadArchive::Foreign(None) => "name a file that `bottle export SLUG -o FILE` wrote".to_owned(),
            BadArchive::Foreign(Some(format)) => {
                format!("decompress it with {format}, and import the file that is in it")
            }
            BadArchive::Refused(_) => {
                "compare the file with the one at its source, and get it again; nothing was imported"
                    .to_owned()
            }
            BadArchive::Unreadable(_) => "check the path and its permissions".to_owned(),
            BadArchive::Disk(error) => disk::hint(error).to_owned(),
        };
        let error = CliError::from_error(Kind::Failed, &error);
        error.reworded(|message| format!("cannot import {file}: {}", inert(message))).about(file).hint(hint)
    }

    fn signer(&self, host: &Host, settings: &Settings, received: &Received) -> Result<Signer, CliError> {
        let Some(signature) = &received.signature else { return Ok(Signer::Nobody) };
        let Some(key) = signature.verify(&received.digests) else {
            let error = BadArchive::Refused("its signature is wrong".to_owned());
            return Err(self.refused(error));
        };
        let own = SigningKey::existing(&host.home)
            .map_err(|error| CliError::cannot("read the key of this home", error))?;
        if own.is_some_and(|own| own.public() == key) {
            return Ok(Signer::Own(key));
        }
        let known = settings.known_keys.iter().find(|(_, known)| **known == key.to_string());
        Ok(known.map_or(Signer::Unknown(key), |(name, _)| Signer::Known(key, name.clone())))
    }

    /// Resolves this user's manifests, chooses the backend and builds the plan. Changes nothing.
    async fn propose(
        &self,
        host: &Host,
        settings: &Settings,
        metadata: &Metadata,
        signer: Signer,
    ) -> Result<Proposed, CliError> {
        let agent = self.agent.clone().unwrap_or_else(|| metadata.agent.clone());
        let bottles = if self.bottles.is_empty() { &metadata.bottles } else { &self.bottles };
        let found = resolved(&manifests(host), agent, bottles.clone());
        let resolved = found.map_err(|error| match self.agent.is_some() || !self.bottles.is_empty() {
            true => error,
            false => error.hint(
                "the archive names a manifest that you do not have: choose your own with `--agent` and `--bottle`",
            ),
        })?;
        let image = match (metadata.root, &self.image) {
            (RootKind::Complete, Some(_)) => {
                return Err(CliError::usage("the archive contains an image of its own")
                    .about("--image")
                    .hint("leave `--image` out"));
            }
            (RootKind::Complete, None) => Some(ImageSource::Imported(String::new())),
            (RootKind::Home, image) => image.clone().map(ImageSource::from),
        };
        let flags = Flags {
            label: self.label.clone(),
            workspace: Workspace::Empty,
            detached: true,
            // The agent's command may need a task, which only `bottle resume` has. The preflight shows the placeholder.
            task: Some("{task}".to_owned()),
            resumed: true,
            log_keep: settings.log_keep,
            limits: settings.limits,
            gate: settings.gate.clone(),
            waits: settings.waits,
            image,
            ..Flags::default()
        };
        let mut rng = rand::rng();
        let mut plan = plan::build(host, &resolved.manifest, &flags, &mut |bytes| rng.fill(bytes))?;
        let named = self.backend.clone().or_else(|| preferred(&resolved, settings));
        let backend = backend::choose(host, &mut plan, named.as_deref()).await?;
        require_free_slug(host, &plan)?;
        require_host_keys(&plan)?;
        let preview = match metadata.root {
            RootKind::Complete => Preview::default(),
            RootKind::Home => {
                let preview = backend.preview(&plan).await.map_err(|error| prepare_failed(error, &plan));
                preview.map_err(|error| match self.image {
                    Some(_) => error,
                    None => error.hint(
                        "the bottle used the programs of its machine: install them here, or name an image with \
                         `--image`",
                    ),
                })?
            }
        };
        Ok(Proposed { plan, backend, resolved, preview, signer })
    }

    /// Shows what the bottle is, who signed it and what it will be allowed, and asks.
    async fn confirm(
        &self,
        host: &Host,
        received: &Received,
        proposed: &Proposed,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<bool, CliError> {
        let metadata = &received.metadata;
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
        match &proposed.signer {
            Signer::Nobody => output.note("the archive is not signed"),
            Signer::Own(_) => output.note("signed with the key of this home"),
            Signer::Known(key, name) => output.note(format!("signed by {name}: {key}")),
            Signer::Unknown(key) => output.warn(format!("signed with an unknown key: {key}")),
        }
        for rule in &metadata.accepted {
            output.warn(format!("the exporter accepted findings of the secret scanner: {}", inert(rule)));
        }
        let view = preflight::View {
            resolved: &proposed.resolved,
            plan: &proposed.plan,
            preview: &proposed.preview,
            backend: &*proposed.backend,
            home: &host.user_home,
            files: Some(format!("the files of the archive {}", self.file.display())),
            copied: Vec::new(),
            live: Vec::new(),
        };
        if !output.quiet && !output.json {
            output.write_error_lines(&preflight::shown(&view, output.err_styles()));
            let (theirs, own) = (&received.manifest, &proposed.plan.manifest);
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
        preflight::ask(format!("Import it as {}?", proposed.plan.identity.slug), signals).await
    }

    /// Prepares the image into which the files are put, if there is one.
    async fn prepared(
        &self,
        proposed: &Proposed,
        metadata: &Metadata,
        signals: &mut Signals,
        output: &Output,
    ) -> Result<Prepared, CliError> {
        let Proposed { plan, backend, preview, .. } = proposed;
        if metadata.root == RootKind::Complete {
            return Ok(Prepared::default());
        }
        let none = Default::default();
        prepare::prepare(&**backend, plan, &none, &preview.notes, signals, output).await
    }

    /// Claims the slug and makes the snapshot. After a failure, nothing is left.
    async fn make(
        &self,
        host: &Host,
        metadata: &Metadata,
        proposed: &Proposed,
        prepared: &Prepared,
        layout: &Path,
        progress: ProgressSink,
    ) -> Result<(), CliError> {
        let Proposed { plan, backend, .. } = proposed;
        let slug = &plan.identity.slug;
        let failed = |error: io::Error| CliError::cannot("write the bottle's state", error);
        let new = Record { engine: backend.identity().await?, ..Record::starting(plan, host) };
        let claim = Store::of(host).claim(new).map_err(|error| {
            let hint = error.hint();
            CliError::from_error(Kind::State, &error).hint(hint)
        })?;
        let covers = before_any_change();
        let request = Request { slug, layout, root: metadata.root, prepared, progress };
        let imported = match backend.import(request).await {
            Ok(imported) => imported,
            Err(error) => {
                let _ = claim.remove();
                return Err(error.into());
            }
        };
        let snapshot = imported.snapshot.clone();
        if let Err(error) = self.record(&claim, metadata, plan, imported, covers) {
            // No state names the snapshot. If removing it fails, a cleanup finds it.
            let _ = backend.remove_snapshot(&snapshot).await;
            let _ = claim.remove();
            return Err(failed(error));
        }
        Ok(())
    }

    fn record(
        &self,
        claim: &Claim,
        metadata: &Metadata,
        plan: &Plan,
        imported: Imported,
        covers: Timestamp,
    ) -> io::Result<()> {
        let Imported { snapshot, image } = imported;
        let image = image.or_else(|| self.image.clone().map(ImageSource::from));
        let canaries: Vec<SecretText> =
            metadata.canaries.iter().map(|canary| canary.as_str().into()).collect();
        if !canaries.is_empty() {
            canaries::write(claim.directory(), &canaries)?;
            canaries::write_imported(claim.directory(), &canaries)?;
        }
        claim.write_manifest(&plan.manifest)?;
        claim.update(|record| record.image = image)?;
        let current = Some(snapshot.reference.clone());
        let snapshots = vec![Committed { snapshot, covers, removed_by: None }];
        committed::write(claim.directory(), &CommittedList { snapshots, current })?;
        claim.preserve(false)
    }
}

fn report(metadata: &Metadata, proposed: &Proposed, output: &Output) -> Result<u8, CliError> {
    let identity = &proposed.plan.identity;
    let slug: &Slug = &identity.slug;
    let resume = format!("bottle resume {slug}");
    let (status, key, name) = match &proposed.signer {
        Signer::Nobody => ("none", None, None),
        Signer::Own(key) => ("own", Some(key), None),
        Signer::Known(key, name) => ("known", Some(key), Some(name.clone())),
        Signer::Unknown(key) => ("unknown", Some(key), None),
    };
    let imported = report::Imported {
        slug: slug.to_string(),
        label: identity.label.clone(),
        agent: identity.agent.to_string(),
        bottles: identity.bottles.iter().map(ToString::to_string).collect(),
        backend: proposed.plan.backend.clone(),
        root: metadata.root,
        exported_from: metadata.slug.to_string(),
        made_at: metadata.made_at,
        accepted: metadata.accepted.clone(),
        signature: SignedBy { status, key: key.map(ToString::to_string), name },
        resume: resume.clone(),
    };
    output.json_or(&imported, || output.print(slug.as_str()))?;
    output.note(format!("`{resume}` starts it"));
    Ok(exit::DONE)
}

/// Makes each line safe to print.
fn inert_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", inert(line))).collect()
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(copied.bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{IMPORTING}: {}, {}/s", HumanBytes(copied.bytes), HumanBytes(rate))
}
