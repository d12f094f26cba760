//! Builds an image as an OCI layout in a private directory, checks the complete image, and packs it into the archive
//! that `container` loads.
//!
//! `container` unpacks an image with the rights of the user who runs it. Every image is therefore checked before it is
//! loaded, even an image that contains only a bottle's files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bottle_backend::image::account::{Account, NoAccount, Users, default_home};
use bottle_backend::image::saved::entry::{OPAQUE, WHITEOUT, checked_path};
use bottle_backend::image::saved::{BadImage, check};
use bottle_backend::portable_image::{
    BlobDirectory, ContentScanner, ExportedImage, ImageConfig, LAYOUT, LayerStore, RootKind,
};
use bottle_backend::{ProgressSink, ROOT_FILES};
use bottle_guest::archive::{Members, What};
use bottle_host::{files, temporary};
use bottle_scan::RuleFiles;
use serde_json::Value;

use super::inside::DIRECTORIES;
use crate::docker::images::adopt::{Additions, additions};
use crate::docker::images::writable::{Directory, ROOTS, append_directory};

/// The paths of a bottle's files that no image contains: paths of the system, of a single launch, and of this backend.
pub(super) const SKIPPED: [&str; 6] = ["proc", "sys", "dev", "run", "tmp", ".bottle"];

/// The maximum number of bytes that are read of `/etc/passwd` and of `/etc/group`. The rest of a larger file is
/// ignored.
const LIST_MAX: u64 = 1 << 20;

/// The maximum number of directories of an image that the agent will own. Root stays the owner of all other
/// directories.
const DIRECTORIES_MAX: usize = 50_000;

/// The annotations that name an image in an OCI layout, for `container` and for other programs.
const NAME_ANNOTATIONS: [&str; 3] = [
    "com.apple.containerization.image.name",
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// An image that is being built in a private directory. Dropping this value removes the directory.
pub(super) struct Layout {
    directory: tempfile::TempDir,
    /// The layers that were added so far.
    pub(super) layers: LayerStore,
}

impl Layout {
    /// Creates an empty layout in a new directory below `parent`.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub(super) fn new(parent: &Path, progress: ProgressSink) -> io::Result<Self> {
        files::create_private_directory(parent)?;
        let directory = temporary::directory_in(parent, ".new-")?;
        let blobs = directory.path().join("blobs/sha256");
        files::create_private_directory(&blobs)?;
        // No layer is scanned: the image stays on this machine.
        let scanner = ContentScanner::new(&[], RuleFiles::default()).map_err(io::Error::other)?;
        Ok(Self { directory, layers: LayerStore::new(BlobDirectory(blobs), Arc::new(scanner), progress) })
    }

    /// Returns the path of a temporary file.
    pub(super) fn temporary(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Completes the image, checks it, and packs it into an archive. The image has all `references`. The archive is
    /// removed with the returned directory. Blocks.
    ///
    /// # Errors
    /// [`BadImage`] when a layer is hostile, or a file cannot be written.
    pub(super) fn pack(
        self,
        config: ImageConfig,
        references: &[&str],
    ) -> Result<(tempfile::TempDir, PathBuf), BadImage> {
        let Self { directory, layers } = self;
        let image = ExportedImage { layers, config, root: RootKind::Complete, home: String::new() };
        let (index, blobs) = image.finish()?;
        let at = |name: &str| directory.path().join(name);
        fs::write(at("oci-layout"), LAYOUT)?;
        fs::write(at("index.json"), &index)?;
        check::image(directory.path())?;
        let archive = at("image.tar");
        let mut out = tar::Builder::new(io::BufWriter::with_capacity(1 << 20, File::create_new(&archive)?));
        let mut add = |name: &str, content: &mut dyn Read, size: u64| {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o600);
            header.set_size(size);
            out.append_data(&mut header, name, content)
        };
        let index = named_index(&index, references).map_err(io::Error::other)?;
        add("oci-layout", &mut LAYOUT.as_bytes(), LAYOUT.len() as u64)?;
        add("index.json", &mut index.as_bytes(), index.len() as u64)?;
        for blob in blobs {
            let mut file = File::open(at(&blob.blob()))?;
            let size = file.metadata()?.len();
            add(&blob.blob(), &mut file, size)?;
            // The archive replaces the blob. Without this removal, the content would need the space twice.
            fs::remove_file(at(&blob.blob()))?;
        }
        out.into_inner()?.flush()?;
        Ok((directory, archive))
    }
}

/// Returns the index with one entry for each of the references.
fn named_index(index: &str, references: &[&str]) -> serde_json::Result<String> {
    let mut index: Value = serde_json::from_str(index)?;
    let manifest = index["manifests"][0].clone();
    let named = references.iter().map(|reference| {
        let mut entry = manifest.clone();
        entry["annotations"] = NAME_ANNOTATIONS.map(|name| (name, *reference)).into_iter().collect();
        entry
    });
    index["manifests"] = named.collect();
    serde_json::to_string(&index)
}

