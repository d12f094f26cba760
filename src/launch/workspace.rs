//! The workspace's first content, and the other files of a launch, as one tar stream to pid 1.
//!
//! The same on every backend: nothing is copied behind the guest's back, so ownership and confinement are
//! its business alone.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_channel::{Channel, Stream};
use bottle_contract::names;
use bottle_contract::session::guest::{CopyIn, GuestEvent, GuestRequest};

use super::guest::{answer, done, lost, open};
use super::{LaunchError, Work};
use crate::archive::{self, SendError};
use crate::backend::{Copied, Origin, ProgressSink};
use crate::host::clock;
use crate::plan::{PlannedFile, Workspace};

/// Pid 1 was asked when the workspace was ready.
pub(super) struct AskedReady(Stream);

/// Asks as soon as nothing more comes into the workspace: where it is that of a snapshot pid 1 answers after a tick
/// of its clock, and meanwhile there is other work to do. Nothing where something comes, or nobody has to know.
pub(super) async fn ask_ready(work: &Work<'_>, guest: &Channel) -> Result<Option<AskedReady>, LaunchError> {
    if copied(work).is_some() || work.order.origin == Origin::Kept {
        return Ok(None);
    }
    // What is there in an empty one is work, so that there is nothing to tell it from.
    let empty = work.order.origin == Origin::New;
    let request = if empty { GuestRequest::Now } else { GuestRequest::Moment };
    open(guest, &request).await.map(AskedReady).map(Some)
}

/// Whether the working directory is copied in, and then whether all of it is.
fn copied(work: &Work<'_>) -> Option<bool> {
    match work.order.plan.workspace {
        Workspace::Empty => None,
        Workspace::Copy => Some(false),
        Workspace::CopyAll => Some(true),
    }
}

/// Copies the working directory in when the plan asks for it, and notes when the workspace was ready.
pub(super) async fn fill(
    work: &Work<'_>,
    guest: &Channel,
    asked: Option<AskedReady>,
) -> Result<(), LaunchError> {
    let plan = &work.order.plan;
    if let Some(everything) = copied(work) {
        let request = GuestRequest::CopyIn(CopyIn { path: names::WORKSPACE.to_owned() });
        let mut stream = open(guest, &request).await?;
        let folder = plan.identity.cwd.clone();
        let told = work.told.clone();
        let archive = move |out: &mut dyn Write| {
            archive_folder(&folder, everything, &mut Counted { out, bytes: 0, told: &told })
        };
        send(&mut stream, archive).await?;
    }
    if work.order.origin == Origin::Kept {
        // What is in it is work of an earlier launch, from when it was ready then.
        return Ok(());
    }
    let mut stream = match asked {
        Some(AskedReady(stream)) => stream,
        None => open(guest, &GuestRequest::Moment).await?,
    };
    // By the clocks that stamp the bottle's files, which need not be this machine's.
    let GuestEvent::Moment { at: ready } = answer(&mut stream).await? else {
        return Err(LaunchError::guest("answered out of turn"));
    };
    work.claim
        .update(|record| {
            record.workspace_ready = Some(ready);
            record.clock_lead = Some(clock::boot_offset());
        })
        .map_err(|error| LaunchError::Host(format!("cannot write the bottle's record: {error}")))
}

/// Says how much was written.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
    told: &'a ProgressSink,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.told.tell(Copied { files: 0, bytes: self.bytes });
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Sends what `files` writes and waits for the guest's word that it is unpacked.
pub(super) async fn send(
    stream: &mut Stream,
    files: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
) -> Result<(), LaunchError> {
    archive::send(stream, files).await.map_err(|error| match error {
        SendError::Gone(error) => lost(error),
        SendError::Stopped(_) => LaunchError::Host(error.to_string()),
        SendError::Unreadable(error) => {
            LaunchError::Host(format!("cannot copy the working directory: {error}"))
        }
    })?;
    done(stream).await
}

/// The plan's own files, as a writer of one archive with paths from the root.
pub(super) fn archive_of(files: &[PlannedFile]) -> impl FnOnce(&mut dyn Write) -> io::Result<()> + use<> {
    let files = files.to_vec();
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

/// Walks `folder`: without `everything`, what its `.gitignore` files leave out stays out.
fn archive_folder(folder: &Path, everything: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let walk = ignore::WalkBuilder::new(folder)
        .standard_filters(!everything)
        .hidden(false)
        .ignore(false)
        .git_global(false)
        .require_git(false)
        .build();
    for entry in walk {
        let entry = entry.map_err(io::Error::other)?;
        let Ok(inside) = entry.path().strip_prefix(folder) else { continue };
        if inside.as_os_str().is_empty() {
            continue;
        }
        append(&mut archive, entry.path(), inside)?;
    }
    archive.finish()
}

/// One entry. Sockets, devices and pipes stay where they are; a file that vanished meanwhile is no error.
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
    fn ignored_build_output_stays_out_unless_asked_for_and_git_comes_along() {
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
