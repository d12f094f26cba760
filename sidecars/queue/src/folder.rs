//! The files of one bottle.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bottle_contract::names::Slug;
use bottle_contract::queue::{Id, MAX_PENDING, Proposal, Response};
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::file::{self, TEMPORARY, Unreadable};
use crate::list::{Damaged, Listing};

/// Entries of a folder that are looked at; the rest is reported as one damaged thing.
const MOST_ENTRIES: usize = 1024;

/// A clock may be a little off. An answer of later than this is none.
const FROM_THE_FUTURE: SignedDuration = SignedDuration::from_mins(5);

const PROPOSAL: &str = ".proposal.json";
const RESPONSE: &str = ".response.json";
const PROCESSED: &str = "processed";

/// The folder of one bottle, held open: whatever becomes of its path, this is where is written.
#[derive(Debug)]
pub struct Folder {
    slug: Slug,
    path: PathBuf,
    folder: OwnedFd,
    processed: OwnedFd,
}

/// How a proposal stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Somebody waits for an answer.
    Waiting,
    /// It is answered, and who asked has not taken the answer yet.
    Answered,
    /// Nobody waits any more: the time is up.
    Expired,
    /// Nobody waits any more: who asked is gone.
    Stale,
}

/// A proposal that nobody has archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What is asked for.
    pub proposal: Proposal,
    /// How it stands.
    pub state: State,
}

/// A question could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many wait as may.
    #[error("{MAX_PENDING} proposals of this bottle wait already; answer one with `bottle supervise`")]
    Full,
    /// Another question has its name.
    #[error("another proposal has this id")]
    Taken,
    /// The folder cannot be used.
    #[error("the queue cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// An answer was not taken.
#[derive(Debug, thiserror::Error)]
pub enum RespondError {
    /// Somebody else was faster.
    #[error("somebody else has answered this proposal already")]
    Decided,
    /// It waits no more: answered, expired, or dismissed.
    #[error("this proposal waits no more")]
    Gone,
    /// The answer does not fit the proposal.
    #[error("{0}")]
    Unfit(String),
    /// The folder cannot be used.
    #[error("the queue cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// A question that was asked. While it lives the proposal is waited for; afterwards it is stale.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) proposal: Proposal,
    /// Whether it did not stand there before.
    pub(crate) new: bool,
    /// Holds the lock.
    _file: File,
}

impl Folder {
    /// The folder of a bottle, made when it is not there.
    ///
    /// # Errors
    /// When it cannot be made, or is a link.
    pub fn make(home: &Path, slug: &Slug) -> io::Result<Self> {
        let queue = home.join("queue");
        for folder in [queue.clone(), queue.join(slug.as_str()), queue.join(slug.as_str()).join(PROCESSED)] {
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Self::open(home, slug)
    }

    /// The folder of a bottle that has asked something already.
    ///
    /// # Errors
    /// When it is not there, or is a link.
    pub fn open(home: &Path, slug: &Slug) -> io::Result<Self> {
        let path = home.join("queue").join(slug.as_str());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&path, flags, Mode::empty())?;
        let processed = rustix::fs::openat(&folder, PROCESSED, flags, Mode::empty())?;
        Ok(Self { slug: slug.clone(), path, folder, processed })
    }

    /// Whose it is.
    #[must_use]
    pub fn slug(&self) -> &Slug {
        &self.slug
    }

    /// What waits in it, oldest first, and what cannot be read.
    ///
    /// # Errors
    /// When the folder cannot be read at all.
    pub fn pending(&self, now: Timestamp) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut left = MOST_ENTRIES;
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else {
                listing.damaged.push(self.damaged(&name.to_string_lossy(), "its name is no text"));
                continue;
            };
            if name == PROCESSED || name.starts_with(TEMPORARY) {
                continue;
            }
            left -= 1;
            if left == 0 {
                listing.damaged.push(self.damaged("", "there is too much in it to look at all of it"));
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

    /// One proposal by its name, if it waits.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn get(&self, id: &Id, now: Timestamp) -> io::Result<Option<Pending>> {
        self.entry(&format!("{id}{PROPOSAL}"), now).map_err(|error| match error {
            Unreadable::Io(error) => error,
            Unreadable::Damaged(why) => io::Error::new(io::ErrorKind::InvalidData, why),
        })
    }

