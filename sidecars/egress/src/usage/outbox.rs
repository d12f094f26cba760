//! Queues usage records for the keeper process.
//!
//! A record stays in the queue until the keeper acknowledges that it is on disk. Until then it is also in a file in the
//! log directory, so that the bottle's cleanup can find it if this process is killed. Before a request is sent for which a
//! budget has tokens reserved, the file gets a record that counts all of them, which a later line replaces. The file is
//! truncated when the queue is empty and no such request is in progress.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bottle_channel::Stream;
use bottle_contract::session::bundle::{BundleEvent, Written};
use bottle_contract::usage::{Usage, WAITING_FILE, WaitingLine};
use tokio::sync::watch;
use tokio::time::timeout;

use super::tracker::PendingUsage;
use crate::bounds;
use crate::connected_keepers::ConnectedKeepers;
use crate::report::backlog::Backlog;

/// The usage records that the keeper has not acknowledged, in memory and on disk.
pub(crate) struct Outbox {
    path: PathBuf,
    pending: Mutex<Pending>,
    /// Number of pending records.
    count: watch::Sender<usize>,
    keepers: ConnectedKeepers,
    /// Responses that are still in progress.
    in_flight: Mutex<Vec<Weak<PendingUsage>>>,
    /// Receives the number of dropped records.
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Pending {
    /// The records with their numbers, in increasing order.
    records: VecDeque<(u64, Usage)>,
    next: u64,
    /// The records of requests in progress, by id.
    reserved: HashMap<String, Usage>,
    file: Option<File>,
    /// Size of the file, in bytes.
    written: u64,
    /// Size of the file after it was last rewritten, in bytes.
    rewritten: u64,
}

impl Outbox {
    /// Stores pending records in a file in `directory`. The file is created with the first record.
    pub(crate) fn new(directory: &Path, backlog: Arc<Backlog>) -> Self {
        Self {
            path: directory.join(WAITING_FILE),
            pending: Mutex::default(),
            count: watch::Sender::new(0),
            keepers: ConnectedKeepers::default(),
            in_flight: Mutex::default(),
            backlog,
        }
    }

    /// Registers a response that will lead to a record, at shutdown at the latest.
    pub(super) fn register(&self, response: &Arc<PendingUsage>) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.retain(|response| response.strong_count() > 0);
        in_flight.push(Arc::downgrade(response));
    }

    /// The number of responses that have not led to a record yet.
    pub(crate) fn in_progress(&self) -> u64 {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let running = in_flight.iter().filter_map(Weak::upgrade).filter(|response| response.is_active());
        u64::try_from(running.count()).unwrap_or(u64::MAX)
    }

    /// A request is being sent for which tokens are reserved. `usage` counts all of them. [`Outbox::put`] or
    /// [`Outbox::cancel`] ends this.
    pub(super) fn reserve(&self, usage: Usage) {
        let mut pending = self.pending();
        pending.append(&self.path, &usage.clone().into()).unwrap_or_else(|error| warn(&error));
        pending.reserved.insert(usage.id.clone(), usage);
    }

    /// The provider did not accept a request, so that there will be no record. Does nothing for another request than
    /// those in [`Outbox::reserve`].
    pub(super) fn cancel(&self, id: &str) {
        let mut pending = self.pending();
        if pending.reserved.remove(id).is_some() {
            let line = WaitingLine::Cancelled { cancelled: id.to_owned() };
            pending
                .append(&self.path, &line)
                .and_then(|()| pending.compact(&self.path))
                .unwrap_or_else(|error| warn(&error));
        }
    }

    /// Queues a record. Writes it to a file, and blocks on nothing else.
    pub(super) fn put(&self, usage: Usage) {
        let mut pending = self.pending();
        pending.reserved.remove(&usage.id);
        if pending.records.len() >= bounds::USAGE_RECORDS {
            drop(pending);
            self.backlog.push(BundleEvent::Lost { count: 1 });
            return;
        }
        // If this fails, the record is still in memory.
        pending
            .append(&self.path, &usage.clone().into())
            .and_then(|()| pending.sync())
            .unwrap_or_else(|error| warn(&error));
        let number = pending.next;
        pending.next += 1;
        pending.records.push_back((number, usage));
        self.count.send_replace(pending.records.len());
    }

