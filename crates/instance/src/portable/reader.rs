//! Reads an untrusted archive into a staging directory, and verifies all digests.
//!
//! The reader accepts only the entries that [`super::Writer`] writes: regular files without holes, under known names,
//! each once, with the metadata first. The reader limits the number and the sizes of the entries, and the disk space
//! that the entries take. Nothing outside the staging directory is written.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

use bottle_archive::DiskBudget;
use bottle_backend::portable_image::Digest;
use bottle_backend::{Copied, ProgressSink};
use bottle_guest::archive::{BadMember, Member, Members, What};
use sha2::{Digest as _, Sha256};

use super::bad_archive::{BadArchive, shortened};
use super::digests::Digests;
use super::entry_names::{DIGESTS, INDEX, LAYOUT, MANIFEST, METADATA, SIGNATURE};
use super::metadata::Metadata;
use super::signature::Signature;
use super::source::{Position, Source};

/// The directory of the blobs of an OCI layout.
const BLOBS: &str = "blobs/sha256/";

/// The maximum number of entries. An archive has one entry for each layer, and a few other entries.
const MAX_ENTRIES: usize = 1024;

/// The maximum size of an entry that is not a blob, in bytes. Manifests have at most 16 MiB.
const MAX_SMALL: u64 = 16 << 20;

/// The first bytes of files that a user may have compressed, each with the name of the compression program.
const COMPRESSED: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
];

/// The number of bytes at the start of an archive that are read to detect compression.
const START: u64 = 8;

/// The size of a header in bytes.
const HEADER: u64 = 512;

/// The buffer size for copies in bytes.
const BUFFER: usize = 1 << 20;

/// An archive whose digests were verified. Its OCI layout is in the staging directory.
#[derive(Debug)]
pub struct Received {
    /// The metadata of the exported bottle.
    pub metadata: Metadata,
    /// The resolved manifest of the bottle's last start. Empty if the exporter did not know the manifest.
    pub manifest: String,
    /// The content of `bottle/digests`, which is the signed text.
    pub digests: Vec<u8>,
    /// The signature, which is not verified yet.
    pub signature: Option<Signature>,
}

/// Reads an archive, and writes its OCI layout into the empty directory `layout`.
///
/// # Errors
/// Returns [`BadArchive`]. The directory's content is then incomplete.
pub fn receive(
    archive: &mut dyn Read,
    layout: &Path,
    progress: &ProgressSink,
) -> Result<Received, BadArchive> {
    let mut archive = Source::new(archive);
    let position = archive.position();
    let mut start = Vec::new();
    Read::take(&mut archive, START).read_to_end(&mut start).map_err(BadArchive::Unreadable)?;
    if let Some((_, format)) = COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Err(BadArchive::Foreign(Some(format)));
    }
    let blobs = layout.join(BLOBS);
    DirBuilder::new().recursive(true).mode(0o700).create(&blobs).map_err(BadArchive::Disk)?;
    let budget = DiskBudget::for_directory(layout).map_err(BadArchive::Disk)?;
    let mut reader = Reader {
        layout,
        budget,
        progress,
        bytes: 0,
        digests: Digests::default(),
        small: BTreeMap::new(),
        metadata: None,
        position,
        last: None,
    };
    let mut archive = tar::Archive::new(start.as_slice().chain(archive));
    let mut members = Members::new(archive.entries().map_err(|error| reader.unreadable(error))?);
    loop {
        match members.next() {
            Ok(Some(mut member)) => reader.entry(&mut member)?,
            Ok(None) => return reader.finish(),
            Err(error) => {
                return Err(match (reader.unreadable(error), &reader.metadata) {
                    (BadArchive::Refused(_), None) => BadArchive::Foreign(None),
                    (error, _) => error,
                });
            }
        }
    }
}

struct Reader<'a> {
    layout: &'a Path,
    budget: DiskBudget,
    progress: &'a ProgressSink,
    bytes: u64,
    digests: Digests,
    /// The contents of the entries that are not blobs.
    small: BTreeMap<&'static str, Vec<u8>>,
    metadata: Option<Metadata>,
    position: Rc<Position>,
    /// The name of the entry that was read last, in the form for messages.
    last: Option<String>,
}

