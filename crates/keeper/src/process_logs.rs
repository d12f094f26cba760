//! Saves the output of processes that clients started, so that the output can be read after the process or the bottle
//! has ended.
//!
//! The guest masks only the values of secret variables. The keeper masks all secrets of the bottle, in whole lines and
//! in every encoding, because the log files still exist after the bottle has ended.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bottle_channel::{Channel, Event};
use bottle_instance::output_pieces::OutputPieces;
use bottle_instance::process_logs::ProcessLogs;
use bottle_protocol::session::guest::{GuestEvent, GuestRequest, STDERR, STDOUT};
use bottle_protocol::session::process::{
    PROCESSES_MAX, ProcessInfo, ProcessName, ProcessState, ReadFrom, ReadOutput,
};
use bottle_scan::{Redactor, TooLarge};
use tokio::task::{JoinSet, spawn_blocking};

use super::mask::Mask;

/// The maximum number of bytes of output that the guest sends in one part.
const PART: u32 = 1 << 20;

/// The maximum length of an unfinished line in bytes. A longer line is saved in pieces.
const LINE_MAX: usize = 64 << 10;

/// How long the recorder waits for the end of a line. After this time, the beginning of the line is saved, because it
/// may be a prompt.
const LINE_WITHIN: Duration = Duration::from_secs(1);

/// The maximum total size of a process's command line in bytes.
const ARGV_MAX: usize = 4096;

/// Saves the output of the processes of one bottle. Clones share the same log files.
#[derive(Clone)]
pub(super) struct Recorder(Arc<Inner>);

struct Inner {
    /// The log files. The lock ensures that the writes of a cancelled recording end before the next recording writes.
    logs: Mutex<ProcessLogs>,
    mask: Mask,
}

impl Recorder {
    /// Creates the recorder for the bottle with this directory. Returns `None` if the bottle's secrets cannot be
    /// masked. In this case, no output is saved.
    pub(super) fn new(directory: &Path, mask: Mask) -> Option<Self> {
        if mask.redactor().is_none() {
            tracing::warn!("cannot save the output of processes: {TooLarge}");
            return None;
        }
        Some(Self(Arc::new(Inner { logs: Mutex::new(ProcessLogs::of(directory)), mask })))
    }

    /// Removes the output that an earlier launch saved.
    pub(super) async fn clear(&self) {
        if let Err(error) = self.write(|logs| logs.clear()).await {
            tracing::warn!("cannot remove the logs of an earlier launch: {error}");
        }
    }

    /// Saves the output of all processes until the connection to the guest ends.
    pub(super) async fn record(self, guest: Channel) {
        let Ok(mut starts) = guest.open(&GuestRequest::WatchProcesses).await else { return };
        let mut followed = BTreeSet::new();
        let mut recordings = JoinSet::new();
        while let Ok(GuestEvent::Processes { processes }) = starts.receive().await {
            if processes.len() > PROCESSES_MAX {
                tracing::warn!("the guest lists more than {PROCESSES_MAX} processes");
                break;
            }
            let known: Vec<ProcessName> = processes.iter().filter_map(|info| info.handle.clone()).collect();
            followed.retain(|handle| known.contains(handle));
            let _ = self
                .write(move |logs| {
                    logs.retain(&known);
                    Ok(())
                })
                .await;
            for process in processes {
                let Some(handle) = process.handle.clone() else { continue };
                if followed.insert(handle.clone()) {
                    recordings.spawn(self.clone().record_one(guest.clone(), handle, process));
                }
            }
            while recordings.try_join_next().is_some() {}
        }
        while recordings.join_next().await.is_some() {}
    }

    async fn record_one(self, guest: Channel, handle: ProcessName, mut process: ProcessInfo) {
        process.argv = self.masked_argv(process.argv);
        let recorded = async {
            match self.write(move |logs| logs.begin(process)).await? {
                Some(from) => self.follow(&guest, &handle, from).await,
                None => Ok(()),
            }
        };
        if let Err(error) = recorded.await {
            tracing::warn!("cannot save the output of the process {handle}: {error}");
        }
    }

