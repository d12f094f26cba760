//! Finds the entries of a workspace other than the directories that were copied into it. The agent chose the names of
//! these entries.

use std::time::Duration;

use bottle_channel::Channel;
use bottle_instance::record::Record;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{FileEvent, FilePath, FileRequest, List};
use bottle_protocol::session::guest::{GuestEvent, GuestRequest};

use crate::connect::{guest_failure, keeper_lost, open_guest, unexpected_answer};
use crate::failure::Failure;
use crate::text::one_line;

/// The maximum number of entries of the workspace that are read.
const MAX_ENTRIES: u32 = 1000;

/// The maximum number of entries that a warning names.
const MAX_NAMED: usize = 10;

/// The time limit for the bottle to list its workspace.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The entries of a workspace, except the copied directories.
#[derive(Debug, Default)]
pub struct Beside {
    /// The escaped names of the entries.
    names: Vec<String>,
    /// Whether the workspace has more entries than were read.
    more: bool,
}

impl Beside {
    /// Lists the entries of the workspace, except the copied directories. If at most one directory was copied, the
    /// result is empty, because this directory is the workspace.
    ///
    /// # Errors
    /// Returns an error if the bottle does not answer in time.
    pub async fn find(channel: &Channel, record: &Record) -> Result<Self, Failure> {
        if record.directories.is_empty() {
            return Ok(Self::default());
        }
        let list = List { path: FilePath::from("."), recursive: false, after: None, limit: MAX_ENTRIES };
        let listing = async {
            let mut stream = open_guest(channel, GuestRequest::Files(FileRequest::List(list))).await?;
            match stream.receive::<GuestEvent>().await.map_err(keeper_lost)? {
                GuestEvent::Files(FileEvent::Entries(entries)) => Ok(entries),
                GuestEvent::Failed(failure) => Err(guest_failure(failure)),
                _ => Err(unexpected_answer()),
            }
        };
        let late = |_| Failure::failed(format!("cannot list the workspace of {}: it timed out", record.slug));
        let entries = tokio::time::timeout(TIMEOUT, listing).await.map_err(late)??;
        let is_copied = |name: &str| record.directories.iter().any(|directory| directory.name == name);
        let name = |path: FilePath| path.in_workspace().unwrap_or_default().display().to_string();
        let names = entries.entries.into_iter().map(|entry| name(entry.path)).filter(|name| !is_copied(name));
        Ok(Self { names: names.map(|name| one_line(&name)).collect(), more: entries.next.is_some() })
    }

    /// Whether no entries were found.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.more
    }

    /// Returns the warning about the entries. `verb` names the operation that left the entries out, such as `pulled`.
    /// `None` if there are no entries.
    pub fn warning(&self, slug: &Slug, verb: &str) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let mut named: Vec<&str> = self.names.iter().take(MAX_NAMED).map(String::as_str).collect();
        let more = format!("{} more", self.names.len().saturating_sub(MAX_NAMED));
        if self.more {
            named.push("others");
        } else if self.names.len() > MAX_NAMED {
            named.push(&more);
        }
        Some(format!(
            "not {verb}, because it is in no copied directory: {}; `bottle cp {slug}:PATH DIRECTORY` copies it out",
            named.join(", ")
        ))
    }
}
