//! Exports a bottle as an archive, for another machine or another backend.
//!
//! ```text
//!   the bottle ──commit──► a temporary snapshot ─┐
//!   SLUG@NAME ───────────────────────────────────┴─► layers ─scan─► archive ─► file
//!   conversations that are newer than the files ───────┘
//! ```
//! The bottle continues to run during the export. The archive appears at its path only when it is complete.

#[cfg(target_os = "linux")]
mod conversation;

use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bottle_backend::portable_image::{
    CANARY, ContentFinding, ContentScanner, Export as Request, ExportedImage, LayerStore, RootKind,
};
use bottle_backend::{Backend, ProgressSink, Snapshot};
use bottle_host::{Host, disk};
use bottle_instance::portable::{FORMAT, Metadata, SigningKey, Staging, Writer};
use bottle_instance::record::Record;
#[cfg(target_os = "linux")]
use bottle_instance::transcripts::Transcripts;
use bottle_instance::{Store, canaries, engines};
use bottle_plan::ImageSource;
use bottle_policy::names::Name;
use bottle_protocol::session::guest::SecretText;
use tempfile::{NamedTempFile, PersistError};

use crate::connect::record;
use crate::failure::Failure;
use crate::fork_point::{ForkPoint, Found};
use crate::notice::{Notice, Notify};
use crate::record::backend_of;
use crate::report::{Exported, FoundSecret};
use crate::scanner_rules;
use crate::snapshot_selector::SnapshotSelector;
use crate::text::{counted, inert};
use crate::work::require_copy;

/// The name prefix of the temporary snapshot that an export makes of the bottle's current state.
const TEMPORARY: &str = "export";

/// The maximum number of findings that are reported. Further findings are only counted.
const MAX_SHOWN: usize = 20;

/// A request to export a bottle.
#[derive(Debug, Clone)]
pub struct ExportOrder {
    /// The bottle or snapshot to export.
    pub bottle: SnapshotSelector,
    /// The path of the archive. `None` to get the archive as an open file.
    pub file: Option<PathBuf>,
    /// Whether the archive is signed with the signing key of `$BOTTLE_HOME`. The key is created when it is first used.
    pub sign: bool,
    /// The names of scanner rules. Findings of these rules do not stop the export.
    pub accept: Vec<String>,
    /// Whether an existing file is replaced.
    pub force: bool,
}

/// An export whose bottle and target path have been checked.
pub struct Export<'h> {
    host: &'h Host,
    order: ExportOrder,
    record: Record,
    backend: Box<dyn Backend>,
}

/// A complete archive.
#[derive(Debug)]
pub struct Archive {
    /// The output document about the archive.
    pub document: Exported,
    /// The open archive, positioned at its beginning, if the order has no path.
    pub file: Option<File>,
}

