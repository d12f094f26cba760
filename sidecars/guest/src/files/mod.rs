//! Lists, reads, writes, patches, removes and searches files of the workspace for clients of the host.
//!
//! All entries of the workspace belong to the agent and may change while a request is carried out. Therefore, every
//! path is opened beneath the workspace ([`crate::rooted`]), every entry is accessed through an open directory, and
//! only regular files are opened. Each request has its own thread, a deadline, and bounds on the data that it reads and
//! returns. A request ends early if its client is gone.
//!
//! - `workspace`: checks and opens paths · `bounds`, `answer_size`: bounds of requests and answers
//! - `walk`: the entries below a directory in order · `list`, `patterns`, `grep`: lists and searches
//! - `read`, `write`, `remove` · `archive`: tar streams · `staged_tree`: an unpacked archive · `patch`: unified diffs and replaced texts

mod answer_size;
mod archive;
mod bounds;
mod grep;
mod list;
mod patch;
mod patterns;
mod read;
mod remove;
pub(crate) mod slots;
mod staged_tree;
#[cfg(test)]
mod tests;
mod walk;
mod workspace;
mod write;

use std::path::Path;

use bottle_channel::{Stream, StreamSender};
use bottle_protocol::session::files::{FileEvent, FileRequest};
use bottle_protocol::session::guest::{GuestEvent, STDOUT};
use bottle_scan::OutputRedactor;

use self::bounds::{Bounds, TIME};
use self::workspace::Workspace;
use crate::copy::bridge::{Reader, Writer, inward, outward};
use crate::copy::feed;
use crate::failure::{Outcome, other};
use crate::guest::Guest;

/// Carries out a request.
pub(crate) async fn serve(guest: &Guest, request: FileRequest, stream: Stream) {
    let (sender, mut receiver) = stream.split();
    let (feeder, input) = inward();
    let (output, mut chunks) = outward();
    let work = async {
        let slot = guest.files.take().await?;
        let (bounds, client) = Bounds::new(TIME);
        let root = guest.facts.root.clone();
        let redactor = guest.redaction().cloned();
        let working = tokio::task::spawn_blocking(move || {
            let done = carry_out(&root, request, (input, output), &bounds, redactor.as_deref());
            drop(slot);
            done
        });
        let sent = async {
            while let Some(chunk) = chunks.recv().await {
                // Sending fails if the client is gone. In this case, `serve` ends.
                let _ = sender.data_bytes(STDOUT, chunk).await;
            }
        };
        tokio::join!(feed(&mut receiver, feeder), sent);
        let done = working.await.unwrap_or_else(|error| Err(other(error.to_string())));
        drop(client);
        done
    };
    tokio::select! {
        done = work => answer(&sender, done).await,
        // Dropping `work` marks the client as gone, and closes both queues of the thread.
        () = sender.closed() => {}
    }
}

/// Carries out a request on its own thread.
fn carry_out(
    root: &Path,
    request: FileRequest,
    (input, output): (Reader, Writer),
    bounds: &Bounds,
    redactor: Option<&OutputRedactor>,
) -> Outcome<FileEvent> {
    let workspace = Workspace::open(root)?;
    match request {
        FileRequest::List(list) => list::list(&workspace, &list, bounds).map(FileEvent::Entries),
        FileRequest::Stat { path } => {
            workspace.describe(&workspace::Place::new(&path)?).map(FileEvent::Entry)
        }
        FileRequest::Read(read) => read::read(&workspace, &read, output, redactor),
        FileRequest::Write(write) => write::write(&workspace, &write, input),
        FileRequest::Patch { check } => patch::unified(&workspace, input, check, bounds),
        FileRequest::Replace(replace) => patch::replace(&workspace, &replace, bounds),
        FileRequest::Remove { path, recursive } => remove::remove(&workspace, &path, recursive, bounds),
        FileRequest::RemoveFiles { paths } => remove::remove_files(&workspace, &paths, bounds),
        FileRequest::Export { path } => archive::export(&workspace, &path, output),
        FileRequest::Import { path } => archive::import(&workspace, &path, input),
        FileRequest::Glob(glob) => list::glob(&workspace, &glob, bounds).map(FileEvent::Entries),
        FileRequest::Grep(grep) => grep::grep(&workspace, &grep, bounds, redactor).map(FileEvent::Matches),
    }
}

async fn answer(sender: &StreamSender, done: Outcome<FileEvent>) {
    let event = done.map_or_else(GuestEvent::Failed, GuestEvent::Files);
    let sent = async {
        sender.message(&event).await?;
        sender.end().await
    };
    if let Err(error) = sent.await {
        tracing::debug!(%error, "answer not sent");
    }
}
