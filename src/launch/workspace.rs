//! Copies the initial workspace and the plan's files into a bottle.
//!
//! A backend whose bottles have their files in folders of this machine copies a directory itself
//! ([`crate::backend::Lifecycle::copy_files`]), and shares the objects of its git repository
//! ([`crate::backend::Lifecycle::share_objects`]). Everything else is a tar stream to pid 1, which sets the owner of
//! the files and keeps the paths inside the target folder. The walk that chooses the files is the same for both.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle_channel::{Channel, Stream};
use bottle_contract::names;
use bottle_contract::session::guest::{CopyIn, GuestEvent, GuestRequest};

use super::connection::{answer, open, send};
use super::context::LaunchContext;
use super::error::{LaunchError, Peer};
use super::git_dir::LinkedGitDir;
use crate::archive;
use crate::backend::{Copied, HostFiles, Origin, ProgressSink, RepositoryObjects};
use crate::host::clock;
use crate::plan::{CopiedFolder, PlannedFile, Workspace};

/// A request for the time at which the workspace was ready; pid 1 has not answered it yet.
pub(super) struct PendingReadyTime(Stream);

/// Requests the workspace's ready time early when nothing will be copied into the workspace. For a workspace that came
/// from a snapshot, pid 1 answers only after a tick of its clock, and the launch continues meanwhile. Returns `None`
/// when files will be copied, or when a kept workspace already has a ready time.
pub(super) async fn request_ready_time(
    context: &LaunchContext<'_>,
    guest: &Channel,
) -> Result<Option<PendingReadyTime>, LaunchError> {
    if copied(context).is_some() || context.order.has_ready_time() {
        return Ok(None);
    }
    // In a workspace that starts empty, any file is a change. Pid 1 does not need to wait for a tick.
    let empty = context.order.origin == Origin::New;
    let request = if empty { GuestRequest::Now } else { GuestRequest::Moment };
    open(guest, &request).await.map(PendingReadyTime).map(Some)
}

/// The workspace's initial content, if the launch copies any.
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
    if let Some(content) = copied(context) {
        let plan = &context.order.plan;
        let transfer = Transfer { guest, progress: &context.progress, bytes: Arc::default() };
        if plan.identity.folders.is_empty() {
            let path = plan.live.as_ref().map_or(&plan.identity.cwd, |live| &live.path);
            copy_folder(context, &transfer, Folder { path, content, name: None }).await?;
        }
        for CopiedFolder { name, path, all } in &plan.identity.folders {
            let content = if *all { Workspace::CopyAll } else { Workspace::Copy };
            copy_folder(context, &transfer, Folder { path, content, name: Some(name) }).await?;
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
    // The ready time is from the clock that stamps the bottle's files, which can differ from this machine's clock.
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

/// A directory of the user that is copied.
struct Folder<'a> {
    path: &'a Path,
    /// What is copied of it.
    content: Workspace,
    /// The name of its folder in the workspace; `None` if it is the whole workspace.
    name: Option<&'a str>,
}

impl Folder<'_> {
    fn target(&self) -> String {
        self.name.map_or_else(|| names::WORKSPACE.to_owned(), |name| format!("{}/{name}", names::WORKSPACE))
    }

    /// The objects of its git repository, if they are transferred separately.
    fn objects(&self) -> Option<RepositoryObjects> {
        // The list of alternates has a path in each line.
        let is_line = self.name.is_none_or(|name| !name.contains('\n'));
        let from = shareable_objects(self.path).filter(|_| is_line && self.content != Workspace::Files)?;
        Some(RepositoryObjects { from, folder: self.name.map(str::to_owned) })
    }
}