/// The facts about an image's files that its preparation needs.
#[derive(Debug, Default)]
pub(super) struct Survey {
    passwd: String,
    group: String,
    /// The directories, relative to the root. Each has the owner's id, the permissions and the modification time.
    directories: BTreeMap<PathBuf, (u32, u32, u64)>,
}

impl Survey {
    /// Reads the next layer, which is above all layers that were read before. Blocks.
    ///
    /// # Errors
    /// [`BadImage`] when the layer is damaged or hostile.
    pub(super) fn read(&mut self, layer: &mut dyn Read) -> Result<(), BadImage> {
        let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {error}"));
        let mut archive = tar::Archive::new(layer);
        let mut members = Members::new(archive.entries().map_err(damaged)?);
        while let Some(mut member) = members.next().map_err(damaged)? {
            let path = checked_path(&member.name)?;
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if let Some(hidden) = name.strip_prefix(WHITEOUT) {
                let hidden = match name == OPAQUE {
                    true => path.parent().unwrap_or(Path::new("")).to_owned(),
                    false => path.with_file_name(String::from_utf8_lossy(hidden).as_ref()),
                };
                self.directories.retain(|directory, _| {
                    !directory.starts_with(&hidden) || name == OPAQUE && *directory == hidden
                });
                continue;
            }
            let list = match path.to_str() {
                Some("etc/passwd") => Some(&mut self.passwd),
                Some("etc/group") => Some(&mut self.group),
                _ => None,
            };
            match (&member.what, list) {
                (What::File, Some(list)) => {
                    let mut text = Vec::new();
                    (&mut member.content).take(LIST_MAX).read_to_end(&mut text).map_err(damaged)?;
                    *list = String::from_utf8_lossy(&text).into_owned();
                }
                (What::Directory, _) => {
                    let mode = member.mode | member.special;
                    self.directories.insert(path, (member.uid, mode, member.mtime));
                }
                _ => drop(self.directories.remove(&path)),
            }
        }
        Ok(())
    }

    /// Returns the agent's account for this `USER`, and a layer that adds the account, the account's home and the
    /// workspace. The docker backend adds the same layer.
    ///
    /// # Errors
    /// [`BadImage`] when the image has no such user.
    pub(super) fn account(&self, user: &str) -> Result<(Account, Vec<u8>), BadImage> {
        let users = Users { user, passwd: &self.passwd, group: &self.group };
        let mut account = users.agent().map_err(|why: NoAccount| BadImage::refused(why.to_string()))?;
        let home = self.directories.get(Path::new(account.home.trim_start_matches('/')));
        let owned = home.is_some_and(|(uid, mode, _)| *uid == account.uid && mode & 0o700 == 0o700);
        if !owned {
            account.home = default_home(&account.name);
        }
        let is_directory = |path: &Path| path.as_os_str().is_empty() || self.directories.contains_key(path);
        let parent = |file: &str| Path::new(file.trim_start_matches('/')).parent().map(Path::to_owned);
        let roots = ROOT_FILES
            .into_iter()
            .filter(|file| parent(file).is_some_and(|directory| is_directory(&directory)));
        let more = Additions { owned, roots: roots.collect(), writable: self.writable() };
        let layer = additions(&users, &account, more)?;
        Ok((account, layer.to_vec()))
    }

    /// Returns the directories in which an agent installs programs.
    fn writable(&self) -> Vec<Directory> {
        let below = |root: &'static str| {
            let inner = Path::new(root.trim_start_matches('/'));
            let found =
                self.directories.iter().filter(move |(path, (uid, ..))| path.starts_with(inner) && *uid == 0);
            let found = found.take(DIRECTORIES_MAX).map(|(path, (_, mode, modified))| Directory {
                path: Path::new("/").join(path),
                mode: *mode,
                modified: *modified,
            });
            let mut found: Vec<Directory> = found.collect();
            if !self.directories.contains_key(inner) {
                found.insert(0, Directory { path: root.into(), mode: 0o755, modified: 0 });
            }
            found
        };
        ROOTS.into_iter().flat_map(below).collect()
    }
}

