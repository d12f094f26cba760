//! Records which files of a bottle `bottle apply` last laid onto the user's files, so that the next merge begins there.
//!
//! The record is a repository in the bottle's state folder, which ends with the bottle. It reads the objects of the
//! user's repository.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::host::{Repository, run, stderr_tail};
use super::scratch::{Base, FILES, Scratch, expect};
use super::workspace::quoted;
use super::{ObjectId, Root, Work};
use crate::cli::error::CliError;
use crate::host::Host;
use crate::instance::Store;

/// The name of the record in the bottle's state folder, without the suffix `.git`. The name for a folder of the
/// workspace has a hash of the folder's name too.
const FOLDER: &str = "applied";

/// The reference for the files that were applied.
const APPLIED: &str = "refs/bottle/applied";

fn folder(host: &Host, root: &Root) -> PathBuf {
    let name = if root.is_folder() {
        format!("{FOLDER}-{}.git", hex::encode(Sha256::digest(&root.name)))
    } else {
        format!("{FOLDER}.git")
    };
    Store::of(host).folder(&root.slug).join(name)
}

impl Work<'_> {
    /// Reads which files were last applied, unless the user has taken over later commits since then.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub(crate) async fn use_applied(&mut self, host: &Host) -> Result<(), CliError> {
        let folder = folder(host, &self.root);
        if !folder.is_dir() {
            return Ok(());
        }
        let record = Repository { host, folder: folder.clone() };
        let Some(commit) = record.resolve(APPLIED).await? else { return Ok(()) };
        let shown = record.git(&["cat-file", "commit", commit.as_str()]).await?;
        let since = shown.stdout.rsplit(|byte| *byte == b'\n').find(|line| !line.is_empty());
        if since == Some(base_id(&self.base).as_bytes()) {
            self.scratch.read_objects_of(&folder.join("objects"))?;
            self.applied = Some(self.scratch.tree_of_reference(commit.as_str()).await?);
        }
        Ok(())
    }

    /// Records that the imported workspace was applied.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) async fn record_applied(&self, host: &Host) -> Result<(), CliError> {
        let folder = folder(host, &self.root);
        let failed = |error: io::Error| CliError::path("write", &folder, error);
        let scratch = &self.scratch.repository;
        let tree = self.scratch.tree_of_reference(FILES).await?;
        let mut command = scratch.command();
        for name in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{name}_NAME"), "bottle")
                .env(format!("GIT_{name}_EMAIL"), "bottle@bottle.invalid");
        }
        command.args(["commit-tree", tree.as_str(), "-m", base_id(&self.base)]);
        let made = run(command).await?;
        let commit = ObjectId::parse(&String::from_utf8_lossy(&made.stdout)).ok_or_else(|| {
            CliError::failed(format!("git cannot record the files: {}", stderr_tail(&made)))
        })?;
        expect(scratch, &["update-ref", APPLIED, commit.as_str()]).await?;
        fs::create_dir_all(&folder).map_err(failed)?;
        let record = Repository { host, folder: folder.clone() };
        let long = commit.as_str().len() == 64;
        let format = if long { "--object-format=sha256" } else { "--object-format=sha1" };
        expect(&record, &["init", "--quiet", "--bare", "--template=", format, "."]).await?;
        if let Some(own) = &self.own {
            let objects = own.git_path("objects").await?;
            let path = folder.join("objects/info");
            let text = quoted(objects.as_os_str().as_encoded_bytes());
            fs::create_dir_all(&path)
                .and_then(|()| fs::write(path.join("alternates"), text))
                .map_err(failed)?;
        }
        let from = scratch.folder.display().to_string();
        let reference = format!("+{APPLIED}:{APPLIED}");
        let arguments =
            ["-c", "protocol.file.allow=always", "fetch", "--quiet", "--no-tags", &from, &reference];
        expect(&record, &arguments).await
    }
}

/// The id of the base's commit, with which the record begins.
fn base_id(base: &Base) -> &str {
    base.commit.as_ref().map_or("none", ObjectId::as_str)
}

impl Scratch<'_> {
    /// Lets this repository read the objects of another one.
    fn read_objects_of(&self, objects: &Path) -> Result<(), CliError> {
        let path = self.repository.folder.join("objects/info/alternates");
        let mut line = quoted(objects.as_os_str().as_encoded_bytes());
        line.push(b'\n');
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        // The first line may have no end.
        opened
            .and_then(|mut file| file.write_all(b"\n").and_then(|()| file.write_all(&line)))
            .map_err(|error| CliError::path("write", &path, error))
    }
}
