//! Finds what a home's bottles left behind, without using the program under test.

use std::fs;
use std::path::{Path, PathBuf};

use bottle_host::home_hash;
use bottle_test_support::home::TestHome;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// The processes and files that a home's bottles left behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    processes: Vec<String>,
    runtime: Vec<PathBuf>,
    state: Vec<PathBuf>,
}

impl Left {
    /// Searches for processes of this home, and for files in its runtime directory and state.
    pub(crate) fn of(home: &TestHome) -> Self {
        let runtime = home.runtime().join("bottle").join(home_hash(&home.bottle_home()));
        Self {
            processes: processes(home).into_iter().map(|found| found.command).collect(),
            // The linux backend's check cache belongs to no bottle.
            runtime: files_under(&runtime)
                .into_iter()
                .filter(|path| !path.ends_with(".linux-worked"))
                .collect(),
            state: entries(&home.bottle_home().join("state")),
        }
    }

    /// Returns these leftovers without those of one bottle.
    pub(crate) fn but_for(mut self, slug: &str) -> Self {
        let apart = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        let other = |text: &str| !text.split(apart).any(|word| word == slug);
        self.processes.retain(|command| other(command));
        self.runtime.retain(|path| other(&path.to_string_lossy()));
        self.state.retain(|path| other(&path.to_string_lossy()));
        self
    }

    /// Whether only the state directory of this bottle is left, without the bottle's files.
    pub(crate) fn is_only_state_of(&self, slug: &str) -> bool {
        let Self { processes, runtime, state } = self;
        let [own] = &state[..] else { return false };
        let layers = entries(own).into_iter().any(|path| path.is_dir() && path.join("workspace").exists());
        processes.is_empty() && runtime.is_empty() && own.ends_with(slug) && !layers
    }
}

/// A process of a home.
pub(crate) struct Found {
    pid: Pid,
    command: String,
}

impl Found {
    /// Whether a file in the process's `/proc` directory contains this text. Any white space separates words.
    pub(crate) fn says(&self, file: &str, text: &str) -> bool {
        let path = format!("/proc/{}/{file}", self.pid.as_raw_nonzero());
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        fs::read_to_string(path).is_ok_and(|content| words(&content).contains(text))
    }

    /// Whether the process belongs to this bottle.
    pub(crate) fn is_of(&self, slug: &str) -> bool {
        self.command.split(' ').any(|word| word == slug)
    }

    /// Kills the process with SIGKILL, as the OOM killer does.
    pub(crate) fn kill(&self) {
        let killed = kill_process(self.pid, Signal::KILL);
        // The process may have exited in the meantime.
        assert!(matches!(killed, Ok(()) | Err(Errno::SRCH)), "{killed:?}: {}", self.command);
    }
}

/// One process of this home that has this role, if there is any.
pub(crate) fn process_with(home: &TestHome, role: &str) -> Option<Found> {
    all_with(home, role).pop()
}

/// Every process of this home that has this role.
pub(crate) fn all_with(home: &TestHome, role: &str) -> Vec<Found> {
    let mut all = processes(home);
    all.retain(|found| found.command.split(' ').any(|word| word == role));
    all
}

/// Every process whose command line contains the home's label, except zombies.
fn processes(home: &TestHome) -> Vec<Found> {
    let hash = home_hash(&home.bottle_home());
    let entries = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let ours = command.contains(&hash) && command.contains(" __");
            ours.then_some(Found { pid, command })
        })
        .collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

/// Lists files and sockets at any depth. A directory without files and sockets is not listed, because all bottles share
/// such directories.
fn files_under(directory: &Path) -> Vec<PathBuf> {
    let of_entry = |path: PathBuf| if path.is_dir() { files_under(&path) } else { vec![path] };
    entries(directory).into_iter().flat_map(of_entry).collect()
}