    /// Saves the output of a process from the position `from` on.
    async fn follow(&self, guest: &Channel, handle: &ProcessName, from: u64) -> io::Result<()> {
        let request = ReadOutput {
            process: handle.clone(),
            from: ReadFrom::Position(from),
            max: PART,
            wait_ms: 0,
            follow: true,
        };
        let Ok(mut stream) = guest.open(&GuestRequest::ReadOutput(request)).await else { return Ok(()) };
        let mut lines = Lines { from, next: from, text: OutputPieces::default() };
        let mut part = OutputPieces::default();
        loop {
            let event = match lines.text.is_empty() {
                true => Ok(stream.next().await),
                false => tokio::time::timeout(LINE_WITHIN, stream.next()).await,
            };
            match event {
                Err(_) => self.append(handle, lines.take_all()).await?,
                // A part may be longer than `PART`, because a mask may be longer than the secret that it replaces.
                Ok(Some(Event::Data { fd: fd @ (STDOUT | STDERR), bytes }))
                    if part.len() + bytes.len() <= 2 * PART as usize =>
                {
                    part.push(fd, &bytes);
                }
                Ok(Some(Event::Message(json))) => {
                    let Ok(GuestEvent::Read(read)) = serde_json::from_slice(&json) else { break };
                    if read.from > lines.next {
                        self.append(handle, lines.take_all()).await?;
                    }
                    lines.add(read.from, read.next, &std::mem::take(&mut part));
                    self.append(handle, lines.take_whole()).await?;
                    if read.state != ProcessState::Running && read.next >= read.end {
                        self.append(handle, lines.take_all()).await?;
                        let handle = handle.clone();
                        let cpu_ms = read.cpu_ms.unwrap_or(0);
                        return self.write(move |logs| logs.end(&handle, read.state, cpu_ms)).await;
                    }
                }
                Ok(_) => break,
            }
        }
        self.append(handle, lines.take_all()).await
    }

    async fn append(&self, handle: &ProcessName, output: Option<Piece>) -> io::Result<()> {
        let Some(Piece { from, next, text }) = output else { return Ok(()) };
        let (inner, handle) = (self.0.clone(), handle.clone());
        self.write(move |logs| match inner.mask.redactor() {
            Some(redactor) => logs.append(&handle, from, next, &masked(&redactor, &text)),
            None => Err(io::Error::other(TooLarge)),
        })
        .await
    }

    /// Runs `write` on a blocking thread, because the disk may be slow.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&ProcessLogs) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let inner = self.0.clone();
        let locked = move || write(&inner.logs.lock().unwrap_or_else(PoisonError::into_inner));
        spawn_blocking(locked).await.map_err(io::Error::other)?
    }

    /// Masks the words of a command line. Leaves out words that do not fit into [`ARGV_MAX`].
    fn masked_argv(&self, argv: Vec<String>) -> Vec<String> {
        let mut left = ARGV_MAX;
        let masked = argv.into_iter().map(|word| self.0.mask.text(&word));
        let fits = |word: &String| {
            let fits = word.len() <= left;
            left = left.saturating_sub(word.len());
            fits
        };
        masked.take_while(fits).collect()
    }
}

/// Masks the secrets of a text, also those whose pieces are of different streams.
fn masked(redactor: &Redactor, text: &OutputPieces) -> OutputPieces {
    let mut end = 0;
    let ends = text.iter().map(|piece| {
        end += piece.bytes.len();
        end
    });
    let mut ends: Vec<usize> = ends.collect();
    let bytes = text.bytes();
    let bytes = redactor.redact_with_offsets(&bytes, &mut ends);
    let (mut masked, mut begin) = (OutputPieces::default(), 0);
    for (piece, end) in text.iter().zip(ends) {
        masked.push(piece.fd, bytes.get(begin..end).unwrap_or_default());
        begin = end;
    }
    masked
}

/// A piece of a process's output, from the position `from` to the position `next`.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    from: u64,
    next: u64,
    text: OutputPieces,
}

