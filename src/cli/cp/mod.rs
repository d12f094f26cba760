//! `bottle cp`: copies files into or out of a bottle. The files are exchanged with the bottle's guest as one
//! tar stream.
//!
//! - `endpoint`: parses an argument into a local path or a path in a bottle
//! - `target`: the local destination of a copy

mod endpoint;
mod target;

use std::fs::Metadata;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bottle_archive::SendError;
use bottle_backend::Access;
use bottle_channel::Stream;
use bottle_host::{Host, disk};
use bottle_lib::failure::Failure;
use bottle_policy::names::Slug;
use bottle_protocol::session::guest::{CopyIn, CopyOut, GuestEvent, GuestRequest};
use tokio::sync::oneshot;

use self::endpoint::Endpoint;
use super::connect::{
    connect_or_open_files, guest_failure, keeper_lost, open_guest, receive_failed, unexpected_answer,
};
use crate::console::error::{CliError, Kind};
use crate::console::exit;
use crate::console::output::Output;
use crate::console::progress::{self, Progress};
use crate::console::runtime::block_on;

/// How long an interrupted copy may take to remove the files that it unpacked. After this time, the command ends, and a
/// temporary directory may remain.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// Copy files into or out of a bottle
///
/// One of the two paths is `SLUG:PATH`. A relative PATH starts in the workspace. If the destination ends in
/// `/`, the copy is placed inside that directory. Also works after the bottle ended, if its files are kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Cp {
    /// The source: a local path or `SLUG:PATH`
    source: String,
    /// The destination: a local path or `SLUG:PATH`
    destination: String,
}

impl Cp {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match (Endpoint::parse(&self.source), Endpoint::parse(&self.destination)) {
            (Endpoint::Local(from), Endpoint::InBottle(slug, to)) => {
                let left = "files copied so far stay in the bottle";
                let copying = async |progress| copy_in(host, &from, &slug, &to, progress).await;
                block_on(progress::with_progress("copying in", left, output, copying))
            }
            (Endpoint::InBottle(slug, from), Endpoint::Local(to)) => {
                block_on(copy_out_or_undo(host, &slug, &from, &to, output))
            }
            (Endpoint::InBottle(..), Endpoint::InBottle(..)) => {
                Err(CliError::usage("both paths are in a bottle").hint("copy out first, then in"))
            }
            (Endpoint::Local(_), Endpoint::Local(_)) => {
                Err(CliError::usage("neither path is in a bottle").hint("write one of them as `SLUG:PATH`"))
            }
        }
    }
}

async fn copy_in(
    host: &Host,
    from: &Path,
    slug: &Slug,
    to: &str,
    progress: Arc<Progress>,
) -> Result<u8, CliError> {
    let unreadable = |error: io::Error| CliError::path("read", from, error);
    let own_name = from.canonicalize().map_err(unreadable)?;
    let own_name = own_name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (directory, name) = endpoint::destination(to, &own_name);
    let channel = connect_or_open_files(host, slug, Access::Write).await?;
    let mut stream = open_guest(&channel, GuestRequest::CopyIn(CopyIn { path: directory })).await?;
    let path = from.to_owned();
    let of = path.metadata().ok().filter(Metadata::is_file).map(|file| file.len());
    let pack = move |out: &mut dyn Write| {
        pack(
            &path,
            &name,
            &mut Counted { stream: out, words: "copying in", bytes: 0, of, progress: &progress },
        )
    };
    bottle_archive::send(&stream, pack).await.map_err(|error| match error {
        SendError::Unreadable(error) => unreadable(error),
        SendError::ChannelClosed(error) => keeper_lost(error),
        SendError::Stopped(_) => CliError::from_error(Kind::Failed, &error),
    })?;
    confirm(&mut stream, slug).await
}

fn pack(from: &Path, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    // If the source path is a symlink, it is resolved. Symlinks below the source are copied as symlinks.
    bottle_archive::append_all(&mut builder, &from.canonicalize()?, Path::new(name))?;
    builder.finish()
}

/// A stream that reports its progress: the number of transferred bytes, and the total number if it is known.
struct Counted<'a, S: ?Sized> {
    stream: &'a mut S,
    words: &'static str,
    bytes: u64,
    of: Option<u64>,
    progress: &'a Progress,
}

impl<S: ?Sized> Counted<'_, S> {
    fn report(&mut self, passed: usize) -> usize {
        self.bytes += passed as u64;
        self.progress.bytes(self.words, self.bytes, self.of);
        passed
    }
}

impl<S: Write + ?Sized> Write for Counted<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map(|written| self.report(written))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Read + ?Sized> Read for Counted<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).map(|read| self.report(read))
    }
}

/// Copies files out of the bottle. If the copy is interrupted, it removes its temporary directory, which is in the same
/// directory as the destination.
async fn copy_out_or_undo(
    host: &Host,
    slug: &Slug,
    from: &str,
    to: &Path,
    output: &Output,
) -> Result<u8, CliError> {
    let (working, mut ended) = oneshot::channel();
    let (words, left) = ("copying out", "no local file was changed");
    let copying =
        async |progress: Arc<Progress>| copy_out(host, slug, from, to, (working, progress), output).await;
    let copied = progress::with_progress(words, left, output, copying).await;
    if copied.is_err() {
        let _ = tokio::time::timeout(UNDO_TIMEOUT, &mut ended).await;
    }
    copied
}

async fn copy_out(
    host: &Host,
    slug: &Slug,
    from: &str,
    to: &Path,
    (working, progress): (oneshot::Sender<()>, Arc<Progress>),
    output: &Output,
) -> Result<u8, CliError> {
    let target = target::Target::choose(to, from)
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", to.display())))?;
    let temporary = host.temporary("cp-").map_err(|error| {
        let hint = disk::hint(&error);
        CliError::cannot("create a temporary directory", error).hint(hint)
    })?;
    let channel = connect_or_open_files(host, slug, Access::Read).await?;
    let stream = open_guest(&channel, GuestRequest::CopyOut(CopyOut { path: from.to_owned() })).await?;
    let unpack = move |archive: &mut dyn Read| {
        // The thread drops this value when it ends, and thereby signals its end.
        let _working = working;
        // Only the guest knows the total size.
        let (words, of) = ("copying out", None);
        target.unpack(&mut Counted { stream: archive, words, bytes: 0, of, progress: &progress }, &temporary)
    };
    let unpacked = |error| Failure::path("copy to", to, error);
    let received = bottle_archive::receive(stream, unpack).await;
    for name in received.map_err(|error| receive_failed(error, slug, unpacked))? {
        output.warn(format!("{name} was skipped: it is not a file, directory, or link within the copy"));
    }
    Ok(exit::DONE)
}

async fn confirm(stream: &mut Stream, slug: &Slug) -> Result<u8, CliError> {
    match stream.receive::<GuestEvent>().await.map_err(keeper_lost)? {
        GuestEvent::Done => Ok(exit::DONE),
        GuestEvent::Failed(failure) => Err(guest_failure(failure).exit(exit::FAILED).about(slug)),
        _ => Err(unexpected_answer().about(slug)),
    }
}
