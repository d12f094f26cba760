//! The entries of reflogs.

use crate::ident;

/// An entry of a reflog.
#[derive(Debug, Clone, Copy)]
pub struct LogEntry<'a> {
    /// The name of the user who changes the reference.
    pub name: &'a str,
    /// The email address of the user who changes the reference.
    pub email: &'a str,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// The reason for the change. Line feeds are replaced by spaces.
    pub message: &'a str,
}

/// An entry of a reflog without characters that the reflog format does not allow, as git writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanEntry {
    /// The name of the user who changes the reference.
    pub name: String,
    /// The email address of the user who changes the reference.
    pub email: String,
    /// The time in seconds since 1970.
    pub seconds: u64,
    /// The reason for the change, with a line feed only at its end.
    pub message: String,
}

impl LogEntry<'_> {
    /// Removes control characters, and the characters that would end a name or an email address.
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
