//! Requests for files of a workspace, in a running bottle or in the kept files of an ended bottle.

use bottle_backend::Access;
use bottle_channel::{Event, StreamReceiver};
use bottle_host::Host;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{
    ENTRIES_MAX, Entries, FileEvent, FileInfo, FilePath, FileRequest, Glob, Grep, List, Read,
};
use bottle_protocol::session::guest::{GuestEvent, GuestRequest, STDOUT};
use bottle_protocol::session::process::REDACTED;
use bytes::Bytes;
use tokio::io::AsyncRead;

use super::connect::{connect_or_open_files, keeper_lost, open_guest, unexpected_answer};
use super::failure::{Failure, Kind};
use super::file_lines::{LineCutter, LineRange};
use super::input;
use super::redaction::Redaction;
use super::report::{FileContent, FileDocument, FileEntries, FileEntry, FileEntryPath};

/// The size in bytes of the parts in which [`Files::lines`] reads a file.
const PART: u64 = 1 << 20;

/// The files of a bottle.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    host: &'a Host,
    slug: &'a Slug,
    redaction: Option<&'a Redaction>,
}

impl<'a> Files<'a> {
    /// Creates a value for the files of this bottle. Each request opens a new connection.
    pub fn new(host: &'a Host, slug: &'a Slug) -> Self {
        Self { host, slug, redaction: None }
    }

    /// Redacts the contents of files in [`Files::document`] and [`Files::lines`]: the secrets of the bottle, and these
    /// values. Positions still count the bytes of a file.
    #[must_use]
    pub fn redacting(self, redaction: &'a Redaction) -> Self {
        Self { redaction: Some(redaction), ..self }
    }

    /// Sends a request that has no input, and whose answer has no data.
    ///
    /// # Errors
    /// Returns the errors of [`Files::send`].
    pub async fn ask(&self, request: FileRequest) -> Result<FileEvent, Failure> {
        self.send(request, tokio::io::empty(), |_| Ok(())).await
    }

    /// Sends a request with this input. `received` is called with each piece of the answer's data. An error of
    /// `received` ends the request. If the future is dropped, the guest discards the input that it received.
    ///
    /// # Errors
    /// When the bottle does not exist or its files cannot be read, when the guest cannot carry out the request, when
    /// the input cannot be read, or when `received` returns an error.
    pub async fn send<E: From<Failure>>(
        &self,
        request: FileRequest,
        input: impl AsyncRead + Unpin,
        received: impl FnMut(Bytes) -> Result<(), E>,
    ) -> Result<FileEvent, E> {
        let access = if request.writes() { Access::Write } else { Access::Read };
        let hint = hint(&request, self.slug);
        let channel = connect_or_open_files(self.host, self.slug, access).await?;
        let stream = open_guest(&channel, GuestRequest::Files(request)).await?;
        let (sender, receiver) = stream.split();
        let mut answer = std::pin::pin!(self.answer(receiver, received, hint));
        let sent = async {
            // After a read error, the stream is not ended properly, so the guest discards the input that it received.
            input::send(&sender, input).await?;
            sender.end().await.map_err(keeper_lost)
        };
        tokio::select! {
            answer = &mut answer => answer,
            sent = sent => match sent {
                Ok(()) => answer.await,
                Err(error) => Err(error.into()),
            },
        }
    }

    async fn answer<E: From<Failure>>(
        &self,
        mut receiver: StreamReceiver,
        mut received: impl FnMut(Bytes) -> Result<(), E>,
        hint: String,
    ) -> Result<FileEvent, E> {
        loop {
            match receiver.next().await {
                Some(Event::Data { fd: STDOUT, bytes }) => received(bytes)?,
                Some(Event::Data { .. }) => {}
                Some(event @ Event::Message(_)) => {
                    return match event.parse().map_err(keeper_lost)? {
                        GuestEvent::Files(event) => Ok(event),
                        GuestEvent::Failed(failure) => {
                            let failure = Failure::new(Kind::Failed, failure.message);
                            Err(failure.about(self.slug).hint(hint).into())
                        }
                        _ => Err(unexpected_answer().into()),
                    };
                }
                Some(Event::Reset(why)) => return Err(keeper_lost(why).about(self.slug).into()),
                Some(Event::End) | None => return Err(unexpected_answer().about(self.slug).into()),
            }
        }
    }

