//! `bottle export`: writes a bottle to an archive for another machine or another backend.
//!
//! ```text
//!   the bottle ──commit──► a temporary snapshot ─┐
//!   SLUG@NAME ───────────────────────────────────┴─► layers ─scan─► archive ─► FILE
//!   conversations that are newer than the files ───────┘
//! ```
//! The bottle continues. FILE appears when it is complete.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bottle_backend::portable_image::{
    CANARY, ContentFinding, ContentScanner, Export as Request, LayerStore, RootKind,
};
use bottle_backend::{Backend, Copied, ProgressSink, Snapshot};
use bottle_contract::names::Name;
use bottle_contract::session::guest::SecretText;
use bottle_host::{Host, disk};
use bottle_instance::portable::{FORMAT, Metadata, SigningKey, Staging, Writer};
use bottle_instance::record::Record;
use bottle_instance::{Store, canaries, engines};
use bottle_lib::connect::record;
use bottle_lib::fork_point::ForkPoint;
use bottle_lib::record::backend_of;
use bottle_lib::report::{Exported, FoundSecret};
use bottle_lib::snapshot_selector::SnapshotSelector;
use bottle_plan::ImageSource;
use indicatif::HumanBytes;
use tempfile::{NamedTempFile, PersistError};

use super::candidates;
#[cfg(target_os = "linux")]
use super::export_conversation;
use super::live;
use super::save_snapshot::fork_point;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, counted, inert};
use crate::console::progress;
use crate::console::runtime::{block_on, blocking};
#[cfg(target_os = "linux")]
use bottle_instance::transcripts::Transcripts;
use bottle_lib::own_rules;

/// The beginning of the name of the snapshot that is made for the export of a bottle as it is now.
const TEMPORARY: &str = "export";

/// The maximum number of findings that are shown. The others are only counted.
const MAX_SHOWN: usize = 20;

/// The progress of an export.
const EXPORTING: &str = "exporting";

/// Write a bottle to an archive, to import it on another machine or backend
///
/// The archive contains the bottle's files, its conversation and its manifests, but no secret, certificate
/// authority or canary. The files are scanned for secrets first, and a finding stops the export. The bottle goes
/// on.
#[derive(Debug, clap::Args)]
pub(crate) struct Export {
    /// The bottle, as `bottle list` shows it, or SLUG@NAME for one of its snapshots
    #[arg(add = candidates::all_bottles())]
    bottle: SnapshotSelector,
    /// Write the archive to this file; `-` writes to standard output
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    file: PathBuf,
    /// Sign the archive with this home's key, which is made at first use
    #[arg(long)]
    sign: bool,
    /// Export although this rule found a secret; repeat for several rules
    #[arg(long, value_name = "RULE")]
    accept: Vec<String>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

impl Export {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = self.bottle.slug.clone();
        block_on(self.export(host, output)).map_err(|error| error.about_if_unset(&slug))
    }

    async fn export(&self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let target = Target::new(&self.file, self.force)?;
        let record = record(host, &self.bottle.slug).await?;
        let instead =
            format!("`bottle pull {}` brings its commits; the files are in the directory", record.slug);
        live::require_copy(&record, &format!("export {}", record.slug), instead)?;
        let backend = backend_of(host, &record)?;
        engines::require(&*backend, &Store::of(host).directory(&record.slug), &record).await?;
        let temporary = format!("{TEMPORARY}-{}", std::process::id());
        let temporary: Name =
            temporary.parse().map_err(|error| CliError::cannot("name a snapshot", error))?;
        let notify = &|notice| output.notice(notice);
        let found = ForkPoint::find(host, &*backend, &record, &self.bottle, temporary, notify).await?;
        let point = fork_point(found, output).await?;
        let exported = self.write(host, &*backend, &record, &point, target, output).await;
        point.release(host, notify).await;
        self.report(&exported?, output)
    }

