//! An image from a folder or an archive of this machine.
//!
//! Two kinds come in both forms: what `docker save` writes, which the engine loads, and a plain file system,
//! which it imports.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{CreateImageOptionsBuilder, ImportImageOptionsBuilder};
use bottle_contract::terminal::inert;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::recipe::Hash;
use super::{build, failed};
use crate::archive;
use crate::backend::{BackendError, Step, Told};

/// Files that only a saved image has at its top.
const MARKS: [&str; 2] = ["manifest.json", "oci-layout"];
/// More files than any image has.
const FILES_MAX: usize = 5_000_000;

/// A folder or an archive, looked at and not yet read.
#[derive(Debug, Clone)]
pub(super) struct Local {
    path: PathBuf,
    folder: bool,
    saved: bool,
    /// The hash of the home that it is loaded for.
    home: String,
    /// Stands for its content without reading it: a file that changes has another time or another size.
    pub(super) hash: String,
}

/// Looks at what lies at this path, for the home of this hash. Blocks.
///
/// # Errors
/// Why it is no image, as the rest of a sentence that begins with its path.
pub(super) fn look(path: &Path, home: &str) -> Result<Local, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let facts = fs::metadata(path).map_err(unreadable)?;
    let mut hash = Hash::new("local image");
    let saved = if facts.is_dir() {
        let mut files = 0;
        add_folder(&mut hash, path, &mut files).map_err(unreadable)?;
        if files == 0 {
            return Err("is an empty folder".to_owned());
        }
        MARKS.iter().any(|mark| path.join(mark).is_file())
    } else {
        add_file(&mut hash, path, &facts);
        is_saved(path)?
    };
    Ok(Local {
        path: path.to_owned(),
        folder: facts.is_dir(),
        saved,
        home: home.to_owned(),
        hash: hash.finish(),
    })
}

fn add_file(hash: &mut Hash, path: &Path, facts: &Metadata) {
    hash.add(path.as_os_str().as_encoded_bytes());
    for number in [facts.ino(), facts.size(), u64::from(facts.mode()), u64::from(facts.uid())] {
        hash.add(&number.to_le_bytes());
    }
    hash.add(&facts.mtime().to_le_bytes()).add(&facts.mtime_nsec().to_le_bytes());
}

fn add_folder(hash: &mut Hash, folder: &Path, files: &mut usize) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        *files += 1;
        if *files > FILES_MAX {
            return Err(io::Error::other("there are too many files in it"));
        }
        let (path, facts) = (entry.path(), entry.metadata()?);
        add_file(hash, &path, &facts);
        if facts.is_dir() {
            add_folder(hash, &path, files)?;
        }
    }
    Ok(())
}

