//! The build context of a user's Dockerfile: the files of the Dockerfile's directory, except the files that
//! `.dockerignore` names.
//!
//! The code walks the directory, and later opens the listed files, only through directory descriptors. It follows no
//! links.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bottle_backend::image::hash::Hash;
use bottle_repository::{Directory, Entry as Found, ReadError, Walk};
use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::ignored::Ignored;

/// The maximum total size of a build context in bytes. Builds need less. A larger context is refused.
const BYTES_MAX: u64 = 1 << 30;
/// The maximum number of files, directories and links in a build context.
const ENTRIES_MAX: usize = 100_000;
/// The maximum size of a `.dockerignore` in bytes.
const IGNORE_MAX: u64 = 1 << 20;
/// The name of the file that lists the excluded paths.
pub(super) const IGNORE_FILE: &str = ".dockerignore";

/// A build context. Its entries have been listed, and its files have been hashed.
#[derive(Debug, Clone)]
pub(super) struct Context {
    root: Arc<Directory>,
    entries: Vec<Entry>,
    /// The total size of the files in bytes.
    pub(super) bytes: u64,
    /// The hash of the paths, kinds, modes and contents.
    pub(super) hash: String,
}

#[derive(Debug, Clone)]
struct Entry {
    /// The path, relative to the context's directory.
    path: PathBuf,
    kind: Kind,
    mode: u32,
    size: u64,
    modified: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    /// A symbolic link with this target. The link itself is sent, and is not followed.
    Link(PathBuf),
}

impl Context {
    /// Lists the directory of a Dockerfile and hashes its files. `name` is the Dockerfile's name in the directory:
    /// `NAME.dockerignore` takes precedence over `.dockerignore`. Sockets, pipes and devices are left out. Blocks.
    ///
    /// # Errors
    /// Why the directory cannot be a build context, as the end of a sentence that begins with the directory's path.
    pub(super) fn of(root: &Path, name: &str) -> Result<Self, String> {
        let root = Arc::new(Directory::open(root).map_err(|error| unreadable(Path::new(""), &error))?);
        let ignored = ignored(&root, name)?;
        let mut context = Self { root, entries: Vec::new(), bytes: 0, hash: String::new() };
        context.list(ignored)?;
        context.entries.sort_by(|one, other| one.path.cmp(&other.path));
        let mut hash = Hash::new("build context");
        for entry in &context.entries {
            let content = entry.content_hash(&context.root);
            let content = content.map_err(|error| unreadable(&entry.path, &error))?;
            hash.add(entry.path.as_os_str().as_encoded_bytes()).add(&entry.mode.to_le_bytes()).add(&content);
        }
        context.hash = hash.finish();
        Ok(context)
    }

    fn list(&mut self, ignored: Ignored) -> Result<(), String> {
        let top = self.root.directory(Path::new(""));
        let top = top.and_then(|top| top.ok_or(io::ErrorKind::NotFound.into()));
        let top = top.map_err(|error: io::Error| unreadable(Path::new(""), &error))?;
        let ignored = Arc::new(ignored);
        let patterns = ignored.clone();
        // An excluded directory may contain paths that a pattern includes again.
        let leave_out = move |path: &Path, kind| {
            patterns.is_ignored(&path.to_string_lossy())
                && !(kind == FileType::Directory && patterns.takes_back())
        };
        for entry in Walk::content(top).leaving_out(Box::new(leave_out)) {
            let entry = entry.map_err(|error| format!("cannot be read: {error}"))?;
            if !ignored.is_ignored(&entry.path().to_string_lossy()) {
                self.add(&entry)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, entry: &Found) -> Result<(), String> {
        let path = entry.path().to_owned();
        let (kind, size) = match entry.kind() {
            FileType::RegularFile => (Kind::File, entry.size()),
            FileType::Directory => (Kind::Directory, 0),
            FileType::Symlink => {
                let target = entry.link().and_then(|target| target.ok_or(io::ErrorKind::NotFound.into()));
                (Kind::Link(target.map_err(|error| unreadable(&path, &error))?), 0)
            }
            _ => return Ok(()),
        };
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > BYTES_MAX {
            return Err(format!("has more than {} MiB of files (up to {})", BYTES_MAX >> 20, path.display()));
        }
        if self.entries.len() == ENTRIES_MAX {
            return Err(format!("has more than {ENTRIES_MAX} files"));
        }
        let mode = mode_of(entry);
        let modified = u64::try_from(entry.status().st_mtime).unwrap_or_default();
        self.entries.push(Entry { path, kind, mode, size, modified });
        Ok(())
    }

    /// Returns the number of files, directories and links.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the text of `.dockerignore`, if the context contains this file.
    pub(super) fn ignore_file(&self) -> Option<Vec<u8>> {
        let entry = self.entries.iter().find(|entry| entry.path == Path::new(IGNORE_FILE))?;
        self.root.read(&entry.path, IGNORE_MAX).ok().flatten()
    }

    /// Adds all entries to an archive, except the entries at the paths `except`. Root owns the entries. Blocks.
    ///
    /// # Errors
    /// When a file cannot be read, or its size has changed since the file was listed.
    pub(super) fn append_to<W: Write>(
        &self,
        archive: &mut tar::Builder<W>,
        except: &[&str],
    ) -> io::Result<()> {
        for entry in &self.entries {
            if !except.iter().any(|path| entry.path == Path::new(path)) {
                entry.append_to(archive, &self.root).map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", entry.path.display()))
                })?;
            }
        }
        Ok(())
    }
}

