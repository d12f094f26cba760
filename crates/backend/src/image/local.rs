//! Inspects a directory or an archive on this machine that contains a plain file system or a saved image.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::hash::Hash;

/// The file names that identify a saved image. No plain file system has one of them in its top directory.
const MARKS: [&str; 2] = ["manifest.json", "oci-layout"];
/// The maximum number of files in an image. Real images have fewer files. A directory with more files is refused.
const FILES_MAX: usize = 5_000_000;

/// The hint for an `agent_provider.image` that cannot be used.
pub const IMAGE_HINT: &str =
    "it must be a directory or a tar archive in $BOTTLE_HOME, of a file system or from `docker save`";

/// Returns the name of the image at this path, for messages.
pub fn named(path: &Path) -> String {
    format!("the image ./{}", path.display())
}

/// A directory or archive that may be used as an image. Its entries have been listed, but the content of its files has
/// not been read.
#[derive(Debug, Clone)]
pub struct Local {
    /// The path, with all symbolic links resolved.
    pub path: PathBuf,
    /// Whether the path is a directory. Otherwise it is an archive.
    pub directory: bool,
    /// Whether the directory or archive contains a saved image. Otherwise it contains a plain file system.
    pub saved: bool,
    /// A hash of the files' metadata. A changed file has another time or size, which changes the hash.
    pub hash: String,
}

/// Inspects the directory or archive at this path. Blocks.
///
/// # Errors
/// Returns why the path is not an image, as the end of a sentence that begins with the path.
pub fn inspect(path: &Path) -> Result<Local, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let mut hash = Hash::new("local image");
    let saved = if metadata.is_dir() {
        let mut files = 0;
        add_directory(&mut hash, path, &mut files).map_err(unreadable)?;
        if files == 0 {
            return Err("is an empty directory".to_owned());
        }
        MARKS.iter().any(|mark| path.join(mark).is_file())
    } else {
        add_file(&mut hash, path, &metadata);
        is_saved(path)?
    };
    Ok(Local { path: path.to_owned(), directory: metadata.is_dir(), saved, hash: hash.finish() })
}

fn add_file(hash: &mut Hash, path: &Path, metadata: &Metadata) {
    hash.add(path.as_os_str().as_encoded_bytes());
    for number in [metadata.ino(), metadata.size(), u64::from(metadata.mode()), u64::from(metadata.uid())] {
        hash.add(&number.to_le_bytes());
    }
    hash.add(&metadata.mtime().to_le_bytes()).add(&metadata.mtime_nsec().to_le_bytes());
}

fn add_directory(hash: &mut Hash, directory: &Path, files: &mut usize) -> io::Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        *files += 1;
        if *files > FILES_MAX {
            return Err(io::Error::other("there are too many files in it"));
        }
        let (path, metadata) = (entry.path(), entry.metadata()?);
        add_file(hash, &path, &metadata);
        if metadata.is_dir() {
            add_directory(hash, &path, files)?;
        }
    }
    Ok(())
}

/// Whether an archive contains a saved image. Reads only the headers of its entries.
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
        _ => return Err("is neither a directory nor a tar archive".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(path: &Path, names: &[&str]) {
        let mut archive = tar::Builder::new(File::create(path).expect("create"));
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(1);
            archive.append_data(&mut header, name, &b"x"[..]).expect("append");
        }
        archive.finish().expect("finish");
    }

    #[test]
    fn distinguishes_a_saved_image_from_a_file_system() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (names, saved) in [
            (&["etc/passwd", "manifest.json"][..], true),
            (&["./oci-layout"], true),
            (&["usr/manifest.json", "etc/passwd"], false),
        ] {
            let path = directory.path().join("image.tar");
            archive(&path, names);
            assert_eq!(inspect(&path).expect("an archive").saved, saved, "{names:?}");
            let unpacked = directory.path().join("unpacked");
            for name in names {
                let path = unpacked.join(name);
                fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
                fs::write(path, "x").expect("write");
            }
            let local = inspect(&unpacked).expect("a directory");
            assert_eq!((local.saved, local.directory), (saved, true), "{names:?}");
            fs::remove_dir_all(&unpacked).expect("remove");
        }
    }

    #[test]
    fn refuses_files_that_are_not_images() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let empty = directory.path().join("empty");
        fs::create_dir(&empty).expect("directory");
        assert_eq!(inspect(&empty).expect_err("empty"), "is an empty directory");
        for (bytes, why) in [
            (&b"hello"[..], "is neither a directory nor a tar archive"),
            (b"\x1f\x8b\x08", "is compressed: unpack it with gunzip"),
            (b"", "is neither a directory nor a tar archive"),
        ] {
            let path = directory.path().join("file");
            fs::write(&path, bytes).expect("write");
            assert_eq!(inspect(&path).expect_err("no archive"), why);
        }
        assert!(
            inspect(&directory.path().join("nothing"))
                .expect_err("not there")
                .starts_with("cannot be read: No such")
        );
    }

    #[test]
    fn a_changed_file_changes_the_hash() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("root/etc");
        fs::create_dir_all(&path).expect("directory");
        fs::write(path.join("passwd"), "root").expect("write");
        let hash = || inspect(&directory.path().join("root")).expect("a directory").hash;
        let first = hash();
        assert_eq!(hash(), first);
        fs::write(path.join("passwd"), "other").expect("write");
        let second = hash();
        fs::write(path.join("group"), "x").expect("write");
        let third = hash();
        assert!(first != second && second != third && first != third);
    }
}
