//! Finds the program that runs in containers: a static Linux binary, the same for the guest and the bundle.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::elf;
use super::program_hash_cache::ProgramHashCache;
use crate::backend::BackendError;

/// The size limit of a program in bytes. Builds of this program are smaller; a larger file is refused.
const PROGRAM_MAX: u64 = 512 << 20;
/// The number of bytes, from a program's beginning, that show whether it is dynamic.
const HEAD: u64 = 64 << 10;

/// The program that runs in containers.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The program's SHA-256 in hexadecimal.
    pub(super) hash: String,
    path: PathBuf,
    /// The program's content and its new cache entry. `None` if the hash came from the cache.
    read: Option<(Bytes, ProgramHashCache)>,
}

impl Program {
    /// The program's content.
    ///
    /// # Errors
    /// [`BackendError`] when the file has changed since it was found.
    pub(super) fn bytes(&self) -> Result<Bytes, BackendError> {
        if let Some((bytes, _)) = &self.read {
            return Ok(bytes.clone());
        }
        let wrong = |why: String| {
            BackendError::failed(format!("the program for containers, {}, {why}", self.path.display()))
        };
        let mut program = Vec::new();
        let file = File::open(&self.path).map(|file| file.take(PROGRAM_MAX));
        file.and_then(|mut file| file.read_to_end(&mut program))
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if digest(&program) != self.hash {
            return Err(wrong("was replaced meanwhile".to_owned()).with_hint("start again"));
        }
        Ok(program.into())
    }

    /// Caches the program's hash for the next start. If this fails, the next start is slower.
    pub(super) fn keep_hash(&self, home: &Path) {
        if let Some(Err(error)) = self.read.as_ref().map(|(_, known)| known.write(home)) {
            tracing::debug!("cannot cache the program's hash: {error}");
        }
    }
}

/// The program for an engine of this processor architecture. It is the running program if that is a static Linux
/// program, otherwise a file at the path where a release or `cargo xtask dist` puts it. A program whose hash is cached
/// is not read.
///
/// # Errors
/// [`BackendError`] that names every path tried, with a hint on how to build the program.
pub(super) fn find(
    running: &Path,
    architecture: &str,
    known: Option<&ProgramHashCache>,
) -> Result<Program, BackendError> {
    let mut rejected = Vec::new();
    for path in candidates(running) {
        match take(&path, running, architecture, known) {
            Ok(program) => return Ok(program),
            Err(why) => rejected.push(format!("{} {why}", path.display())),
        }
    }
    let message = format!(
        "there is no static Linux program for containers of this engine ({architecture}): {}",
        rejected.join("; ")
    );
    Err(BackendError::unavailable(message, "`cargo xtask dist` makes it, as dist/bottle in the checkout"))
}

/// The paths to try, best first.
fn candidates(running: &Path) -> Vec<PathBuf> {
    let mut paths = vec![running.to_owned()];
    if let Some(folder) = running.parent() {
        paths.push(folder.join("bottle-linux"));
        paths.push(folder.join("dist/bottle"));
        paths.extend(checkout(folder).map(|root| root.join("dist/bottle")));
    }
    paths
}

/// The source checkout from which a program in `<checkout>/target/<profile>` was built.
fn checkout(folder: &Path) -> Option<&Path> {
    let target = folder.parent()?;
    (target.file_name()? == "target").then(|| target.parent()).flatten()
}

