//! Stores the canaries of a bottle's launches. The agent can have written the canary of an earlier launch, or of the
//! bottle that this one was forked from, into its files. The proxy and the git gate therefore also know these canaries.
//!
//! A canary grants no access, so the file may contain it. The bottle cannot read the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bottle_host::files;
use bottle_protocol::session::guest::SecretText;

/// The file's name in the bottle's directory: one value on each line, oldest first.
const NAME: &str = "canaries";

/// The name of the file with the canaries that an imported image contains.
const IMPORTED: &str = "imported-canaries";

/// The maximum number of canaries that a bottle has. Each one makes every scan a little longer.
const MAX: usize = 64;

/// The maximum number of bytes read of the file. [`MAX`] canaries are shorter.
const SIZE_MAX: u64 = 64 << 10;

/// The canaries of earlier launches, oldest first. Empty if there were none.
///
/// # Errors
/// When the file exists but cannot be read.
pub fn read(directory: &Path) -> io::Result<Vec<SecretText>> {
    read_file(&directory.join(NAME))
}

/// The canaries in the image that was imported with the bottle. The exporter accepted these findings. [`read`] returns
/// them too.
///
/// # Errors
/// As [`read`].
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

/// Replaces the file. Of more than [`MAX`] canaries, the newest stay.
///
/// # Errors
/// When the file cannot be written. The previous file then stays.
pub fn write(directory: &Path, canaries: &[SecretText]) -> io::Result<()> {
    write_file(&directory.join(NAME), canaries)
}

/// Replaces the file of [`read_imported`].
///
/// # Errors
/// As [`write()`].
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
