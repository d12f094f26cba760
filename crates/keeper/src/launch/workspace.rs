//! Copies the initial workspace and the plan's files into a bottle.
//!
//! A backend that stores the files of bottles in directories of the host copies a directory itself
//! ([`bottle_backend::Lifecycle::copy_files`]), and shares the objects of the directory's git repository
//! ([`bottle_backend::Lifecycle::share_objects`]). In all other cases, the keeper sends a tar stream to pid 1, which
//! sets the owner of the files and keeps the paths inside the target directory. Both methods use the same directory
//! walk to choose the files.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle_backend::{Copied, HostFiles, Origin, ProgressSink, RepositoryObjects};
use bottle_channel::{Channel, Stream};
use bottle_host::clock;
use bottle_instance::{Store, given};
use bottle_plan::{CopiedDirectory, Plan, PlannedFile, Workspace};
use bottle_policy::names;
use bottle_protocol::session::guest::{CopyIn, GuestEvent, GuestRequest};
use bottle_repository::Stop;

use super::connection::{answer, open, send};
use super::context::LaunchContext;
use super::error::{LaunchError, Peer};
use super::git_dir::GitDir;
use super::git_format::require_readable;
use super::given_record::GivenRecord;
use super::workspace_archive::{
    InitialFiles, SelectedFiles, archive_alternate, archive_directory, archive_git_dir, archive_objects,
};
use super::workspace_files::{FileSelection, Objects};

/// A request for the time at which the workspace was ready. Pid 1 has not answered the request yet.
pub(super) struct PendingReadyTime(Stream);

/// If no files will be copied into the workspace, requests the workspace's ready time early. For a workspace from a
/// snapshot, pid 1 answers only after the next tick of its clock, and the launch continues in the meantime. Returns
/// `None` if files will be copied, or if the bottle's record already contains the ready time.
pub(super) async fn request_ready_time(
    context: &LaunchContext<'_>,
    guest: &Channel,
) -> Result<Option<PendingReadyTime>, LaunchError> {
    if copied(context).is_some() || context.order.has_ready_time() {
        return Ok(None);
    }
    // In a workspace that is empty at the start, every file is a change, so pid 1 does not need to wait for a tick of
    // its clock.
    let empty = context.order.origin == Origin::New;
    let request = if empty { GuestRequest::Now } else { GuestRequest::Moment };
    open(guest, &request).await.map(PendingReadyTime).map(Some)
}

/// The initial content of the workspace. `None` if the launch copies no files.
fn copied(context: &LaunchContext<'_>) -> Option<Workspace> {
    let workspace = context.order.plan.workspace;
    (workspace != Workspace::Empty).then_some(workspace)
}

/// Copies the working directory if the plan requests it, and records the workspace's ready time.
pub(super) async fn fill(
    context: &LaunchContext<'_>,
    guest: &Channel,
    pending: Option<PendingReadyTime>,
) -> Result<(), LaunchError> {
    if let Some(forked) = &context.order.forked {
        let from = Store::of(context.host).directory(&forked.from);
        let directories =
            context.order.plan.identity.directories.iter().map(|directory| directory.name.as_str());
        given::copy(&from, context.claim.directory(), directories)
            .map_err(LaunchError::host("copy the record of the given files"))?;
    }
    if let Some(content) = copied(context) {
        let plan = &context.order.plan;
        let transfer = Transfer { guest, progress: &context.progress, bytes: Arc::default() };
        if plan.identity.directories.is_empty() {
            let path = plan.live.as_ref().map_or(&plan.identity.cwd, |live| &live.path);
            copy_directory(context, &transfer, Directory { path, content, name: None }).await?;
        }
        for CopiedDirectory { name, path, all } in &plan.identity.directories {
            let content = if *all { Workspace::CopyAll } else { Workspace::Copy };
            copy_directory(context, &transfer, Directory { path, content, name: Some(name) }).await?;
        }
    }
    if context.order.has_ready_time() {
        // The ready time that the earlier launch recorded still applies.
        return Ok(());
    }
    let mut stream = match pending {
        Some(PendingReadyTime(stream)) => stream,
        None => open(guest, &GuestRequest::Moment).await?,
    };
    // The ready time comes from the clock that sets the time stamps of the bottle's files. This clock can differ from
    // the host's clock.
    let GuestEvent::Moment { at: ready } = answer(&mut stream).await? else {
        return Err(LaunchError::Unexpected(Peer::Guest));
    };
    context
        .claim
        .update(|record| {
            record.workspace_ready = Some(ready);
            record.clock_lead = Some(clock::boot_offset());
        })
        .map_err(LaunchError::host("write the bottle's record"))
}

