//! Stores the canaries of a bottle's launches. A canary is a variable with a plausible name and a worthless value. The
//! agent may have written into its files a canary of an earlier launch, or of the bottle that this bottle was forked
//! from. The proxy and the git gate therefore search for these canaries too.
//!
//! A canary grants no access, so the file may contain canaries. The bottle cannot read the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bottle_host::files;
use bottle_protocol::session::guest::SecretText;

/// The name of the file in the bottle's directory. Each line of the file is one canary, oldest first.
const NAME: &str = "canaries";

/// The name of the file with the canaries that an imported image contains.
const IMPORTED: &str = "imported-canaries";

/// The maximum number of canaries that a bottle has. Each canary makes every scan a little longer.
const MAX: usize = 64;

/// The maximum number of bytes that are read from the file. A file with [`MAX`] canaries is smaller.
const SIZE_MAX: u64 = 64 << 10;

/// Returns the canaries of earlier launches, oldest first. The list is empty if there was no earlier launch.
///
/// # Errors
/// Fails if the file exists but cannot be read.
pub fn read(directory: &Path) -> io::Result<Vec<SecretText>> {
    read_file(&directory.join(NAME))
}

/// Returns the canaries that the imported image of the bottle contains. The exporter accepted these canaries as
/// findings. [`read`] returns these canaries too.
///
/// # Errors
/// Fails in the same cases as [`read`].
pub fn read_imported(directory: &Path) -> io::Result<Vec<SecretText>> {
    read_file(&directory.join(IMPORTED))
}

fn read_file(path: &Path) -> io::Result<Vec<SecretText>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut text = String::new();
    file.take(SIZE_MAX).read_to_string(&mut text)?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(SecretText::from).collect())
}

/// Replaces the stored canaries. If there are more than [`MAX`] canaries, only the newest are stored.
///
/// # Errors
/// Fails if the file cannot be written. The previous file then stays.
pub fn write(directory: &Path, canaries: &[SecretText]) -> io::Result<()> {
    write_file(&directory.join(NAME), canaries)
}

/// Replaces the canaries that [`read_imported`] returns.
///
/// # Errors
/// Fails in the same cases as [`write()`].
pub fn write_imported(directory: &Path, canaries: &[SecretText]) -> io::Result<()> {
    write_file(&directory.join(IMPORTED), canaries)
}

fn write_file(path: &Path, canaries: &[SecretText]) -> io::Result<()> {
    let newest = &canaries[canaries.len().saturating_sub(MAX)..];
    files::replace(path, |file| {
        newest
            .iter()
            .try_for_each(|canary| io::Write::write_fmt(file, format_args!("{}\n", canary.0.expose())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_canaries() {
        let here = tempfile::tempdir().expect("directory");
        assert_eq!(read(here.path()).expect("no file"), []);
        let all: Vec<SecretText> =
            (0..MAX + 2).map(|number| SecretText::from(format!("value-{number}").as_str())).collect();
        write(here.path(), &all).expect("written");
        assert_eq!(read(here.path()).expect("read"), all[2..]);
    }
}