    /// Sends a request with this input, and returns the answer as a document. For a list, combines several answers if
    /// necessary, up to the number of entries that the request asks for.
    ///
    /// # Errors
    /// Returns the errors of [`Files::send`], and an error if the answer is an archive.
    pub async fn document(
        &self,
        request: FileRequest,
        input: impl AsyncRead + Unpin,
    ) -> Result<FileDocument, Failure> {
        match request {
            FileRequest::List(list) => {
                let (first, limit) = (list.after.clone(), list.limit);
                let part = |after, limit| FileRequest::List(List { after, limit, ..list.clone() });
                self.entries(part, first, limit).await
            }
            FileRequest::Glob(glob) => {
                let (first, limit) = (glob.after.clone(), glob.limit);
                let part = |after, limit| FileRequest::Glob(Glob { after, limit, ..glob.clone() });
                self.entries(part, first, limit).await
            }
            FileRequest::Read(read) => self.content(read).await,
            FileRequest::Grep(grep) => {
                let redact = grep.redact || self.redaction.is_some();
                let event = self.ask(FileRequest::Grep(Grep { redact, ..grep })).await?;
                FileDocument::of(event, false).ok_or_else(unexpected_answer)
            }
            request => {
                let check = match &request {
                    FileRequest::Patch { check } => *check,
                    FileRequest::Replace(replace) => replace.check,
                    _ => false,
                };
                let event = self.send(request, input, |_| Ok::<_, Failure>(())).await?;
                FileDocument::of(event, check).ok_or_else(unexpected_answer)
            }
        }
    }

    async fn entries(
        &self,
        request: impl Fn(Option<FilePath>, u32) -> FileRequest,
        after: Option<FilePath>,
        limit: u32,
    ) -> Result<FileDocument, Failure> {
        let mut entries = Vec::new();
        let listed = self.list(request, after, limit, |part| {
            entries.extend(part.into_iter().map(FileEntry::from));
            Ok::<_, Failure>(())
        });
        let Entries { next, unreadable, .. } = listed.await?;
        let next = next.as_ref().map(|path| FileEntryPath::of(path).path);
        Ok(FileDocument::Entries(FileEntries { entries, next, unreadable }))
    }

    /// Reads lines of a file. The part of the file before the lines is read too, so a large file needs some time.
    ///
    /// # Errors
    /// Returns the errors of [`Files::send`].
    pub async fn lines(&self, path: &FilePath, range: LineRange) -> Result<FileDocument, Failure> {
        let mut cutter = LineCutter::new(range);
        let mut offset = 0;
        loop {
            let read = Read { path: path.clone(), offset, max: PART, redact: self.redaction.is_some() };
            let (part, next, size) = self.redacted_part(read).await?;
            cutter.push(&part);
            // A guest that sends nothing ends the loop, whatever it reports. Without redaction, the position is counted
            // here. A redacted part has another length than the part of the file.
            offset += if self.redaction.is_some() {
                next.saturating_sub(offset).min(PART)
            } else {
                part.len() as u64
            };
            let at_end = part.is_empty() || offset >= size;
            if at_end || !cutter.wants_more() {
                return Ok(FileDocument::Lines(cutter.finish(size, at_end)));
            }
        }
    }

    async fn content(&self, read: Read) -> Result<FileDocument, Failure> {
        let offset = read.offset;
        let read = Read { redact: read.redact || self.redaction.is_some(), ..read };
        let (part, next, size) = self.redacted_part(read).await?;
        Ok(FileDocument::Content(FileContent::of(&part, offset, next, size)))
    }

