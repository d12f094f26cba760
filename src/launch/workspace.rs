//! Copies the initial workspace and the plan's files into a bottle, as tar streams to pid 1.
//!
//! The copy works the same on every backend, because only the guest writes the files. The guest alone sets file
//! ownership and keeps the extracted paths inside the target folder.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_channel::{Channel, Stream};
use bottle_contract::names;
use bottle_contract::session::guest::{CopyIn, GuestEvent, GuestRequest};

use super::connection::{answer, open, send};
use super::context::LaunchContext;
use super::error::{LaunchError, Peer};
use crate::archive;
use crate::backend::{Copied, Origin, ProgressSink};
use crate::host::clock;
use crate::plan::{PlannedFile, Workspace};

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

/// `None` if the working directory is not copied. Otherwise whether the copy includes files that `.gitignore` excludes.
fn copied(context: &LaunchContext<'_>) -> Option<bool> {
    match context.order.plan.workspace {
        Workspace::Empty => None,
        Workspace::Copy => Some(false),
        Workspace::CopyAll => Some(true),
    }
}

/// Copies the working directory if the plan requests it, and records the workspace's ready time.
pub(super) async fn fill(
    context: &LaunchContext<'_>,
    guest: &Channel,
    pending: Option<PendingReadyTime>,
) -> Result<(), LaunchError> {
    let plan = &context.order.plan;
    if let Some(everything) = copied(context) {
        let request = GuestRequest::CopyIn(CopyIn { path: names::WORKSPACE.to_owned() });
        let mut stream = open(guest, &request).await?;
        let folder = plan.identity.cwd.clone();
        let progress = context.progress.clone();
        let archive = move |out: &mut dyn Write| {
            archive_folder(&folder, everything, &mut CountingWriter { out, bytes: 0, progress: &progress })
        };
        send(&mut stream, archive).await?;
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

/// Counts the bytes written and reports them as progress.
struct CountingWriter<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
    progress: &'a ProgressSink,
}

impl Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.progress.report(Copied { files: 0, bytes: self.bytes });
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

/// Walks the files of `folder` that `--cwd` copies. If `everything` is false, skips the files that the `.gitignore`
/// files in it exclude. The folder itself comes first.
pub(crate) fn workspace_files(folder: &Path, everything: bool) -> ignore::Walk {
    ignore::WalkBuilder::new(folder)
        .standard_filters(!everything)
        .hidden(false)
        .ignore(false)
        .git_global(false)
        .require_git(false)
        .build()
}

/// Archives `folder`. If `everything` is false, skips the files that the `.gitignore` files in it exclude.
fn archive_folder(folder: &Path, everything: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    for entry in workspace_files(folder, everything) {
        let entry = entry.map_err(io::Error::other)?;
        let Ok(inside) = entry.path().strip_prefix(folder) else { continue };
        if inside.as_os_str().is_empty() {
            continue;
        }
        append(&mut archive, entry.path(), inside)?;
    }
    archive.finish()
}

/// Adds one entry. Skips sockets, devices and pipes, and files that were removed in the meantime.
fn append(archive: &mut tar::Builder<&mut dyn Write>, path: &Path, inside: &Path) -> io::Result<()> {
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
            .map(|entry| entry.expect("entry").path().expect("path").to_string_lossy().into_owned())
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
        archive_folder(folder.path(), false, &mut some).expect("archive");
        assert_eq!(names_in(&some), [".git", ".git/HEAD", ".gitignore", "link", "src", "src/main.rs"]);
        let mut all = Vec::new();
        archive_folder(folder.path(), true, &mut all).expect("archive");
        assert!(names_in(&all).contains(&"target/huge".to_owned()));
    }
}