/// A directory of the user that is copied into the workspace.
struct Directory<'a> {
    path: &'a Path,
    /// Selects the files to copy.
    content: Workspace,
    /// The name of the copy in the workspace. `None` if the copy is the whole workspace.
    name: Option<&'a str>,
}

impl Directory<'_> {
    fn target(&self) -> String {
        self.name.map_or_else(|| names::WORKSPACE.to_owned(), |name| format!("{}/{name}", names::WORKSPACE))
    }

    /// Returns the git directory of this directory, if the git directory is copied.
    fn git_dir(&self, plan: &Plan) -> Result<Option<Arc<GitDir>>, LaunchError> {
        if self.content == Workspace::Files {
            return Ok(None);
        }
        let found = GitDir::of(self.path, &plan.git_directories);
        Ok(found.map_err(LaunchError::host("copy the git directory"))?.map(Arc::new))
    }

    /// Creates the record of the files that are copied from this directory.
    fn given(&self, state: &Path, plan: &Plan) -> Option<GivenRecord> {
        let with_untracked = match self.content {
            Workspace::Copy => true,
            // `CopyAll` also copies ignored files, so the record would otherwise contain build output.
            Workspace::CopyAll => false,
            _ => return None,
        };
        let record = given::record(state, self.name.unwrap_or_default());
        GivenRecord::of(self.path, with_untracked, plan.user_ignore_file.clone(), record)
    }

    /// The objects of the directory's git repository, if the objects are transferred separately.
    fn objects(&self, git_dir: Option<&Arc<GitDir>>) -> Option<RepositoryObjects> {
        let (from, borrowed) = git_dir?.objects().split_first()?;
        let (from, borrowed) = (Arc::clone(from), borrowed.to_vec());
        Some(RepositoryObjects { from, borrowed, directory: self.name.map(str::to_owned) })
    }
}

/// Copies a directory into the workspace. The objects of the directory's git repository are copied last, so that they
/// include every object that a copied reference names.
async fn copy_directory(
    context: &LaunchContext<'_>,
    transfer: &Transfer<'_>,
    directory: Directory<'_>,
) -> Result<(), LaunchError> {
    let target = directory.target();
    let plan = &context.order.plan;
    let git_dir = directory.git_dir(plan)?;
    let objects = directory.objects(git_dir.as_ref());
    let given = directory.given(context.claim.directory(), plan);
    if directory.content == Workspace::Repository {
        record_live(context, directory.path).await?;
    }
    let files = SelectedFiles {
        directory: directory.path,
        content: directory.content,
        user_ignore_file: plan.user_ignore_file.as_deref(),
        objects: if objects.is_some() { Objects::Separate } else { Objects::Included },
        git_dir: git_dir.as_ref(),
        given: given.as_ref(),
    };
    // Dropping this guard stops the directory walk, so that a cancelled launch does not wait for it.
    let stop = Stop::default();
    let _stopped = stop.on_drop();
    if !copy_directly(context, transfer, &directory, files, &stop).await? {
        let (from, user, stop, place) =
            (directory.path.to_owned(), plan.user_ignore_file.clone(), stop.clone(), target.clone());
        let (content, objects) = (files.content, files.objects);
        let (git_dir, given) = (git_dir.clone(), given.clone());
        let archive = move |out: &mut dyn Write| {
            let files = SelectedFiles {
                directory: &from,
                content,
                user_ignore_file: user.as_deref(),
                objects,
                git_dir: git_dir.as_ref(),
                given: given.as_ref(),
            };
            archive_directory(files, &place, &stop, out)
        };
        transfer.run(&target, archive).await?;
    }
    if let Some(given) = given {
        let ended = tokio::task::spawn_blocking(move || given.end()).await;
        ended.map_err(LaunchError::host("record the given files"))?;
    }
    if let Some(objects) = objects {
        // The file of alternates has one path on each line, so a path with a line break cannot be an alternate.
        let is_line = !objects.inside().contains('\n');
        if is_line && context.backend.share_objects(&context.launch(), &objects).await? {
            transfer.run(&target, move |out| archive_alternate(&objects, out)).await?;
        } else {
            let stop = stop.clone();
            transfer.run(&target, move |out| archive_objects(&objects, &stop, out)).await?;
        }
    }
    match git_dir {
        Some(git_dir) if git_dir.needs_new_git() => require_readable(transfer.guest, &target).await,
        _ => Ok(()),
    }
}

