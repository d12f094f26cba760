//! Measures the disk space of a bottle's layers. The agent controls the content of the layers and may change it during
//! the measurement. The measurement therefore follows no links, and its depth, number of entries and time are limited.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::layers::Layers;

/// The maximum duration of a measurement.
const TIME: Duration = Duration::from_secs(10);

/// The maximum number of entries that are measured.
const ENTRIES: u64 = 5_000_000;

/// The maximum depth of directories. Each level needs an open descriptor. Deeper directories are skipped and add
/// nothing to the size.
const DEPTH: usize = 128;

/// Returns the size of the layers in bytes. Returns `None` if there are no layers or a limit was reached. The size
/// excludes git objects that the bottle shares with a repository of the host.
///
/// # Errors
/// When the top directories cannot be read. An unreadable subdirectory is skipped and adds nothing to the size.
pub(super) fn of_layers(layers: &Layers) -> io::Result<Option<u64>> {
    let Some(kind) = layers.kind() else { return Ok(None) };
    let mut measured = Measurement { until: Instant::now() + TIME, entries: 0, bytes: 0 };
    for tree in kind.trees() {
        if !measured.add_tree(&layers.directory().join(tree))? {
            return Ok(None);
        }
    }
    Ok(Some(measured.bytes))
}

struct Measurement {
    until: Instant,
    entries: u64,
    bytes: u64,
}

/// A directory that was opened, and its subdirectories that are not measured yet.
struct Open {
    directory: OwnedFd,
    directories: Vec<CString>,
}

impl Measurement {
    /// Adds the size of a directory tree. Returns false if a limit was reached.
    fn add_tree(&mut self, top: &Path) -> io::Result<bool> {
        let top = match open(CWD, top) {
            Err(Errno::NOENT) => return Ok(true),
            opened => opened?,
        };
        let Some(first) = self.read(top)? else { return Ok(false) };
        let mut path = vec![first];
        while let Some(last) = path.last_mut() {
            let Some(name) = last.directories.pop() else {
                path.pop();
                continue;
            };
            let opened = open(&last.directory, name.as_c_str());
            // The agent may have removed the directory or made it unreadable.
            let Ok(directory) = opened else { continue };
            let Ok(read) = self.read(directory) else { continue };
            let Some(read) = read else { return Ok(false) };
            if path.len() < DEPTH {
                path.push(read);
            }
        }
        Ok(true)
    }

    /// Adds the sizes of a directory and its files. Returns the subdirectories, or `None` if a limit was reached.
    fn read(&mut self, directory: OwnedFd) -> io::Result<Option<Open>> {
        self.add(&rustix::fs::fstat(&directory)?);
        let mut directories = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES || Instant::now() > self.until {
                return Ok(None);
            }
            let Ok(stat) = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => directories.push(name.to_owned()),
                _ => self.add(&stat),
            }
        }
        Ok(Some(Open { directory, directories }))
    }

    /// Adds the disk space of one entry. If a file has several hard links, each link adds an equal share of the file's
    /// space.
    fn add(&mut self, stat: &Stat) {
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let names = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            1
        } else {
            widened(stat.st_nlink).max(1)
        };
        self.bytes = self.bytes.saturating_add(bytes / names);
    }
}

/// Widens a link count to `u64`, because the type of the link count differs between systems.
fn widened(number: impl Into<u64>) -> u64 {
    number.into()
}

fn open<P: rustix::path::Arg>(at: impl AsFd, name: P) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::layers::Kind;
    use super::*;

    #[test]
    fn measures_files_once_and_follows_no_link() {
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("outside"), vec![1; 4 << 20]).expect("written");
        let layers = Layers::new(directory.path().join("agent"));
        assert_eq!(of_layers(&layers).expect("measured"), None, "there are no layers");
        layers.make(Kind::Home, None).expect("made");
        let size = || of_layers(&layers).expect("measured").expect("a size");
        let empty = size();
        let file = layers.workspace().join("file");
        fs::write(&file, vec![1; 1 << 20]).expect("written");
        fs::hard_link(&file, layers.home().join("again")).expect("link");
        symlink(directory.path(), layers.workspace().join("link")).expect("link");
        fs::create_dir_all(layers.directory().join("other")).expect("directory");
        fs::write(layers.directory().join("other/file"), vec![1; 1 << 20]).expect("written");
        let grown = size() - empty;
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&grown), "{grown}");
    }

    #[test]
    fn a_deep_directory_needs_few_descriptors() {
        let directory = tempfile::tempdir().expect("directory");
        let layers = Layers::new(directory.path().join("agent"));
        layers.make(Kind::Home, None).expect("made");
        let mut at = open(CWD, layers.workspace().as_path()).expect("open");
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).expect("made");
            at = open(&at, "deeper").expect("open");
        }
        drop(at);
        assert!(of_layers(&layers).expect("measured").is_some());
        bottle_backend::trees::remove_tree(layers.directory()).expect("removed");
    }
}
