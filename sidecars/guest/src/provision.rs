//! Provisions the bottle before its first process starts. Stores the environment variables in memory, and writes files,
//! including secret files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use bottle_policy::names::SECRETS_DIR;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{FailureKind, Provision, ProvisionedFile};
use rustix::fs::{Mode, OFlags, fchmod};

use crate::facts::relative_to_root;
use crate::failure::{Outcome, bad_state, failed, other};
use crate::guest::Guest;
use crate::program::is_variable;
use crate::rooted::{make_directory, open_beneath};
use crate::secret_files;

/// Provisions the bottle. Fails if the bottle is already provisioned. After a failure, the bottle starts no process.
pub(crate) fn provision(guest: &Guest, request: Provision) -> Outcome<()> {
    if guest.environment().is_ok() {
        return Err(bad_state("the bottle is provisioned already"));
    }
    let mut environment: BTreeMap<String, Secret> = BTreeMap::new();
    for (key, value) in request.env {
        if !is_variable(&key, value.0.expose()) {
            return Err(other(format!("cannot set the environment variable {key:?}")));
        }
        environment.insert(key, value.0);
    }
    for file in &request.files {
        write(&guest.facts.root, file).map_err(|error| {
            failed(FailureKind::BadPath, format!("cannot write {:?}: {error}", file.path))
        })?;
    }
    if let Some(most) = request.processes {
        guest.processes.set_most(most);
    }
    if let Some(work) = &request.work {
        guest.set_work(work);
    }
    let secrets = environment.iter().filter(|(name, _)| request.secret.contains(*name));
    secret_files::replace(&guest.facts.root, secrets.map(|(name, value)| (name.as_str(), value)))
        .map_err(|error| failed(FailureKind::BadPath, format!("cannot write {SECRETS_DIR:?}: {error}")))?;
    guest.set_environment(environment, &request.secret)
}

/// Writes one provisioned file. Symlinks in the path of the file's directory are followed, because they belong to the
/// image. If the file itself is a symlink, writing fails.
fn write(root: &Path, file: &ProvisionedFile) -> std::io::Result<()> {
    let path = relative_to_root(&file.path);
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::IsADirectory.into());
    };
    let directory = make_directory(root, directory)?;
    // The file is created with mode 0600, so other users cannot read it before it gets its final mode.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
    let opened = open_beneath(&directory, Path::new(name), flags, Mode::from_raw_mode(0o600))?;
    let mut opened = File::from(opened);
    fchmod(&opened, Mode::from_raw_mode(file.mode & 0o777))?;
    opened.write_all(file.content.0.expose().as_bytes())
}
