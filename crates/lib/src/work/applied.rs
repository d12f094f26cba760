//! Records which files of a bottle `bottle apply` last merged into the user's files. The next merge uses these files as
//! its base.
//!
//! The record is a directory in the bottle's state directory, and is deleted with the bottle. It contains a pack with
//! the objects that the user's repository does not have, and the id of the tree of the applied files.
//!
//! ```text
//! applied/pack/pack-*    the objects
//! applied/tree           TREE BASE: the tree of the files, and the commit with which the merge began
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_host::Host;
use bottle_host::files::replace;
use bottle_instance::Store;
use sha2::{Digest, Sha256};

use super::host::store_failed;
use super::scratch::{Base, FILES};
use super::{ObjectId, Root, Work};
use crate::failure::Failure;

/// The name of the record's directory in the bottle's state directory. For a directory of the workspace, a hash of that
/// directory's name is appended.
const DIRECTORY: &str = "applied";

/// The name of the file that contains the id of the tree.
const TREE: &str = "tree";

fn directory(host: &Host, root: &Root) -> PathBuf {
    let name = if root.is_directory() {
        format!("{DIRECTORY}-{}", hex::encode(Sha256::digest(&root.name)))
    } else {
        DIRECTORY.to_owned()
    };
    Store::of(host).directory(&root.slug).join(name)
}

impl Work<'_> {
    /// Reads which files were last applied. Ignores the record if the base has changed since then, because the user's
    /// repository then contains later commits of the bottle.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub async fn use_applied(&mut self, host: &Host) -> Result<(), Failure> {
        let directory = directory(host, &self.root);
        let text = match fs::read_to_string(directory.join(TREE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text.map_err(|error| Failure::path("read", &directory, error))?,
        };
        let Some((tree, base)) = text.trim_end().split_once(' ') else { return Ok(()) };
        if base == base_id(&self.base)
            && let Some(tree) = ObjectId::parse(tree)
            && tree.format() == self.scratch.store.kind().format
        {
            self.scratch.store.borrow_packs(&directory.join("pack")).map_err(store_failed)?;
            self.applied = Some(self.scratch.tree_of_reference(tree.as_str()).await?);
        }
        Ok(())
    }

    /// Records that the imported workspace was applied.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub async fn record_applied(&self, host: &Host) -> Result<(), Failure> {
        let directory = directory(host, &self.root);
        let failed = |error: io::Error| Failure::path("write", &directory, error);
        let tree = self.scratch.tree_of_reference(FILES).await?;
        let known: Vec<ObjectId> = self.head.iter().cloned().collect();
        let pack = self.scratch.store.pack(&tree, &known).await.map_err(store_failed)?;
        let packs = directory.join("pack");
        fs::create_dir_all(&packs).map_err(failed)?;
        // The pack of an earlier record is no longer needed, unless the new record has the same pack.
        let earlier = names(&packs).map_err(failed)?;
        let mut kept = Vec::new();
        if let Some(mut pack) = pack {
            let opened = bottle_repository::Directory::open_without_link(&directory).map_err(failed)?;
            pack.add_to(&opened).map_err(failed)?;
            kept = pack.names();
        }
        let text = format!("{tree} {}\n", base_id(&self.base));
        replace(&directory.join(TREE), |file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::cannot("write the record", error))?;
        for name in earlier.iter().filter(|name| !kept.contains(name)) {
            fs::remove_file(packs.join(name)).map_err(failed)?;
        }
        Ok(())
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    fs::read_dir(directory)?.map(name).collect()
}

/// Returns the id of the base's commit, in the form that the record contains. `none` if the base has no commit.
fn base_id(base: &Base) -> &str {
    base.commit.as_ref().map_or("none", ObjectId::as_str)
}
