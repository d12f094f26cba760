//! The entries of reflogs.

use crate::ident;

/// An entry of a reflog.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'a> {
    /// The name of the user who changes the reference.
    pub name: &'a str,
    /// The address of the user who changes it.
    pub email: &'a str,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// The reason of the change. Line feeds become spaces.
    pub message: &'a str,
}

/// An entry as git writes it, without characters that the reflog format does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanEntry {
    /// The name of the user who changes the reference.
    pub name: String,
    /// The address of the user who changes it.
    pub email: String,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// The reason of the change, with a line feed only at its end.
    pub message: String,
}

impl LogEntry<'_> {
    /// The entry without control characters, and without characters that would end a name or an address.
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
