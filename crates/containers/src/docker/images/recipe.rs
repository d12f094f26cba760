//! The inputs of an image build, and the hash that names the image.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use bottle_backend::image::hash::Hash;
use bytes::Bytes;

use super::context::Context;

/// A Dockerfile with its arguments and build context.
#[derive(Debug, Clone, Default)]
pub(super) struct Recipe {
    /// The Dockerfile's text.
    pub(super) dockerfile: String,
    /// Build arguments that affect the image's content.
    pub(super) args: BTreeMap<String, String>,
    /// The files of the build context: path, permission bits, content.
    pub(super) files: Vec<(&'static str, u32, Bytes)>,
    /// Files of the build context that the hash does not include, because the image does not contain them, or because
    /// an argument contains their hash.
    pub(super) extra_files: Vec<(&'static str, u32, Bytes)>,
    /// Whether the build context contains this machine's trusted root certificates, which connections to registries
    /// through a company's proxy need. Only the bundled Dockerfiles use the certificates, and the images do not contain
    /// them.
    pub(super) with_roots: bool,
    /// The directory of a user's Dockerfile, if the Dockerfile reads files of this directory.
    pub(super) directory: Option<Arc<Context>>,
}

impl Recipe {
    /// Hashes everything that affects the image's content. `made_into` is the repository name of the final image.
    pub(super) fn hash(&self, made_into: &str) -> String {
        let mut hasher = Hash::new(made_into);
        hasher.add(self.dockerfile.as_bytes());
        for (name, value) in &self.args {
            hasher.add(name.as_bytes()).add(value.as_bytes());
        }
        for (path, mode, bytes) in &self.files {
            hasher.add(path.as_bytes()).add(&mode.to_le_bytes()).add(bytes);
        }
        if let Some(directory) = &self.directory {
            hasher.add(directory.hash.as_bytes());
        }
        hasher.finish()
    }

    /// Writes the build context as a tar archive. Adds `texts`, which replace files at the same path. Blocks while it
    /// reads the user's directory.
    ///
    /// # Errors
    /// When a file of the user's directory cannot be read, or a path is too long for an archive.
    pub(super) fn pack(&self, out: impl Write, texts: &[(&str, Bytes)]) -> io::Result<()> {
        let mut archive = tar::Builder::new(out);
        for (path, text) in texts {
            append(&mut archive, path, 0o644, text)?;
        }
        for (path, mode, bytes) in self.files.iter().chain(&self.extra_files) {
            append(&mut archive, path, *mode, bytes)?;
        }
        if let Some(directory) = &self.directory {
            let replaced: Vec<&str> = texts.iter().map(|(path, _)| *path).collect();
            directory.append_to(&mut archive, &replaced)?;
        }
        archive.into_inner()?.flush()
    }
}

/// Returns the header of an entry that root owns, without a time stamp. Sets every number, because a reader may refuse
/// a header with empty numbers.
pub(super) fn root_header() -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Adds a file that root owns and that has no time stamp, so that equal content results in equal archives.
pub(super) fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    path: &str,
    mode: u32,
    bytes: &[u8],
) -> io::Result<()> {
    let mut header = root_header();
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bottle_backend::image::hash::DIGITS;

    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            dockerfile: "FROM base\n".to_owned(),
            args: [("BASE".to_owned(), "sha256:1".to_owned())].into(),
            files: vec![("a/b", 0o755, Bytes::from_static(b"content"))],
            with_roots: false,
            extra_files: vec![("roots.pem", 0o644, Bytes::from_static(b"roots"))],
            directory: None,
        }
    }

    fn packed() -> Vec<u8> {
        let mut archive = Vec::new();
        let dockerfile = ("Dockerfile", Bytes::from_static(b"FROM base\n"));
        recipe().pack(&mut archive, &[dockerfile]).expect("an archive");
        archive
    }

    #[test]
    fn everything_that_affects_the_content_changes_the_hash() {
        let name = recipe().hash("agent");
        assert_eq!(name, recipe().hash("agent"));
        assert_eq!(name.len(), DIGITS);
        let changed = |change: &dyn Fn(&mut Recipe)| {
            let mut recipe = recipe();
            change(&mut recipe);
            recipe.hash("agent")
        };
        let others = [
            recipe().hash("sidecars"),
            changed(&|recipe| recipe.dockerfile.push('\n')),
            changed(&|recipe| recipe.args = [("BASE".to_owned(), "sha256:2".to_owned())].into()),
            changed(&|recipe| recipe.args = [("BASEsha256:".to_owned(), "1".to_owned())].into()),
            changed(&|recipe| recipe.files[0].0 = "a/c"),
            changed(&|recipe| recipe.files[0].1 = 0o644),
            changed(&|recipe| recipe.files[0].2 = Bytes::from_static(b"other")),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(*other != name && !others[..index].contains(other), "{index}");
        }
        assert_eq!(name, changed(&|recipe| recipe.extra_files.clear()), "roots are no part of an image");
    }

    #[test]
    fn the_context_contains_the_dockerfile_and_the_files() {
        let archive = packed();
        assert_eq!(archive, packed());
        let mut found = Vec::new();
        for entry in tar::Archive::new(&*archive).entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            let path = entry.path().expect("a path").display().to_string();
            found.push((path, entry.header().mode().expect("a mode"), text));
        }
        let expected =
            [("Dockerfile", 0o644, "FROM base\n"), ("a/b", 0o755, "content"), ("roots.pem", 0o644, "roots")];
        assert_eq!(found, expected.map(|(path, mode, text)| (path.to_owned(), mode, text.to_owned())));
    }
}