fn take(
    path: &Path,
    running: &Path,
    architecture: &str,
    known: Option<&ProgramHashCache>,
) -> Result<Program, String> {
    let mut file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "is not there".to_owned(),
        _ => format!("cannot be read: {error}"),
    })?;
    let said = |error: io::Error| format!("cannot be read: {error}");
    let facts = file.metadata().map_err(said)?;
    if !facts.is_file() || facts.len() > PROGRAM_MAX {
        return Err("is not a program".to_owned());
    }
    // The program handles every secret of a bottle, so no other user may be able to replace it.
    let own = rustix::process::geteuid().as_raw();
    if path != running && (![0, own].contains(&facts.uid()) || facts.mode() & 0o022 != 0) {
        return Err("belongs to another user or is writable by others".to_owned());
    }
    if let Some(hash) = known.and_then(|known| known.hash(path, &facts, architecture)) {
        return Ok(Program { hash: hash.to_owned(), path: path.to_owned(), read: None });
    }
    let mut program = Vec::new();
    Read::by_ref(&mut file).take(HEAD).read_to_end(&mut program).map_err(said)?;
    // An ordinary build is large. Its first page already shows that it is dynamic.
    if let Err(why @ elf::INTERPRETED) = elf::expect_static(&program) {
        return Err(why.to_owned());
    }
    file.take(PROGRAM_MAX).read_to_end(&mut program).map_err(said)?;
    elf::expect_static(&program)?;
    match elf::architecture(&program) {
        Some(own) if own == architecture => {}
        other => return Err(format!("is for {}", other.unwrap_or("another processor"))),
    }
    let hash = digest(&program);
    let known = ProgramHashCache::new(path, &facts, architecture, &hash);
    Ok(Program { hash, path: path.to_owned(), read: Some((program.into(), known)) })
}

fn digest(program: &[u8]) -> String {
    hex::encode(Sha256::digest(program))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The smallest file that counts as a static program for this processor architecture.
    fn elf(machine: u16) -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18..20].copy_from_slice(&machine.to_le_bytes());
        elf
    }

    fn put(root: &Path, path: &str, bytes: &[u8]) -> PathBuf {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
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
        ] {
            let root = tempfile::tempdir().expect("a temporary folder");
            let running = put(root.path(), "target/debug/bottle", &dynamic);
            for (index, (path, machine)) in others.iter().enumerate() {
                let mut program = elf(*machine);
                program.push(u8::try_from(index).expect("few"));
                put(root.path(), path, &program);
            }
            let found = find(&running, "amd64", None).expect("a program");
            assert_eq!(
                found.bytes().expect("read"),
                std::fs::read(root.path().join(taken)).expect("read"),
                "{taken}"
            );
        }
    }

    #[test]
    fn uses_the_running_program_when_it_is_static() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let running = put(root.path(), "bin/bottle", &elf(62));
        assert_eq!(find(&running, "amd64", None).expect("itself").bytes().expect("read"), elf(62));
        let error = find(&running, "arm64", None).expect_err("another processor");
        assert!(error.message.contains("bin/bottle is for amd64"), "{error}");
        assert!(error.message.contains("bottle-linux is not there"), "{error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("cargo xtask dist")));
    }

    #[test]
    fn a_cached_program_is_read_only_to_be_sent_and_only_while_unchanged() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let running = put(root.path(), "bin/bottle", &elf(62));
        let first = find(&running, "amd64", None).expect("itself");
        let (_, known) = first.read.clone().expect("it was read");
        let again = find(&running, "amd64", Some(&known)).expect("itself");
        assert!(again.read.is_none() && again.hash == first.hash);
        assert_eq!(again.bytes().expect("read"), elf(62));
        let mut other = elf(62);
        other.push(1);
        std::fs::write(&running, &other).expect("written");
        let error = again.bytes().expect_err("it is another one").message;
        assert!(error.contains("bin/bottle, was replaced"), "{error}");
        assert_ne!(find(&running, "amd64", Some(&known)).expect("itself").hash, first.hash);
        assert!(find(&running, "arm64", Some(&known)).is_err());
    }

    #[test]
    fn refuses_a_program_that_others_can_write() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let running = put(root.path(), "target/debug/bottle", b"#!/bin/sh\n");
        let dist = put(root.path(), "dist/bottle", &elf(62));
        std::fs::set_permissions(&dist, std::fs::Permissions::from_mode(0o777)).expect("mode");
        let error = find(&running, "amd64", None).expect_err("writable by others").message;
        assert!(error.contains("dist/bottle belongs to another user or is writable by others"), "{error}");
        // The folder is not called `target`, so it does not identify a checkout.
        let elsewhere = put(root.path(), "opt/debug/bottle", b"#!/bin/sh\n");
        assert!(!find(&elsewhere, "amd64", None).expect_err("no checkout").message.contains("writable"));
    }
}