    /// Sends records until the stream closes. Streams may overlap, because the keeper recognizes a duplicate record by
    /// its id.
    pub(crate) async fn serve(&self, mut stream: Stream) {
        let _connected = self.keepers.connect();
        let mut count = self.count.subscribe();
        loop {
            let Some((last, records)) = self.next_batch() else {
                tokio::select! {
                    more = count.wait_for(|count| *count > 0) => if more.is_err() { return },
                    // The keeper sends nothing while the queue is empty, so this is the end of the stream.
                    _ = stream.next() => return,
                }
                continue;
            };
            if stream.message(&BundleEvent::Used { records }).await.is_err() {
                return;
            }
            match stream.receive::<Written>().await {
                Ok(Written {}) => self.acknowledge(last),
                Err(_) => return,
            }
        }
    }

    /// Shuts down: ends the responses in progress, and waits until a connected keeper has acknowledged the pending
    /// records.
    pub(crate) async fn settle(&self) {
        let in_flight = std::mem::take(&mut *self.in_flight.lock().unwrap_or_else(PoisonError::into_inner));
        in_flight.iter().filter_map(Weak::upgrade).for_each(|response| response.end(false));
        let mut count = self.count.subscribe();
        let settled = async {
            tokio::select! {
                _ = count.wait_for(|count| *count == 0) => {}
                () = self.keepers.none() => {}
            }
        };
        // The file contains the remaining records.
        let _ = timeout(bounds::USAGE_TAKEN_WITHIN, settled).await;
    }

    /// Returns the first batch of records, and the number of the last record in it.
    fn next_batch(&self) -> Option<(u64, Vec<Usage>)> {
        let pending = self.pending();
        let batch = pending.records.iter().take(bounds::USAGE_BATCH);
        let (last, _) = batch.clone().next_back()?;
        Some((*last, batch.map(|(_, usage)| usage.clone()).collect()))
    }

    /// Removes all records up to the number `last`, because the keeper has them on disk.
    fn acknowledge(&self, last: u64) {
        let mut pending = self.pending();
        while pending.records.pop_front_if(|(number, _)| *number <= last).is_some() {}
        pending.compact(&self.path).unwrap_or_else(|error| warn(&error));
        self.count.send_replace(pending.records.len());
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Appends a line to the file, which survives the end of this process.
    fn append(&mut self, path: &Path, line: &WaitingLine) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(create(path)?),
        };
        let line = encoded(line)?;
        if let Err(error) = file.write_all(&line) {
            // A partial line would make the next line unreadable.
            file.set_len(self.written)?;
            return Err(error);
        }
        self.written += line.len() as u64;
        Ok(())
    }

    /// Writes the file to disk, so that it survives a power failure.
    fn sync(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let synced = file.try_clone()?;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || synced.sync_data());
        }
        Ok(())
    }

    /// Truncates the file when no records are pending or reserved. Rewrites it when it has many old lines.
    fn compact(&mut self, path: &Path) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.records.is_empty() && self.reserved.is_empty() {
            file.set_len(0)?;
            (self.written, self.rewritten) = (0, 0);
        } else if self.written - self.rewritten > bounds::USAGE_FILE {
            let temporary = path.with_extension("new");
            let mut text = Vec::new();
            for usage in self.reserved.values().chain(self.records.iter().map(|(_, usage)| usage)) {
                text.extend(encoded(&usage.clone().into())?);
            }
            let mut shorter = create(&temporary)?;
            shorter.write_all(&text)?;
            shorter.sync_data()?;
            std::fs::rename(&temporary, path)?;
            self.written = text.len() as u64;
            (self.rewritten, self.file) = (self.written, Some(shorter));
        }
        Ok(())
    }
}

/// Logs that the file is not up to date.
fn warn(error: &io::Error) {
    tracing::warn!(%error, "cannot write the file of pending usage records");
}

/// Creates an empty file. The content of an older file was collected before this process started.
fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)
}

fn encoded(line: &WaitingLine) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    Ok(line)
}
