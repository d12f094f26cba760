//! Prepares an image for an agent. Adds a user and the user's home, a workspace, and links to the certificates that
//! each launch provides. Makes the agent the owner of the directories in which agents install programs. Records the
//! user and the home in labels of the image.
//!
//! No program of the image runs. This module creates a container without starting it, reads `/etc/passwd` and
//! `/etc/group`, uploads the missing files, and commits the result.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerConfig;
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use bottle_backend::image::account::{ACCOUNT_LABEL, Account, Users, default_home};
use bottle_backend::{BackendError, ROOT_FILES};
use bottle_policy::names::{AGENT_USER, CA_BUNDLE_FILE, MACHINE_ID_FILE, WORKSPACE};
use bytes::Bytes;
use futures_util::StreamExt;

use super::image_error::{failed, is_missing};
use super::image_facts::{Facts, LEFT_OUT_LABEL};
use super::labels::{self, IMAGE_LABEL};
use super::scratch_container::{SCRATCH_LABEL, ScratchContainer};
use super::writable::{self, Directory, append_directory};
use super::{owner_label, recipe};
use crate::docker::podman::{Commit, Committer};

/// The maximum number of bytes that are read of `/etc/passwd` and of `/etc/group`. The rest of a larger file is
/// ignored.
const LIST_MAX: usize = 1 << 20;
/// The size in bytes of a tar header. Only the header is read from a home directory's archive.
const HEADER: usize = 512;
/// The maximum number of symbolic links that are followed to `/etc/passwd` or `/etc/group`.
const LINKS_MAX: usize = 8;
/// The temporary directory. A tmpfs that is mounted at this path takes the mode of the image's directory.
const TMP: &str = "/tmp";
/// The file with the machine id, which desktop programs need. Each bottle has its own machine id.
const MACHINE_ID: &str = "/etc/machine-id";

/// The tag of the prepared image, and the `$BOTTLE_HOME` in its labels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready<'a> {
    /// The repository and the tag of the image.
    pub(super) tag: (&'a str, &'a str),
    /// The hash of the `$BOTTLE_HOME` for which the image is prepared.
    pub(super) home: &'a str,
}

/// Prepares `image` and returns the new image's id. `named` identifies the image in errors.
///
/// # Errors
/// [`BackendError`]. After an error, the scratch container is already removed, unless the engine is unavailable.
pub(super) async fn adopt(
    docker: &Docker,
    podman: Option<&Path>,
    image: &Facts,
    named: &str,
    ready: Ready<'_>,
) -> Result<String, BackendError> {
    let scratch = ScratchContainer::make(docker, &image.id, ready.home, Vec::new()).await?;
    let committed = inside(docker, podman, &scratch.id, image, named, ready).await;
    let removed = scratch.remove(docker).await;
    committed.and_then(|id| removed.map(|()| id))
}

async fn inside(
    docker: &Docker,
    podman: Option<&Path>,
    container: &str,
    image: &Facts,
    named: &str,
    Ready { tag: (repository, tag), home }: Ready<'_>,
) -> Result<String, BackendError> {
    let inspect_local = |error: Error| failed(format!("cannot read files of {named}"), error);
    let passwd = list(docker, container, "/etc/passwd").await.map_err(inspect_local)?;
    let group = list(docker, container, "/etc/group").await.map_err(inspect_local)?;
    let users = Users { user: &image.user, passwd: &passwd, group: &group };
    let mut account = users.agent().map_err(|why| {
        BackendError::failed(format!("{named} {why}")).with_hint("correct its `USER` and build it again")
    })?;
    let owned = owns_home(docker, container, &account).await.map_err(inspect_local)?;
    if !owned {
        account.home = default_home(&account.name);
    }
    let roots = roots(docker, container).await.map_err(inspect_local)?;
    let mut writable = Vec::new();
    for root in writable::ROOTS {
        writable.extend(writable::directories(docker, container, root).await.map_err(inspect_local)?);
    }
    let additions = additions(&users, &account, Additions { owned, roots, writable })
        .map_err(|error| BackendError::failed(format!("cannot pack a home for {named}")).because(error))?;
    let options = UploadToContainerOptionsBuilder::new().path("/").build();
    docker
        .upload_to_container(container, Some(options), bollard::body_full(additions))
        .await
        .map_err(|error| failed(format!("cannot make a home in {named}"), error))?;
    let config = ContainerConfig {
        user: Some(format!("{}:{}", account.uid, account.gid)),
        labels: Some(labels(image, &account, named, home)),
        ..ContainerConfig::default()
    };
    let comment = format!("bottle: {named}");
    let commit = Commit { container, repository, tag, comment: &comment, config };
    let committed = Committer::new(docker, podman).commit(commit).await;
    committed.map_err(|error| error.during(&format!("commit {named} for bottles")))
}

