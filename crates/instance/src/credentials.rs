//! The sources of a bottle's credentials, `state/<slug>/credentials.json`: where the launch read each value.
//!
//! The file contains no values. A command reads the same sources again to replace values while the bottle runs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bottle_host::files;
use bottle_plan::{Plan, SecretNeed};
use bottle_policy::credential;

/// The maximum size of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the path of the file in a bottle's directory.
#[must_use]
pub fn path(directory: &Path) -> PathBuf {
    directory.join("credentials.json")
}

/// Writes the sources of the plan's credentials.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(directory: &Path, plan: &Plan) -> io::Result<()> {
    let bindings = credential::bindings(&plan.egress.routes);
    let is_credential = |need: &&SecretNeed| bindings.iter().any(|binding| binding.slot == need.id);
    let sources: Vec<&SecretNeed> = plan.secrets.iter().filter(is_credential).collect();
    let text = serde_json::to_vec(&sources)?;
    files::replace_durably(&path(directory), |file| file.write_all(&text))
}

/// Reads the sources. `None` if an earlier version started the bottle.
///
/// # Errors
/// Fails if the file cannot be read, or has another form than [`write()`] writes.
pub fn read(directory: &Path) -> io::Result<Option<Vec<SecretNeed>>> {
    use std::io::Read;
    let file = match std::fs::File::open(path(directory)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}
