//! Checks the directory that `--cwd=live` mounts. The agent may change the files of this directory. The checks refuse a
//! directory through which the agent could reach other things of the user, such as keys, sockets or repositories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_host::Host;
use bottle_host::directory_walk::{Bounds, MAX_DEPTH, Next, Walked, walk};
use bottle_instance::live_directory::{identify, identify_again};
use bottle_plan::LiveDirectory;
use bottle_policy::names::Slug;
use rustix::fs::FileType;

use super::copied::{Named, require_no_home};
use crate::failure::Failure;
use crate::text::one_line;

/// The bounds of the search in the directory. A larger directory is refused, because parts of it would be unchecked.
const BOUNDS: Bounds = Bounds { entries: 2_000_000, time: Duration::from_secs(30) };

/// System directories, whose files other programs use.
const SYSTEM: [&str; 12] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/lib"];

/// Directories of keys and credentials. A directory that contains one of them is refused. `.docker` only causes a
/// warning, because projects also use it for other files.
const KEY_DIRECTORIES: [&str; 6] = [".ssh", ".gnupg", ".aws", ".azure", ".kube", ".password-store"];

const COPY_INSTEAD: &str = "`--cwd` copies the directory instead";

/// A checked directory.
pub(crate) struct Live {
    /// The directory, in the form that the plan contains.
    pub directory: LiveDirectory,
    /// The warnings for the user before the start.
    pub warnings: Vec<String>,
}

/// Checks the directory that a new bottle mounts.
///
/// # Errors
/// Returns a [`Failure`] of kind usage if the agent could reach more than the directory's files.
pub(crate) fn check(host: &Host, directory: &Path) -> Result<Live, Failure> {
    require_no_home(host, directory, "mount")?;
    let live = identify(directory).map_err(|error| refused(directory, &error.to_string(), COPY_INSTEAD))?;
    require_project(host, &live)?;
    let contents = Contents::of(&live)?;
    contents.require_harmless(&live.path)?;
    let mut warnings = Vec::new();
    if live.repository.is_none() {
        warnings.push(
            "--cwd=live: there is no .git here, so the agent's commits are not the bottle's".to_owned(),
        );
    }
    warnings.extend(contents.private.line("--cwd=live gives the agent private files"));
    Ok(Live { directory: live, warnings })
}

/// Checks the directory of a bottle that is resumed. Repositories, sockets and pipes in the directory only cause
/// warnings, because the bottle may have created them.
///
/// # Errors
/// Returns a [`Failure`] of kind state if the directory was replaced since the bottle's last start.
pub(crate) fn check_again(host: &Host, slug: &Slug, before: &LiveDirectory) -> Result<Live, Failure> {
    let live = identify_again(before).map_err(|changed| {
        let path = before.path.display();
        Failure::state(format!("cannot mount {}: {changed}", one_line(&path.to_string()))).about(slug).hint(
            format!(
                "`bottle cp {slug}:.git DIRECTORY` copies the bottle's repository out; \
                 `bottle start --cwd=live` starts a new bottle"
            ),
        )
    })?;
    require_project(host, &live)?;
    let contents = Contents::of(&live)?;
    let warnings = [
        contents.private.line("--cwd=live gives the agent private files"),
        contents.repositories.line("--cwd=live gives the agent repositories"),
        contents.sockets.line("--cwd=live gives the agent sockets or pipes"),
    ];
    Ok(Live { directory: live, warnings: warnings.into_iter().flatten().collect() })
}

/// Refuses a directory that is not only the directory of a project, for example a system directory.
fn require_project(host: &Host, live: &LiveDirectory) -> Result<(), Failure> {
    const PROJECT: &str = "use the directory of a project";
    let path = &live.path;
    let own = [&host.home, &host.runtime].map(|own| own.canonicalize().unwrap_or_else(|_| own.clone()));
    if own.iter().any(|own| own.starts_with(path) || path.starts_with(own)) {
        return Err(refused(path, "it contains files of bottle, or is among them", PROJECT));
    }
    if let Some(system) = SYSTEM.iter().find(|system| path.starts_with(system)) {
        return Err(refused(path, &format!("{system} belongs to the system"), PROJECT));
    }
    if path.components().any(|part| is_key_directory(part.as_os_str()) || part.as_os_str() == ".git") {
        return Err(refused(path, "it is in a directory of keys or of a repository", PROJECT));
    }
    if !rustix::process::geteuid().is_root() && !is_own(live.uid) {
        let why = format!("it belongs to user {}, and the files of the agent would not", live.uid);
        return Err(refused(path, &why, COPY_INSTEAD));
    }
    match mount_below(path) {
        Some(inner) => {
            let why = format!("{} in it is a mount point", one_line(&inner.display().to_string()));
            Err(refused(path, &why, COPY_INSTEAD))
        }
        None => Ok(()),
    }
}

