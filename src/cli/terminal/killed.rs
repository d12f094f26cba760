//! A terminal whose command was killed before it could give it back.
//!
//! `kill -9` leaves no time for anything, and a shell puts right at most the line discipline: the mouse stays
//! reported, the cursor hidden, the alternate screen shown. So whoever takes a terminal over leaves a mark while it
//! has it, and the next command on the same terminal that finds the mark of a dead process puts everything right.

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

/// Where marks lie; unknown where there is no runtime folder, and then nothing is marked.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The longest mark.
const MARK_MAX: u64 = 64;

/// A terminal that is taken, until dropped.
#[derive(Debug)]
pub(super) struct Mark(PathBuf);

impl Mark {
    /// Marks this terminal as taken by this process. Without a place to do so it is not marked: what it is for
    /// should never happen.
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

/// Puts right what a killed command left on this terminal, and remembers where the next one leaves its mark.
/// `runtime` is this home's folder in memory; it need not exist.
pub(crate) fn put_right(runtime: &Path) {
    let folder = FOLDER.get_or_init(|| runtime.join(".terminals"));
    if let Some(path) = left_behind(folder) {
        // What cannot be put right now would not be next time either.
        let _ = fs::remove_file(path);
        let _ = io::stderr().write_all(EVERYTHING);
        let _ = lines_again();
    }
}

/// The mark of a dead process on the terminal we are to write to.
fn left_behind(folder: &Path) -> Option<PathBuf> {
    let path = path(folder, &io::stderr()).ok()?;
    let mut mark = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(&path).ok()?, MARK_MAX), &mut mark).ok()?;
    let is_alive = mark.parse::<ProcessId>().is_ok_and(ProcessId::is_alive);
    // In the background nothing of the terminal is ours.
    let ours = tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp());
    (!is_alive && ours).then_some(path)
}

/// Its name is the terminal's device, so that any descriptor of it leads there.
fn path(folder: &Path, terminal: &impl AsFd) -> io::Result<PathBuf> {
    if !rustix::termios::isatty(terminal) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(folder.join(format!("{:x}", rustix::fs::fstat(terminal)?.st_rdev)))
}

/// Lines, echo and signals, where the shell has not seen to it.
fn lines_again() -> io::Result<()> {
    let mut modes = tcgetattr(io::stderr())?;
    modes.local_modes |= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
    modes.input_modes |= InputModes::ICRNL | InputModes::IXON | InputModes::BRKINT;
    modes.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
    Ok(tcsetattr(io::stderr(), OptionalActions::Now, &modes)?)
}