/// Copies a folder into the workspace. The objects of its git repository come last, so that they include every object
/// that a copied reference names.
async fn copy_folder(
    context: &LaunchContext<'_>,
    transfer: &Transfer<'_>,
    folder: Folder<'_>,
) -> Result<(), LaunchError> {
    let (from, target, content) = (folder.path.to_owned(), folder.target(), folder.content);
    let objects = folder.objects();
    let walked = if objects.is_some() { Objects::Separate } else { Objects::Included };
    if !copy_directly(context, transfer, &folder, walked).await? {
        transfer.run(&target, move |out| archive_folder(&from, content, walked, out)).await?;
    }
    let Some(objects) = objects else { return Ok(()) };
    if context.backend.share_objects(&context.launch(), &objects).await? {
        return transfer.run(&target, move |out| archive_alternate(&objects, out)).await;
    }
    transfer.run(&target, move |out| archive_objects(&objects.from, out)).await
}

/// Copies the files of a folder on a backend that can copy them without pid 1. Returns false on another one.
async fn copy_directly(
    context: &LaunchContext<'_>,
    transfer: &Transfer<'_>,
    folder: &Folder<'_>,
    objects: Objects,
) -> Result<bool, LaunchError> {
    // If the file cannot be read, the archive reports the error.
    let Ok(git_dir) = LinkedGitDir::find(folder.path) else { return Ok(false) };
    let (top, is_linked) = (folder.path.to_owned(), git_dir.is_some());
    let paths = files_of(folder.path, folder.content, objects).filter_map(move |entry| {
        let entry = match entry.map_err(io::Error::other) {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        let inside = entry.path().strip_prefix(&top).ok()?;
        let is_git_dir = is_linked && inside == Path::new(GIT_DIR);
        (!is_git_dir && !inside.as_os_str().is_empty()).then(|| Ok(inside.to_owned()))
    });
    let files = HostFiles {
        from: folder.path.to_owned(),
        folder: folder.name.map(str::to_owned),
        paths: Box::new(paths),
        progress: transfer.further_bytes(),
    };
    if !context.backend.copy_files(&context.launch(), files).await? {
        return Ok(false);
    }
    if let Some(git_dir) = git_dir.filter(|_| folder.content != Workspace::Files) {
        let archive = move |out: &mut dyn Write| {
            let mut archive = new_archive(out);
            git_dir.append(&mut archive, objects)?;
            archive.finish()
        };
        transfer.run(&folder.target(), archive).await?;
    }
    Ok(true)
}

/// Sends archives of the workspace's files to pid 1, and reports the bytes of all of them as progress.
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
}

impl Transfer<'_> {
    /// A sink for the bytes of another copy, which follow those of earlier ones.
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

/// Counts the bytes written and reports them as progress.
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

/// Returns a function that writes files as one archive, whose paths are relative.
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

/// Whether a walk includes the objects of the folder's git repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objects {
    /// It includes them.
    Included,
    /// They are transferred separately.
    Separate,
}

/// The folder of a git repository, relative to its working tree.
const GIT_DIR: &str = ".git";

/// The folder of a git repository's objects, relative to its working tree.
const OBJECTS: &str = ".git/objects";

/// Walks the files of `folder` that `--cwd` copies. If `everything` is false, skips the files that the `.gitignore`
/// files in it exclude. The folder itself comes first, and its git repository last, which no `.gitignore` affects.
pub(crate) fn workspace_files(
    folder: &Path,
    everything: bool,
    objects: Objects,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    working_tree_files(folder, everything).chain(repository_files(folder, objects))
}

/// Walks the files of `folder` as [`workspace_files`] does, without its git repository.
fn working_tree_files(
    folder: &Path,
    everything: bool,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    let mut files = walk(folder);
    let excluded = folder.join(GIT_DIR);
    files
        .standard_filters(!everything)
        .hidden(false)
        .ignore(false)
        .git_global(false)
        .require_git(false)
        .filter_entry(move |entry| entry.path() != excluded);
    files.build()
}

/// Walks the files of the git repository in `folder`, if there is one.
fn repository_files(
    folder: &Path,
    objects: Objects,
) -> impl Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + use<> {
    let git_dir = folder.join(GIT_DIR);
    let mut files = walk(&git_dir);
    let separate = (objects == Objects::Separate).then(|| folder.join(OBJECTS));
    files.filter_entry(move |entry| Some(entry.path()) != separate.as_deref());
    git_dir.symlink_metadata().is_ok().then(|| files.build()).into_iter().flatten()
}

