//! Records the files of a directory while they are copied into a workspace. With this record, a later comparison finds
//! the agent's changes. The workspace of a bottle without a record is compared with a commit.
//!
//! A separate thread reads the files for the record, because the copy itself may not have to read them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bottle_repository::given::Use;
use bottle_repository::{Entry, GivenFiles, Repository, Stop, locate};

use super::workspace_files::{FileSelection, Objects, WorkspaceFiles};

/// The maximum number of entries that wait for the recording thread. Each waiting entry can keep a directory open.
const MAX_WAITING: usize = 64;

/// The maximum time for recording a directory that is not copied. The time is short, because the user waits for the
/// start of the bottle.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The record of a directory's files. Clones share the record.
#[derive(Clone)]
pub(super) struct GivenRecord {
    /// The repository, and the path of the directory below the top of its working tree.
    repository: Option<(Arc<Repository>, PathBuf)>,
    with_untracked: bool,
    used: Use,
    /// The path of the user's own ignore file.
    user_rules: Option<PathBuf>,
    path: PathBuf,
    /// The running recording. `None` before the files are read, and after a failure.
    recording: Arc<Mutex<Option<Recording>>>,
}

/// A record that is being made.
struct Recording {
    entries: SyncSender<Entry>,
    thread: JoinHandle<io::Result<GivenFiles>>,
}

impl GivenRecord {
    /// Creates the record of a directory that is copied. If `with_untracked` is false, the record does not contain the
    /// content of files that the directory's repository does not track. Returns `None` if the repository cannot be
    /// used.
    pub(super) fn of(
        directory: &Path,
        with_untracked: bool,
        user_rules: Option<PathBuf>,
        path: PathBuf,
    ) -> Option<Self> {
        let repository = match locate::locate(directory).ok()? {
            Some(located) => {
                let repository = Repository::open(located).ok()?;
                let real = directory.canonicalize().ok()?;
                let below = real.strip_prefix(repository.located().top.path()).ok()?.to_owned();
                Some((Arc::new(repository), below))
            }
            None => None,
        };
        Some(Self {
            repository,
            with_untracked,
            used: Use::Copied,
            user_rules,
            path,
            recording: Arc::default(),
        })
    }

    /// Creates the record of a directory in which the agent works and which is not copied. Returns `None` if the
    /// directory's repository has a commit, because the agent's work is then compared with this commit.
    pub(super) fn of_live(directory: &Path, user_rules: Option<PathBuf>, path: PathBuf) -> Option<Self> {
        let has_commit =
            |(repository, _): &(Arc<Repository>, PathBuf)| !matches!(repository.head(), Ok(None));
        let record = Self::of(directory, true, user_rules, path)?;
        let is_needed = !record.repository.as_ref().is_some_and(has_commit);
        is_needed.then_some(Self { used: Use::Changed, ..record })
    }

    /// Reads a directory that is not copied and writes its record.
    pub(super) fn make(&self, directory: &Path, selection: FileSelection<'_>) {
        self.begin();
        let stop = Stop::after(MAX_TIME);
        let walked = WorkspaceFiles::of(directory, selection, Objects::Separate, None, &stop)
            .map_err(io::Error::from)
            .and_then(|files| {
                files
                    .into_iter()
                    .try_for_each(|entry| entry.map(|entry| self.add(&entry)).map_err(io::Error::from))
            });
        match walked {
            Ok(()) if !stop.is_set() => self.end(),
            Ok(()) => self.fail(&io::Error::from(io::ErrorKind::TimedOut)),
            Err(error) => self.fail(&error),
        }
    }

    /// Records the files that git does not compare, for a directory that the bottle uses directly. Records nothing if
    /// the directory is not the top of a repository.
    pub(super) fn write_not_compared(directory: &Path, path: &Path) {
        let repository =
            locate::at(directory).ok().flatten().and_then(|located| Repository::open(located).ok());
        let recorded =
            repository.map_or(Ok(()), |repository| GivenFiles::record_not_compared(&repository, path));
        recorded.unwrap_or_else(|error| warn(&error));
    }

    /// Starts a new recording.
    pub(super) fn begin(&self) {
        // An earlier recording thread, which writes to the same directory, must end first.
        if let Some(earlier) = self.take() {
            let _ = earlier.end();
        }
        let begun = match &self.repository {
            Some((repository, below)) => GivenFiles::begin(
                repository,
                below,
                self.with_untracked,
                self.user_rules.as_deref(),
                &self.path,
            ),
            None => GivenFiles::begin_without_repository(&self.path, self.used),
        };
        match begun.and_then(Recording::start) {
            Ok(recording) => *self.recording.lock().unwrap_or_else(PoisonError::into_inner) = Some(recording),
            Err(error) => warn(&error),
        }
    }

    /// Adds an entry to the record.
    pub(super) fn add(&self, entry: &Entry) {
        let mut recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let is_added =
            recording.as_ref().is_none_or(|recording| recording.entries.send(entry.clone()).is_ok());
        if let Some(failed) = recording.take_if(|_| !is_added)
            && let Err(error) = failed.end()
        {
            warn(&error);
        }
    }

    /// Completes the record.
    pub(super) fn end(&self) {
        let Some(recording) = self.take() else { return };
        if let Err(error) = recording.end().and_then(GivenFiles::end) {
            warn(&error);
        }
    }

    /// Ends the recording after an error, without a record.
    fn fail(&self, error: &io::Error) {
        if let Some(recording) = self.take() {
            let _ = recording.end();
        }
        warn(error);
    }

    fn take(&self) -> Option<Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Recording {
    fn start(mut files: GivenFiles) -> io::Result<Self> {
        let (entries, added) = sync_channel::<Entry>(MAX_WAITING);
        let record = move || {
            added.into_iter().try_for_each(|entry| files.add(&entry))?;
            Ok(files)
        };
        let thread = thread::Builder::new().name("given-files".to_owned()).spawn(record)?;
        Ok(Self { entries, thread })
    }

    /// Waits until the recording thread has ended.
    fn end(self) -> io::Result<GivenFiles> {
        drop(self.entries);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

fn warn(error: &io::Error) {
    tracing::warn!("the files that the bottle was given are not recorded: {error}");
}
