//! Queues usage records for the keeper.
//!
//! A record stays queued until the keeper acknowledges that it is written. Until then it is also in a file in the log
//! folder, where the bottle's cleanup finds it if this process is killed. The file is truncated when the queue is
//! empty.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bottle_channel::Stream;
use bottle_contract::session::bundle::{BundleEvent, Written};
use bottle_contract::usage::{Usage, WAITING_FILE};
use tokio::sync::watch;
use tokio::time::timeout;

use super::counted::Open;
use crate::bounds;
use crate::report::backlog::Backlog;

/// The pending usage records, in memory and on disk.
pub(crate) struct Outbox {
    path: PathBuf,
    waiting: Mutex<Waiting>,
    /// Number of pending records.
    count: watch::Sender<usize>,
    /// Number of connected keepers.
    listeners: watch::Sender<usize>,
    /// Responses in flight.
    open: Mutex<Vec<Weak<Open>>>,
    /// Receives the count of dropped records.
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Waiting {
    /// Records with their numbers, which count up.
    records: VecDeque<(u64, Usage)>,
    next: u64,
    file: Option<File>,
    /// Bytes in the file.
    written: u64,
}

impl Outbox {
    /// Stores pending records in a file in `folder`, which the first record creates.
    pub(crate) fn new(folder: &Path, backlog: Arc<Backlog>) -> Self {
        Self {
            path: folder.join(WAITING_FILE),
            waiting: Mutex::default(),
            count: watch::Sender::new(0),
            listeners: watch::Sender::new(0),
            open: Mutex::default(),
            backlog,
        }
    }

    /// Registers a response that will make a record, at shutdown at the latest.
    pub(super) fn watch(&self, answer: &Arc<Open>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|answer| answer.strong_count() > 0);
        open.push(Arc::downgrade(answer));
    }

    /// Queues a record. Writes to a file, and blocks on nothing else.
    pub(super) fn put(&self, usage: Usage) {
        let mut waiting = self.waiting();
        if waiting.records.len() >= bounds::USAGE_RECORDS {
            drop(waiting);
            self.backlog.push(BundleEvent::Lost { count: 1 });
            return;
        }
        if let Err(error) = waiting.note(&self.path, &usage) {
            // It is still in memory.
            tracing::warn!(%error, "cannot write a usage record to its file");
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.records.push_back((number, usage));
        self.count.send_replace(waiting.records.len());
    }

    /// Sends records until the stream breaks. Streams may overlap: the keeper recognizes a duplicate by its id.
    pub(crate) async fn serve(&self, mut stream: Stream) {
        let _listening = Listening::new(&self.listeners);
        let mut count = self.count.subscribe();
        loop {
            let Some((last, records)) = self.first() else {
                tokio::select! {
                    more = count.wait_for(|count| *count > 0) => if more.is_err() { return },
                    // Nothing is sent while the queue is empty.
                    _ = stream.next() => return,
                }
                continue;
            };
            if stream.message(&BundleEvent::Used { records }).await.is_err() {
                return;
            }
            match stream.receive::<Written>().await {
                Ok(Written {}) => self.written(last),
                Err(_) => return,
            }
        }
    }

    /// Shuts down: ends the responses in flight and waits for a connected keeper to receive the pending records.
    pub(crate) async fn settle(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter().filter_map(Weak::upgrade).for_each(|answer| answer.end(false));
        let mut count = self.count.subscribe();
        let mut listeners = self.listeners.subscribe();
        let settled = async {
            tokio::select! {
                _ = count.wait_for(|count| *count == 0) => {}
                _ = listeners.wait_for(|listeners| *listeners == 0) => {}
            }
        };
        // The file contains the rest.
        let _ = timeout(bounds::USAGE_TAKEN_WITHIN, settled).await;
    }

    /// The first batch of records, and the number of its last one.
    fn first(&self) -> Option<(u64, Vec<Usage>)> {
        let waiting = self.waiting();
        let batch = waiting.records.iter().take(bounds::USAGE_BATCH);
        let (last, _) = batch.clone().next_back()?;
        Some((*last, batch.map(|(_, usage)| usage.clone()).collect()))
    }

    /// Removes all records up to number `last`, which the keeper has on disk.
    fn written(&self, last: u64) {
        let mut waiting = self.waiting();
        while waiting.records.pop_front_if(|(number, _)| *number <= last).is_some() {}
        if let Err(error) = waiting.forget(&self.path) {
            tracing::warn!(%error, "cannot shorten the file of pending usage records");
        }
        self.count.send_replace(waiting.records.len());
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Appends a line to the file. It survives a crash of this process at once and a power failure after the sync.
    fn note(&mut self, path: &Path, usage: &Usage) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(create(path)?),
        };
        let line = line(usage)?;
        if let Err(error) = file.write_all(&line) {
            // A partial line would corrupt the next one.
            file.set_len(self.written)?;
            return Err(error);
        }
        self.written += line.len() as u64;
        let synced = file.try_clone()?;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || synced.sync_data());
        }
        Ok(())
    }

    /// Truncates the file when nothing is pending, and rewrites it when most of it was delivered.
    fn forget(&mut self, path: &Path) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.records.is_empty() {
            file.set_len(0)?;
            self.written = 0;
        } else if self.written > bounds::USAGE_FILE {
            let aside = path.with_extension("new");
            let mut text = Vec::new();
            for (_, usage) in &self.records {
                text.extend(line(usage)?);
            }
            let mut shorter = create(&aside)?;
            shorter.write_all(&text)?;
            shorter.sync_data()?;
            std::fs::rename(&aside, path)?;
            (self.written, self.file) = (text.len() as u64, Some(shorter));
        }
        Ok(())
    }
}

/// Creates an empty file: the old content was collected before this process started.
fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)
}

fn line(usage: &Usage) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(usage)?;
    line.push(b'\n');
    Ok(line)
}

/// Counts a keeper while it is connected.
struct Listening<'l>(&'l watch::Sender<usize>);

impl<'l> Listening<'l> {
    fn new(listeners: &'l watch::Sender<usize>) -> Self {
        listeners.send_modify(|count| *count += 1);
        Self(listeners)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
