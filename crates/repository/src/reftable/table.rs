//! The bytes of one table of references (gitformat-reftable(5), versions 1 and 2).
//!
//! ```text
//!  header │ blocks of references │ blocks of objects, of logs and of indexes, which are not read │ footer
//! ```
//! A block contains records, sorted by name. A record contains the length of the prefix that its name shares with the
//! previous name, and the rest of the name.

use std::io::Write;

use bottle_pack_check::ObjectFormat;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

use super::Value;
use crate::id::ObjectId;
use crate::reflog::CleanEntry;

/// The first bytes of a table and of its footer.
const MAGIC: &[u8; 4] = b"REFT";

/// The kinds of blocks: references, and reflogs.
const REFERENCES: u8 = b'r';
const LOGS: u8 = b'g';

/// The kinds of values of a reference.
const DELETED: u64 = 0;
const ID: u64 = 1;
const ID_AND_PEELED: u64 = 2;
const SYMBOLIC: u64 = 3;

/// The length in bytes of a block that is written.
const BLOCK: usize = 4096;

/// The maximum length of a reference's name in bytes, which is the maximum length of a path.
const MAX_NAME: usize = 4096;

/// The maximum number of references in the tables of a repository, including deleted references.
const MAX_REFERENCES: usize = 1_000_000;

/// The maximum total length of the names of all references in bytes. It is needed because the names in a table are
/// compressed.
const MAX_NAMES: usize = 256 << 20;

/// The remaining limits while the tables of a repository are read.
#[derive(Debug, Clone)]
pub struct Limits {
    references: usize,
    names: usize,
    exceeded: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { references: MAX_REFERENCES, names: MAX_NAMES, exceeded: false }
    }
}

impl Limits {
    /// Whether references were not read because of these limits.
    #[must_use]
    pub fn are_exceeded(&self) -> bool {
        self.exceeded
    }

    fn take(&mut self, name: usize) -> Option<()> {
        let left = (self.references.checked_sub(1), self.names.checked_sub(name));
        let (Some(references), Some(names)) = left else {
            self.exceeded = true;
            return None;
        };
        (self.references, self.names) = (references, names);
        Some(())
    }
}

/// A table of references.
#[derive(Debug)]
pub struct Table<'a> {
    /// The header and all blocks, without the footer.
    bytes: &'a [u8],
    header: usize,
    /// The length of a block in bytes. Zero if the blocks have no padding.
    block: usize,
    /// The hash function of the ids in the table.
    pub format: ObjectFormat,
    /// The number of the last change in the table.
    pub last_update: u64,
}

impl<'a> Table<'a> {
    /// Parses the header and the footer of a table. `None` if one of them is malformed.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut start = Bytes(bytes);
        (start.take(4)? == MAGIC).then_some(())?;
        let version = start.number(1)?;
        let block = usize::try_from(start.number(3)?).ok()?;
        let (_first_update, last_update) = (start.number(8)?, start.number(8)?);
        let (header, format) = match version {
            1 => (24, ObjectFormat::Sha1),
            2 => match start.take(4)? {
                b"sha1" => (28, ObjectFormat::Sha1),
                b"s256" => (28, ObjectFormat::Sha256),
                _ => return None,
            },
            _ => return None,
        };
        // The footer consists of the header, five positions and a checksum.
        let end = bytes.len().checked_sub(header + 5 * 8 + 4)?;
        let (footer, sum) = bytes.get(end..)?.split_at_checked(header + 5 * 8)?;
        let is_whole = end >= header && footer.starts_with(&bytes[..header]) && sum == checksum(footer);
        is_whole.then_some(Self { bytes: &bytes[..end], header, block, format, last_update })
    }

    /// Calls `each` with each reference, sorted by name. The value of a deleted reference is `None`. Returns `None` if
    /// a block is malformed or exceeds `limits`.
    #[must_use]
    pub fn references(&self, limits: &mut Limits, mut each: impl FnMut(&[u8], Option<Value>)) -> Option<()> {
        let mut at = 0;
        while let Some(rest) = self.bytes.get(at..).filter(|rest| !rest.is_empty()) {
            // The first block begins with the header of the table.
            let begin = if at == 0 { self.header } else { 0 };
            if rest.get(begin) != Some(&REFERENCES) {
                return Some(());
            }
            let length = usize::try_from(Bytes(rest.get(begin + 1..)?).number(3)?).ok()?;
            self.block(rest.get(..length)?.get(begin + 4..)?, limits, &mut each)?;
            at += match rest.get(length) {
                // The block is followed by padding, unless the next block begins directly.
                Some(0) if length < self.block => self.block,
                _ => length,
            };
        }
        Some(())
    }

    /// Reads the records of a block. The restart points of the block come after the records.
    fn block(
        &self,
        bytes: &[u8],
        limits: &mut Limits,
        each: &mut impl FnMut(&[u8], Option<Value>),
    ) -> Option<()> {
        let (rest, count) = bytes.split_at_checked(bytes.len().checked_sub(2)?)?;
        let restarts = usize::try_from(Bytes(count).number(2)?).ok()?;
        let mut records = Bytes(rest.get(..rest.len().checked_sub(3 * restarts)?)?);
        let mut name = Vec::new();
        while !records.0.is_empty() {
            let shared = usize::try_from(records.varint()?).ok()?;
            let length_and_kind = records.varint()?;
            let rest = records.take(usize::try_from(length_and_kind >> 3).ok()?)?;
            (shared <= name.len() && shared + rest.len() <= MAX_NAME).then_some(())?;
            name.truncate(shared);
            name.extend_from_slice(rest);
            limits.take(name.len())?;
            let _update = records.varint()?;
            let value = match length_and_kind & 7 {
                DELETED => None,
                ID => Some(Value::Id(self.id(&mut records)?)),
                ID_AND_PEELED => {
                    let id = self.id(&mut records)?;
                    let _peeled = self.id(&mut records)?;
                    Some(Value::Id(id))
                }
                SYMBOLIC => {
                    let length =
                        usize::try_from(records.varint()?).ok().filter(|length| *length <= MAX_NAME)?;
                    Some(Value::Reference(records.take(length)?.to_vec()))
                }
                _ => return None,
            };
            each(&name, value);
        }
        Some(())
    }

    fn id(&self, records: &mut Bytes<'_>) -> Option<ObjectId> {
        Some(ObjectId::from_binary(records.take(id_length(self.format))?))
    }
}