impl Reader<'_> {
    fn entry(&mut self, member: &mut Member<'_, impl Read>) -> Result<(), BadArchive> {
        let shown = format!("{:?}", shortened(&member.name.to_string_lossy()));
        self.last = Some(shown.clone());
        let begin = self.position.bytes();
        let refused = |why: &str| BadArchive::Refused(format!("its entry {shown} {why}"));
        if self.metadata.is_none() && member.name != Path::new(METADATA) {
            return Err(BadArchive::Foreign(None));
        }
        if member.what != What::File || member.content.position().is_none() {
            return Err(refused("is not a plain file"));
        }
        if self.digests.entries().len() == MAX_ENTRIES {
            return Err(BadArchive::Refused(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let name = member.name.to_str().ok_or_else(|| refused("has an unknown name"))?.to_owned();
        let size = member.content.size();
        if let Some(digits) = name.strip_prefix(BLOBS) {
            let expected = Digest::from_hex(digits).filter(|digest| digest.digits() == digits);
            let expected = expected.ok_or_else(|| refused("is not named by a digest"))?;
            if !self.digests.add(&name, expected) {
                return Err(refused("occurs twice"));
            }
            let actual = self.store(&name, size, &mut member.content)?;
            if actual != expected {
                return Err(refused(&format!("is damaged: its content, from byte {begin}, is {actual}")));
            }
            return Ok(());
        }
        let known = [METADATA, MANIFEST, DIGESTS, SIGNATURE, LAYOUT, INDEX];
        let known = known.into_iter().find(|known| *known == name);
        let known = known.ok_or_else(|| refused("has an unknown name"))?;
        if size > MAX_SMALL {
            return Err(refused(&format!("is larger than {} MiB", MAX_SMALL >> 20)));
        }
        let mut content = Vec::new();
        let read = Read::by_ref(&mut member.content).take(MAX_SMALL).read_to_end(&mut content);
        read.map_err(|error| self.unreadable(error))?;
        if (content.len() as u64) < size {
            return Err(self.truncated("in"));
        }
        if known == METADATA && self.metadata.is_none() {
            self.metadata = Some(Metadata::parse(&content)?);
        }
        if ![DIGESTS, SIGNATURE].contains(&known) {
            self.digests.add(known, Digest::from_bytes(&content));
        }
        if [LAYOUT, INDEX].contains(&known) {
            self.store(known, size, &mut content.as_slice())?;
        }
        if self.small.insert(known, content).is_some() {
            return Err(refused("occurs twice"));
        }
        Ok(())
    }

    /// Writes an entry into the staging directory. Returns the digest of its content.
    fn store(&mut self, name: &str, size: u64, content: &mut impl Read) -> Result<Digest, BadArchive> {
        self.budget.take(size).map_err(BadArchive::Disk)?;
        let path = self.layout.join(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = BufWriter::new(file.map_err(BadArchive::Disk)?);
        let (mut hash, mut left) = (Sha256::new(), size);
        let mut buffer = vec![0; usize::try_from(size).unwrap_or(BUFFER).clamp(1, BUFFER)];
        loop {
            let read = content.read(&mut buffer).map_err(|error| self.unreadable(error))?;
            if read == 0 {
                break;
            }
            left = left.saturating_sub(read as u64);
            hash.update(&buffer[..read]);
            file.write_all(&buffer[..read]).map_err(BadArchive::Disk)?;
            self.bytes += read as u64;
            self.progress.report(Copied { files: 0, bytes: self.bytes });
        }
        file.flush().map_err(BadArchive::Disk)?;
        if left > 0 {
            return Err(self.truncated("in"));
        }
        Ok(Digest::from_hasher(hash))
    }

    fn finish(mut self) -> Result<Received, BadArchive> {
        let (Some(metadata), Some(digests)) = (self.metadata.take(), self.small.remove(DIGESTS)) else {
            return Err(self.truncated("after"));
        };
        if let Some(why) = self.digests.difference(&digests) {
            return Err(BadArchive::Refused(why));
        }
        let mut take = |name: &str| self.small.remove(name);
        let manifest = String::from_utf8(take(MANIFEST).unwrap_or_default())
            .map_err(|_| BadArchive::Refused("its manifest is not UTF-8 text".to_owned()))?;
        let signature = match take(SIGNATURE) {
            None => None,
            Some(text) => Some(
                serde_json::from_slice(&text)
                    .map_err(|_| BadArchive::Refused("its signature is damaged".to_owned()))?,
            ),
        };
        Ok(Received { metadata, manifest, digests, signature })
    }

    /// Returns the error for an archive that ends early. The message says where the archive ends: "in" or "after"
    /// (`place`) the entry that was read last.
    fn truncated(&self, place: &str) -> BadArchive {
        let (bytes, place) = (self.position.bytes(), self.place(place));
        BadArchive::Refused(format!("it is incomplete: it ends at byte {bytes}{place}"))
    }

    /// Converts an error of a read. If the archive ends early or has a damaged header, the result is
    /// [`BadArchive::Refused`].
    fn unreadable(&self, error: io::Error) -> BadArchive {
        if error.raw_os_error().is_some() {
            return BadArchive::Unreadable(error);
        }
        if self.position.has_ended() {
            return self.truncated("after");
        }
        if error.get_ref().is_some_and(|error| error.is::<BadMember>()) {
            return BadArchive::Refused(format!("it is damaged: {error}"));
        }
        // The library for archives does not report the position of a header.
        let header = self.position.bytes().saturating_sub(HEADER);
        let place = self.place("after");
        BadArchive::Refused(format!("it is damaged: no valid header is at byte {header}{place}"))
    }

    fn place(&self, place: &str) -> String {
        self.last.as_ref().map(|name| format!(", {place} its entry {name}")).unwrap_or_default()
    }
}