impl ExportOrder {
    /// Makes all checks that are possible before the bottle's files are copied, and finds the snapshot to export. The
    /// caller saves the snapshot if necessary, passes it to [`Export::write`], and releases it.
    ///
    /// # Errors
    /// When the archive's file exists already, when its directory does not exist, or when the bottle has no files that
    /// can be copied.
    pub async fn begin<'h>(self, host: &'h Host, notify: Notify<'_>) -> Result<(Export<'h>, Found), Failure> {
        self.require_target()?;
        let record = record(host, &self.bottle.slug).await?;
        let instead =
            format!("`bottle pull {}` brings its commits; the files are in the directory", record.slug);
        require_copy(&record, &format!("export {}", record.slug), instead)?;
        let backend = backend_of(host, &record)?;
        engines::require(&*backend, &Store::of(host).directory(&record.slug), &record).await?;
        let temporary = format!("{TEMPORARY}-{:08x}", rand::random::<u32>());
        let temporary: Name = temporary.parse().map_err(|error| Failure::cannot("name a snapshot", error))?;
        let found = ForkPoint::find(host, &*backend, &record, &self.bottle, temporary, notify).await?;
        Ok((Export { host, order: self, record, backend }, found))
    }

    /// Checks that no file at the archive's path prevents the export, and that the path's directory exists.
    fn require_target(&self) -> Result<(), Failure> {
        let Some(file) = &self.file else { return Ok(()) };
        if !self.force && file.symlink_metadata().is_ok() {
            return Err(exists_already(file));
        }
        let parent = parent_of(file);
        if !parent.is_dir() {
            return Err(Failure::usage(format!("the directory {} does not exist", parent.display()))
                .about("--output")
                .hint("create the directory, or name another one"));
        }
        Ok(())
    }

    /// Creates a temporary file for the archive, on the disk of the archive's path. Dropping the returned value removes
    /// the file.
    fn create(&self, staging: &Staging) -> io::Result<NamedTempFile> {
        match &self.file {
            None => NamedTempFile::new_in(staging.directory()),
            Some(path) => staging.file_in(parent_of(path)).map_err(disk::plain),
        }
    }

    /// Returns the failure for an archive that cannot be written.
    pub fn not_written(&self, error: io::Error) -> Failure {
        let file = self.path();
        match error.kind() {
            io::ErrorKind::AlreadyExists => exists_already(file),
            _ => Failure::path("write", file, error)
                .hint("check the free space of that disk and of $BOTTLE_HOME"),
        }
    }

    /// The path of the archive, for messages.
    fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new("-"))
    }

    /// Fails if the scan has findings of rules that are not accepted. Returns the accepted rules that have findings.
    fn accepted(&self, findings: &[ContentFinding], notify: Notify<'_>) -> Result<Vec<String>, Failure> {
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
            notify(Notice::Warning(format!("{}: {} ({rule})", inert(path), inert(preview))));
        }
        if let Some(more @ 1..) = refused.len().checked_sub(MAX_SHOWN) {
            notify(Notice::Warning(format!("{more} more findings are not shown")));
        }
        let message = format!(
            "cannot export {}: the scan of its files has {}",
            self.bottle,
            counted(refused.len(), "finding")
        );
        let command = self.accepting(rules(&refused));
        Err(Failure::state(message).hint(format!("remove them from the bottle, or accept them: `{command}`")))
    }

    /// Returns a `bottle export` command that repeats this export and also accepts the findings of these rules.
    fn accepting(&self, rules: Vec<String>) -> String {
        let (bottle, file) = (self.bottle.to_string(), self.path().to_string_lossy());
        let mut words = vec!["bottle", "export", &bottle, "-o", &file];
        words.extend(self.sign.then_some("--sign"));
        words.extend(self.force.then_some("--force"));
        words.extend(self.accept.iter().chain(&rules).flat_map(|rule| ["--accept", rule]));
        inert(&shlex::try_join(words).unwrap_or_default())
    }

    /// Returns the metadata of the archive, without the values that are known only after the files are exported.
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
}