/// A change of one reference.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The full name of the reference.
    pub name: &'a str,
    /// The object of the reference before the change. `None` if the reference is new.
    pub before: Option<&'a ObjectId>,
    /// The object of the reference after the change.
    pub after: &'a ObjectId,
    /// The new entry of the reference's reflog.
    pub log: Option<&'a CleanEntry>,
}

/// Writes a table with one change. `update` is the number of the change. `None` if the name or the log entry does not
/// fit into a block.
#[must_use]
pub fn write(change: &Change<'_>, update: u64) -> Option<Vec<u8>> {
    let format = change.after.format();
    let mut table = header(format, update);
    let begin = table.len();
    let mut record = varint(0);
    record.extend(varint((change.name.len() as u64) << 3 | ID));
    record.extend(change.name.as_bytes());
    record.extend(varint(0));
    record.extend(change.after.to_binary());
    table.extend(block(REFERENCES, begin, &record)?);
    let mut logs = 0;
    if let Some(log) = change.log {
        logs = table.len() as u64;
        // The length in a block is the length of its content before the compression.
        let block = block(LOGS, 0, &log_record(change, log, update))?;
        let (kind_and_length, content) = block.split_at(4);
        table.extend(kind_and_length);
        let mut compressed = ZlibEncoder::new(Vec::new(), Compression::default());
        compressed.write_all(content).ok()?;
        table.extend(compressed.finish().ok()?);
    }
    let mut footer = header(format, update);
    // The five positions: the indexes and the objects, which a table of this size does not have, and the logs.
    for position in [0, 0, 0, logs, 0] {
        footer.extend(position.to_be_bytes());
    }
    footer.extend(checksum(&footer));
    table.extend(footer);
    Some(table)
}

fn header(format: ObjectFormat, update: u64) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.push(if format == ObjectFormat::Sha1 { 1 } else { 2 });
    header.extend(three_bytes(BLOCK));
    header.extend(update.to_be_bytes());
    header.extend(update.to_be_bytes());
    if format == ObjectFormat::Sha256 {
        header.extend(b"s256");
    }
    header
}

/// Writes a block with one record. `begin` is the number of bytes before the block that belong to it.
fn block(kind: u8, begin: usize, record: &[u8]) -> Option<Vec<u8>> {
    let restart = begin + 4;
    let length = restart + record.len() + 3 + 2;
    if length > BLOCK {
        return None;
    }
    let mut block = vec![kind];
    block.extend(three_bytes(length));
    block.extend(record);
    block.extend(three_bytes(restart));
    block.extend(1_u16.to_be_bytes());
    Some(block)
}

/// Writes the record of a log entry. In a table, the newest entries of a log come first, so the number of the change is
/// stored inverted.
fn log_record(change: &Change<'_>, log: &CleanEntry, update: u64) -> Vec<u8> {
    const ENTRY: u64 = 1;
    let none = vec![0; id_length(change.after.format())];
    let mut record = varint(0);
    record.extend(varint((change.name.len() as u64 + 1 + 8) << 3 | ENTRY));
    record.extend(change.name.as_bytes());
    record.push(0);
    record.extend((u64::MAX - update).to_be_bytes());
    record.extend(change.before.map_or(none, ObjectId::to_binary));
    record.extend(change.after.to_binary());
    for text in [&log.name, &log.email] {
        record.extend(varint(text.len() as u64));
        record.extend(text.as_bytes());
    }
    record.extend(varint(log.seconds));
    record.extend(0_i16.to_be_bytes());
    record.extend(varint(log.message.len() as u64));
    record.extend(log.message.as_bytes());
    record
}