impl Entry {
    fn content_hash(&self, root: &Directory) -> io::Result<Vec<u8>> {
        match &self.kind {
            Kind::Directory => Ok(b"directory".to_vec()),
            Kind::Link(target) => Ok([b"link ", target.as_os_str().as_encoded_bytes()].concat()),
            Kind::File => {
                // A file that grows after it was listed is hashed only up to the listed size.
                let (mut file, mut hash) = (self.open(root)?.take(self.size), Sha256::new());
                let mut buffer = vec![0; 64 << 10];
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(hash.finalize().to_vec()),
                        count => hash.update(&buffer[..count]),
                    }
                }
            }
        }
    }

    fn open(&self, root: &Directory) -> io::Result<File> {
        match root.file(&self.path) {
            Ok(Some(file)) => Ok(file),
            Ok(None) => Err(io::ErrorKind::NotFound.into()),
            Err(ReadError::System { error, .. }) => Err(error),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        }
    }

    fn append_to<W: Write>(&self, archive: &mut tar::Builder<W>, root: &Directory) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(self.mode);
        header.set_mtime(self.modified);
        header.set_size(self.size);
        header.set_uid(0);
        header.set_gid(0);
        match &self.kind {
            Kind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, &self.path, io::empty())
            }
            Kind::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                archive.append_link(&mut header, &self.path, target)
            }
            Kind::File => {
                let file = self.open(root)?;
                if file.metadata()?.len() != self.size {
                    return Err(io::Error::other("it changed while it was read"));
                }
                // A file that shrinks while it is read would make the archive invalid, so zeros pad its content.
                archive.append_data(&mut header, &self.path, file.chain(io::repeat(0)).take(self.size))
            }
        }
    }
}

#[allow(clippy::unnecessary_cast, reason = "the type differs between systems")]
fn mode_of(entry: &Found) -> u32 {
    entry.status().st_mode as u32 & 0o777
}

