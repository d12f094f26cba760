//! Searches the files of a bottle for secrets while they are written to an archive.
//!
//! Each layer has a thread, which parses the layer and scans its files with the scanner of the egress proxy. The
//! scanner finds the patterns of credentials, matches of the user's rules, and the bottle's canaries. A finding names a
//! file and a rule, and never contains the value.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bottle_guest::archive::{Members, What};
use bottle_protocol::session::guest::SecretText;
use bottle_scan::{Detector, KnownSecrets, RuleFiles, Scanner, Severity};

/// The rule name of a finding that is a canary.
pub const CANARY: &str = "canary";

/// The maximum number of chunks that wait for the scanning thread.
const CHUNKS: usize = 8;

/// The number of findings in a layer after which the thread scans no further file.
const MAX_FINDINGS: usize = 1000;

/// The number of bytes that are passed to the scanner at once.
const PIECE: usize = 128 << 10;

/// The number of zero bytes that are passed to the scanner for a piece that contains only zeros.
const GAP: usize = 16;

/// A secret, or text that looks like one, in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentFinding {
    /// The rule that found the secret.
    pub rule: String,
    /// The path of the file in the bottle.
    pub path: String,
    /// The kind of credential, without its value.
    pub preview: String,
}

/// Scans layers.
pub struct ContentScanner {
    scanner: Arc<Scanner>,
}

impl ContentScanner {
    /// Creates a scanner for these canaries with the user's rules.
    ///
    /// # Errors
    /// When a canary is too large to be searched for.
    pub fn new(canaries: &[SecretText], rules: RuleFiles) -> Result<Self, bottle_scan::TooLarge> {
        let known = KnownSecrets::new(canaries.iter().map(|canary| &canary.0))?;
        let scanner = Scanner::outbound(Arc::new(known)).verbatim().with_rules(Arc::new(rules));
        Ok(Self { scanner: Arc::new(scanner) })
    }

    /// Starts to scan a layer.
    pub(super) fn start(&self) -> LayerScan {
        let (input, chunks) = sync_channel(CHUNKS);
        let scanner = self.scanner.clone();
        let scanning = std::thread::spawn(move || scan(&scanner, Chunks { chunks, chunk: None, at: 0 }));
        LayerScan { input, scanning }
    }
}

/// The scan of one layer.
pub(super) struct LayerScan {
    input: SyncSender<Arc<Vec<u8>>>,
    scanning: JoinHandle<io::Result<Vec<ContentFinding>>>,
}

impl LayerScan {
    /// Returns the channel that receives the layer in chunks.
    pub(super) fn input(&self) -> SyncSender<Arc<Vec<u8>>> {
        self.input.clone()
    }

    /// Waits for the end of the scan. The caller must drop every other sender of this layer's chunks before the call.
    ///
    /// # Errors
    /// When the layer cannot be parsed.
    pub(super) fn finish(self) -> io::Result<Vec<ContentFinding>> {
        drop(self.input);
        self.scanning.join().unwrap_or_else(|_| Err(io::Error::other("the scan of the files stopped")))
    }
}

fn scan(scanner: &Scanner, layer: Chunks) -> io::Result<Vec<ContentFinding>> {
    let mut found: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut archive = tar::Archive::new(layer);
    let mut members = Members::new(archive.entries()?);
    let mut buffer = vec![0; PIECE];
    while let Some(mut member) = members.next()? {
        if member.what != What::File || found.len() >= MAX_FINDINGS {
            continue;
        }
        let path = shown(&member.name);
        for (rule, description) in scanner.of_name(&path) {
            found.insert((rule.to_owned(), path.clone()), description.to_owned());
        }
        let mut stream = scanner.stream_of(Some(&path));
        loop {
            match member.content.read(&mut buffer)? {
                0 => break,
                // A hole of a sparse file can be larger than any disk, and contains no secret.
                read if read == PIECE && buffer.iter().all(|byte| *byte == 0) => stream.feed(&[0; GAP]),
                read => stream.feed(&buffer[..read]),
            }
        }
        for finding in stream.finish().findings {
            if finding.severity < Severity::Block {
                continue;
            }
            let rule = match finding.detector {
                Detector::KnownSecrets => CANARY.to_owned(),
                _ => finding.rule.to_string(),
            };
            found.entry((rule, path.clone())).or_insert(finding.preview);
        }
    }
    // Reads the layer to its end, after the end of the tar archive.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    let finding = |((rule, path), preview)| ContentFinding { rule, path, preview };
    Ok(found.into_iter().map(finding).collect())
}

/// Returns the absolute path of an entry in the bottle.
fn shown(name: &Path) -> String {
    format!("/{}", name.to_string_lossy().trim_start_matches("./").trim_start_matches('/'))
}

/// Reads the chunks of a layer.
struct Chunks {
    chunks: Receiver<Arc<Vec<u8>>>,
    chunk: Option<Arc<Vec<u8>>>,
    at: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(chunk) = &self.chunk {
                let rest = &chunk[self.at..];
                if !rest.is_empty() {
                    let length = rest.len().min(buffer.len());
                    buffer[..length].copy_from_slice(&rest[..length]);
                    self.at += length;
                    return Ok(length);
                }
            }
            match self.chunks.recv() {
                Ok(chunk) => (self.chunk, self.at) = (Some(chunk), 0),
                Err(_) => return Ok(0),
            }
        }
    }
}