/// Records the files of a directory in which the agent will work directly (`--cwd=live`). If the directory's repository
/// has a commit, records only the files that git does not compare. Otherwise, records all files that git does not
/// ignore.
async fn record_live(context: &LaunchContext<'_>, directory: &Path) -> Result<(), LaunchError> {
    let (directory, state) = (directory.to_owned(), context.claim.directory().to_owned());
    let user = context.order.plan.user_ignore_file.clone();
    let record = move || {
        let place = given::record(&state, "");
        match GivenRecord::of_live(&directory, user.clone(), place.clone()) {
            Some(record) => record.make(&directory, FileSelection::NotIgnored(user.as_deref())),
            None => GivenRecord::write_not_compared(&directory, &place),
        }
    };
    let recorded = tokio::task::spawn_blocking(record).await;
    recorded.map_err(LaunchError::host("record the files of the directory"))
}

/// Copies the files of a directory if the backend can copy them without pid 1. Returns false if the backend cannot, or
/// if the files cannot be listed.
async fn copy_directly(
    context: &LaunchContext<'_>,
    transfer: &Transfer<'_>,
    directory: &Directory<'_>,
    files: SelectedFiles<'_>,
    stop: &Stop,
) -> Result<bool, LaunchError> {
    // The backend sets `copying` when the copy ends. `copying` is separate from `stop`, because later directory walks
    // must continue.
    let copying = Stop::default();
    let objects = files.objects;
    // If the directory cannot be read, the caller sends an archive instead, and the archive reports the error.
    let Ok(initial) = InitialFiles::of(files, &copying) else { return Ok(false) };
    let files = HostFiles {
        from: directory.path.to_owned(),
        directory: directory.name.map(str::to_owned),
        entries: initial.entries,
        progress: transfer.further_bytes(),
        stop: copying,
    };
    if !context.backend.copy_files(&context.launch(), files).await? {
        return Ok(false);
    }
    if let Some(git_dir) = initial.git_dir {
        let (stop, place, worktrees) = (stop.clone(), directory.target(), initial.worktrees);
        let archive =
            move |out: &mut dyn Write| archive_git_dir(&git_dir, objects, &worktrees, &place, &stop, out);
        transfer.run(&directory.target(), archive).await?;
    }
    Ok(true)
}

/// Sends archives of the workspace's files to pid 1, and reports the sum of their bytes as progress.
struct Transfer<'a> {
    guest: &'a Channel,
    progress: &'a ProgressSink,
    bytes: Arc<AtomicU64>,
}

impl Transfer<'_> {
    async fn run(
        &self,
        target: &str,
        archive: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Result<(), LaunchError> {
        let request = GuestRequest::CopyIn(CopyIn { path: target.to_owned() });
        let mut stream = open(self.guest, &request).await?;
        let (progress, bytes) = (self.progress.clone(), self.bytes.clone());
        let counted = move |out: &mut dyn Write| {
            archive(&mut CountingWriter { out, bytes: &bytes, progress: &progress })
        };
        send(&mut stream, counted).await
    }

    /// Creates a progress sink for another copy. The sink adds the bytes of this copy to the bytes of the earlier
    /// copies.
    fn further_bytes(&self) -> ProgressSink {
        let (progress, bytes) = (self.progress.clone(), self.bytes.clone());
        let before = bytes.load(Ordering::Relaxed);
        ProgressSink::new(move |copied: Copied| {
            let now = before + copied.bytes;
            let bytes = bytes.fetch_max(now, Ordering::Relaxed).max(now);
            progress.report(Copied { files: 0, bytes });
        })
    }
}

/// A writer that counts the written bytes and reports the count as progress.
struct CountingWriter<'a> {
    out: &'a mut dyn Write,
    bytes: &'a AtomicU64,
    progress: &'a ProgressSink,
}

impl Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        let bytes = self.bytes.fetch_add(written as u64, Ordering::Relaxed) + written as u64;
        self.progress.report(Copied { files: 0, bytes });
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns a function that writes files as one archive with relative paths.
pub(super) fn planned_files_archive(
    files: Vec<PlannedFile>,
) -> impl FnOnce(&mut dyn Write) -> io::Result<()> {
    move |out| {
        let mut archive = tar::Builder::new(out);
        for file in &files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(file.mode);
            header.set_size(file.content.len() as u64);
            archive.append_data(&mut header, file.path.trim_start_matches('/'), file.content.as_slice())?;
        }
        archive.finish()
    }
}
