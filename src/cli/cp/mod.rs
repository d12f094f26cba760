//! `bottle cp`: files into a bottle and out of it, as one tar stream with its guest.
//!
//! - `place`: which side an argument means
//! - `target`: where on the person's disk a copy goes

mod place;
mod target;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_channel::Stream;
use bottle_contract::names::Slug;
use bottle_contract::session::guest::{CopyIn, CopyOut, GuestEvent, GuestRequest};

use self::place::Place;
use super::connect::{connect, guest_failure, lost, open_guest};
use super::error::CliError;
use super::exit;
use super::output::Output;
use crate::archive::{self, ReceiveError, SendError};
use crate::host::Host;

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
    let target = target::Target::choose(to, from)
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", to.display())))?;
    let channel = connect(host, slug).await?;
    let stream = open_guest(&channel, GuestRequest::CopyOut(CopyOut { path: from.to_owned() })).await?;
    match archive::receive(stream, move |archive| target.unpack(archive)).await {
        Ok(skipped) => {
            for name in skipped {
                output.warn(format!("{name} was left out: it is no file, folder, or link within the copy"));
            }
            Ok(exit::DONE)
        }
        Err(ReceiveError::Refused(failure)) => Err(guest_failure(failure).exit(exit::FAILED).about(slug)),
        Err(ReceiveError::Unpacked(error)) => {
            Err(CliError::failed(format!("cannot copy to {}: {error}", to.display())).about(to.display()))
        }
        Err(error @ ReceiveError::BrokeOff) => Err(lost(error).about(slug)),
        Err(error @ ReceiveError::Stopped(_)) => Err(CliError::failed(error.to_string())),
    }
}

async fn done(stream: &mut Stream, slug: &Slug) -> Result<u8, CliError> {
    match stream.receive::<GuestEvent>().await.map_err(lost)? {
        GuestEvent::Done => Ok(exit::DONE),
        GuestEvent::Failed(failure) => Err(guest_failure(failure).exit(exit::FAILED).about(slug)),
        _ => Err(lost("it answered out of turn").about(slug)),
    }
}

/// A path's last part, as a name for the copy.
fn last_part(path: &str) -> Option<PathBuf> {
    Path::new(path).file_name().map(PathBuf::from)
}