/// Returns the labels of the prepared image. A commit would copy the labels of the scratch container, so the returned
/// map sets the labels of the scratch container to the empty text.
fn labels(image: &Facts, account: &Account, named: &str, home: &str) -> HashMap<String, String> {
    [
        (IMAGE_LABEL, labels::AGENT.to_owned()),
        (labels::HOME_LABEL, home.to_owned()),
        (labels::SOURCE_LABEL, format!("{home}:{named}")),
        (ACCOUNT_LABEL, account.label()),
        (LEFT_OUT_LABEL, image.left_out.join(",")),
        (SCRATCH_LABEL, String::new()),
        (owner_label::LABEL, String::new()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The parameters of [`additions`] besides the account.
pub(crate) struct Additions {
    /// Whether the account already owns its home.
    pub(crate) owned: bool,
    /// The paths of certificate bundles whose parent directory exists in the image. These paths become links to the
    /// bottle's certificate bundle.
    pub(crate) roots: Vec<&'static str>,
    /// The directories that the account will own.
    pub(crate) writable: Vec<Directory>,
}

/// Builds the archive of the files to add to the image: the user, the user's group, the home if it is missing, a
/// workspace, links to files that each launch provides, and the new owner of existing directories. The archive is the
/// same for every bottle.
///
/// # Errors
/// When a path is too long for an archive.
pub(crate) fn additions(users: &Users<'_>, account: &Account, more: Additions) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(Vec::new());
    recipe::append(&mut archive, "etc/passwd", 0o644, users.passwd_with(account).as_bytes())?;
    if let Some(group) = users.group_with(account) {
        recipe::append(&mut archive, "etc/group", 0o644, group.as_bytes())?;
    }
    let owner = (account.uid, account.gid);
    let directory = |path: &str, mode| Directory { path: path.into(), mode, modified: 0 };
    for directory in &more.writable {
        append_directory(&mut archive, directory, owner)?;
    }
    append_directory(&mut archive, &directory(TMP, 0o1777), (0, 0))?;
    if !more.owned {
        append_directory(&mut archive, &directory(&account.home, 0o755), owner)?;
    }
    append_directory(&mut archive, &directory(WORKSPACE, 0o755), owner)?;
    let usual = default_home(AGENT_USER);
    if account.home != usual {
        link(&mut archive, &usual, &account.home)?;
    }
    for file in more.roots {
        link(&mut archive, file, CA_BUNDLE_FILE)?;
    }
    link(&mut archive, MACHINE_ID, MACHINE_ID_FILE)?;
    archive.into_inner().map(Bytes::from)
}

fn link<W: io::Write>(archive: &mut tar::Builder<W>, path: &str, target: &str) -> io::Result<()> {
    let mut header = recipe::root_header();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_mode(0o777);
    header.set_size(0);
    archive.append_link(&mut header, path.trim_start_matches('/'), target)
}

/// Returns the paths of certificate bundles whose parent directory exists in the image.
async fn roots(docker: &Docker, container: &str) -> Result<Vec<&'static str>, Error> {
    let mut there = Vec::new();
    for file in ROOT_FILES {
        let directory = file.rsplit_once('/').map_or("/", |(directory, _)| directory);
        if start_of(docker, container, directory, HEADER).await?.is_some() {
            there.push(file);
        }
    }
    Ok(there)
}

/// Reads a short file of the container, and follows symbolic links to it. Returns an empty text if the file does not
/// exist or is not a regular file.
async fn list(docker: &Docker, container: &str, path: &str) -> Result<String, Error> {
    let mut path = PathBuf::from(path);
    for _ in 0..=LINKS_MAX {
        let Some(archive) = start_of(docker, container, &path.to_string_lossy(), LIST_MAX).await? else {
            break;
        };
        let mut archive = tar::Archive::new(&*archive);
        let Some(Ok(entry)) = archive.entries()?.next() else { break };
        match entry.header().entry_type() {
            kind if kind.is_file() => {
                let mut text = Vec::new();
                entry.take(LIST_MAX as u64).read_to_end(&mut text)?;
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            kind if kind.is_symlink() => {
                let Some(target) = entry.link_name()? else { break };
                // The engine resolves the path inside the container.
                path = path.parent().unwrap_or(Path::new("/")).join(target);
            }
            _ => break,
        }
    }
    Ok(String::new())
}

/// Whether the account's home is a directory that the account owns and may write to.
async fn owns_home(docker: &Docker, container: &str, account: &Account) -> Result<bool, Error> {
    let Some(archive) = start_of(docker, container, &account.home, HEADER).await? else { return Ok(false) };
    let mut archive = tar::Archive::new(&*archive);
    let Some(Ok(entry)) = archive.entries()?.next() else { return Ok(false) };
    let header = entry.header();
    let owner = header.uid()? == u64::from(account.uid);
    Ok(header.entry_type().is_dir() && owner && header.mode()? & 0o700 == 0o700)
}

/// Returns at least the first `bytes` bytes of the archive of `path`, or the complete archive if it is shorter. `None`
/// if the path does not exist. The beginning is sufficient, because callers need only a small file or the header of an
/// entry.
async fn start_of(
    docker: &Docker,
    container: &str,
    path: &str,
    bytes: usize,
) -> Result<Option<Vec<u8>>, Error> {
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let mut stream = Box::pin(docker.download_from_container(container, Some(options)));
    let mut archive = Vec::new();
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => archive.extend_from_slice(&chunk),
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        if archive.len() >= bytes + 2 * HEADER {
            break;
        }
    }
    Ok(Some(archive))
}