/// The result of the search in a directory.
#[derive(Default)]
struct Contents {
    repositories: Named,
    sockets: Named,
    keys: Named,
    private: Named,
    unreadable: Vec<PathBuf>,
}

impl Contents {
    fn of(live: &LiveDirectory) -> Result<Self, Failure> {
        let mut found = Self::default();
        let walked = walk(&live.path, BOUNDS, &mut |entry| {
            let name = entry.name();
            if name.eq_ignore_ascii_case(".git") {
                // The bottle's own repository hides a `.git` at the top of the directory.
                if entry.path.components().count() > 1 || live.repository.is_none() {
                    found.repositories.note(entry.path);
                }
                return Next::Skip;
            }
            match entry.kind {
                FileType::Socket | FileType::Fifo => found.sockets.note(entry.path),
                FileType::Directory if is_key_directory(name) => found.keys.note(entry.path),
                FileType::RegularFile => found.private.note_private(entry.path),
                _ => {}
            }
            Next::Enter
        });
        let Walked { bound, unreadable, too_deep } =
            walked.map_err(|error| Failure::path("mount", &live.path, error))?;
        if let Some(bound) = bound {
            return Err(refused(&live.path, &bound.to_string(), COPY_INSTEAD));
        }
        if !too_deep.is_empty() {
            let why = format!("its directories are more than {MAX_DEPTH} deep");
            return Err(refused(&live.path, &why, COPY_INSTEAD));
        }
        found.unreadable = unreadable;
        Ok(found)
    }

    fn require_harmless(&self, path: &Path) -> Result<(), Failure> {
        if let Some(names) = self.repositories.shown() {
            let why = format!("the agent could change repositories in it: {names}");
            return Err(refused(path, &why, COPY_INSTEAD));
        }
        if let Some(names) = self.sockets.shown() {
            let why = format!("the agent could connect to sockets or pipes in it: {names}");
            return Err(refused(path, &why, "remove them; or `--cwd` copies the directory without them"));
        }
        if let Some(names) = self.keys.shown() {
            return Err(refused(path, &format!("it contains keys: {names}"), COPY_INSTEAD));
        }
        // An unreadable directory of the user is refused, because the agent could make it readable.
        let own = |inside: &&PathBuf| path.join(inside).symlink_metadata().is_ok_and(|it| is_own(it.uid()));
        match self.unreadable.iter().find(own) {
            Some(inside) => {
                let why = format!("{} cannot be read", one_line(&inside.display().to_string()));
                Err(refused(path, &why, "make it readable; or `--cwd` copies the directory"))
            }
            None => Ok(()),
        }
    }
}

fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

fn is_key_directory(name: &OsStr) -> bool {
    KEY_DIRECTORIES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn refused(path: &Path, why: &str, hint: &str) -> Failure {
    Failure::usage(format!("cannot mount {}: {why}", one_line(&path.display().to_string())))
        .about("--cwd")
        .hint(hint)
}

/// Returns a mount point below a directory, from the kernel's list of mounts. A system without this list has no mount
/// points that matter for this check.
fn mount_below(directory: &Path) -> Option<PathBuf> {
    let list = std::fs::read("/proc/self/mountinfo").ok()?;
    let points = list.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(unescaped).find_map(|point| {
        let inside = point.strip_prefix(directory).ok()?;
        (!inside.as_os_str().is_empty()).then(|| inside.to_owned())
    })
}

/// Decodes a path of the kernel's list of mounts. The list contains some bytes as three octal digits after a backslash
/// (proc(5)).
fn unescaped(escaped: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_escaped_paths_of_mounts() {
        for (escaped, path) in
            [("/a\\040b", "/a b"), ("/a\\134b", "/a\\b"), ("/a\\9", "/a\\9"), ("/", "/"), ("\\04", "\\04")]
        {
            assert_eq!(unescaped(escaped.as_bytes()), Path::new(path), "{escaped}");
        }
        assert_eq!(mount_below(Path::new("/nowhere/at/all")), None);
    }
}