    fn damaged(&self, name: &str, why: &str) -> Damaged {
        Damaged { path: self.path.join(name), why: why.to_owned() }
    }

    /// What stands behind a name of the folder; nothing where that is a response to a proposal.
    fn entry(&self, name: &str, now: Timestamp) -> Result<Option<Pending>, Unreadable> {
        if let Some(id) = name.strip_suffix(RESPONSE) {
            let proposal = format!("{id}{PROPOSAL}");
            return match file::open(self.folder.as_fd(), &proposal) {
                Ok(None) => Err(Unreadable::Damaged("it is a response to nothing".to_owned())),
                _ => Ok(None),
            };
        }
        let id = name.strip_suffix(PROPOSAL).and_then(|id| id.parse::<Id>().ok());
        let id = id.ok_or_else(|| Unreadable::Damaged("it is nothing of the queue's".to_owned()))?;
        let Some((proposal, file)) = self.proposal(&id)? else { return Ok(None) };
        let answered = || !matches!(file::open(self.folder.as_fd(), &format!("{id}{RESPONSE}")), Ok(None));
        let state = match file::is_locked(&file) {
            true if answered() => State::Answered,
            _ if proposal.expires_at <= now => State::Expired,
            true => State::Waiting,
            false => State::Stale,
        };
        Ok(Some(Pending { proposal, state }))
    }

    fn proposal(&self, id: &Id) -> Result<Option<(Proposal, File)>, Unreadable> {
        let Some(mut file) = file::open(self.folder.as_fd(), &format!("{id}{PROPOSAL}"))? else {
            return Ok(None);
        };
        let proposal: Proposal = file::read(&mut file)?;
        if &proposal.id != id || proposal.bottle_slug != self.slug {
            return Err(Unreadable::Damaged("it is another proposal than its name says".to_owned()));
        }
        Ok(Some((proposal, file)))
    }

    /// Asks. A proposal of this name that is there already is waited for again, as it stands.
    pub(crate) fn submit(&self, proposal: Proposal, now: Timestamp) -> Result<Asked, SubmitError> {
        if let Some((there, file)) = self.proposal(&proposal.id).map_err(into_io)? {
            if !there.asks_the_same(&proposal) {
                return Err(SubmitError::Taken);
            }
            file::lock(&file)?;
            return Ok(Asked { proposal: there, new: false, _file: file });
        }
        self.make_room(&proposal, now)?;
        let name = format!("{}{PROPOSAL}", proposal.id);
        let file = file::create(self.folder.as_fd(), &name, &proposal, true)?;
        Ok(Asked { proposal, new: true, _file: file })
    }

    /// Takes what nobody waits for out of the way: the same question of somebody who is gone, and the oldest
    /// where there are too many.
    fn make_room(&self, proposal: &Proposal, now: Timestamp) -> Result<(), SubmitError> {
        self.sweep();
        let mut pending = self.pending(now)?.pending;
        let is_dead = |there: &Pending| matches!(there.state, State::Stale | State::Expired);
        let is_replaced = |there: &Pending| is_dead(there) && there.proposal.asks_the_same(proposal);
        for replaced in pending.extract_if(.., |there| is_replaced(there)) {
            self.archive(&replaced.proposal.id)?;
        }
        let over = (pending.len() + 1).saturating_sub(MAX_PENDING);
        let dead: Vec<_> = pending.iter().filter(|there| is_dead(there)).take(over).collect();
        if dead.len() < over {
            return Err(SubmitError::Full);
        }
        for oldest in dead {
            self.archive(&oldest.proposal.id)?;
        }
        Ok(())
    }

    /// Removes what somebody was writing who died of it. Only who asks does this, and its own are done by now;
    /// an answer being written is younger than a minute.
    fn sweep(&self) {
        let old = |entry: &fs::DirEntry| {
            let age = entry.metadata().and_then(|data| data.modified()).map(|at| at.elapsed());
            entry.file_name().to_string_lossy().starts_with(TEMPORARY)
                && matches!(age, Ok(Ok(age)) if age.as_secs() > 60)
        };
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for entry in entries.take(MOST_ENTRIES).filter(old) {
            let _ = rustix::fs::unlinkat(&self.folder, entry.file_name(), AtFlags::empty());
        }
    }

