//! Reads and writes references in the format `reftable` (gitformat-reftable(5)), as data.
//!
//! ```text
//!  reftable/tables.list   the names of the tables, the oldest first
//!  reftable/0x…-0x….ref   one table: sorted references. A newer table overrides older tables
//! ```
//! A change adds a table by git's protocol: it creates `tables.list.lock`, writes the table, and renames the lock file
//! to `tables.list`.
//! - `table`: parses and writes the bytes of one table

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use crate::directory::{Directory, ReadError};
use crate::id::ObjectId;
use crate::ref_error::RefError;

pub mod table;

use table::{Change, Limits, Table};

/// The name of the directory with the tables.
pub const DIRECTORY: &str = "reftable";

/// The name of the file with the list of the tables.
const LIST: &str = "tables.list";

/// The name of the lock file, which exists while git or this program changes the list.
const LOCK: &str = "tables.list.lock";

/// The maximum length of the list in bytes: about 5,000 tables. Git merges tables, so a repository usually has only a
/// few.
const MAX_LIST: u64 = 256 << 10;

/// The maximum length of the tables of one directory in bytes: about three million references.
const MAX_TABLES: u64 = 256 << 20;

/// The maximum number of attempts to read the tables. A retry is needed if git merges tables at the same time.
const ATTEMPTS: usize = 5;

/// The value of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The reference contains the id of this object.
    Id(ObjectId),
    /// The reference points to the reference with this name.
    Reference(Vec<u8>),
}

/// The references in the tables of a git directory.
#[derive(Debug)]
pub struct Stack {
    /// The references by their full names.
    pub references: BTreeMap<Vec<u8>, Value>,
    /// The content of the list of the tables.
    list: Vec<u8>,
    /// The number of the last change, which is part of the tables.
    last_update: u64,
}

impl Stack {
    /// Reads the tables of a git directory. If the directory for tables does not exist, there are no references.
    ///
    /// # Errors
    /// Returns [`RefError::Read`], [`RefError::Malformed`] or [`RefError::TooMany`].
    pub fn read(git: &Directory) -> Result<Self, RefError> {
        let unread = |error| ReadError::System { path: git.path().join(DIRECTORY), error };
        match git.directory(Path::new(DIRECTORY)).map_err(unread)? {
            Some(tables) => Self::of(&tables),
            None => Ok(Self::empty(Vec::new())),
        }
    }

    fn of(tables: &Directory) -> Result<Self, RefError> {
        let mut attempt = 1;
        loop {
            let list = tables.read(Path::new(LIST), MAX_LIST)?.unwrap_or_default();
            match Self::of_list(tables, list)? {
                Some(stack) => return Ok(stack),
                None if attempt < ATTEMPTS => attempt += 1,
                None => return Err(RefError::Malformed(tables.path().join(LIST))),
            }
        }
    }

    fn empty(list: Vec<u8>) -> Self {
        Self { references: BTreeMap::new(), list, last_update: 0 }
    }

    /// Reads the tables in this list. `None` if a table is missing.
    fn of_list(tables: &Directory, list: Vec<u8>) -> Result<Option<Self>, RefError> {
        let names: Vec<OsString> = list
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| OsString::from_vec(line.to_vec()))
            .collect();
        let mut stack = Self::empty(list);
        let (mut left, mut limits) = (MAX_TABLES, Limits::default());
        for name in names {
            let path = || tables.path().join(&name);
            let is_name = Path::new(&name).file_name() == Some(&name);
            let bytes = match is_name {
                true => tables.read(Path::new(&name), left)?,
                false => return Err(RefError::Malformed(tables.path().join(LIST))),
            };
            let Some(bytes) = bytes else { return Ok(None) };
            left -= bytes.len() as u64;
            let table = Table::parse(&bytes).ok_or_else(|| RefError::Malformed(path()))?;
            let each = |name: &[u8], value: Option<Value>| {
                let _ = match value {
                    Some(value) => stack.references.insert(name.to_vec(), value),
                    None => stack.references.remove(name),
                };
            };
            match table.references(&mut limits, each) {
                Some(()) => {}
                None if limits.are_exceeded() => return Err(RefError::TooMany(path())),
                None => return Err(RefError::Malformed(path())),
            }
            stack.last_update = stack.last_update.max(table.last_update);
        }
        Ok(Some(stack))
    }

    /// Returns the value of the reference with this full name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.references.get(name.as_bytes())
    }

    /// Finds a reference whose name conflicts with this name: one of the two names, plus a slash, is a prefix of the
    /// other name.
    pub(crate) fn conflict(&self, name: &str) -> Option<String> {
        let above = name.match_indices('/').map(|(at, _)| &name[..at]);
        let above = above.filter(|above| self.get(above).is_some()).map(str::to_owned).next();
        let below = format!("{name}/").into_bytes();
        let first = self.references.range(below.clone()..).next().map(|(other, _)| other);
        let first = first.filter(|other| other.starts_with(&below));
        above.or_else(|| first.map(|other| String::from_utf8_lossy(other).into_owned()))
    }
}

/// A locked directory of tables. No git process changes the tables while this value exists.
pub(crate) struct Locked<'a> {
    tables: &'a Directory,
    lock: crate::write::NewFile<'a>,
    pub(crate) stack: Stack,
}

impl<'a> Locked<'a> {
    /// Locks the tables in this directory, and then reads them.
    ///
    /// # Errors
    /// Returns [`RefError::Locked`], or fails in the same cases as [`Stack::read`].
    pub(crate) fn new(tables: &'a Directory) -> Result<Self, RefError> {
        let lock = tables.create(OsStr::new(LOCK), 0o666).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RefError::Locked(tables.path().join(LOCK)),
            _ => RefError::Write { path: tables.path().join(LOCK), error },
        })?;
        Ok(Self { tables, lock, stack: Stack::of(tables)? })
    }

    /// Adds a table with this change.
    ///
    /// # Errors
    /// Returns [`RefError::Write`].
    pub(crate) fn append(self, change: &Change<'_>) -> Result<(), RefError> {
        let update = self.stack.last_update.saturating_add(1);
        let path = self.tables.path().to_owned();
        let failed = |error| RefError::Write { path: path.clone(), error };
        let bytes = table::write(change, update).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        // The last part of the name is random, as in git, because another process can still be reading an older table
        // with the same number.
        let random = RandomState::new().hash_one(update) & 0xffff_ffff;
        let name = format!("0x{update:012x}-0x{update:012x}-{random:08x}.ref");
        let temporary = format!("{name}.lock");
        let mut file = self.tables.create(OsStr::new(&temporary), 0o666).map_err(failed)?;
        file.write(&bytes).and_then(|()| file.rename(OsStr::new(&name))).map_err(failed)?;
        let Self { mut lock, stack, .. } = self;
        let list = [&stack.list, name.as_bytes(), b"\n"].concat();
        lock.write(&list).and_then(|()| lock.rename(OsStr::new(LIST))).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