    /// Reads a part of a file, and redacts the values of the caller. For these values, the bytes around the part are
    /// read too. Returns the part, the position after it, and the size of the file.
    async fn redacted_part(&self, read: Read) -> Result<(Vec<u8>, u64, u64), Failure> {
        let around = |offset, max| Read { offset, max, ..read.clone() };
        let (part, next, size) = self.part(read.clone()).await?;
        let Some(redaction) = self.redaction.filter(|redaction| !redaction.redactor().is_empty()) else {
            return Ok((part, next, size));
        };
        let reach = redaction.redactor().reach() as u64;
        let before = reach.min(read.offset);
        let (before, ..) = self.part(around(read.offset - before, before)).await?;
        let (after, ..) = self.part(around(next, reach)).await?;
        Ok((redaction.part(&before, &part, &after), next, size))
    }

    /// Reads a part of a file. Returns the part, the position after it, and the size of the file.
    async fn part(&self, read: Read) -> Result<(Vec<u8>, u64, u64), Failure> {
        // The text that replaces a secret may be longer than the piece of the secret in this part.
        let max = if read.redact { (read.max + 1).saturating_mul(REDACTED.len() as u64) } else { read.max };
        let mut part = Vec::new();
        let received = |bytes: Bytes| {
            part.extend_from_slice(&bytes);
            // The guest may send more than `max` bytes. This is checked, because all bytes are kept in memory.
            if part.len() as u64 > max { Err(unexpected_answer()) } else { Ok(()) }
        };
        let event = self.send(FileRequest::Read(read), tokio::io::empty(), received).await?;
        let FileEvent::Read { next, size } = event else { return Err(unexpected_answer()) };
        Ok((part, next, size))
    }

    /// Lists at most `limit` entries that follow the entry `after`. `request` creates the request for each part of the
    /// list, and `each` receives the entries of each part. The returned value contains no entries, but the position of
    /// the next part.
    ///
    /// # Errors
    /// Returns the errors of [`Files::send`], or an error of `each`.
    pub async fn list<E: From<Failure>>(
        &self,
        request: impl Fn(Option<FilePath>, u32) -> FileRequest,
        after: Option<FilePath>,
        limit: u32,
        mut each: impl FnMut(Vec<FileInfo>) -> Result<(), E>,
    ) -> Result<Entries, E> {
        let mut left = limit;
        let mut listed = Entries { next: after, ..Entries::default() };
        loop {
            let event = self.ask(request(listed.next.clone(), left.min(ENTRIES_MAX))).await?;
            let FileEvent::Entries(part) = event else { return Err(unexpected_answer().into()) };
            left = left.saturating_sub(u32::try_from(part.entries.len()).unwrap_or(u32::MAX));
            listed.unreadable += part.unreadable;
            each(part.entries)?;
            // If the guest returns the same position again, the guest is not asked again.
            let stays = part.next == listed.next;
            listed.next = part.next;
            if listed.next.is_none() || left == 0 || stays {
                return Ok(listed);
            }
        }
    }
}

/// Returns the hint for a request that failed.
fn hint(request: &FileRequest, slug: &Slug) -> String {
    match request {
        FileRequest::Patch { .. } => {
            format!("`bottle fs read {slug} PATH` shows a file; `git diff` writes diffs in this form")
        }
        FileRequest::Replace(_) => format!("`bottle fs read {slug} PATH` shows the file"),
        FileRequest::Grep(_) => "`--fixed-strings` searches for plain text".to_owned(),
        FileRequest::RemoveFiles { .. } => format!("`bottle fs reset {slug}` continues"),
        FileRequest::Glob(_) => format!("`bottle fs ls {slug} --recursive` lists all paths"),
        _ => format!("`bottle fs ls {slug} --recursive` lists the files of its workspace"),
    }
}