impl Export<'_> {
    /// Scans the files, and writes the archive. If the future is dropped, no archive remains.
    ///
    /// # Errors
    /// When the scan finds a secret that is not accepted, or the archive cannot be written. `notify` receives warnings
    /// about such secrets.
    pub async fn write(
        &self,
        point: &ForkPoint,
        progress: ProgressSink,
        notify: Notify<'_>,
    ) -> Result<Archive, Failure> {
        let state = |what: &str, error: io::Error| {
            let hint = disk::hint(&error);
            Failure::cannot(what, error).hint(hint)
        };
        let Self { host, order, record, backend } = self;
        let snapshot = &point.snapshot;
        let scanner_rules = scanner_rules::load(host, notify)?;
        let directory = Store::of(host).directory(&record.slug);
        let unreadable = |error| state("read the bottle's canaries", error);
        let imported = canaries::read_imported(&directory).map_err(unreadable)?;
        let canaries = canaries::read(&directory).map_err(unreadable)?;
        let scanner = ContentScanner::new(&canaries, scanner_rules.rules)
            .map_err(|error| Failure::cannot("scan the files", error))?;
        let staging =
            Staging::create(host).map_err(|error| state("make a directory for the archive", error))?;
        let key = match order.sign {
            true => Some(
                SigningKey::of_home(&host.home).map_err(|error| state("read the key of this home", error))?,
            ),
            false => None,
        };
        let mut metadata = order.metadata(record, snapshot);
        metadata.canaries = texts(canaries.iter().chain(&imported));
        let manifest = Store::of(host).manifest(&record.slug).unwrap_or_default();
        let not_written = |error| order.not_written(error);
        let file = order.create(&staging).map_err(not_written)?;
        let writer = file.as_file().try_clone().and_then(|file| Writer::begin(file, &metadata, &manifest));
        let writer = writer.map_err(not_written)?;
        let layers = LayerStore::new(writer.blobs(), Arc::new(scanner), progress);
        let (base, scratch) = (base_of(record), staging.directory());
        let exported = backend.export(Request { snapshot, base, scratch, layers }).await;
        let image = exported.map_err(|error| match writer.failure() {
            Some(failure) => order.not_written(failure),
            None => error.into(),
        })?;
        let added = self.with_conversation(image, point).await;
        let image = added.map_err(|error| state("export the agent's conversations", error))?;
        let accepted = order.accepted(image.layers.findings(), notify)?;
        metadata.root = image.root;
        metadata.home.clone_from(&image.home);
        metadata.canaries = match accepted.iter().any(|rule| rule == CANARY) {
            true => texts(&canaries),
            // The image that was imported can contain the imported canaries, and is not scanned again.
            false => texts(&imported),
        };
        metadata.accepted.clone_from(&accepted);
        let (root, signer) = (image.root, key.as_ref().map(|key| key.public().to_string()));
        let found = image.layers.findings().iter().map(FoundSecret::from).collect();
        let (target, force) = (order.file.clone(), order.force);
        let written = blocking(move || {
            let bytes = writer.finish(&metadata, &image, key.as_ref())?;
            Ok((bytes, finish(file, target.as_deref(), force)?))
        });
        let (bytes, file) = written.await.map_err(not_written)?;
        let document = Exported {
            slug: record.slug.to_string(),
            name: snapshot.name.as_ref().filter(|_| order.bottle.name.is_some()).map(ToString::to_string),
            file: order.path().display().to_string(),
            bytes,
            root,
            key: signer,
            accepted,
            found,
        };
        Ok(Archive { document, file })
    }

    /// Adds the agent's conversations that `$BOTTLE_HOME` contains, if they are newer than the exported files.
    async fn with_conversation(&self, image: ExportedImage, point: &ForkPoint) -> io::Result<ExportedImage> {
        // Only the backends for Linux contain the code that writes the layer with the conversations.
        #[cfg(target_os = "linux")]
        if let Some(transcripts) = self.conversation(point) {
            let paths = self.record.transcript.clone();
            return blocking(move || conversation::add(image, &transcripts, &paths)).await;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = point;
        Ok(image)
    }

    /// Returns the agent's conversations that `$BOTTLE_HOME` contains, if they are newer than the exported files. They
    /// are newer if the bottle ended and its last launch left no work, because the exported files then come from an
    /// earlier snapshot.
    #[cfg(target_os = "linux")]
    fn conversation(&self, point: &ForkPoint) -> Option<Transcripts> {
        if self.order.bottle.name.is_some() || point.is_temporary() {
            return None;
        }
        let transcripts = Transcripts::of(&self.host.home, &self.record);
        transcripts.copied_at().filter(|copied| *copied > point.snapshot.made_at)?;
        Some(transcripts)
    }
}

/// Returns the image from which the bottle was first started.
fn base_of(record: &Record) -> Option<&str> {
    if let Some(ImageSource::Imported(image)) = &record.image {
        return Some(image);
    }
    let inside = record.sandbox.as_ref()?.prepared.inside.as_ref()?;
    Some(&inside.image)
}

/// Moves the complete archive to its target path. Without a target path, returns the open archive. Blocks the thread.
fn finish(mut archive: NamedTempFile, target: Option<&Path>, force: bool) -> io::Result<Option<File>> {
    let Some(path) = target else {
        archive.rewind()?;
        return Ok(Some(archive.into_file()));
    };
    archive.as_file().sync_data()?;
    let moved = if force { archive.persist(path) } else { persist_new(archive, path) };
    moved.map(|_| None).map_err(|error| error.error)
}

/// Runs `work`, which may block, on a separate thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.into()))
}

fn parent_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn exists_already(file: &Path) -> Failure {
    Failure::usage(format!("{} exists already", file.display()))
        .about("--output")
        .hint("name another file; `--force` replaces it")
}

fn texts<'c>(canaries: impl IntoIterator<Item = &'c SecretText>) -> Vec<String> {
    canaries.into_iter().map(|canary| canary.0.expose().to_owned()).collect()
}

/// Moves the file to `path`, unless another file has this path.
fn persist_new(file: NamedTempFile, path: &Path) -> Result<File, PersistError> {
    match file.persist_noclobber(path) {
        // Network file systems may support neither hard links nor a rename that fails if the target exists. The file is
        // then renamed without this guarantee.
        Err(PersistError { file, error })
            if error.kind() != io::ErrorKind::AlreadyExists && path.symlink_metadata().is_err() =>
        {
            file.persist(path)
        }
        persisted => persisted,
    }
}
