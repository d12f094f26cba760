//! Queues usage records for the keeper process.
//!
//! A record stays in the queue until the keeper acknowledges that the record is on disk. Until then, the record is also
//! in a file in the log directory, so that the bottle's cleanup can find the record if this process is killed. Before
//! the proxy sends a request with reserved tokens, it adds a preliminary record to the file. The preliminary record
//! counts all reserved tokens, and a later line replaces it. The proxy truncates the file when the queue is empty and
//! no request with reserved tokens is in progress.
//!
//! The proxy sends records in batches: after the first record, it waits up to [`bounds::USAGE_GATHERED_WITHIN`] for
//! more records, because the keeper syncs its ledger for each message.
//!
//! As soon as a line is written, the line survives the end of this process. The proxy syncs lines that the keeper has
//! not acknowledged within [`bounds::USAGE_SYNCED_WITHIN`], so that these lines also survive a power failure. If a
//! power failure happens before the sync, the tokens of the lost records still count as reserved, because the keeper's
//! ledger contains the lease.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bottle_channel::Stream;
use bottle_protocol::session::bundle::{BundleEvent, Written};
use bottle_protocol::usage::{Usage, WAITING_FILE, WaitingLine};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::tracker::PendingUsage;
use crate::bounds;
use crate::connected_keepers::ConnectedKeepers;
use crate::report::backlog::Backlog;

/// The usage records that the keeper has not acknowledged, in memory and on disk.
pub(crate) struct Outbox {
    path: PathBuf,
    pending: Arc<Mutex<Pending>>,
    /// Number of pending records.
    count: watch::Sender<usize>,
    keepers: ConnectedKeepers,
    /// Whether records are sent immediately, because the proxy shuts down.
    settles: watch::Sender<bool>,
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
    /// The preliminary records of requests in progress, by id.
    reserved: HashMap<String, Usage>,
    file: Option<File>,
    /// Size of the file, in bytes.
    written: u64,
    /// Size of the file after it was last rewritten, in bytes.
    rewritten: u64,
    /// Whether a record was written since the last sync.
    is_unsynced: bool,
    /// Whether a task will sync the file.
    is_syncing: bool,
}

impl Outbox {
    /// Stores pending records in a file in `directory`. The file is created with the first record.
    pub(crate) fn new(directory: &Path, backlog: Arc<Backlog>) -> Self {
        Self {
            path: directory.join(WAITING_FILE),
            pending: Arc::default(),
            count: watch::Sender::new(0),
            keepers: ConnectedKeepers::default(),
            settles: watch::Sender::new(false),
            in_flight: Mutex::default(),
            backlog,
        }
    }

