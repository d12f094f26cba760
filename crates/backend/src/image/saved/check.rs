//! Checks all layers of an image without unpacking them, before the image is passed to an engine.

use std::io::{self, Read};
use std::path::Path;

use bottle_guest::archive::{Member, Members, What};
use tar::EntryType;

use super::entry::{FILES_MAX, checked_path, escapes, rejected_entry};
use super::layer::{self, Budget};
use super::{BadImage, Container, Saved, architecture};

/// The maximum total size of all files in bytes, including holes. An engine writes holes as zeros, so a small layer
/// with large holes could fill the engine's disk.
const FULL_SIZE_MAX: u64 = 64 << 30;

/// An image whose layers were checked.
pub struct Checked {
    /// The directory or archive that contains the image.
    pub container: Container,
    /// The image's configuration and layers.
    pub saved: Saved,
    /// The sizes of the uncompressed layers in bytes.
    pub sizes: Vec<u64>,
}

/// Checks the image of an OCI layout: the digests of all layers, and the path, the kind, the link target and the size
/// of each entry. Blocks.
///
/// # Errors
/// [`BadImage`] when the image is damaged or hostile.
pub fn image(layout: &Path) -> Result<Checked, BadImage> {
    let container = Container::directory(layout)?;
    let saved = Saved::read(&container, architecture())?;
    let (mut budget, mut limits) = (Budget::full(), Limits { files: 0, full_size: 0 });
    let mut sizes = Vec::new();
    for one in &saved.layers {
        let mut size = 0;
        layer::read(&container, one, &mut budget, |content| {
            let mut counted = Counted { content, bytes: 0 };
            limits.layer(&one.name, &mut counted)?;
            io::copy(&mut counted, &mut io::sink()).map_err(BadImage::Disk)?;
            size = counted.bytes;
            Ok(())
        })?;
        sizes.push(size);
    }
    Ok(Checked { container, saved, sizes })
}

/// The part of each limit that the layers have used so far.
struct Limits {
    files: usize,
    full_size: u64,
}

impl Limits {
    fn layer(&mut self, name: &str, layer: &mut dyn Read) -> Result<(), BadImage> {
        let damaged = |error: io::Error| BadImage::refused(format!("is damaged: {name:?}: {error}"));
        let mut archive = tar::Archive::new(layer);
        let mut members = Members::new(archive.entries().map_err(damaged)?);
        while let Some(member) = members.next().map_err(damaged)? {
            self.files += 1;
            if self.files > FILES_MAX {
                return Err(BadImage::refused(format!("has more than {FILES_MAX} files")));
            }
            let path = checked_path(&member.name)?;
            self.full_size = self.full_size.saturating_add(member.content.size());
            if self.full_size > FULL_SIZE_MAX {
                let why = format!(
                    "takes the files above {} GiB, and an engine writes the holes of files",
                    FULL_SIZE_MAX >> 30
                );
                return Err(rejected_entry(&path, &why));
            }
            check(&path, &member)?;
        }
        Ok(())
    }
}

fn check(path: &Path, member: &Member<'_, impl Read>) -> Result<(), BadImage> {
    match &member.what {
        What::File | What::Directory | What::Other(EntryType::Fifo) => Ok(()),
        What::Link(target) if escapes(path, target) => {
            Err(rejected_entry(path, &format!("is a link that points outside, to {target:?}")))
        }
        What::Link(_) => Ok(()),
        What::HardLink(target) => checked_path(target)
            .map(drop)
            .map_err(|_| rejected_entry(path, "is a hard link that points outside")),
        // Devices in `/dev` are harmless, because an engine mounts another directory over `/dev`.
        What::Other(EntryType::Char | EntryType::Block) if path.parent() == Some(Path::new("dev")) => Ok(()),
        What::Other(EntryType::Char | EntryType::Block) => Err(rejected_entry(path, "is a device")),
        What::Other(_) => Err(rejected_entry(path, "has an unsupported type")),
    }
}

struct Counted<'a> {
    content: &'a mut dyn Read,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Repeated;
    use super::*;

    #[test]
    fn a_layer_of_ten_million_entries_is_refused() {
        let mut limits = Limits { files: 0, full_size: 0 };
        let mut layer = Repeated::entry(EntryType::Directory, "workspace", 10_000_000);
        let refused = limits.layer("one", &mut layer).expect_err("too many entries").to_string();
        assert_eq!(refused, "is damaged: \"one\": the archive has more than 1000000 members");
        assert_eq!(limits.files, 1_000_000);
        // Each layer has fewer entries than the limit, but all layers together exceed the limit.
        for expected in [Ok(()), Err("has more than 2000000 files".to_owned())] {
            let mut layer = Repeated::entry(EntryType::Directory, "workspace", 500_001);
            assert_eq!(limits.layer("more", &mut layer).map_err(|error| error.to_string()), expected);
        }
    }
}