    async fn write(
        &self,
        host: &Host,
        backend: &dyn Backend,
        record: &Record,
        point: &ForkPoint,
        target: Target,
        output: &Output,
    ) -> Result<Exported, CliError> {
        let state = |what: &str, error: io::Error| {
            let hint = disk::hint(&error);
            CliError::cannot(what, error).hint(hint)
        };
        let snapshot = &point.snapshot;
        let own_rules = own_rules::load(host, &|notice| output.notice(notice))?;
        let directory = Store::of(host).directory(&record.slug);
        let unreadable = |error| state("read the bottle's canaries", error);
        let imported = canaries::read_imported(&directory).map_err(unreadable)?;
        let canaries = canaries::read(&directory).map_err(unreadable)?;
        let scanner = ContentScanner::new(&canaries, own_rules.rules)
            .map_err(|error| CliError::cannot("scan the files", error))?;
        let staging =
            Staging::create(host).map_err(|error| state("make a directory for the archive", error))?;
        let key = match self.sign {
            true => Some(
                SigningKey::of_home(&host.home).map_err(|error| state("read the key of this home", error))?,
            ),
            false => None,
        };
        let mut metadata = self.metadata(record, snapshot);
        metadata.canaries = texts(canaries.iter().chain(&imported));
        let manifest = Store::of(host).manifest(&record.slug).unwrap_or_default();
        let file = target.begin(&staging).map_err(|error| self.not_written(error))?;
        let writer = file.as_file().try_clone().and_then(|file| Writer::begin(file, &metadata, &manifest));
        let writer = writer.map_err(|error| self.not_written(error))?;
        let left = "no archive was written";
        progress::with_progress(EXPORTING, left, output, async |progress| {
            let begun = Instant::now();
            let sink = ProgressSink::new(move |copied| progress.set_text(&progress_text(copied, begun)));
            let layers = LayerStore::new(writer.blobs(), Arc::new(scanner), sink);
            let base = base_of(record);
            let scratch = staging.directory();
            let exported = backend.export(Request { snapshot, base, scratch, layers }).await;
            let image = exported.map_err(|error| match writer.failure() {
                Some(failure) => self.not_written(failure),
                None => error.into(),
            })?;
            // The layer is written by the code of the backends for files of this machine, which exist only on Linux.
            #[cfg(target_os = "linux")]
            let image = match self.conversation(host, record, point) {
                Some(transcripts) => {
                    let added = export_conversation::add(image, transcripts, record.transcript.clone());
                    added.await.map_err(|error| state("export the agent's conversations", error))?
                }
                None => image,
            };
            let accepted = self.accepted(image.layers.findings(), output)?;
            metadata.root = image.root;
            metadata.home.clone_from(&image.home);
            metadata.canaries = match accepted.iter().any(|rule| rule == CANARY) {
                true => texts(&canaries),
                // The image that was imported can contain these, and is not scanned again.
                false => texts(&imported),
            };
            metadata.accepted = accepted;
            let signer = key.as_ref().map(|key| key.public().to_string());
            let found = image.layers.findings().iter().map(FoundSecret::from).collect();
            let Metadata { root, accepted, .. } = metadata.clone();
            let written = blocking(move || {
                let bytes = writer.finish(&metadata, &image, key.as_ref())?;
                target.finish(file)?;
                Ok(bytes)
            });
            let bytes = written.await.map_err(|error| self.not_written(error))?;
            Ok(Exported {
                slug: record.slug.to_string(),
                name: snapshot.name.as_ref().filter(|_| self.bottle.name.is_some()).map(ToString::to_string),
                file: self.file.display().to_string(),
                bytes,
                root,
                key: signer,
                accepted,
                found,
            })
        })
        .await
    }

    /// The metadata without what only the exported files show.
    fn metadata(&self, record: &Record, snapshot: &Snapshot) -> Metadata {
        Metadata {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            slug: record.slug.clone(),
            name: self.bottle.name.clone(),
            label: record.label.clone(),
            agent: record.agent.clone(),
            bottles: record.bottles.clone(),
            backend: record.backend.clone(),
            root: RootKind::Complete,
            home: String::new(),
            made_at: snapshot.made_at,
            accepted: self.accept.clone(),
            canaries: Vec::new(),
        }
    }

    /// The agent's conversations of this home, if they are newer than the exported files: the bottle ended, and its
    /// last launch left no work, so that only an earlier snapshot has its files.
    #[cfg(target_os = "linux")]
    fn conversation(&self, host: &Host, record: &Record, point: &ForkPoint) -> Option<Transcripts> {
        if self.bottle.name.is_some() || point.is_temporary() {
            return None;
        }
        let transcripts = Transcripts::of(&host.home, record);
        transcripts.copied_at().filter(|copied| *copied > point.snapshot.made_at)?;
        Some(transcripts)
    }

    /// Checks the findings of the scan. Returns the accepted rules that found something.
    fn accepted(&self, findings: &[ContentFinding], output: &Output) -> Result<Vec<String>, CliError> {
        let (accepted, refused): (Vec<_>, Vec<_>) =
            findings.iter().partition(|finding| self.accept.contains(&finding.rule));
        let rules = |found: &[&ContentFinding]| {
            let mut rules: Vec<String> = found.iter().map(|finding| finding.rule.clone()).collect();
            rules.sort();
            rules.dedup();
            rules
        };
        if refused.is_empty() {
            return Ok(rules(&accepted));
        }
        for ContentFinding { rule, path, preview } in refused.iter().take(MAX_SHOWN) {
            output.warn(format!("{}: {} ({rule})", inert(path), inert(preview)));
        }
        if let Some(more @ 1..) = refused.len().checked_sub(MAX_SHOWN) {
            output.warn(format!("{more} more findings are not shown"));
        }
        let message = format!(
            "cannot export {}: the scan of its files has {}",
            self.bottle,
            counted(refused.len(), "finding")
        );
        let command = self.accepting(rules(&refused));
        Err(CliError::state(message)
            .hint(format!("remove them from the bottle, or accept them: `{command}`")))
    }

