//! The entries of reflogs.

use crate::ident;

/// An entry of a reflog.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'a> {
    /// The name of who changes the reference.
    pub name: &'a str,
    /// The address of who changes it.
    pub email: &'a str,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// Why. Line feeds become spaces.
    pub message: &'a str,
}

/// An entry as git writes it: without what the formats of reflogs cannot hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanEntry {
    /// The name of who changes the reference.
    pub name: String,
    /// The address of who changes it.
    pub email: String,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// Why, with a line feed at its end and no other.
    pub message: String,
}

impl LogEntry<'_> {
    /// The entry without control characters, and without what ends a name or an address.
    #[must_use]
    pub fn clean(self) -> CleanEntry {
        CleanEntry {
            name: ident::clean(self.name),
            email: ident::clean(self.email),
            seconds: self.seconds,
            message: ident::one_line(self.message) + "\n",
        }
    }
}
