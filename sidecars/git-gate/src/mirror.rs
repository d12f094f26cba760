//! Creates the directories and files of a mirror, which is the gate's bare copy of an upstream repository.

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

/// Returns the first part of a mirror's configuration, which sets the object format.
fn head(format: ObjectFormat) -> &'static str {
    match format {
        ObjectFormat::Sha1 => "[core]\n\trepositoryFormatVersion = 0\n",
        ObjectFormat::Sha256 => {
            "[extensions]\n\tobjectFormat = sha256\n[core]\n\trepositoryFormatVersion = 1\n"
        }
    }
}

/// The second part of a mirror's configuration, which is the same in all mirrors. `alternateRefsCommand` prints
/// nothing: the only alternate of a quarantine is the mirror, and git reads the refs of the mirror anyway.
const CONFIG: &str = "\
[core]
\tbare = true
\thooksPath = ../hooks
\tbigFileThreshold = 8m
\tdeltaBaseCacheLimit = 16m
\tpackedGitWindowSize = 32m
\tpackedGitLimit = 1g
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
\tprocReceiveRefs = refs
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

/// The script of the pre-receive hook. The script sends the push options and the ref updates to the gate, and waits for
/// the verdict. If the gate exits without a verdict, the hook refuses the push.
const HOOK: &str = "\
#!/bin/sh
newline='
'
number=0
{
\tprintf '%s\\n' \"$GIT_QUARANTINE_PATH\"
\twhile [ \"$number\" -lt \"${GIT_PUSH_OPTION_COUNT:-0}\" ]; do
\t\teval \"option=\\$GIT_PUSH_OPTION_$number\"
\t\tcase \"$option\" in *\"$newline\"*)
\t\t\techo 'a push option has more than one line' >&2
\t\t\texit 1 ;;
\t\tesac
\t\tprintf 'option %s\\n' \"$option\"
\t\tnumber=$((number + 1))
\tdone
\tcat
\tprintf 'end\\n'
} >&\"$GATE_ASK\"
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

/// The script of the proc-receive hook. The script reports the results of the ref updates, which the gate sends after
/// the verdict. With this hook, git never changes the refs of the mirror. Only [`write_refs`] changes them.
const REPORT_HOOK: &str = "\
#!/bin/sh
cat <&\"$GATE_TELL\" &
cat > /dev/null
wait
";

/// Returns the total size in bytes of the indexes of the mirror's packs. An index has at least 28 bytes for each
/// object.
pub(crate) fn index_bytes(mirror: &Path) -> u64 {
    let files = fs::read_dir(mirror.join("objects/pack")).into_iter().flatten().flatten();
    let indexes = files.filter(|file| file.path().extension().is_some_and(|end| end == "idx"));
    indexes.filter_map(|index| Some(index.metadata().ok()?.len())).sum()
}

/// Reads the refs of the mirror from `packed-refs`. Returns an empty text if there are no refs.
pub(crate) fn packed_refs(mirror: &Path) -> String {
    fs::read_to_string(mirror.join("packed-refs")).unwrap_or_default()
}

/// Replaces all refs of the mirror with the refs in `packed`, which has the format of `packed-refs`. The file
/// `packed-refs` is replaced atomically, so that git never sees a part of the change. git itself would create a file
/// for each ref, which takes 20 s for 40,000 refs.
pub(crate) fn write_refs(mirror: &Path, packed: &str) -> io::Result<()> {
    upstream_credentials::write(&mirror.join("packed-refs.new"), packed.as_bytes())?;
    fs::rename(mirror.join("packed-refs.new"), mirror.join("packed-refs"))?;
    remove_loose_refs(mirror)
}

/// Returns whether the mirror is a shallow repository, because the upstream was shallow at the last fetch.
pub(crate) fn is_shallow(mirror: &Path) -> bool {
    fs::metadata(mirror.join("shallow")).is_ok_and(|file| file.len() > 0)
}

/// Removes the refs that are in separate files, because they would hide the refs in `packed-refs`.
fn remove_loose_refs(mirror: &Path) -> io::Result<()> {
    remove(&mirror.join("refs"), &|_| true)
}

/// Replaces a mirror by an empty mirror with the object format `format`.
pub(crate) fn recreate(mirror: &Path, format: ObjectFormat) -> io::Result<()> {
    for part in ["refs", "objects"] {
        fs::remove_dir_all(mirror.join(part))?;
    }
    for file in ["packed-refs", "shallow"] {
        remove_if_present(&mirror.join(file))?;
    }
    make(mirror.parent().unwrap_or(mirror), mirror, format)
}

/// Creates the directories and files of a mirror that do not exist yet. Overwrites the configuration and the
/// hook, and removes files that a killed gate left behind.
pub(crate) fn make(directory: &Path, mirror: &Path, format: ObjectFormat) -> io::Result<()> {
    let make = |path: PathBuf| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    for part in ["objects/info", "objects/pack", "refs", KNOWN] {
        make(mirror.join(part))?;
    }
    match symlink("../objects/pack", mirror.join(KNOWN).join("pack")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    make(directory.join("hooks"))?;
    for (name, script) in [("pre-receive", HOOK), ("proc-receive", REPORT_HOOK)] {
        let hook = directory.join("hooks").join(name);
        upstream_credentials::write(&hook, script.as_bytes())?;
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o700))?;
    }
    upstream_credentials::write(&mirror.join("config"), [head(format), CONFIG].concat().as_bytes())?;
    if !mirror.join("HEAD").exists() {
        upstream_credentials::write(&mirror.join("HEAD"), b"ref: refs/heads/main\n")?;
    }
    let begins = |with: &'static str| move |name: &str| name.starts_with(with);
    // Removes incomplete packs and lock files that a killed gate left behind.
    remove(&mirror.join("objects"), &begins("tmp_"))?;
    remove(&mirror.join("objects/pack"), &begins("tmp_"))?;
    remove_loose_refs(mirror)?;
    unlock(mirror)
}

/// Removes all of git's lock files. There are no lock files for refs, because git does not change the refs of a mirror.
pub(crate) fn unlock(mirror: &Path) -> io::Result<()> {
    remove(mirror, &|name| name.ends_with(".lock"))
}

/// Removes the entries of `directory` for whose names `named` returns true.
pub(crate) fn remove(directory: &Path, named: &impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match (named(&entry.file_name().to_string_lossy()), entry.file_type()?.is_dir()) {
            (true, true) => fs::remove_dir_all(entry.path())?,
            (true, false) => fs::remove_file(entry.path())?,
            (false, _) => {}
        }
    }
    Ok(())
}