/// Walks all files of a folder.
fn walk(folder: &Path) -> ignore::WalkBuilder {
    let mut walk = ignore::WalkBuilder::new(folder);
    walk.standard_filters(false);
    walk
}

/// The objects of the git repository of `folder`, if they can be apart from its other files. `None` without a
/// repository, and if the repository borrows objects from another one.
pub(crate) fn shareable_objects(folder: &Path) -> Option<PathBuf> {
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let objects = match is_folder(&folder.join(GIT_DIR)) {
        true => folder.join(OBJECTS),
        false => LinkedGitDir::find(folder).ok()??.objects(),
    };
    let own = is_folder(&objects) && objects.join("info/alternates").symlink_metadata().is_err();
    own.then_some(objects)
}

/// Walks the files of `folder` that are the workspace's initial content.
fn files_of(
    folder: &Path,
    content: Workspace,
    objects: Objects,
) -> Box<dyn Iterator<Item = Result<ignore::DirEntry, ignore::Error>> + Send> {
    match content {
        Workspace::Repository => Box::new(repository_files(folder, objects)),
        Workspace::Files => Box::new(working_tree_files(folder, true)),
        _ => Box::new(workspace_files(folder, content == Workspace::CopyAll, objects)),
    }
}

/// Archives the files of `folder` that are the workspace's initial content.
fn archive_folder(
    folder: &Path,
    content: Workspace,
    objects: Objects,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut archive = new_archive(out);
    let git_dir = LinkedGitDir::find(folder)?;
    for entry in files_of(folder, content, objects) {
        let entry = entry.map_err(io::Error::other)?;
        let Ok(inside) = entry.path().strip_prefix(folder) else { continue };
        if inside.as_os_str().is_empty() {
            continue;
        }
        match &git_dir {
            Some(git_dir) if inside == Path::new(GIT_DIR) => git_dir.append(&mut archive, objects)?,
            _ => append(&mut archive, entry.path(), inside)?,
        }
    }
    archive.finish()
}

/// Archives the objects of a git repository, which are in the folder `objects`.
fn archive_objects(objects: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = new_archive(out);
    for entry in walk(objects).build() {
        let entry = entry.map_err(io::Error::other)?;
        let Ok(inside) = entry.path().strip_prefix(objects) else { continue };
        append(&mut archive, entry.path(), &Path::new(OBJECTS).join(inside))?;
    }
    archive.finish()
}

/// An archive that contains links as they are.
fn new_archive(out: &mut dyn Write) -> tar::Builder<&mut dyn Write> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive
}

/// Archives the folder of a repository's own objects, which names the shared objects as an alternate
/// (gitrepository-layout(5)).
fn archive_alternate(objects: &RepositoryObjects, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for folder in ["", "info", "pack"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, Path::new(OBJECTS).join(folder), io::empty())?;
    }
    let alternate = format!("{}\n", objects.inside());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(alternate.len() as u64);
    archive.append_data(&mut header, Path::new(OBJECTS).join("info/alternates"), alternate.as_bytes())?;
    archive.finish()
}

