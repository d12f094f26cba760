//! `bottle cp`: files into a bottle and out of it, as one tar stream with its guest.
//!
//! - `place`: which side an argument means
//! - `unpack`: a tar stream from inside, which may be hostile, onto the person's disk

mod place;
mod unpack;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bottle_channel::{Event, Stream};
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{CopyIn, CopyOut, GuestEvent, GuestRequest, STDOUT};
use bytes::Bytes;
use tokio::sync::mpsc;

use self::place::Place;
use super::connect::{connect, guest_failure, lost, open_guest};
use super::error::CliError;
use super::exit;
use super::output::Output;
use crate::archive::{self, SendError};
use crate::host::Host;

/// Chunks under way between the channel and the thread that writes files.
const CHUNKS: usize = 8;

/// Copy files into a bottle or out of it
///
/// One of the two is `SLUG:PATH`; a relative path there begins in the workspace. A destination that ends in
/// `/` is a folder to put the copy into.
#[derive(Debug, clap::Args)]
pub(crate) struct Cp {
    /// From: a path here, or `SLUG:PATH`
    source: String,
    /// To: a path here, or `SLUG:PATH`
    destination: String,
}

impl Cp {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match (Place::of(&self.source), Place::of(&self.destination)) {
            (Place::Here(from), Place::Inside(slug, to)) => super::block_on(copy_in(host, &from, &slug, &to)),
            (Place::Inside(slug, from), Place::Here(to)) => {
                super::block_on(copy_out(host, &slug, &from, &to, output))
            }
            (Place::Inside(..), Place::Inside(..)) => {
                Err(CliError::usage("both paths lie in a bottle").hint("copy out first, then in"))
            }
            (Place::Here(_), Place::Here(_)) => {
                Err(CliError::usage("neither path lies in a bottle").hint("write one of them as `SLUG:PATH`"))
            }
        }
    }
}

async fn copy_in(host: &Host, from: &Path, slug: &Slug, to: &str) -> Result<u8, CliError> {
    let unreadable = |error: io::Error| {
        CliError::failed(format!("cannot read {}: {error}", from.display())).about(from.display())
    };
    let own_name = from.canonicalize().map_err(unreadable)?;
    let own_name = own_name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (folder, name) = place::destination(to, &own_name);
    let channel = connect(host, slug).await?;
    let mut stream = open_guest(&channel, GuestRequest::CopyIn(CopyIn { path: folder })).await?;
    let path = from.to_owned();
    archive::send(&stream, move |out| pack(&path, &name, out)).await.map_err(|error| match error {
        SendError::Unreadable(error) => unreadable(error),
        SendError::Gone(error) => lost(error),
        SendError::Stopped(_) => CliError::failed(error.to_string()),
    })?;
    done(&mut stream, slug).await
}

fn pack(from: &Path, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    if from.is_dir() {
        archive.append_dir_all(name, from)?;
    } else {
        archive.append_path_with_name(from, name)?;
    }
    archive.finish()
}

async fn copy_out(host: &Host, slug: &Slug, from: &str, to: &Path, output: &Output) -> Result<u8, CliError> {
    let target = unpack::Target::choose(to, from)
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", to.display())))?;
    let channel = connect(host, slug).await?;
    let mut stream = open_guest(&channel, GuestRequest::CopyOut(CopyOut { path: from.to_owned() })).await?;
    let (chunks, ready) = mpsc::channel(CHUNKS);
    let unpacking =
        tokio::task::spawn_blocking(move || target.unpack(Archive { ready, chunk: Bytes::new() }));
    let mut answer = None;
    while let Some(event) = stream.next().await {
        match event {
            Event::Data { fd: STDOUT, bytes } => {
                // A thread that stopped early has its reason ready below.
                if chunks.send(bytes).await.is_err() {
                    break;
                }
            }
            Event::Data { .. } => {}
            Event::Message(json) => {
                answer = serde_json::from_slice(&json).ok();
                break;
            }
            Event::End | Event::Reset(_) => break,
        }
    }
    // Whole only with the guest's word for it: a broken stream must not become a shorter copy.
    let whole = matches!(answer, Some(GuestEvent::Done));
    if !whole {
        let _ = chunks.send(Bytes::new()).await;
    }
    drop(chunks);
    let unpacked = unpacking.await.map_err(|error| CliError::failed(format!("the copy stopped: {error}")))?;
    match (answer, unpacked) {
        (Some(GuestEvent::Failed(failure)), _) => Err(guest_failure(failure).exit(exit::FAILED).about(slug)),
        (_, Err(error)) => {
            Err(CliError::failed(format!("cannot copy to {}: {error}", to.display())).about(to.display()))
        }
        (Some(GuestEvent::Done), Ok(skipped)) => {
            for name in skipped {
                output.warn(format!("{name} was left out: it is no file, folder, or link within the copy"));
            }
            Ok(exit::DONE)
        }
        (_, Ok(_)) => Err(lost("the copy broke off").about(slug)),
    }
}

async fn done(stream: &mut Stream, slug: &Slug) -> Result<u8, CliError> {
    match stream.receive::<GuestEvent>().await.map_err(lost)? {
        GuestEvent::Done => Ok(exit::DONE),
        GuestEvent::Failed(failure) => Err(guest_failure(failure).exit(exit::FAILED).about(slug)),
        _ => Err(lost("it answered out of turn").about(slug)),
    }
}

/// The reading end of an archive under way. An empty chunk means that it broke off.
struct Archive {
    ready: mpsc::Receiver<Bytes>,
    chunk: Bytes,
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() {
            match self.ready.blocking_recv() {
                None => return Ok(0),
                Some(chunk) if chunk.is_empty() => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the copy broke off"));
                }
                Some(chunk) => self.chunk = chunk,
            }
        }
        let length = buffer.len().min(self.chunk.len());
        buffer[..length].copy_from_slice(&self.chunk.split_to(length));
        Ok(length)
    }
}

/// A path's last part, as a name for the copy.
fn last_part(path: &str) -> Option<PathBuf> {
    Path::new(path).file_name().map(PathBuf::from)
}