fn id_length(format: ObjectFormat) -> usize {
    match format {
        ObjectFormat::Sha1 => 20,
        ObjectFormat::Sha256 => 32,
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let mut sum = Crc::new();
    sum.update(bytes);
    sum.sum().to_be_bytes()
}

#[allow(clippy::cast_possible_truncation, reason = "the length of a block has 13 bits")]
fn three_bytes(number: usize) -> [u8; 3] {
    let [_, bytes @ ..] = (number as u32).to_be_bytes();
    bytes
}

/// Encodes a number as in pack files: each byte has seven bits, and each byte except the last stores its value minus
/// one.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![(number & 0x7f) as u8];
    while number > 0x7f {
        number = (number >> 7) - 1;
        bytes.push(0x80 | (number & 0x7f) as u8);
    }
    bytes.reverse();
    bytes
}

/// The bytes that were not parsed yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Parses a number of up to eight bytes, whose most significant byte comes first.
    fn number(&mut self, count: usize) -> Option<u64> {
        Some(self.take(count)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut byte = self.number(1)?;
        let mut number = byte & 0x7f;
        while byte & 0x80 != 0 {
            byte = self.number(1)?;
            number = number.checked_add(1)?.checked_mul(0x80)? | byte & 0x7f;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reflog::LogEntry;

    const ONE: &str = "0123456789abcdef0123456789abcdef01234567";
    const TWO: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    fn read(bytes: &[u8]) -> Option<Vec<(String, Option<Value>)>> {
        let mut found = Vec::new();
        let each = |name: &[u8], value| found.push((String::from_utf8_lossy(name).into_owned(), value));
        Table::parse(bytes)?.references(&mut Limits::default(), each)?;
        Some(found)
    }

    #[test]
    fn reads_what_it_writes() {
        for id in [ONE, TWO] {
            let after = ObjectId::parse(id).expect("an id");
            let log = LogEntry { name: "a", email: "b", seconds: 7, message: "c" }.clean();
            for log in [None, Some(&log)] {
                let change = Change { name: "refs/heads/main", before: None, after: &after, log };
                let bytes = write(&change, 300).expect("written");
                let expected = vec![("refs/heads/main".to_owned(), Some(Value::Id(after.clone())))];
                assert_eq!(read(&bytes), Some(expected));
                let table = Table::parse(&bytes).expect("parsed");
                assert_eq!((table.format, table.last_update), (after.format(), 300));
            }
        }
        let after = ObjectId::parse(ONE).expect("an id");
        let name = format!("refs/heads/{}", "x".repeat(BLOCK));
        assert!(write(&Change { name: &name, before: None, after: &after, log: None }, 1).is_none());
    }

    #[test]
    fn numbers_have_the_encoding_of_packs() {
        for (number, bytes) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0x80, 0]),
            (16_511, &[0xff, 0x7f]),
            (16_512, &[0x80, 0x80, 0]),
        ] {
            assert_eq!(varint(number), bytes);
            assert_eq!(Bytes(bytes).varint(), Some(number));
        }
        assert_eq!(Bytes(&[0xff; 12]).varint(), None, "too large");
        assert_eq!(Bytes(&[0x80]).varint(), None, "cut off");
    }

    /// If any byte of a table is changed, or the table is truncated at any position, parsing it returns no wrong
    /// references and does not panic.
    #[test]
    fn a_damaged_table_is_refused() {
        let after = ObjectId::parse(ONE).expect("an id");
        let change = Change { name: "refs/heads/main", before: None, after: &after, log: None };
        let whole = write(&change, 1).expect("written");
        (0..whole.len()).for_each(|end| assert_eq!(read(&whole[..end]), None, "{end}"));
        let footer = whole.len() - 68;
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                let found = read(&bytes);
                // Between the header and the footer, only the ids, the names and the numbers of the blocks are not
                // covered by a checksum.
                assert!((24..footer).contains(&at) || found.is_none(), "{at}: {found:?}");
            }
        }
    }

    #[test]
    fn limits_what_is_read() {
        let after = ObjectId::parse(ONE).expect("an id");
        let change = Change { name: "refs/heads/main", before: None, after: &after, log: None };
        let bytes = write(&change, 1).expect("written");
        let table = Table::parse(&bytes).expect("parsed");
        for (references, names, is_read) in [(1, 15, true), (0, 15, false), (1, 14, false)] {
            let mut limits = Limits { references, names, exceeded: false };
            assert_eq!(table.references(&mut limits, |_, _| ()).is_some(), is_read);
            assert_eq!(limits.are_exceeded(), !is_read);
        }
    }
}
