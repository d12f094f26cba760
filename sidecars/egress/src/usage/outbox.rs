//! Records on their way to the keeper.
//!
//! A record leaves when the keeper says that it is written. Until then it stands in a file too, in the folder of
//! the logs: should this process be killed, whoever looks after the bottle's folder finds it there. The file is
//! emptied when nothing waits.

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

/// See the module.
pub(crate) struct Outbox {
    path: PathBuf,
    waiting: Mutex<Waiting>,
    /// How many wait.
    count: watch::Sender<usize>,
    /// Keepers that listen now.
    listeners: watch::Sender<usize>,
    /// Answers under way.
    open: Mutex<Vec<Weak<Open>>>,
    /// Is told what could not be kept.
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Waiting {
    /// Each with its number, which counts up.
    records: VecDeque<(u64, Usage)>,
    next: u64,
    file: Option<File>,
    /// Bytes in the file.
    written: u64,
}

impl Outbox {
    /// Keeps what waits in a file in `folder`, which is made with the first record.
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

    /// An answer of which there will be a record, when the proxy ends at the latest.
    pub(super) fn watch(&self, answer: &Arc<Open>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|answer| answer.strong_count() > 0);
        open.push(Arc::downgrade(answer));
    }

    /// Keeps a record until it is handed over. Writes to a file, and waits for nothing else.
    pub(super) fn put(&self, usage: Usage) {
        let mut waiting = self.waiting();
        if waiting.records.len() >= bounds::USAGE_RECORDS {
            drop(waiting);
            self.backlog.push(BundleEvent::Lost { count: 1 });
            return;
        }
        if let Err(error) = waiting.note(&self.path, &usage) {
            // It still waits in memory.
            tracing::warn!(%error, "a record of usage could not be noted");
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.records.push_back((number, usage));
        self.count.send_replace(waiting.records.len());
    }

    /// Hands records over for as long as the stream lasts. Several at a time may: a record that goes twice is
    /// known by its id.
    pub(crate) async fn serve(&self, mut stream: Stream) {
        let _listening = Listening::new(&self.listeners);
        let mut count = self.count.subscribe();
        loop {
            let Some((last, records)) = self.first() else {
                tokio::select! {
                    more = count.wait_for(|count| *count > 0) => if more.is_err() { return },
                    // Nothing is said while nothing waits.
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

    /// The proxy ends: answers under way have broken off, and a keeper that listens gets what waits.
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
        // What is not taken by then stands in the file.
        let _ = timeout(bounds::USAGE_TAKEN_WITHIN, settled).await;
    }

    /// The first records and the last one's number.
    fn first(&self) -> Option<(u64, Vec<Usage>)> {
        let waiting = self.waiting();
        let batch = waiting.records.iter().take(bounds::USAGE_BATCH);
        let (last, _) = batch.clone().next_back()?;
        Some((*last, batch.map(|(_, usage)| usage.clone()).collect()))
    }

    /// All up to this number are on the keeper's disk.
    fn written(&self, last: u64) {
        let mut waiting = self.waiting();
        while waiting.records.pop_front_if(|(number, _)| *number <= last).is_some() {}
        if let Err(error) = waiting.forget(&self.path) {
            tracing::warn!(%error, "the file of waiting records could not be shortened");
        }
        self.count.send_replace(waiting.records.len());
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Adds a line to the file. It survives this process at once and a loss of power in a moment.
    fn note(&mut self, path: &Path, usage: &Usage) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(create(path)?),
        };
        let line = line(usage)?;
        if let Err(error) = file.write_all(&line) {
            // A line that was begun would spoil the next one.
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

    /// Empties the file when nothing waits, and shortens it when most of it waits no more.
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

/// An empty file: what was in it was fetched before this process began.
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

/// Counts a keeper while it listens.
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
