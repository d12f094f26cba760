//! Finds the submodules of a workspace. Each submodule has its own repository, both in the bottle and on the host. An
//! agent's work in a submodule is therefore pulled into the user's repository of the submodule.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bottle_channel::Channel;
use bottle_host::Host;

use super::bottle_git::BottleGit;
use super::scratch::{Base, Scratch};
use super::{ObjectId, Root};
use crate::failure::Failure;

/// The mode of a submodule in a tree.
const SUBMODULE: &str = "160000";

/// The maximum number of submodules of one repository whose work is pulled.
const MAX_SUBMODULES: usize = 1000;

impl Scratch<'_> {
    /// Returns the sorted paths of the submodules in the base, which is the user's commit with which a workspace is
    /// compared. Empty if the base is not a commit of the user.
    ///
    /// # Errors
    /// When git fails.
    pub async fn submodules(&self, base: &Base) -> Result<Vec<PathBuf>, Failure> {
        // In a commit of the bottle, the path of a submodule could name any directory.
        if !base.is_own {
            return Ok(Vec::new());
        }
        let listed = self.listed(&base.tree).await?;
        let submodules = listed.into_iter().filter(|(_, (mode, _))| mode == SUBMODULE);
        let mut paths: Vec<PathBuf> = submodules.map(|(path, _)| OsStr::from_bytes(&path).into()).collect();
        paths.sort_unstable();
        paths.truncate(MAX_SUBMODULES);
        Ok(paths)
    }
}

impl Root {
    /// Whether the submodule at this root has commits or files in the bottle that the user's repository of the
    /// submodule lacks.
    ///
    /// # Errors
    /// When git in the bottle or on this machine fails.
    pub async fn has_work(&self, host: &Host, channel: &Channel) -> Result<bool, Failure> {
        let Some(own) = self.repository()? else { return Ok(false) };
        // The submodule is not checked out in the bottle.
        let Some(inside) = (BottleGit { channel, root: self }).find_workspace().await? else {
            return Ok(false);
        };
        let scratch = Scratch::create(host, Some(&own), None)?;
        scratch.lend(&own, None)?;
        let mut tips: Vec<ObjectId> = inside.tips().await?;
        tips.extend(inside.head.clone());
        if scratch.count_missing(&tips).await? > 0 {
            return Ok(true);
        }
        let head = inside.head.as_ref();
        let base = scratch.base(head, head, Some(&own)).await?;
        let found = scratch.uncommitted((channel, self), &own, &base, head).await?;
        Ok(found.files > 0 || !found.left_out.places.is_empty())
    }
}
