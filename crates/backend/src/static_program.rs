//! Finds the program that runs in containers and virtual machines: a static Linux binary. All roles run the same
//! binary.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::elf;
use crate::BackendError;

/// The size limit of a program in bytes. Builds of this program are smaller. A larger file is refused.
const PROGRAM_MAX: u64 = 512 << 20;

/// The program that runs in containers and virtual machines.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's build id in hexadecimal.
    pub id: String,
    path: PathBuf,
}

impl Program {
    /// Returns the program's content.
    ///
    /// # Errors
    /// [`BackendError`] when the file has changed since [`find`] returned the program.
    pub fn bytes(&self) -> Result<Bytes, BackendError> {
        let wrong = |why: String| {
            BackendError::failed(format!("the program for bottles, {}, {why}", self.path.display()))
        };
        let read = |error: io::Error| wrong(format!("cannot be read: {error}"));
        let file = File::open(&self.path).map_err(read)?;
        if elf::build_id(&file).as_ref() != Ok(&self.id) {
            return Err(wrong("was replaced meanwhile".to_owned()).with_hint("start again"));
        }
        let mut program = Vec::new();
        file.take(PROGRAM_MAX).read_to_end(&mut program).map_err(read)?;
        Ok(program.into())
    }
}

/// Finds the program for an engine of this processor architecture. Returns the running program if it is a static Linux
/// program. Otherwise returns the program at a path where a release or `cargo xtask dist` installs it. `place` says in
/// messages where the program would run.
///
/// # Errors
/// [`BackendError`] that names every path tried, with a hint on how to build the program.
pub fn find(running: &Path, architecture: &str, place: &str) -> Result<Program, BackendError> {
    let mut rejected = Vec::new();
    for path in candidates(running, architecture) {
        match take(&path, running, architecture) {
            Ok(program) => return Ok(program),
            Err(why) => rejected.push(format!("{} {why}", path.display())),
        }
    }
    let message =
        format!("there is no static Linux program for {place} ({architecture}): {}", rejected.join("; "));
    Err(BackendError::unavailable(
        message,
        "`cargo xtask dist` makes it, as dist/bottle in the checkout; for another processor: `--target`",
    ))
}

/// Returns the paths to try, best first. The file name of a program for another processor contains the name of that
/// processor.
fn candidates(running: &Path, architecture: &str) -> Vec<PathBuf> {
    let mut paths = vec![running.to_owned()];
    if let Some(directory) = running.parent() {
        paths.push(directory.join("bottle-linux"));
        paths.push(directory.join("dist/bottle"));
        let names = ["dist/bottle".to_owned(), format!("dist/bottle-{architecture}")];
        paths.extend(
            checkout(directory).into_iter().flat_map(|root| names.iter().map(|name| root.join(name))),
        );
    }
    paths
}

/// Returns the source checkout if `directory` is `<checkout>/target/<profile>`.
fn checkout(directory: &Path) -> Option<&Path> {
    let target = directory.parent()?;
    (target.file_name()? == "target").then(|| target.parent()).flatten()
}