/// Whether an archive holds a saved image. Reads its headers only.
fn is_saved(path: &Path) -> Result<bool, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let mut file = File::open(path).map_err(unreadable)?;
    let mut start = Vec::new();
    Read::by_ref(&mut file).take(512).read_to_end(&mut start).map_err(unreadable)?;
    match start.get(257..262) {
        Some(b"ustar") => {}
        _ if start.starts_with(&[0x1f, 0x8b]) => {
            return Err("is compressed: unpack it with gunzip".to_owned());
        }
        _ => return Err("is neither a folder nor a tar archive".to_owned()),
    }
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path_bytes();
        let path = path.strip_prefix(b"./").unwrap_or(&path);
        if MARKS.iter().any(|mark| mark.as_bytes() == path) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Local {
    /// Gives it to the engine and answers with the image's id or name. `named` is how errors call it.
    ///
    /// # Errors
    /// [`BackendError`]: a file that cannot be read, or what the engine says.
    pub(super) async fn load(
        &self,
        docker: &Docker,
        named: &str,
        told: &Told<Step>,
    ) -> Result<String, BackendError> {
        let of = named.to_owned();
        told.tell(Step { of: of.clone(), line: "loading it".to_owned(), begins: true });
        let told = |line: &str| told.tell(Step { of: of.clone(), line: inert(line), begins: false });
        let unread = Arc::new(Mutex::new(None));
        let loaded = if self.saved {
            self.load_saved(docker, self.stream(&unread), &told).await
        } else {
            self.import(docker, self.stream(&unread), &told).await
        };
        loaded.map_err(|error| {
            // The engine only sees its input end; why it ended is known here.
            match unread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(why) => BackendError::failed(format!("cannot read {named}: {why}")),
                None => failed(format!("the engine does not take {named}"), error),
            }
        })
    }

    async fn load_saved(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        told: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let mut events = docker.import_image_stream(options, body, None).boxed();
        let mut found: Vec<String> = Vec::new();
        while let Some(event) = events.next().await {
            for line in event?.stream.iter().flat_map(|text| text.lines()) {
                told(line);
                let name =
                    ["Loaded image: ", "Loaded image ID: "].iter().find_map(|said| line.strip_prefix(said));
                found.extend(name.map(|name| name.trim().to_owned()));
            }
        }
        let mut ids = Vec::new();
        for name in &found {
            let id = docker.inspect_image(name).await?.id.unwrap_or_default();
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        match ids.len() {
            1 => Ok(ids.remove(0)),
            0 => Err(said("there is no image in it")),
            count => Err(said(&format!("there are {count} images in it, and a bottle is made of one"))),
        }
    }

    async fn import(
        &self,
        docker: &Docker,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        told: &(impl Fn(&str) + Sync),
    ) -> Result<String, Error> {
        let label = format!("LABEL {}", build::mark(&self.home, build::BUILT));
        let options = CreateImageOptionsBuilder::new().from_src("-").changes(vec![label]).build();
        let body = bollard::body_try_stream(body);
        let mut events = docker.create_image(Some(options), Some(body), None).boxed();
        let mut id = None;
        while let Some(event) = events.next().await {
            if let Some(status) = event?.status {
                told(&status);
                id = Some(status).filter(|status| status.starts_with("sha256:")).or(id);
            }
        }
        id.ok_or_else(|| said("the engine did not say what became of it"))
    }

    /// Its bytes as a tar archive. Why they ended early goes to `unread`.
    fn stream(
        &self,
        unread: &Arc<Mutex<Option<String>>>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (path, folder, unread) = (self.path.clone(), self.folder, Arc::clone(unread));
        archive::stream(move |out| if folder { pack(&path, out) } else { copy(&path, out) }).inspect_err(
            move |error| *unread.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string()),
        )
    }
}

fn copy(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut File::open(path)?, out).map(drop)
}

/// Owners and modes as they are; links stay links.
fn pack(folder: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", folder)?;
    archive.into_inner()?.flush()
}

fn said(why: &str) -> Error {
    Error::DockerStreamError { error: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(path: &Path, names: &[&str]) {
        let mut archive = tar::Builder::new(File::create(path).expect("create"));
        for name in names {
            super::super::recipe::append(&mut archive, name, 0o644, b"x").expect("append");
        }
        archive.finish().expect("finish");
    }

    #[test]
    fn a_saved_image_is_told_from_a_file_system() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (names, saved) in [
            (&["etc/passwd", "manifest.json"][..], true),
            (&["./oci-layout"], true),
            (&["usr/manifest.json", "etc/passwd"], false),
        ] {
            let path = folder.path().join("image.tar");
            archive(&path, names);
            assert_eq!(look(&path, "0123abcd").expect("an archive").saved, saved, "{names:?}");
            let unpacked = folder.path().join("unpacked");
            for name in names {
                let path = unpacked.join(name);
                fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
                fs::write(path, "x").expect("write");
            }
            let local = look(&unpacked, "0123abcd").expect("a folder");
            assert_eq!((local.saved, local.folder), (saved, true), "{names:?}");
            fs::remove_dir_all(&unpacked).expect("remove");
        }
    }

    #[test]
    fn what_is_no_image_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).expect("folder");
        assert_eq!(look(&empty, "0123abcd").expect_err("empty"), "is an empty folder");
        for (bytes, why) in [
            (&b"hello"[..], "is neither a folder nor a tar archive"),
            (b"\x1f\x8b\x08", "is compressed: unpack it with gunzip"),
            (b"", "is neither a folder nor a tar archive"),
        ] {
            let path = folder.path().join("file");
            fs::write(&path, bytes).expect("write");
            assert_eq!(look(&path, "0123abcd").expect_err("no archive"), why);
        }
        assert!(
            look(&folder.path().join("nothing"), "0123abcd")
                .expect_err("not there")
                .starts_with("cannot be read: No such")
        );
    }

    #[test]
    fn a_changed_file_is_another_image() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("root/etc");
        fs::create_dir_all(&path).expect("folder");
        fs::write(path.join("passwd"), "root").expect("write");
        let hash = || look(&folder.path().join("root"), "0123abcd").expect("a folder").hash;
        let first = hash();
        assert_eq!(hash(), first);
        fs::write(path.join("passwd"), "other").expect("write");
        let second = hash();
        fs::write(path.join("group"), "x").expect("write");
        let third = hash();
        assert!(first != second && second != third && first != third);
    }
}
