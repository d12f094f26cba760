//! Restores a terminal whose previous command was killed before it could restore it.
//!
//! SIGKILL prevents any cleanup, and a shell restores at most the line discipline: mouse reports, a hidden cursor
//! and the alternate screen remain. So a command that takes over a terminal writes a mark file meanwhile. The next
//! command on that terminal that finds a dead process's mark restores everything.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, tcgetattr, tcgetpgrp, tcsetattr,
};

use super::modes::EVERYTHING;
use crate::host::process::ProcessId;

/// The folder of the mark files; without a runtime folder there are none.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The longest mark file, in bytes.
const MARK_MAX: u64 = 64;

/// A terminal that is taken over, until dropped.
#[derive(Debug)]
pub(super) struct Mark(PathBuf);

impl Mark {
    /// Marks this terminal as taken over by this process. Ignores failures: the mark matters only after a kill.
    pub(super) fn set(terminal: &File) -> Option<Self> {
        let folder = FOLDER.get()?;
        let path = path(folder, terminal).ok()?;
        let own = ProcessId::own().ok()?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        fs::write(&path, own.to_string()).ok()?;
        Some(Self(path))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Restores the terminal after a killed command, and sets the folder for marks. `runtime` is the runtime folder of
/// this home; it may not exist.
pub(crate) fn restore_after_kill(runtime: &Path) {
    let folder = FOLDER.get_or_init(|| runtime.join(".terminals"));
    if let Some(path) = stale_mark(folder) {
        // A failure now would repeat next time, so the mark is removed first.
        let _ = fs::remove_file(path);
        let _ = io::stderr().write_all(EVERYTHING);
        let _ = restore_line_modes();
    }
}

/// Finds a dead process's mark for the terminal on standard error.
fn stale_mark(folder: &Path) -> Option<PathBuf> {
    let path = path(folder, &io::stderr()).ok()?;
    let mut mark = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(&path).ok()?, MARK_MAX), &mut mark).ok()?;
    let is_alive = mark.parse::<ProcessId>().is_ok_and(ProcessId::is_alive);
    // A background process must not change the terminal.
    let ours = tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp());
    (!is_alive && ours).then_some(path)
}

/// The terminal's device names the file, so that every descriptor of it maps to the same file.
fn path(folder: &Path, terminal: &impl AsFd) -> io::Result<PathBuf> {
    if !rustix::termios::isatty(terminal) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(folder.join(format!("{:x}", rustix::fs::fstat(terminal)?.st_rdev)))
}

/// Restores line editing, echo and signals, if the shell has not.
fn restore_line_modes() -> io::Result<()> {
    let mut modes = tcgetattr(io::stderr())?;
    modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
    modes.input_modes |= InputModes::ICRNL | InputModes::IXON | InputModes::BRKINT;
    modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
    Ok(tcsetattr(io::stderr(), OptionalActions::Now, &modes)?)
}