fn ignored(root: &Directory, name: &str) -> Result<Ignored, String> {
    let mut own = OsString::from(name);
    own.push(IGNORE_FILE);
    for file in [own, OsString::from(IGNORE_FILE)] {
        let file = Path::new(&file);
        let Some(bytes) = root.read(file, IGNORE_MAX).map_err(|error| format!("cannot be read: {error}"))?
        else {
            continue;
        };
        return Ignored::parse(&String::from_utf8_lossy(&bytes))
            .map_err(|line| format!("has a {} with an invalid pattern in line {line}", file.display()));
    }
    Ok(Ignored::default())
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!(
        "cannot be read at {}: {error}",
        if path.as_os_str().is_empty() { Path::new(".") } else { path }.display()
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
        fs::write(path, text).expect("write");
    }

    fn paths(context: &Context) -> Vec<String> {
        context.entries.iter().map(|entry| entry.path.display().to_string()).collect()
    }

    #[test]
    fn leaves_out_what_the_ignore_file_names() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path();
        for path in ["Dockerfile", "src/main.c", "target/big", "target/keep", "notes.md"] {
            write(root, path, path);
        }
        write(root, ".dockerignore", "target\n!target/keep\n*.md\n");
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).expect("link");
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("socket");
        let context = Context::of(root, "Dockerfile").expect("a context");
        let expected = [".dockerignore", "Dockerfile", "link", "src", "src/main.c", "target/keep"];
        assert_eq!(paths(&context), expected);
        assert_eq!(context.entries[2].kind, Kind::Link("/etc/passwd".into()));
        // A `Dockerfile.dockerignore` takes precedence over `.dockerignore`.
        write(root, "Dockerfile.dockerignore", "*\n!src\n");
        let context = Context::of(root, "Dockerfile").expect("a context");
        assert_eq!(paths(&context), ["src", "src/main.c"]);
        write(root, "Dockerfile.dockerignore", "a\n[\n");
        let error = Context::of(root, "Dockerfile").expect_err("a bad pattern");
        assert_eq!(error, "has a Dockerfile.dockerignore with an invalid pattern in line 2");
    }

    #[test]
    fn every_change_of_a_file_changes_the_hash() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path();
        let hash = || Context::of(root, "Dockerfile").expect("a context").hash;
        write(root, "a", "1");
        let mut hashes = vec![hash()];
        write(root, "a", "2");
        hashes.push(hash());
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o755)).expect("mode");
        hashes.push(hash());
        std::os::unix::fs::symlink("a", root.join("b")).expect("link");
        hashes.push(hash());
        fs::remove_file(root.join("b")).expect("remove");
        fs::create_dir(root.join("b")).expect("directory");
        hashes.push(hash());
        for (index, one) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(one), "{index}");
        }
        // The hash does not depend on the modification time.
        let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        fs::File::options().write(true).open(root.join("a")).expect("open").set_times(times).expect("times");
        assert_eq!(hash(), hashes[4]);
    }

    #[test]
    fn refuses_a_directory_that_is_too_large() {
        let directory = tempfile::tempdir().expect("directory");
        // The file is sparse.
        let file = fs::File::create(directory.path().join("big")).expect("create");
        file.set_len(BYTES_MAX + 1).expect("length");
        let error = Context::of(directory.path(), "Dockerfile").expect_err("too large");
        assert_eq!(error, "has more than 1024 MiB of files (up to big)");
        write(directory.path(), ".dockerignore", "big");
        assert_eq!(Context::of(directory.path(), "Dockerfile").expect("small").len(), 1);
    }

    #[test]
    fn no_link_or_pipe_is_read() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path();
        write(root, "sub/file", "mine");
        write(root, "outside/file", "that");
        let context = Context::of(root, "Dockerfile").expect("a context");
        fs::rename(root.join("sub"), root.join("moved")).expect("moved");
        std::os::unix::fs::symlink("outside", root.join("sub")).expect("link");
        let mut archive = tar::Builder::new(Vec::new());
        let error = context.append_to(&mut archive, &[]).expect_err("a link");
        assert!(error.to_string().starts_with("sub/file: "), "{error}");
        std::os::unix::fs::symlink("/dev/zero", root.join(".dockerignore")).expect("link");
        let error = Context::of(root, "Dockerfile").expect_err("a link");
        assert!(error.ends_with(".dockerignore is not a regular file"), "{error}");
        let pipe = root.join("Dockerfile.dockerignore");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("pipe");
        assert!(Context::of(root, "Dockerfile").is_err());
    }

    #[test]
    fn an_archive_contains_links_and_modes() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path();
        write(root, "bin/run", "#!/bin/sh\n");
        fs::set_permissions(root.join("bin/run"), fs::Permissions::from_mode(0o750)).expect("mode");
        std::os::unix::fs::symlink("../../outside", root.join("link")).expect("link");
        let mut archive = tar::Builder::new(Vec::new());
        let context = Context::of(root, "Dockerfile").expect("a context");
        context.append_to(&mut archive, &["bin"]).expect("packed");
        let bytes = archive.into_inner().expect("an archive");
        let mut found = Vec::new();
        for entry in tar::Archive::new(&*bytes).entries().expect("entries") {
            let entry = entry.expect("an entry");
            let target = entry.link_name().expect("a name").map(|target| target.display().to_string());
            let header = entry.header();
            let owner = (header.uid().expect("uid"), header.gid().expect("gid"));
            assert_eq!(owner, (0, 0));
            found.push((
                entry.path().expect("path").display().to_string(),
                header.mode().expect("mode"),
                target,
            ));
        }
        let expected = [
            ("bin/run".to_owned(), 0o750, None),
            ("link".to_owned(), 0o777, Some("../../outside".to_owned())),
        ];
        assert_eq!(found, expected);
    }
}
