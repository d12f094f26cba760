//! Ingests usage files into the ledger, each record exactly once.
//!
//! For each file, the ledger stores the position up to which the file was ingested. It stores the position in the same
//! transaction as the records. If the bytes before the position have changed, the file was replaced or shortened, and
//! ingestion reads the file again from the beginning. The ledger recognizes records that it already has by their ids.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use bottle_instance::usage::{self, Labels, MAX_STORED_LINE, StoredUsage};
use bottle_manifest::agent_provider::Template;
use bottle_policy::names::Slug;
use bottle_protocol::usage::{Api, Counts, Source, Usage};
use sha2::{Digest, Sha256};

use super::error::LedgerError;
use super::repository::{Ledger, Mark, Response, Totals};

/// The maximum number of lines that one transaction ingests. The maximum bounds the memory use, and the time for which
/// other processes wait.
const BATCH: usize = 4096;

/// The number of bytes after which one transaction ingests no more lines.
const BATCH_BYTES: u64 = 8 << 20;

/// The maximum number of bytes before a position that are compared. This number is larger than the length of a usual
/// line, so the compared bytes include the id of a record. The id makes the bytes unique.
const TAIL: u64 = 4096;

/// The result of an ingestion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ingested {
    /// The number of records that were new.
    pub added: usize,
    /// The number of lines that are not usage records.
    pub skipped: usize,
}

impl Ledger {
    /// Ingests all usage files of a home. Running bottles may append records at the same time.
    ///
    /// # Errors
    /// [`LedgerError`] if a file cannot be read or the database cannot be written. Records that were ingested before
    /// the error stay in the ledger, and the next call continues after them.
    pub fn ingest(&mut self, home: &Path) -> Result<Ingested, LedgerError> {
        let mut ingested = Ingested::default();
        let slugs =
            usage::slugs(home).map_err(|error| LedgerError::new("read", &home.join("usage"), error))?;
        for slug in slugs {
            let Ingested { added, skipped } = self.ingest_bottle(home, &slug)?;
            ingested.added += added;
            ingested.skipped += skipped;
        }
        Ok(ingested)
    }

    /// Ingests the usage file of one bottle.
    ///
    /// # Errors
    /// The errors of [`Ledger::ingest`].
    pub fn ingest_bottle(&mut self, home: &Path, slug: &Slug) -> Result<Ingested, LedgerError> {
        let mut ingested = Ingested::default();
        let path = usage::path(home, slug);
        while self.ingest_batch(&path, slug, &mut ingested)? {}
        Ok(ingested)
    }

    /// Ingests the next lines of a file. Returns whether more lines may follow.
    fn ingest_batch(&mut self, path: &Path, slug: &Slug, sum: &mut Ingested) -> Result<bool, LedgerError> {
        let unread = |error| LedgerError::new("read", path, error);
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unread(error)),
        };
        let mut batch = self.begin()?;
        let mut mark = batch.mark(slug.as_str())?;
        if mark.offset > 0 && tail(&mut file, mark.offset).map_err(unread)? != mark.tail {
            mark = Mark::default();
        }
        let read = read_lines(&mut file, mark.offset).map_err(unread)?;
        if read.length == 0 {
            return Ok(false);
        }
        let responses: Vec<Response> = read.lines.iter().filter_map(|line| parse(line, slug)).collect();
        sum.skipped += read.lines.len() - responses.len();
        sum.added += batch.add(&responses)?;
        let offset = mark.offset + read.length;
        let tail = tail(&mut file, offset).map_err(unread)?;
        batch.set_mark(slug.as_str(), &Mark { offset, tail })?;
        batch.commit()?;
        Ok(read.more)
    }
}

/// The complete lines of a usage file that one transaction ingests.
struct Lines {
    lines: Vec<Vec<u8>>,
    /// The total number of bytes of the lines.
    length: u64,
    /// Whether more lines may follow.
    more: bool,
}

/// Reads the complete lines for one transaction. A last line without a line break is not read: it is still being
/// written, or the next append removes it. A line of more than [`MAX_STORED_LINE`] bytes is split, and the pieces are
/// not valid records.
fn read_lines(file: &mut File, offset: u64) -> io::Result<Lines> {
    file.seek(SeekFrom::Start(offset))?;
    let mut reader = BufReader::new(file);
    let mut read = Lines { lines: Vec::new(), length: 0, more: true };
    while read.lines.len() < BATCH && read.length < BATCH_BYTES {
        let mut line = Vec::new();
        (&mut reader).take(MAX_STORED_LINE as u64).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') && line.len() < MAX_STORED_LINE {
            read.more = false;
            break;
        }
        read.length += line.len() as u64;
        read.lines.push(line);
    }
    Ok(read)
}

/// Returns a hash of the bytes before a position. Returns an empty hash if the file is shorter than the position.
fn tail(file: &mut File, offset: u64) -> io::Result<Vec<u8>> {
    let length = offset.min(TAIL);
    file.seek(SeekFrom::Start(offset - length))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 == length { Sha256::digest(&bytes).to_vec() } else { Vec::new() })
}

/// Parses a line of a usage file. Returns `None` if the line is not a usage record.
fn parse(line: &[u8], slug: &Slug) -> Option<Response> {
    let StoredUsage { mut labels, usage } = serde_json::from_slice(line).ok()?;
    if labels.lineage.is_empty() {
        labels.lineage.clone_from(&labels.bottles);
    }
    let totals = normalized(&usage);
    Some(Response {
        id: usage.id.clone(),
        time: usage.time,
        slug: slug.to_string(),
        key: key(&labels, &usage),
        host: usage.host,
        api: name(usage.api).to_owned(),
        model: usage.model.unwrap_or_default(),
        source: match usage.source {
            Some(Source::Main) => "main",
            Some(Source::Subagent) => "subagent",
            None => "",
        }
        .to_owned(),
        labels,
        totals,
        interrupted: usage.interrupted,
    })
}

/// Returns the budget key of a record. A record of an older version does not contain the route that allowed the
/// request, so its budget key is the host.
fn key(labels: &Labels, usage: &Usage) -> String {
    match labels.template {
        Some(template) if template != Template::Command && usage.provider_route => template.to_string(),
        _ => usage.host.clone(),
    }
}

fn name(api: Api) -> &'static str {
    match api {
        Api::Messages => "messages",
        Api::ChatCompletions => "chat-completions",
        Api::Responses => "responses",
    }
}

/// Converts the counts of a response to the form of the ledger. The counts of an interrupted or doubtful response are
/// marked as estimated.
fn normalized(usage: &Usage) -> Totals {
    let Counts { input, output, cache_read, cache_write, doubtful } = usage.tokens.counts(usage.api);
    let estimated = usage.estimated || usage.interrupted || doubtful;
    Totals { responses: 1, input, output, cache_read, cache_write, estimated: estimated.into() }
}