    /// This command, with the findings of these rules accepted too.
    fn accepting(&self, rules: Vec<String>) -> String {
        let (bottle, file) = (self.bottle.to_string(), self.file.to_string_lossy());
        let mut words = vec!["bottle", "export", &bottle, "-o", &file];
        words.extend(self.sign.then_some("--sign"));
        words.extend(self.force.then_some("--force"));
        words.extend(self.accept.iter().chain(&rules).flat_map(|rule| ["--accept", rule]));
        inert(&shlex::try_join(words).unwrap_or_default())
    }

    fn not_written(&self, error: io::Error) -> CliError {
        let exists = error.kind() == io::ErrorKind::AlreadyExists;
        match exists {
            true => exists_already(&self.file),
            false => CliError::path("write", &self.file, error)
                .hint("check the free space of that disk and of $BOTTLE_HOME"),
        }
    }

    fn report(&self, exported: &Exported, output: &Output) -> Result<u8, CliError> {
        if output.json && !is_stdout(&self.file) {
            output.print_json(exported)?;
            return Ok(exit::DONE);
        }
        for finding in &exported.found {
            output.warn(format!(
                "accepted: {}: {} ({})",
                inert(&finding.path),
                inert(&finding.preview),
                finding.rule
            ));
        }
        let file = &exported.file;
        output.note(format!("{} was exported: {}", self.bottle, HumanBytes(exported.bytes)));
        if let Some(key) = &exported.key {
            output.note(format!("signed with {key}"));
        }
        if exported.root == RootKind::Home {
            output.note(
                "its programs are those of this machine: an importer needs the same ones, or an image (`--image`)",
            );
        }
        if !is_stdout(&self.file) {
            output.note(format!("`bottle import {file}` imports it"));
        }
        Ok(exit::DONE)
    }
}

/// The image on which the bottle was first started.
fn base_of(record: &Record) -> Option<&str> {
    if let Some(ImageSource::Imported(image)) = &record.image {
        return Some(image);
    }
    let inside = record.sandbox.as_ref()?.prepared.inside.as_ref()?;
    Some(&inside.image)
}

/// Where the archive is written to.
enum Target {
    Stdout,
    File { path: PathBuf, force: bool },
}

impl Target {
    /// Checks that the archive can be written, before the bottle is copied.
    fn new(file: &Path, force: bool) -> Result<Self, CliError> {
        if is_stdout(file) {
            if io::stdout().is_terminal() {
                return Err(CliError::usage("an archive cannot be written to a terminal")
                    .about("--output")
                    .hint("name a file, or pipe the output to another program"));
            }
            return Ok(Self::Stdout);
        }
        if !force && file.symlink_metadata().is_ok() {
            return Err(exists_already(file));
        }
        let parent = parent_of(file);
        if !parent.is_dir() {
            return Err(CliError::usage(format!("the directory {} does not exist", parent.display()))
                .about("--output")
                .hint("create the directory, or name another one"));
        }
        Ok(Self::File { path: file.to_owned(), force })
    }

    /// Creates the file for the archive, on the disk of its target. If the file is dropped, it is removed.
    fn begin(&self, staging: &Staging) -> io::Result<NamedTempFile> {
        match self {
            Self::Stdout => NamedTempFile::new_in(staging.directory()),
            Self::File { path, .. } => staging.file_in(parent_of(path)).map_err(disk::plain),
        }
    }

    /// Gives the complete archive its name, or writes it to the standard output. Blocks.
    fn finish(self, mut archive: NamedTempFile) -> io::Result<()> {
        let Self::File { path, force } = self else {
            archive.rewind()?;
            let mut out = io::stdout().lock();
            io::copy(archive.as_file_mut(), &mut out)?;
            return out.flush();
        };
        archive.as_file().sync_data()?;
        let moved = if force { archive.persist(&path) } else { persist_new(archive, &path) };
        moved.map(drop).map_err(|error| error.error)
    }
}

fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

fn parent_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn exists_already(file: &Path) -> CliError {
    CliError::usage(format!("{} exists already", file.display()))
        .about("--output")
        .hint("name another file; `--force` replaces it")
}

fn texts<'c>(canaries: impl IntoIterator<Item = &'c SecretText>) -> Vec<String> {
    canaries.into_iter().map(|canary| canary.0.expose().to_owned()).collect()
}

/// Gives the file its name, unless another file has it.
fn persist_new(file: NamedTempFile, path: &Path) -> Result<File, PersistError> {
    match file.persist_noclobber(path) {
        // Network disks can neither rename without replacing nor make links.
        Err(PersistError { file, error })
            if error.kind() != io::ErrorKind::AlreadyExists && path.symlink_metadata().is_err() =>
        {
            file.persist(path)
        }
        persisted => persisted,
    }
}

fn progress_text(copied: Copied, begun: Instant) -> String {
    let millis = begun.elapsed().as_millis().max(1);
    let rate = u64::try_from(u128::from(copied.bytes) * 1000 / millis).unwrap_or(u64::MAX);
    format!("{EXPORTING}: {} read, {}/s", HumanBytes(copied.bytes), HumanBytes(rate))
}
