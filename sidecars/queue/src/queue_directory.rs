//! Manages the queue directory of one bottle: submits, lists, answers and archives proposals.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bottle_policy::names::Slug;
use bottle_protocol::queue::{Id, MAX_PENDING, Proposal, Response};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::list::{Damaged, Listing};
use crate::safe_file::{self, TEMPORARY, Unreadable};

/// The maximum number of entries that are read in a directory. The remaining entries are reported as one damaged entry.
const MOST_ENTRIES: usize = 1024;

/// The tolerated difference between the clock of the asker and the clock of an answer's author. If the time of an
/// answer is further in the future, the answer is refused.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

const PROPOSAL: &str = ".proposal.json";
const RESPONSE: &str = ".response.json";
const PROCESSED: &str = "processed";

/// The queue directory of one bottle. The directory is kept open. If another directory is moved to its path, writes
/// still go to the open directory.
#[derive(Debug)]
pub struct Directory {
    slug: Slug,
    path: PathBuf,
    directory: OwnedFd,
    processed: OwnedFd,
}

/// The state of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The asker is waiting for an answer.
    Waiting,
    /// The proposal has an answer, which the asker has not processed yet.
    Answered,
    /// The proposal has expired.
    Expired,
    /// The asker of the proposal is no longer waiting for an answer.
    Stale,
}

/// A proposal that has not been archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The proposal.
    pub proposal: Proposal,
    /// The state of the proposal.
    pub state: State,
}

/// The reason why a question could not be submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The bottle already has [`MAX_PENDING`] pending proposals.
    #[error("this bottle has {MAX_PENDING} pending proposals already; answer one with `bottle supervise`")]
    Full,
    /// Another question has the same id and a different subject.
    #[error("another proposal has this id")]
    Taken,
    /// The queue directory cannot be used, or the file of a proposal is damaged.
    #[error("cannot use the queue: {0}")]
    Io(#[from] io::Error),
}

/// The reason why a proposal could not be answered or dismissed.
#[derive(Debug, thiserror::Error)]
pub enum RespondError {
    /// The proposal already has an answer.
    #[error("this proposal has an answer already")]
    Decided,
    /// The proposal was answered and archived, has expired, or was dismissed.
    #[error("this proposal is no longer pending")]
    Gone,
    /// The answer does not fit the proposal, or the proposal cannot be dismissed because it is still pending.
    #[error("{0}")]
    Unfit(String),
    /// The queue directory cannot be used, or the file of a proposal is damaged.
    #[error("cannot use the queue: {0}")]
    Io(#[from] io::Error),
}

/// A question that was submitted as a proposal. Dropping this value makes the proposal stale.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) proposal: Proposal,
    /// Whether this submission added the proposal to the queue. False if the proposal was already in the queue.
    pub(crate) new: bool,
    /// The open file of the proposal. The proposal is locked as long as this file is open.
    _file: File,
}

impl Directory {
    /// Opens the queue directory of a bottle. Creates the directory if it does not exist.
    ///
    /// # Errors
    /// Fails if the directory cannot be created or is a symlink.
    pub fn make(home: &Path, slug: &Slug) -> io::Result<Self> {
        let queue = home.join("queue");
        for directory in [queue.clone(), queue.join(slug.as_str()), queue.join(slug.as_str()).join(PROCESSED)]
        {
            match DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Self::open(home, slug)
    }

    /// Opens the queue directory of a bottle. The directory must exist.
    ///
    /// # Errors
    /// Fails if the directory does not exist or is a symlink.
    pub fn open(home: &Path, slug: &Slug) -> io::Result<Self> {
        let path = home.join("queue").join(slug.as_str());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&path, flags, Mode::empty())?;
        let processed = rustix::fs::openat(&directory, PROCESSED, flags, Mode::empty())?;
        Ok(Self { slug: slug.clone(), path, directory, processed })
    }

