//! Lists the files that a confined process can still access.

use std::path::PathBuf;

/// The files that remain accessible after [`Self::restrict`]. Access to all other files is denied. Binding TCP ports is
/// denied too, unless [`Self::bind_tcp`] is set. File descriptors that are already open remain usable.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Files or directory trees that may be read. Paths that do not exist are ignored.
    pub read: Vec<PathBuf>,
    /// Directory trees whose files may be read and executed. Paths that do not exist are ignored.
    pub programs: Vec<PathBuf>,
    /// Files or directory trees to which all access is allowed.
    pub trees: Vec<PathBuf>,
    /// Directory trees in which files may be read, written, created and removed.
    pub write: Vec<PathBuf>,
    /// Directory trees in which unix sockets may be created and any files removed.
    pub sockets: Vec<PathBuf>,
    /// Whether the process may bind TCP ports.
    pub bind_tcp: bool,
    /// Whether the process may send signals to processes outside of its Landlock domain.
    pub signal_others: bool,
}
