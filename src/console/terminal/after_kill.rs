//! Restores a terminal whose previous command was killed before it could restore the terminal.
//!
//! After SIGKILL a process cannot clean up. A shell restores at most the line discipline, so mouse reports, a
//! hidden cursor and the alternate screen remain. Therefore a command that takes over a terminal writes a
//! mark file, and removes it when it has restored the terminal. The next command on this terminal that finds
//! the mark file of a dead process restores the terminal.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bottle_host::files;
use bottle_host::process::ProcessId;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, tcgetattr, tcgetpgrp, tcsetattr,
};

use super::modes::EVERYTHING;
use super::raw::RESET_BACKGROUND;

/// The directory of the mark files. Without a runtime directory there are no mark files.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// The text at the end of the mark file if the terminal's background is tinted.
const TINTED: &str = " tinted";

/// The maximum length of a mark file, in bytes.
const MARK_MAX: u64 = 64;

/// The mark file of a terminal that is taken over. Dropping the value removes the file.
#[derive(Debug)]
pub(super) struct Mark(PathBuf);

impl Mark {
    /// Marks this terminal as taken over by this process. Failures are ignored, because the mark matters only
    /// after a kill.
    pub(super) fn set(terminal: &File) -> Option<Self> {
        let directory = DIRECTORY.get()?;
        let path = path(directory, terminal).ok()?;
        let own = ProcessId::own().ok()?;
        files::create_private_directory(directory).ok()?;
        files::replace(&path, |mark| write!(mark, "{own}")).ok()?;
        Some(Self(path))
    }

    /// Records in the mark file that the background of the terminal is tinted.
    pub(super) fn note_tint(&self) {
        let appended = fs::OpenOptions::new().append(true).open(&self.0);
        // If this write fails, the next command after a kill does not remove the tint.
        let _ = appended.and_then(|mut mark| mark.write_all(TINTED.as_bytes()));
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Restores the terminal if a command on it was killed, and sets the directory for mark files. `runtime` is the runtime
/// directory for this home. The directory may not exist.
pub(crate) fn restore_after_kill(runtime: &Path) {
    let directory = DIRECTORY.get_or_init(|| runtime.join(".terminals"));
    if let Some((path, tinted)) = stale_mark(directory) {
        // The mark is removed even if the restoration fails, because the next attempt would fail too.
        let _ = fs::remove_file(path);
        let _ = io::stderr().write_all(EVERYTHING);
        // The background is reset only if it is tinted, because otherwise the user may have set it.
        if tinted {
            let _ = io::stderr().write_all(RESET_BACKGROUND);
        }
        let _ = restore_line_modes();
    }
}

/// Finds a dead process's mark file for the terminal on standard error, and whether the terminal is tinted.
fn stale_mark(directory: &Path) -> Option<(PathBuf, bool)> {
    let path = path(directory, &io::stderr()).ok()?;
    let mut mark = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(&path).ok()?, MARK_MAX), &mut mark).ok()?;
    let owner = mark.strip_suffix(TINTED);
    let is_alive = owner.unwrap_or(&mark).parse::<ProcessId>().is_ok_and(ProcessId::is_alive);
    // A process in the background must not change the terminal.
    let ours = tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp());
    (!is_alive && ours).then_some((path, owner.is_some()))
}

/// Returns the path of the mark file. The file is named after the terminal's device, so that all descriptors of a
/// terminal give the same path.
fn path(directory: &Path, terminal: &impl AsFd) -> io::Result<PathBuf> {
    if !rustix::termios::isatty(terminal) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(directory.join(format!("{:x}", rustix::fs::fstat(terminal)?.st_rdev)))
}

/// Restores line editing, echo and signals, if the shell has not done so.
fn restore_line_modes() -> io::Result<()> {
    let mut modes = tcgetattr(io::stderr())?;
    modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
    modes.input_modes |= InputModes::ICRNL | InputModes::IXON | InputModes::BRKINT;
    modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
    Ok(tcsetattr(io::stderr(), OptionalActions::Now, &modes)?)
}