    /// Lists the proposals in the directory, oldest first. Also lists the damaged entries.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn pending(&self, now: Timestamp) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut left = MOST_ENTRIES;
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else {
                listing.damaged.push(self.damaged(&name.to_string_lossy(), "its name is not UTF-8"));
                continue;
            };
            if name == PROCESSED || name.starts_with(TEMPORARY) {
                continue;
            }
            left -= 1;
            if left == 0 {
                listing.damaged.push(self.damaged("", "it has too many entries"));
                break;
            }
            match self.entry(name, now) {
                Ok(Some(pending)) => listing.pending.push(pending),
                Ok(None) => {}
                Err(error) => listing.damaged.push(self.damaged(name, &error.to_string())),
            }
        }
        listing.sort();
        Ok(listing)
    }

    /// Returns the proposal with the id `id`. Returns `None` if the proposal does not exist.
    ///
    /// # Errors
    /// Fails if the proposal's file is damaged or cannot be read.
    pub fn get(&self, id: &Id, now: Timestamp) -> io::Result<Option<Pending>> {
        self.entry(&format!("{id}{PROPOSAL}"), now).map_err(Into::into)
    }

    fn damaged(&self, name: &str, why: &str) -> Damaged {
        Damaged { path: self.path.join(name), why: why.to_owned() }
    }

    /// Reads the entry with the name `name`. Returns `None` if the entry does not exist, or if it is a response to an
    /// existing or archived proposal.
    fn entry(&self, name: &str, now: Timestamp) -> Result<Option<Pending>, Unreadable> {
        if let Some(id) = name.strip_suffix(RESPONSE) {
            let proposal = format!("{id}{PROPOSAL}");
            // The asker archives the proposal before the response leaves the directory.
            let is_without_proposal = [self.directory.as_fd(), self.processed.as_fd()]
                .into_iter()
                .all(|directory| matches!(safe_file::open(directory, &proposal), Ok(None)));
            return match is_without_proposal {
                true => Err(Unreadable::Damaged("it is a response without a proposal".to_owned())),
                false => Ok(None),
            };
        }
        let id = name.strip_suffix(PROPOSAL).and_then(|id| id.parse::<Id>().ok());
        let id = id.ok_or_else(|| Unreadable::Damaged("it is not a file of the queue".to_owned()))?;
        let Some((proposal, file)) = self.proposal(&id)? else { return Ok(None) };
        let answered =
            || !matches!(safe_file::open(self.directory.as_fd(), &format!("{id}{RESPONSE}")), Ok(None));
        let state = match safe_file::is_locked(&file) {
            true if answered() => State::Answered,
            _ if proposal.expires_at <= now => State::Expired,
            true => State::Waiting,
            false => State::Stale,
        };
        Ok(Some(Pending { proposal, state }))
    }

    fn proposal(&self, id: &Id) -> Result<Option<(Proposal, File)>, Unreadable> {
        let Some(mut file) = safe_file::open(self.directory.as_fd(), &format!("{id}{PROPOSAL}"))? else {
            return Ok(None);
        };
        let proposal: Proposal = safe_file::read(&mut file)?;
        if &proposal.id != id || proposal.bottle_slug != self.slug {
            return Err(Unreadable::Damaged("its id differs from its name".to_owned()));
        }
        Ok(Some((proposal, file)))
    }

    /// Writes a question to the directory as a proposal. If a proposal with the same id and subject exists, locks and
    /// returns the existing proposal.
    pub(crate) fn submit(&self, proposal: Proposal, now: Timestamp) -> Result<Asked, SubmitError> {
        if let Some((existing, file)) = self.proposal(&proposal.id).map_err(io::Error::from)? {
            if !existing.asks_the_same(&proposal) {
                return Err(SubmitError::Taken);
            }
            safe_file::lock(&file)?;
            return Ok(Asked { proposal: existing, new: false, _file: file });
        }
        self.make_room(&proposal, now)?;
        let name = format!("{}{PROPOSAL}", proposal.id);
        let file = safe_file::create(self.directory.as_fd(), &name, &proposal, true)?;
        Ok(Asked { proposal, new: true, _file: file })
    }

    /// Makes room for `proposal` in the queue. Archives each stale or expired proposal that asks the same question as
    /// `proposal`. If the queue is still full, also archives the oldest stale or expired proposals.
    fn make_room(&self, proposal: &Proposal, now: Timestamp) -> Result<(), SubmitError> {
        self.remove_old_temporaries();
        let mut pending = self.pending(now)?.pending;
        let is_dead = |other: &Pending| matches!(other.state, State::Stale | State::Expired);
        let is_replaced = |other: &Pending| is_dead(other) && other.proposal.asks_the_same(proposal);
        for replaced in pending.extract_if(.., |other| is_replaced(other)) {
            self.archive(&replaced.proposal.id)?;
        }
        let over = (pending.len() + 1).saturating_sub(MAX_PENDING);
        let dead: Vec<_> = pending.iter().filter(|other| is_dead(other)).take(over).collect();
        if dead.len() < over {
            return Err(SubmitError::Full);
        }
        for oldest in dead {
            self.archive(&oldest.proposal.id)?;
        }
        Ok(())
    }

    /// Removes temporary files that killed writers left behind. Only the asker calls this method, and only when none of
    /// its own writes is in progress. Other processes may be writing answers, so temporary files that are less than a
    /// minute old are not removed.
    fn remove_old_temporaries(&self) {
        let old = |entry: &fs::DirEntry| {
            let age = entry.metadata().and_then(|data| data.modified()).map(|at| at.elapsed());
            entry.file_name().to_string_lossy().starts_with(TEMPORARY)
                && matches!(age, Ok(Ok(age)) if age.as_secs() > 60)
        };
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for entry in entries.take(MOST_ENTRIES).filter(old) {
            let _ = rustix::fs::unlinkat(&self.directory, entry.file_name(), AtFlags::empty());
        }
    }

    /// Reads the answer to a proposal. Returns `None` if the proposal has no answer.
    pub(crate) fn answer(&self, proposal: &Proposal, now: Timestamp) -> Result<Option<Response>, Unreadable> {
        let name = format!("{}{RESPONSE}", proposal.id);
        let Some(mut file) = safe_file::open(self.directory.as_fd(), &name)? else { return Ok(None) };
        let response: Response = safe_file::read(&mut file)?;
        if response.decided_at > now + CLOCK_TOLERANCE {
            return Err(Unreadable::Damaged("its time is in the future".to_owned()));
        }
        response.check(proposal).map_err(Unreadable::Damaged)?;
        Ok(Some(response))
    }

    /// Returns whether the directory contains the proposal with the id `id`.
    pub(crate) fn contains(&self, id: &Id) -> bool {
        !matches!(safe_file::open(self.directory.as_fd(), &format!("{id}{PROPOSAL}")), Ok(None))
    }

    /// Archives a proposal and its response. Returns whether the proposal existed.
    pub(crate) fn archive(&self, id: &Id) -> io::Result<bool> {
        // If the proposal is archived, the author of a response looks for the response in the archive. So the archive
        // must contain the response first. Until the proposal is archived, the response also keeps its name in the
        // directory, so that no other author can write a response.
        let is_linked = self.link_response(id)?;
        let existed = self.close(id)?;
        if is_linked {
            self.withdraw_answer(id)?;
        } else {
            self.archive_response(id)?;
        }
        Ok(existed)
    }

    /// Adds the response to the archive, and keeps it in the directory. Returns false if there is no response, or if it
    /// cannot have two names.
    fn link_response(&self, id: &Id) -> io::Result<bool> {
        safe_file::link(self.directory.as_fd(), self.processed.as_fd(), &format!("{id}{RESPONSE}"))
    }

    /// Closes a proposal, so that no further answer counts. Archives only the proposal, and not the response. Returns
    /// whether the proposal existed.
    pub(crate) fn close(&self, id: &Id) -> io::Result<bool> {
        self.archive_file(id, PROPOSAL)
    }

    /// Archives the response to a proposal that is already closed. Returns whether the response existed.
    pub(crate) fn archive_response(&self, id: &Id) -> io::Result<bool> {
        self.archive_file(id, RESPONSE)
    }

    /// Removes an answer from the directory. Does nothing if the answer does not exist.
    pub(crate) fn withdraw_answer(&self, id: &Id) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.directory, format!("{id}{RESPONSE}"), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn archive_file(&self, id: &Id, suffix: &str) -> io::Result<bool> {
        safe_file::archive(&self.directory, &self.processed, &format!("{id}{suffix}"))
    }

    /// Writes an answer to a proposal. If there are several answers, the first answer counts.
    ///
    /// This method writes the answer and then checks whether the proposal is archived. If the proposal is archived with
    /// this answer, the answer counts. If the proposal is archived without this answer, this method withdraws the
    /// answer. When a proposal expires, the asker archives the proposal and then checks a last time for an answer.
    /// Therefore the asker and the author of the answer agree whether the answer counts.
    ///
    /// # Errors
    /// Fails with [`RespondError`] if this answer does not count.
    pub fn respond(&self, response: &Response) -> Result<(), RespondError> {
        let id = &response.proposal_id;
        let proposal = self.proposal(id).map_err(io::Error::from)?;
        let (proposal, _) = proposal.ok_or(RespondError::Gone)?;
        response.check(&proposal).map_err(RespondError::Unfit)?;
        let name = format!("{id}{RESPONSE}");
        match safe_file::create(self.directory.as_fd(), &name, response, false) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(RespondError::Decided),
            Err(error) => return Err(error.into()),
        }
        self.confirm(response)
    }

    /// Checks whether an answer that was written counts. Withdraws the answer if it does not count.
    fn confirm(&self, response: &Response) -> Result<(), RespondError> {
        let name = format!("{}{RESPONSE}", response.proposal_id);
        if self.contains(&response.proposal_id) {
            return Ok(());
        }
        let archived = safe_file::open(self.processed.as_fd(), &name).ok().flatten();
        let archived: Option<Response> = archived.and_then(|mut file| safe_file::read(&mut file).ok());
        if archived.as_ref() == Some(response) {
            return Ok(());
        }
        match rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty()) {
            Ok(()) if archived.is_some() => Err(RespondError::Decided),
            Ok(()) => Err(RespondError::Gone),
            // The asker of an expired proposal has just archived the answer, so the answer counts.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(RespondError::Io(error.into())),
        }
    }

    /// Archives a proposal that is stale or has expired.
    ///
    /// # Errors
    /// Fails with [`RespondError::Unfit`] if the asker is still waiting for an answer. Fails with
    /// [`RespondError::Gone`] if the proposal does not exist.
    pub fn dismiss(&self, id: &Id) -> Result<(), RespondError> {
        let (_, file) = self.proposal(id).map_err(io::Error::from)?.ok_or(RespondError::Gone)?;
        // The proposal's file is locked while it is moved, so that no asker can reuse the proposal.
        if safe_file::lock(&file).is_err() {
            return Err(RespondError::Unfit("this proposal is still pending; answer it instead".to_owned()));
        }
        if self.archive(id)? { Ok(()) } else { Err(RespondError::Gone) }
    }
}