    /// The answer to a question, if there is one; an answer that is damaged is said as such.
    pub(crate) fn answer(
        &self,
        proposal: &Proposal,
        now: Timestamp,
    ) -> io::Result<Option<Result<Response, String>>> {
        let name = format!("{}{RESPONSE}", proposal.id);
        let mut file = match file::open(self.folder.as_fd(), &name) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            Err(Unreadable::Io(error)) => return Err(error),
            Err(Unreadable::Damaged(why)) => return Ok(Some(Err(why))),
        };
        let response: Response = match file::read(&mut file) {
            Ok(response) => response,
            Err(Unreadable::Io(error)) => return Err(error),
            Err(Unreadable::Damaged(why)) => return Ok(Some(Err(why))),
        };
        if response.decided_at > now + FROM_THE_FUTURE {
            return Ok(Some(Err("it is from the future".to_owned())));
        }
        Ok(Some(response.check(proposal).map(|()| response)))
    }

    /// Whether the proposal still stands in the folder.
    pub(crate) fn stands(&self, id: &Id) -> bool {
        !matches!(file::open(self.folder.as_fd(), &format!("{id}{PROPOSAL}")), Ok(None))
    }

    /// Moves a proposal away, and its response after it. Whether the proposal was there.
    pub(crate) fn archive(&self, id: &Id) -> io::Result<bool> {
        // In this order: see `respond`.
        let there = self.move_away(id, PROPOSAL)?;
        self.move_away(id, RESPONSE)?;
        Ok(there)
    }

    /// Moves only the proposal away, so that no answer can come any more.
    pub(crate) fn close(&self, id: &Id) -> io::Result<bool> {
        self.move_away(id, PROPOSAL)
    }

    /// Moves the response of a closed proposal away. Whether it was there.
    pub(crate) fn archive_response(&self, id: &Id) -> io::Result<bool> {
        self.move_away(id, RESPONSE)
    }

    /// Takes an answer back that could not be carried out.
    pub(crate) fn take_back(&self, id: &Id) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, format!("{id}{RESPONSE}"), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn move_away(&self, id: &Id, suffix: &str) -> io::Result<bool> {
        file::archive(&self.folder, &self.processed, &format!("{id}{suffix}"))
    }

    /// Answers. The first answer wins.
    ///
    /// Who asked moves the proposal away before it looks for an answer the last time; and an answer that comes
    /// after that is taken back here. So either both sides know of it or neither.
    ///
    /// # Errors
    /// [`RespondError`]; then nothing was decided by this call.
    pub fn respond(&self, response: &Response) -> Result<(), RespondError> {
        let id = &response.proposal_id;
        let proposal = self.proposal(id).map_err(into_io)?;
        let (proposal, _) = proposal.ok_or(RespondError::Gone)?;
        response.check(&proposal).map_err(RespondError::Unfit)?;
        let name = format!("{id}{RESPONSE}");
        match file::create(self.folder.as_fd(), &name, response, false) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(RespondError::Decided),
            Err(error) => return Err(error.into()),
        }
        if self.stands(id) {
            return Ok(());
        }
        match rustix::fs::unlinkat(&self.folder, &name, AtFlags::empty()) {
            Ok(()) => Err(RespondError::Gone),
            // Taken by who asked.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(RespondError::Io(error.into())),
        }
    }

    /// Takes a proposal away that nobody waits for.
    ///
    /// # Errors
    /// [`RespondError::Unfit`] when somebody does, [`RespondError::Gone`] when it is not there.
    pub fn dismiss(&self, id: &Id) -> Result<(), RespondError> {
        let (_, file) = self.proposal(id).map_err(into_io)?.ok_or(RespondError::Gone)?;
        // Held while it is moved: nobody begins to wait for it meanwhile.
        if file::lock(&file).is_err() {
            return Err(RespondError::Unfit("somebody waits for the answer; answer it instead".to_owned()));
        }
        if self.archive(id)? { Ok(()) } else { Err(RespondError::Gone) }
    }
}

fn into_io(error: Unreadable) -> io::Error {
    match error {
        Unreadable::Io(error) => error,
        Unreadable::Damaged(why) => io::Error::new(io::ErrorKind::InvalidData, why),
    }
}