/// Received output that is not saved yet, up to the beginning of an unfinished line. Only whole lines are saved, so
/// that secrets that arrive in several parts are masked too.
struct Lines {
    from: u64,
    next: u64,
    text: OutputPieces,
}

impl Lines {
    fn add(&mut self, from: u64, next: u64, text: &OutputPieces) {
        if self.text.is_empty() {
            self.from = from;
        }
        text.iter().for_each(|piece| self.text.push(piece.fd, &piece.bytes));
        self.next = next;
    }

    /// Takes the output up to the last line break. If the unfinished line after it is too long, takes this line too.
    fn take_whole(&mut self) -> Option<Piece> {
        let length = self.text.len();
        let whole = match self.text.bytes().iter().rposition(|byte| *byte == b'\n') {
            Some(line_break) if length - line_break <= LINE_MAX => line_break + 1,
            None if length <= LINE_MAX => return None,
            _ => length,
        };
        let text = self.text.split_to(whole);
        // The position is an estimate, because the output that the guest masked may be longer or shorter than the
        // output that the process wrote. When the remaining text is taken, the position is exact again.
        let next = self.next.saturating_sub(self.text.len() as u64).max(self.from);
        let from = std::mem::replace(&mut self.from, next);
        Some(Piece { from, next, text })
    }

    fn take_all(&mut self) -> Option<Piece> {
        let text = std::mem::take(&mut self.text);
        let from = std::mem::replace(&mut self.from, self.next);
        (!text.is_empty()).then_some(Piece { from, next: self.next, text })
    }
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;

    use super::*;

    fn out(text: &[u8]) -> OutputPieces {
        let mut pieces = OutputPieces::default();
        pieces.push(STDOUT, text);
        pieces
    }

    fn piece(from: u64, next: u64, text: &str) -> Option<Piece> {
        Some(Piece { from, next, text: out(text.as_bytes()) })
    }

    #[test]
    fn secrets_are_masked_across_streams() {
        let redactor = Redactor::new(&[Secret::new("hunter2-hunter2".to_owned())]).expect("a redactor");
        let mut text = out(b"a hunter2-");
        text.push(STDERR, b"hunter2 b\n");
        text.push(STDOUT, b"c\n");
        let masked = masked(&redactor, &text);
        assert_eq!(masked.only(STDOUT).bytes(), b"a [redacted]c\n");
        assert_eq!(masked.only(STDERR).bytes(), b" b\n");
    }

    #[test]
    fn lines_are_saved_whole() {
        let mut lines = Lines { from: 5, next: 5, text: OutputPieces::default() };
        assert_eq!((lines.take_whole(), lines.take_all()), (None, None));
        lines.add(5, 8, &out(b"one"));
        assert_eq!(lines.take_whole(), None);
        lines.add(8, 16, &out(b"\ntwo\nthr"));
        assert_eq!(lines.take_whole(), piece(5, 13, "one\ntwo\n"));
        lines.add(16, 18, &out(b"ee"));
        assert_eq!(lines.take_all(), piece(13, 18, "three"));
        // The output between the positions 18 and 20 was lost.
        lines.add(20, 22, &out(b"x\n"));
        assert_eq!(lines.take_whole(), piece(20, 22, "x\n"));
        let long = vec![b'x'; LINE_MAX + 1];
        lines.add(22, 22 + long.len() as u64, &out(&long));
        assert_eq!(lines.take_whole().map(|piece| piece.text.len()), Some(long.len()));
    }

    #[test]
    fn a_command_line_is_masked_and_bounded() {
        let directory = tempfile::tempdir().expect("directory");
        let secrets = [Secret::new("hunter2-hunter2".to_owned())];
        let recorder = Recorder::new(directory.path(), Mask::new(&secrets)).expect("a recorder");
        let argv = ["curl", "-H", "key: hunter2-hunter2", &"x".repeat(ARGV_MAX), "more"];
        let masked = recorder.masked_argv(argv.map(str::to_owned).to_vec());
        assert_eq!(masked, ["curl", "-H", "key: [redacted]"]);
    }
}