/// Adds one entry. Skips sockets, devices and pipes, and files that were removed in the meantime.
pub(super) fn append(
    archive: &mut tar::Builder<&mut dyn Write>,
    path: &Path,
    inside: &Path,
) -> io::Result<()> {
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(path, &error)),
    };
    if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
        return Ok(());
    }
    match archive::append(archive, path, inside) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(named(path, &error)),
        done => done,
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    let path: PathBuf = path.to_owned();
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(bytes: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(bytes);
        let mut names: Vec<_> = archive
            .entries()
            .expect("entries")
            .map(|entry| {
                // The path of a folder can end with a slash.
                let entry = entry.expect("entry");
                let path: PathBuf = entry.path().expect("path").components().collect();
                path.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn copies_git_data_and_skips_ignored_files_unless_requested() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        };
        write(".gitignore", "target/\n");
        write(".git/HEAD", "ref: refs/heads/main\n");
        write("target/huge", "x");
        write("src/main.rs", "fn main() {}");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("link");
        let mut some = Vec::new();
        archive_folder(folder.path(), Workspace::Copy, Objects::Included, &mut some).expect("archive");
        assert_eq!(names_in(&some), [".git", ".git/HEAD", ".gitignore", "link", "src", "src/main.rs"]);
        let mut all = Vec::new();
        archive_folder(folder.path(), Workspace::CopyAll, Objects::Included, &mut all).expect("archive");
        assert!(names_in(&all).contains(&"target/huge".to_owned()));
    }

    #[test]
    fn no_ignore_file_affects_the_repository_itself() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        };
        write(".gitignore", "dist\n*.pack\n");
        write(".git/refs/heads/dist", "0");
        write(".git/objects/pack/a.pack", "0");
        write("sub/.git/config", "");
        write("sub/dist", "0");
        let archived = |objects| {
            let mut bytes = Vec::new();
            archive_folder(folder.path(), Workspace::Copy, objects, &mut bytes).expect("archive");
            names_in(&bytes)
        };
        let [all, apart] = [Objects::Included, Objects::Separate].map(archived);
        assert!(all.contains(&".git/objects/pack/a.pack".to_owned()), "{all:?}");
        let expected = [
            ".git",
            ".git/refs",
            ".git/refs/heads",
            ".git/refs/heads/dist",
            ".gitignore",
            "sub",
            "sub/.git",
            "sub/.git/config",
        ];
        assert_eq!(apart, expected);
        let mut objects = Vec::new();
        archive_objects(&folder.path().join(OBJECTS), &mut objects).expect("archive");
        assert_eq!(names_in(&objects), [".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
    }

    #[test]
    fn objects_that_depend_on_another_repository_are_copied_with_the_rest() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |path: &str| folder.path().join(path);
        assert_eq!(shareable_objects(folder.path()), None, "no repository");
        std::fs::create_dir_all(path(".git/objects/info")).expect("folder");
        assert_eq!(shareable_objects(folder.path()), Some(path(".git/objects")));
        std::fs::write(path(".git/objects/info/alternates"), "/other\n").expect("write");
        assert_eq!(shareable_objects(folder.path()), None);
        std::fs::rename(path(".git"), path("elsewhere")).expect("moved");
        std::os::unix::fs::symlink(path("elsewhere"), path(".git")).expect("link");
        std::fs::remove_file(path("elsewhere/objects/info/alternates")).expect("removed");
        assert_eq!(shareable_objects(folder.path()), None, "a link is copied as a link");
    }

    #[test]
    fn a_worktree_has_the_objects_of_its_repository() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        };
        write("main/.git/worktrees/one/HEAD", "ref: refs/heads/one\n");
        write("main/.git/worktrees/one/commondir", "../..\n");
        write("main/.git/objects/pack/a.pack", "0");
        write("main/.git/config", "[core]\n");
        write("one/.git", "gitdir: ../main/.git/worktrees/one\n");
        write("one/code", "0");
        let one = root.path().join("one");
        let objects = shareable_objects(&one).expect("found");
        assert!(objects.ends_with("main/.git/worktrees/one/../../objects"), "{}", objects.display());
        let archived = |objects| {
            let mut bytes = Vec::new();
            archive_folder(&one, Workspace::Copy, objects, &mut bytes).expect("archive");
            names_in(&bytes)
        };
        let mut files = vec![".git", ".git/HEAD", ".git/config", "code"];
        assert_eq!(archived(Objects::Separate), files);
        files.extend([".git/objects", ".git/objects/pack", ".git/objects/pack/a.pack"]);
        files.sort_unstable();
        assert_eq!(archived(Objects::Included), files);
        let mut bytes = Vec::new();
        archive_objects(&objects, &mut bytes).expect("archive");
        assert_eq!(names_in(&bytes), files[3..6]);
    }
}