/// Returns the layer with the directories that every container needs: mount points, and the directories of this
/// backend.
///
/// # Errors
/// When the archive cannot be written.
pub(super) fn directories_layer() -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mode = |path: &str| if path == "tmp" { 0o1777 } else { 0o755 };
    let system = SKIPPED.into_iter().filter(|path| !path.starts_with('.'));
    for path in system.chain(DIRECTORIES.map(|path| path.trim_start_matches('/'))) {
        let directory = Directory { path: Path::new("/").join(path), mode: mode(path), modified: 0 };
        append_directory(&mut archive, &directory, (0, 0))?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a layer with these directories and files. A directory's name ends with a slash.
    fn layer(entries: &[(&str, &str, u64)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, text, uid) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            header.set_uid(*uid);
            header.set_size(text.len() as u64);
            if path.ends_with('/') {
                header.set_entry_type(tar::EntryType::Directory);
            }
            archive.append_data(&mut header, path, text.as_bytes()).expect("append");
        }
        archive.into_inner().expect("an archive")
    }

    fn survey(layers: &[Vec<u8>]) -> Survey {
        let mut survey = Survey::default();
        for layer in layers {
            survey.read(&mut layer.as_slice()).expect("read");
        }
        survey
    }

    /// Returns the entries of a layer, as path and owner.
    fn entries(layer: &[u8]) -> Vec<(String, u64)> {
        let mut archive = tar::Archive::new(layer);
        let entries = archive.entries().expect("entries").map(|entry| {
            let entry = entry.expect("an entry");
            (entry.path().expect("a path").display().to_string(), entry.header().uid().expect("an owner"))
        });
        entries.collect()
    }

    #[test]
    fn an_upper_layer_replaces_and_hides_files() {
        let found = survey(&[
            layer(&[
                ("etc/", "", 0),
                ("etc/passwd", "old:x:1:1::/:\n", 0),
                ("opt/", "", 0),
                ("opt/a/", "", 0),
            ]),
            layer(&[
                ("etc/passwd", "dev:x:1000:1000::/home/dev:/bin/sh\n", 0),
                ("opt/.wh.a", "", 0),
                ("home/dev/", "", 1000),
            ]),
        ]);
        let (account, added) = found.account("dev").expect("an account");
        assert_eq!((account.uid, account.home.as_str()), (1000, "/home/dev"));
        let entries = entries(&added);
        assert!(!entries.iter().any(|(path, _)| path.contains("opt/a")), "{entries:?}");
        let owner = |wanted: &str| {
            entries.iter().find(|(path, _)| path.trim_end_matches('/') == wanted).map(|(_, uid)| *uid)
        };
        assert_eq!(
            (owner("workspace"), owner("opt"), owner("etc/passwd")),
            (Some(1000), Some(1000), Some(0))
        );
        assert_eq!(owner("home/dev"), None, "the home exists");
        assert!(found.account("nobody-here").is_err());
    }

    #[test]
    fn a_hostile_or_damaged_layer_is_refused() {
        let mut hostile = layer(&[("aa/passwd", "x", 0)]);
        hostile[..2].copy_from_slice(b"..");
        // A header with another name has another checksum.
        let mut header = tar::Header::from_byte_slice(&hostile[..512]).clone();
        header.set_cksum();
        hostile[..512].copy_from_slice(header.as_bytes());
        assert!(Survey::default().read(&mut hostile.as_slice()).is_err());
        let good = layer(&[("etc/passwd", "root", 0)]);
        assert!(Survey::default().read(&mut &good[..600]).is_err());
    }

    #[test]
    fn the_archive_names_the_image_and_contains_its_blobs() {
        let directory = tempfile::tempdir().expect("directory");
        let mut layout = Layout::new(directory.path(), ProgressSink::discard()).expect("a layout");
        layout.layers.add(false, |out| out.write_all(&directories_layer()?)).expect("a layer");
        let (kept, archive) =
            layout.pack(ImageConfig::default(), &["localhost/a:1", "localhost/b:1"]).expect("packed");
        let mut names = Vec::new();
        let mut index = String::new();
        for entry in tar::Archive::new(File::open(&archive).expect("open")).entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            if name == "index.json" {
                entry.read_to_string(&mut index).expect("text");
            }
            names.push(name);
        }
        assert_eq!((names.len(), names[0].as_str(), names[1].as_str()), (5, "oci-layout", "index.json"));
        let index: Value = serde_json::from_str(&index).expect("JSON");
        assert_eq!(index["manifests"][1]["annotations"][NAME_ANNOTATIONS[0]], "localhost/b:1");
        drop(kept);
        assert_eq!(fs::read_dir(directory.path()).expect("read").count(), 0, "nothing is left");
    }

    #[test]
    fn a_layer_that_leads_outside_is_not_packed() {
        let directory = tempfile::tempdir().expect("directory");
        let mut layout = Layout::new(directory.path(), ProgressSink::discard()).expect("a layout");
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Char);
        header.set_mode(0o600);
        header.set_size(0);
        archive.append_data(&mut header, "etc/disk", io::empty()).expect("append");
        let hostile = archive.into_inner().expect("an archive");
        layout.layers.add(false, |out| out.write_all(&hostile)).expect("a layer");
        let error = layout.pack(ImageConfig::default(), &["localhost/a:1"]).expect_err("refused");
        assert!(error.to_string().contains("is a device"), "{error:?}");
    }
}