fn take(path: &Path, running: &Path, architecture: &str) -> Result<Program, String> {
    let said = |error: io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => said(error),
    })?;
    let facts = file.metadata().map_err(said)?;
    if !facts.is_file() || facts.len() > PROGRAM_MAX {
        return Err("is not a program".to_owned());
    }
    // The program handles every secret of a bottle, so no other user may be able to replace it.
    let own = rustix::process::geteuid().as_raw();
    if path != running && (![0, own].contains(&facts.uid()) || facts.mode() & 0o022 != 0) {
        return Err("belongs to another user or is writable by others".to_owned());
    }
    elf::expect_static(&file)?;
    match elf::architecture(&file) {
        Some(own) if own == architecture => {}
        other => return Err(format!("is for {}", other.unwrap_or("another processor"))),
    }
    Ok(Program { id: elf::build_id(&file)?, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Creates the smallest file that is accepted as a static program for this processor architecture, with this build
    /// id.
    fn elf(machine: u16, id: u8) -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18..20].copy_from_slice(&machine.to_le_bytes());
        (elf[32], elf[54], elf[56]) = (64, 56, 1);
        let mut note = [0; 56 + 20];
        (note[0], note[8], note[32]) = (4, 64 + 56, 20);
        (note[56], note[60], note[64]) = (4, 1, 3);
        note[68..72].copy_from_slice(b"GNU\0");
        note[72] = id;
        elf.extend_from_slice(&note);
        elf
    }

    fn put(root: &Path, path: &str, bytes: &[u8]) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
        std::fs::write(&path, bytes).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        path
    }

    #[test]
    fn finds_the_first_candidate_for_the_architecture() {
        let dynamic = std::fs::read(std::env::current_exe().expect("own path")).expect("own program");
        for (others, taken) in [
            (&[("target/debug/bottle-linux", 62), ("dist/bottle", 62)][..], "target/debug/bottle-linux"),
            (&[("target/debug/bottle-linux", 183), ("dist/bottle", 62)], "dist/bottle"),
            (&[("target/debug/dist/bottle", 62), ("dist/bottle", 183)], "target/debug/dist/bottle"),
            (&[("dist/bottle", 183), ("dist/bottle-amd64", 62)], "dist/bottle-amd64"),
        ] {
            let root = tempfile::tempdir().expect("a temporary directory");
            let running = put(root.path(), "target/debug/bottle", &dynamic);
            for (index, (path, machine)) in others.iter().enumerate() {
                put(root.path(), path, &elf(*machine, u8::try_from(index).expect("few")));
            }
            let found = find(&running, "amd64", "tests").expect("a program");
            assert_eq!(
                found.bytes().expect("read"),
                std::fs::read(root.path().join(taken)).expect("read"),
                "{taken}"
            );
        }
    }

    #[test]
    fn uses_the_running_program_when_it_is_static() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let running = put(root.path(), "bin/bottle", &elf(62, 1));
        assert_eq!(find(&running, "amd64", "tests").expect("itself").bytes().expect("read"), elf(62, 1));
        let error = find(&running, "arm64", "tests").expect_err("another processor");
        assert!(error.message.contains("bin/bottle is for amd64"), "{error}");
        assert!(error.message.contains("bottle-linux is not there"), "{error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("cargo xtask dist")));
    }

    #[test]
    fn sends_a_program_only_while_it_is_the_one_that_was_found() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let running = put(root.path(), "bin/bottle", &elf(62, 1));
        let found = find(&running, "amd64", "tests").expect("itself");
        assert_eq!(found.id, "01");
        std::fs::write(&running, elf(62, 2)).expect("written");
        let error = found.bytes().expect_err("it is another one").message;
        assert!(error.contains("bin/bottle, was replaced"), "{error}");
        assert_eq!(find(&running, "amd64", "tests").expect("itself").id, "02");
        std::fs::write(&running, &elf(62, 2)[..64]).expect("written");
        let error = find(&running, "amd64", "tests").expect_err("no identity").message;
        assert!(error.contains("bin/bottle is truncated"), "{error}");
    }

    #[test]
    fn refuses_a_program_that_others_can_write() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let running = put(root.path(), "target/debug/bottle", b"#!/bin/sh\n");
        let dist = put(root.path(), "dist/bottle", &elf(62, 1));
        std::fs::set_permissions(&dist, std::fs::Permissions::from_mode(0o777)).expect("mode");
        let error = find(&running, "amd64", "tests").expect_err("writable by others").message;
        assert!(error.contains("dist/bottle belongs to another user or is writable by others"), "{error}");
        // The directory is not called `target`, so it does not identify a checkout.
        let elsewhere = put(root.path(), "opt/debug/bottle", b"#!/bin/sh\n");
        assert!(!find(&elsewhere, "amd64", "tests").expect_err("no checkout").message.contains("writable"));
    }
}