    /// Registers a response in progress. If the response is still in progress at shutdown, [`Outbox::settle`] creates
    /// its record.
    pub(super) fn register(&self, response: &Arc<PendingUsage>) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.retain(|response| response.strong_count() > 0);
        in_flight.push(Arc::downgrade(response));
    }

    /// The number of responses for which no record was created yet.
    pub(crate) fn in_progress(&self) -> u64 {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let running = in_flight.iter().filter_map(Weak::upgrade).filter(|response| response.is_active());
        u64::try_from(running.count()).unwrap_or(u64::MAX)
    }

    /// Adds the preliminary record of a request with reserved tokens to the file. `usage` counts all reserved tokens.
    /// [`Outbox::put`] or [`Outbox::cancel`] replaces the preliminary record.
    pub(super) fn reserve(&self, usage: Usage) {
        let mut pending = self.pending();
        pending.append(&self.path, &usage.clone().into()).unwrap_or_else(|error| warn(&error));
        pending.reserved.insert(usage.id.clone(), usage);
    }

    /// Cancels the preliminary record of [`Outbox::reserve`], because the provider did not accept the request. Does
    /// nothing for a request without a preliminary record.
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

    /// Queues a record and writes the record to the file. The call blocks only on this write.
    pub(super) fn put(&self, usage: Usage) {
        let mut pending = self.pending();
        pending.reserved.remove(&usage.id);
        if pending.records.len() >= bounds::USAGE_RECORDS {
            drop(pending);
            self.backlog.push(BundleEvent::Lost { count: 1 });
            return;
        }
        // If writing fails, the record is still in memory.
        pending.append(&self.path, &usage.clone().into()).unwrap_or_else(|error| warn(&error));
        self.sync_later(&mut pending);
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
            tokio::select! {
                more = count.wait_for(|count| *count > 0) => if more.is_err() { return },
                // The keeper sends nothing while the queue is empty, so this is the end of the stream.
                _ = stream.next() => return,
            }
            self.gather().await;
            let Some((last, records)) = self.next_batch() else { continue };
            if stream.message(&BundleEvent::Used { records }).await.is_err() {
                return;
            }
            match stream.receive::<Written>().await {
                Ok(Written {}) => self.acknowledge(last),
                Err(_) => return,
            }
        }
    }

    /// Waits for more records, until a batch is full, a short time has passed, or the proxy shuts down.
    async fn gather(&self) {
        let (mut count, mut settles) = (self.count.subscribe(), self.settles.subscribe());
        tokio::select! {
            () = sleep(bounds::USAGE_GATHERED_WITHIN) => {}
            _ = count.wait_for(|count| *count >= bounds::USAGE_BATCH) => {}
            _ = settles.wait_for(|settles| *settles) => {}
        }
    }

    /// Shuts down: ends the responses in progress, and waits until a connected keeper has acknowledged the pending
    /// records.
    pub(crate) async fn settle(&self) {
        let in_flight = std::mem::take(&mut *self.in_flight.lock().unwrap_or_else(PoisonError::into_inner));
        in_flight.iter().filter_map(Weak::upgrade).for_each(|response| response.end(false));
        self.settles.send_replace(true);
        let mut count = self.count.subscribe();
        let settled = async {
            tokio::select! {
                _ = count.wait_for(|count| *count == 0) => {}
                () = self.keepers.none() => {}
            }
        };
        let _ = timeout(bounds::USAGE_TAKEN_WITHIN, settled).await;
        // The file still contains the remaining records, so the file is synced.
        let file = self.pending().take_unsynced();
        if let Some(file) = file {
            sync(file).await;
        }
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
        lock(&self.pending)
    }

    /// Syncs the file after [`bounds::USAGE_SYNCED_WITHIN`], once for all records written by that time.
    fn sync_later(&self, pending: &mut Pending) {
        pending.is_unsynced = true;
        let runtime = tokio::runtime::Handle::try_current().ok().filter(|_| !pending.is_syncing);
        let Some(runtime) = runtime else { return };
        pending.is_syncing = true;
        let pending = Arc::clone(&self.pending);
        runtime.spawn(async move {
            loop {
                sleep(bounds::USAGE_SYNCED_WITHIN).await;
                let file = lock(&pending).take_unsynced();
                let Some(file) = file else { return };
                sync(file).await;
            }
        });
    }
}

async fn sync(file: File) {
    if let Ok(Err(error)) = spawn_blocking(move || file.sync_data()).await {
        warn(&error);
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    /// Appends a line to the file. The written line survives the end of this process.
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

    /// Returns the file if it has records that must be synced. If the result is `None`, the caller stops syncing.
    fn take_unsynced(&mut self) -> Option<File> {
        // If the queue is empty, the keeper has all records on disk.
        let is_needed = std::mem::take(&mut self.is_unsynced) && !self.records.is_empty();
        let file = self.file.as_ref().filter(|_| is_needed).and_then(|file| file.try_clone().ok());
        self.is_syncing = file.is_some();
        file
    }

    /// Truncates the file when no records are pending or reserved. Rewrites the file when it has many old lines.
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

/// Creates an empty file. Removes an older file, because its records were collected before this process started.
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

#[cfg(test)]
mod tests {
    use bottle_protocol::usage::{Api, Tokens};

    use super::*;

    fn usage(id: &str) -> Usage {
        Usage {
            id: id.to_owned(),
            time: jiff::Timestamp::UNIX_EPOCH,
            provider: "claude".to_owned(),
            host: "api.anthropic.com".to_owned(),
            api: Api::Messages,
            model: None,
            tokens: Tokens::default(),
            interrupted: false,
            estimated: false,
            provider_route: true,
            source: None,
        }
    }

    #[test]
    fn only_records_that_no_keeper_has_are_synced_each_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let outbox = Outbox::new(directory.path(), Arc::new(Backlog::new(1)));
        assert!(outbox.pending().take_unsynced().is_none());
        outbox.put(usage("a"));
        outbox.put(usage("b"));
        assert!(outbox.pending().take_unsynced().is_some());
        assert!(outbox.pending().take_unsynced().is_none(), "nothing was written since");
        outbox.put(usage("c"));
        outbox.acknowledge(2);
        assert!(outbox.pending().take_unsynced().is_none(), "the keeper has all records");
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_syncs_the_records_of_a_moment() {
        let directory = tempfile::tempdir().expect("a directory");
        let outbox = Outbox::new(directory.path(), Arc::new(Backlog::new(1)));
        outbox.put(usage("a"));
        outbox.put(usage("b"));
        assert!(outbox.pending().is_syncing);
        while outbox.pending().is_syncing {
            sleep(bounds::USAGE_SYNCED_WITHIN).await;
        }
        assert!(!outbox.pending().is_unsynced);
        outbox.put(usage("c"));
        assert!(outbox.pending().is_syncing, "another task syncs later records");
    }
}
