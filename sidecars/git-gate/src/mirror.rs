//! Creates the folders and files of a mirror, which is the gate's bare copy of an upstream repository.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bottle_daemon::remove_if_present;

use crate::new_objects::KNOWN;
use crate::upstream::ObjectFormat;
use crate::upstream_credentials;

/// Reads the object format from the configuration of an existing mirror.
pub(crate) fn format(mirror: &Path) -> ObjectFormat {
    let config = fs::read_to_string(mirror.join("config")).unwrap_or_default();
    if config.starts_with(head(ObjectFormat::Sha256)) { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
}

/// The first part of a mirror's configuration, which sets the object format.
fn head(format: ObjectFormat) -> &'static str {
    match format {
        ObjectFormat::Sha1 => "[core]\n\trepositoryFormatVersion = 0\n",
        ObjectFormat::Sha256 => {
            "[extensions]\n\tobjectFormat = sha256\n[core]\n\trepositoryFormatVersion = 1\n"
        }
    }
}

/// The second part of a mirror's configuration, which is the same in all mirrors. `alternateRefsCommand`
/// prints nothing, because the only alternate of a quarantine is the mirror, whose refs git reads anyway.
const CONFIG: &str = "\
[core]
\tbare = true
\thooksPath = ../hooks
\tbigFileThreshold = 8m
\tfsync = reference
\talternateRefsCommand = true
[receive]
\tfsckObjects = true
\tunpackLimit = 1
\tkeepAlive = 5
\tautogc = false
\tmaxInputSize = 4g
\tdenyCurrentBranch = ignore
\tdenyDeleteCurrent = ignore
\tadvertisePushOptions = false
[receive \"fsck\"]
\tmissingEmail = warn
\tmissingSpaceBeforeEmail = warn
\tbadTimezone = warn
\tzeroPaddedFilemode = warn
[fetch]
\tunpackLimit = 1
[uploadpack]
\tallowFilter = true
\tkeepAlive = 5
[pack]
\tthreads = 1
\twindowMemory = 64m
\tdeltaCacheSize = 16m
[gc]
\tauto = 0
[maintenance]
\tauto = false
[http]
\tlowSpeedLimit = 1
\tlowSpeedTime = 120
\tfollowRedirects = false
[protocol]
\tversion = 2
";

/// The pre-receive hook. It sends the ref updates to the gate and waits for the verdict. If the gate exits
/// without a verdict, the hook refuses the push.
const HOOK: &str = "\
#!/bin/sh
{ printf '%s\\n' \"$GIT_QUARANTINE_PATH\"; cat; printf 'end\\n'; } >&\"$GATE_ASK\"
while IFS= read -r line <&\"$GATE_TELL\"; do
\tcase \"$line\" in
\t\taccepted) exit 0 ;;
\t\trefused) exit 1 ;;
\t\tthere) ;;
\t\t*) printf '%s\\n' \"${line#say }\" >&2 ;;
\tesac
done
echo 'the git gate exited before it had scanned the push; nothing was pushed' >&2
exit 1
";

/// Replaces a mirror by an empty one with the given object format.
pub(crate) fn recreate(mirror: &Path, format: ObjectFormat) -> io::Result<()> {
    for part in ["refs", "objects"] {
        fs::remove_dir_all(mirror.join(part))?;
    }
    remove_if_present(&mirror.join("packed-refs"))?;
    make(mirror.parent().unwrap_or(mirror), mirror, format)
}

/// Creates the folders and files of a mirror that do not exist yet. Overwrites the configuration and the
/// hook, and removes files that a killed gate left behind.
pub(crate) fn make(folder: &Path, mirror: &Path, format: ObjectFormat) -> io::Result<()> {
    let make = |path: PathBuf| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    for part in ["objects/info", "objects/pack", "refs/heads", "refs/tags", KNOWN] {
        make(mirror.join(part))?;
    }
    match symlink("../objects/pack", mirror.join(KNOWN).join("pack")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    make(folder.join("hooks"))?;
    let hook = folder.join("hooks/pre-receive");
    upstream_credentials::write(&hook, HOOK.as_bytes())?;
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o700))?;
    upstream_credentials::write(&mirror.join("config"), [head(format), CONFIG].concat().as_bytes())?;
    if !mirror.join("HEAD").exists() {
        upstream_credentials::write(&mirror.join("HEAD"), b"ref: refs/heads/main\n")?;
    }
    let begins = |with: &'static str| move |name: &str| name.starts_with(with);
    // Removes incomplete packs and lock files that a killed gate left behind.
    remove(&mirror.join("objects"), 0, &begins("tmp_"))?;
    remove(&mirror.join("objects/pack"), 0, &begins("tmp_"))?;
    unlock(mirror)
}

/// Removes all of git's lock files.
pub(crate) fn unlock(mirror: &Path) -> io::Result<()> {
    let lock = |name: &str| name.ends_with(".lock");
    remove(mirror, 0, &lock)?;
    remove(&mirror.join("refs"), DEEPEST, &lock)
}

/// The maximum depth of a ref's folder. A ref name has at most 255 bytes.
const DEEPEST: usize = 128;

/// Removes the entries whose name matches, in `folder` and in up to `levels` levels of subfolders.
pub(crate) fn remove(folder: &Path, levels: usize, named: &impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        match (named(&entry.file_name().to_string_lossy()), is_folder) {
            (true, true) => fs::remove_dir_all(entry.path())?,
            (true, false) => fs::remove_file(entry.path())?,
            (false, true) if levels > 0 => remove(&entry.path(), levels - 1, named)?,
            (false, _) => {}
        }
    }
    Ok(())
}