#[cfg(test)]
mod tests {
    use bottle_protocol::queue::{Scope, Status, Tool};

    use super::*;

    fn response(id: &Id, by: &str) -> Response {
        Response {
            proposal_id: id.clone(),
            status: Status::Approved,
            notes: Some("a fixture".to_owned()),
            final_file: None,
            scope: Scope::Run,
            decided_at: Timestamp::now(),
            decided_by: by.to_owned(),
        }
    }

    /// A directory with a pending proposal and an answer to it.
    fn answered(home: &Path, by: &str) -> (Directory, Asked, Response) {
        let slug: Slug = "one".parse().expect("a slug");
        let directory = Directory::make(home, &slug).expect("a directory");
        let wait = std::time::Duration::from_secs(60);
        let question = crate::question(Tool::GitleaksAllow, "{}".to_owned(), String::new(), wait);
        let proposal = Proposal::new(slug, question, Timestamp::now());
        let asked = directory.submit(proposal, Timestamp::now()).expect("submitted");
        let answer = response(&asked.proposal.id, by);
        directory.respond(&answer).expect("answered");
        (directory, asked, answer)
    }

    #[test]
    fn an_answer_counts_at_each_step_of_its_archival() {
        let home = tempfile::tempdir().expect("a home");
        let (directory, asked, answer) = answered(home.path(), "first");
        let id = &asked.proposal.id;
        let late = response(id, "late");
        assert!(directory.link_response(id).expect("linked"));
        directory.confirm(&answer).expect("before the proposal is archived");
        assert!(matches!(directory.respond(&late), Err(RespondError::Decided)));
        assert!(directory.close(id).expect("closed"));
        directory.confirm(&answer).expect("after the proposal is archived");
        directory.withdraw_answer(id).expect("removed");
        directory.confirm(&answer).expect("after the response is archived");
        // An author who read the proposal before it was archived can still write a response.
        let name = format!("{id}{RESPONSE}");
        safe_file::create(directory.directory.as_fd(), &name, &late, false).expect("written");
        assert!(matches!(directory.confirm(&late), Err(RespondError::Decided)));
        assert!(safe_file::open(directory.directory.as_fd(), &name).expect("looked").is_none());
        directory.confirm(&answer).expect("after a late answer");
    }

    #[test]
    fn a_response_is_archived_after_a_process_was_killed_at_each_step() {
        for steps in 0..=3 {
            let home = tempfile::tempdir().expect("a home");
            let (directory, asked, answer) = answered(home.path(), "first");
            let id = &asked.proposal.id;
            if steps > 0 {
                assert!(directory.link_response(id).expect("linked"));
            }
            if steps > 1 {
                directory.close(id).expect("closed");
            }
            if steps > 2 {
                directory.withdraw_answer(id).expect("removed");
            }
            // A list between two steps contains no damaged entry.
            assert!(
                directory.pending(asked.proposal.arrival_timestamp).expect("listed").damaged.is_empty(),
                "{steps}"
            );
            assert_eq!(directory.archive(id).expect("archived"), steps < 2, "{steps}");
            directory.confirm(&answer).expect("it counts");
            let names = |path: PathBuf| fs::read_dir(path).expect("read").count();
            assert_eq!(names(directory.path.clone()), 1, "{steps}: only `processed`");
            assert_eq!(names(directory.path.join(PROCESSED)), 2, "{steps}");
        }
    }
}
